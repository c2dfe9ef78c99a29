"""ONNX Runtime's operators on strings, words and token ids, as its CPU kernels compute them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ground.extras import require
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.text import strings
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import Counted


@lru_cache(maxsize=64)
def _expression(pattern: str) -> Any:
    """Returns RE2's expression, which prefers the longest match."""
    re2 = require("re2", extra="text", purpose="Splitting strings by regular expressions")
    options = re2.Options()
    options.longest_match = options.never_capture = True  # a match takes memory for each group
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise OperatorError(f"{pattern!r} is no RE2 pattern: {error}") from None


def _matches(pattern: str, text: str) -> list[tuple[int, int]]:
    spans = [match.span() for match in _expression(pattern).finditer(text)]
    if any(start == end for start, end in spans):
        raise OperatorError(f"{pattern!r} matches the empty string, for which no tokens are defined.")
    return spans


def _split(text: str, separators: Sequence[str], shortest: int) -> list[str]:
    """Returns the parts of `text` of `shortest` characters or more; each separator splits what the last one left."""
    parts = [text]
    for separator in separators:
        split = []
        for part in parts:
            start = 0
            for left, right in (*_matches(separator, part), (len(part), len(part))):
                split.append(part[start:left])
                start = right
        parts = [part for part in split if len(part) >= max(shortest, 1)]
    return parts


@op("Tokenizer", 1, domain=MICROSOFT, call="opaque")
def tokenizer(
    F: Any,
    X: Any,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] | None = None,
    tokenexp: str | None = None,
) -> Any:
    """The tokens of each string, padded to the longest row; without any token the last dimension is 0."""
    if (separators is None) == (tokenexp is None):
        raise OperatorError("Give it one of separators and tokenexp.")
    if X.ndim not in (1, 2):
        raise OperatorError(f"its input has the shape {list(X.shape)}, [C] or [N, C] is needed.")
    characters = tokenexp == "." or list(separators or ()) == [""]
    if characters and mincharnum > 1:
        raise OperatorError(f"mincharnum={mincharnum} is not defined for tokens of one character.")
    if characters:
        rows = [list(text) for text in X.flat]
    elif tokenexp is not None:
        rows = [[text[a:b] for a, b in _matches(tokenexp, text) if b - a >= mincharnum] for text in X.flat]
    else:
        rows = [_split(text, separators or (), mincharnum) for text in X.flat]
    if not any(rows):
        return np.empty((*X.shape, 0), dtype=object)
    rows = [["\x02", *row, "\x03"] for row in rows] if mark else rows
    width = max(map(len, rows))
    return strings([token for row in rows for token in (*row, *[pad_value] * (width - len(row)))]).reshape(
        (*X.shape, width)
    )


@op("WordConvEmbedding", 1, domain=MICROSOFT)
def word_conv_embedding(
    F: Any,
    Sequence: Any,
    W: Any,
    B: Any,
    C: Any,
    *,
    char_embedding_size: int | None = None,
    conv_window_size: int | None = None,
    embedding_size: int | None = None,
) -> Any:
    """The maximum over a word of tanh of a convolution over its characters, `(words, filters)`.

    Sequence: `(words, characters)`, 0 behind a word's end; W: `(filters, 1, window, features)`; C: `(codes, features)`.
    A word without characters gives 0; ONNX Runtime leaves its row undefined.
    """
    window = W.shape[2]
    for name, found, size in (
        ("char_embedding_size", char_embedding_size, C.shape[1]),
        ("conv_window_size", conv_window_size, window),
        ("embedding_size", embedding_size, W.shape[0]),
    ):
        if isinstance(size, int) and found not in (None, -1, size):
            raise OperatorError(f"{name}={found} does not fit its weights, which have {size}.")
    characters = (Sequence > 0).sum(1) * (Sequence[:, 0] > 0)
    embedded = F.nn.functional.embedding(Sequence, C).unsqueeze(1)
    Y = F.tanh(F.nn.functional.conv2d(embedded, W, B).squeeze(3))  # (words, filters, windows)
    inside = F.arange(Y.shape[2]) <= (characters.clamp(min=window) - window).unsqueeze(1)
    Y = F.where(inside.unsqueeze(1), Y, -2.0).amax(2)
    return F.where((characters > 0).unsqueeze(1), Y, 0.0)


def _results_of_repeats(F: Any, input_ids: Any, scores: Any, *, ngram_size: int) -> Any:
    return [([*scores.shape], scores.dtype)]


@op("NGramRepeatBlock", 1, domain=MICROSOFT, call="opaque", results=_results_of_repeats, custom_op=True)
def ngram_repeat_block(F: Any, input_ids: Any, scores: Any, *, ngram_size: int) -> Any:
    """Scores `(N, vocabulary)`, with -inf at the tokens that would repeat an n-gram of input_ids, `(N, L)`."""
    length = input_ids.shape[1]
    if ngram_size < 1:
        raise OperatorError(f"ngram_size={ngram_size} is not positive.")
    if length < ngram_size:
        return scores.clone()
    grams = input_ids.unfold(1, ngram_size, 1)  # (N, grams, size)
    tail = input_ids[:, length + 1 - ngram_size :].unsqueeze(1)
    repeated = (grams[..., :-1] == tail).all(-1)
    banned = F.zeros_like(scores).scatter_add(1, grams[..., -1], repeated.to(scores.dtype))
    return F.where(banned > 0, -float("inf"), scores)


def _results_of_bifurcation(
    F: Any, src_tokens: Any, cur_tokens: Any, prev_suffix_match_idx: Any, pred_tokens: Any = None, **attributes: Any
) -> Any:
    length = cur_tokens.shape[0]
    merged = length if pred_tokens is None else Counted("merged", length + pred_tokens.shape[0])
    return [([merged], F.int64), ([*prev_suffix_match_idx.shape], F.int64)]


@op("BifurcationDetector", 1, domain=MICROSOFT, call="opaque", results=_results_of_bifurcation)
def bifurcation_detector(
    F: Any,
    src_tokens: Any,
    cur_tokens: Any,
    prev_suffix_match_idx: Any,
    pred_tokens: Any = None,
    *,
    max_ngram_size: int = 3,
    min_ngram_size: int = 1,
) -> tuple[Any, ...]:
    """The tokens with the predicted ones up to the first that differs from the source, and where the source goes on.

    The source goes on behind the only place where the last n tokens stand in it, for the longest n that stand there;
    -1 where they stand in several places, or none.
    """
    source = src_tokens.tolist()
    tokens = cur_tokens.tolist()
    if pred_tokens is not None:
        start, predicted = int(prev_suffix_match_idx.flatten()[0]), pred_tokens.tolist()
        if not 0 <= start <= len(source) or len(predicted) != len(source) + 1 - start:
            raise OperatorError(f"{len(predicted)} predicted tokens do not fit {len(source)} tokens from {start} on.")
        same = 0
        while same < len(source) - start and predicted[same] == source[start + same]:
            same += 1
        tokens = [*tokens, *predicted[: same + 1]]
    found = -1
    for size in range(min_ngram_size, min(max_ngram_size, len(tokens)) + 1):
        gram = tokens[len(tokens) - size :]
        places = [i for i in range(len(source) - size + 1) if source[i : i + size] == gram]
        if not places:
            break
        found = places[0] + size
        if found >= len(source):
            break
        if len(places) > 1:
            found = -1
    return F.tensor(tokens, dtype=F.int64), F.full_like(prev_suffix_match_idx, found)
