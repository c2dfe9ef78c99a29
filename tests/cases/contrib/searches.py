"""Cases of ONNX Runtime's searches for tokens.

Only the tokens up to the first end of all sequences are compared: ONNX Runtime's GreedySearch leaves what follows to
chance. Cases of several tokens therefore have an end that does not come (token 8), or beams, which are padded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import Case
from tests.cases.contrib.fused import ms
from tests.decoders import VOCABULARY, decoder, encoder_and_decoder

_IDS = np.array([[0, 3, 5], [4, 1, 7]], np.int32)
_ALLOWED = np.array([1, 1, 1, 1, 0, 1, 1, 0, 1], np.int32)
_FIRST = np.array([[1] * 9, [0, 0, 1, 1, 1, 1, 0, 0, 1]], np.int32)
_NEVER = np.array([1] * 8 + [0], np.int32)
"""The mask of a vocabulary without the end."""


def _int(value: int) -> np.ndarray:
    return np.array([value], np.int32)


def _float(value: float) -> np.ndarray:
    return np.array([value], np.float32)


def _greedy(
    min_length: Any = None, penalty: Any = None, allowed: Any = _NEVER, *others: Any, operator: str = "GreedySearch",
    length: int = 9, **options: Any,
) -> Case:  # fmt: skip
    options = {"eos_token_id": 8, "pad_token_id": 0, "decoder": decoder(1), **options}
    return ms(operator, _IDS, _int(length), min_length, penalty, allowed, *others, **options)


def _beam(
    beams: int = 3, returned: int = 2, *others: Any, ids: Any = _IDS, length: int = 9, penalty: float = 1.0,
    min_length: int = 0, **options: Any,
) -> Case:  # fmt: skip
    inputs = [ids, _int(length), _int(min_length), _int(beams), _int(returned), _float(penalty), *others]
    options = {"eos_token_id": 8, "pad_token_id": 0, "decoder": decoder(1), "outputs": 2, "tolerance": 1e-4, **options}
    return ms("BeamSearch", *inputs, **options)


def _encoded(begins: bool, hidden: bool, *args: Any, **options: Any) -> Case:
    encoder, behind = encoder_and_decoder(3, begins, hidden)
    options = {"model_type": 1, "decoder_start_token_id": 2, "encoder": encoder, "decoder": behind, **options}
    return _beam(*args, **options)


CASES = [
    _greedy(note="plain"),
    _greedy(None, _float(1.5), note="penalty of repetitions"),
    _greedy(None, None, _ALLOWED, _FIRST, length=4, note="masks"),
    _greedy(None, None, _NEVER, None, np.array([[1, 0, 1], [1, 1, 1]], np.int32), note="mask of the prompt"),
    _greedy(no_repeat_ngram_size=2, note="no run twice"),
    _greedy(_int(9), None, None, note="no end before", pad_token_id=5),
    _greedy(init_decoder=decoder(2), note="another first decoder"),
    _greedy(operator="Sampling", top_p=1e-6, min_tokens_to_keep=1, note="one token"),
    _greedy(None, _float(1.2), _NEVER, None, None, (np.arange(18) % 2).reshape(2, 9).astype(np.int32), _int(7), operator="Sampling",
            top_p=1e-6, custom=1, temperature=0.7, presence_penalty=2.0, no_repeat_ngram_size=2, note="one token, custom"),
    _beam(note="plain"),
    _beam(1, 1, note="one beam"),
    _beam(4, 4, penalty=0.5, early_stopping=1, eos_token_id=3, note="early stopping"),
    _beam(3, 2, _float(1.5), _ALLOWED, _FIRST, no_repeat_ngram_size=2, eos_token_id=5, note="scores"),
    _beam(3, 1, min_length=6, eos_token_id=1, length=4 + 3, outputs=3, note="scores of the steps"),
    _beam(2, 1, None, None, None, np.array([[1, 0, 1], [1, 1, 1]], np.int32), init_decoder=decoder(2), note="first decoder"),
    _encoded(True, False, note="encoder that begins"),
    _encoded(True, True, 2, 2, eos_token_id=4, early_stopping=1, note="encoder's result"),
    _encoded(False, False, 3, 3, _float(1.3), min_length=3, eos_token_id=4, note="encoder alone"),
    _encoded(True, False, 1, 1, None, None, None, np.array([[1, 0, 1], [1, 1, 1]], np.int32), note="encoder's mask"),
]  # fmt: skip
assert _NEVER.size == VOCABULARY
