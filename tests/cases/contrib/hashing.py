"""Cases of ONNX Runtime's hashes."""

from __future__ import annotations

import numpy as np

from tests.cases import Case, of
from tests.cases.contrib.fused import ms

_TEXTS = np.array([["", "a", "ab"], ["abc", "abcd", "größer 語"]], dtype=object)
_EDGES = np.array([0, -1, 2**31 - 1, -(2**31)], np.int32)
_RNG = np.random.default_rng(3)


def _ngrams(dtype: type, *others: object, **options: object) -> Case:
    inputs = [_RNG.integers(0, 6, (2, 7)).astype(dtype), np.array([7, -123456789, 987654321], dtype),
              np.array([7, 11, 13, 17], dtype)]  # fmt: skip
    attributes = {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 3, "outputs": 2, **options}
    return ms("NGramHashMapping", *inputs, *others, **attributes)


def _ids(dtype: type) -> np.ndarray:
    return _RNG.integers(0, 6, (2, 2)).astype(dtype)


_SEGMENTS = np.array([[0, 0, 1, 1, 1, 2, 2], [5, 5, 5, 5, 4, 4, 4]], np.int32)

CASES = [
    ms("MurmurHash3", _TEXTS),
    ms("MurmurHash3", _TEXTS, positive=0, seed=42),
    ms("MurmurHash3", _EDGES),
    ms("MurmurHash3", _EDGES, positive=0, seed=7),
    ms("MurmurHash3", _EDGES.view(np.uint32), note="uint32"),
    ms("MurmurHash3", np.array([0, -1, 2**63 - 1, 123456789012]), note="int64"),
    ms("MurmurHash3", np.array([2**64 - 1, 5], np.uint64), note="uint64"),
    ms("MurmurHash3", of(np.float32, 3, 4), seed=4294967295),
    ms("MurmurHash3", of(np.float64, 3, 4), note="float64"),
    *(
        _ngrams(dtype, *others, note=f"{dtype.__name__} {note}", **options)
        for dtype in (np.int32, np.int64)
        for note, others, options in (
            ("plain", (), {}),
            ("past", (_ids(dtype),), {}),
            ("offsets", (None, np.array([100, 200, 300, 400], dtype)), {}),
            ("end", (None, None, np.array(2, dtype)), {}),
            ("reset", (_ids(dtype), None, np.array(2, dtype)), {"reset_on_eos": 1}),
            ("segments", (_ids(dtype), None, None, _SEGMENTS), {}),
            ("all", (_ids(dtype), np.array([5, 6, 7, 8], dtype), np.array(2, dtype), _SEGMENTS), {"reset_on_eos": 1}),
        )
    ),
    *(
        ms(
            "VarlenNGramHashMapping",
            _RNG.integers(0, 6, 8).astype(dtype),
            np.array([7, -123456789, 987654321], dtype),
            np.array([7, 11, 13, 17], dtype),
            np.array([0, 1, 6, 8], np.int32),
            *others,
            max_ngram_size=3,
            n_head_per_ngram=2,
            pad_id=3,
            outputs=2,
            note=f"{dtype.__name__} {len(others)}",
            **options,
        )
        for dtype in (np.int32, np.int64)
        for others, options in (
            ((), {}),
            (
                (_RNG.integers(0, 6, (3, 2)).astype(dtype), np.array([5, 6, 7, 8], dtype), np.array(2, dtype)),
                {"reset_on_eos": 1},
            ),
        )
    ),
    _ngrams(np.int64, max_ngram_size=2, n_head_per_ngram=4, note="pairs"),
]
