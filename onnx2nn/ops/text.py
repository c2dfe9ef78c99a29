"""Strings: tensors of strings are numpy object arrays of `str`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ground.extras import require
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import has_values


def strings(values: Sequence[str]) -> np.ndarray[Any, Any]:
    """Returns a 1-D object array of `values`."""
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array


def _map(function: Any, X: Any) -> np.ndarray[Any, Any]:
    """Returns the object array of the results of `function` on each element of `X`."""
    return strings([function(item) for item in X.flat]).reshape(X.shape)


@op("StringConcat", 20, call="opaque")
def string_concat(F: Any, X: Any, Y: Any) -> Any:
    return np.asarray(np.add(X, Y, dtype=object), dtype=object)


def _words(text: str, limit: int) -> list[str]:
    """Returns the parts between runs of spaces; the last has what is left after `limit` splits, if that is >= 0."""
    text = text.strip(" ")
    if not text or limit == 0:
        return [text] if text else []
    return re.split(" +", text, maxsplit=max(limit, 0))  # 0 is no limit there


@op("StringSplit", 20, call="opaque")
def string_split(F: Any, X: Any, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Any, ...]:
    """Without a delimiter, or with an empty one, it splits at runs of spaces; `""` pads shorter results.

    As in ONNX Runtime, other white space is text, and an empty text has no parts.
    """
    limit = -1 if maxsplit is None else maxsplit
    parts = [(text.split(delimiter, limit) if delimiter else _words(text, limit)) if text else [] for text in X.flat]
    counts = [len(items) for items in parts]
    width = max(counts, default=0)
    padded = [item for items in parts for item in (*items, *[""] * (width - len(items)))]
    return strings(padded).reshape((*X.shape, width)), F.tensor(counts, dtype=F.int64).reshape(X.shape)


@op("RegexFullMatch", 20, call="opaque")
def regex_full_match(F: Any, X: Any, *, pattern: str | None = None) -> Any:
    """The pattern is RE2's, matched by RE2: Python's `re` differs and takes exponential time on some patterns."""
    re2 = require("re2", extra="text", purpose="Matching regular expressions")
    try:
        options = re2.Options()
        options.never_capture = True  # a match takes memory for each group
        compiled = re2.compile(pattern or "", options)
    except re2.error as error:
        raise OperatorError(f"pattern={pattern!r} is no RE2 pattern: {error}") from None
    matches = [compiled.fullmatch(text) is not None for text in X.flat]
    return F.tensor(matches, dtype=F.bool).reshape(X.shape)


_DOTTED = {"i": "\u0130", "\u0131": "I"}, {"I": "\u0131", "\u0130": "i"}
"""Upper and lower case of the two kinds of i in Turkish and Azerbaijani."""


def _change_case(text: str, action: str, locale: str) -> str:
    """Returns `text` in upper or lower case, character by character as in ONNX Runtime (`"ß"` stays)."""
    if action == "NONE":
        return text
    upper = action == "UPPER"
    special = _DOTTED[0 if upper else 1] if locale.split("_")[0] in ("tr", "az") else {}

    def changed(character: str) -> str:
        other = special.get(character) or (character.upper() if upper else character.lower())
        return other if len(other) == 1 else character

    return "".join(map(changed, text))


@op("StringNormalizer", 10, choices={"case_change_action": ("NONE", "LOWER", "UPPER")}, call="opaque")
def string_normalizer(
    F: Any,
    X: Any,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] | None = None,
) -> Any:
    """Where every string is a stop word, the result is one empty string."""
    if case_change_action not in ("NONE", "LOWER", "UPPER"):
        raise OperatorError(f"case_change_action={case_change_action!r} is none of NONE, LOWER, UPPER.")
    if X.ndim not in (1, 2) or (X.ndim == 2 and X.shape[0] != 1):
        raise OperatorError(f"its input has the shape {list(X.shape)}, [C] or [1, C] is needed.")
    language = locale or "en_US"

    def key(text: str) -> str:
        return text if is_case_sensitive else _change_case(text, "LOWER", language)

    stops = {key(word) for word in stopwords or ()}
    kept = [_change_case(text, case_change_action, language) for text in X.flat if not stops or key(text) not in stops]
    return strings(kept or [""]).reshape((1,) * (X.ndim - 1) + (-1,))


@lru_cache(maxsize=64)
def _grams(
    pool: tuple[Any, ...], counts: tuple[int, ...], indexes: tuple[int, ...], shortest: int, longest: int
) -> dict[int, dict[tuple[Any, ...], int]]:
    """Returns the pool's n-grams by length, from `shortest` to `longest`, each with its output column."""
    tables: dict[int, dict[tuple[Any, ...], int]] = {}
    column = itertools.count()
    ends = [*counts[1:], len(pool)]
    for length, (start, end) in enumerate(zip(counts, ends, strict=True), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % length:
            raise OperatorError(f"ngram_counts={list(counts)} does not divide a pool of {len(pool)} items.")
        grams = (pool[i : i + length] for i in range(start, end, length))
        numbered = {gram: next(column) for gram in grams}
        if shortest <= length <= longest:
            tables[length] = numbered
    if next(column) > len(indexes):
        raise OperatorError(f"ngram_indexes has {len(indexes)} entries, which are fewer than the pool's n-grams.")
    return {length: {gram: indexes[i] for gram, i in table.items()} for length, table in tables.items()}


def _steps(length: int, max_skip_count: int, count: Any) -> range:
    """Returns the distances of the items of an n-gram that fit a row of `count` items, an int or a dynamic size."""
    if length == 1:
        return range(1, 2)
    return range(1, (min(max_skip_count + 1, count - 1) if isinstance(count, int) else max_skip_count + 1) + 1)


def _compared(F: Any, X: Any, tables: dict[int, dict[tuple[Any, ...], int]], max_skip_count: int, columns: int) -> Any:
    """Returns the counts of the n-grams where values are not known: each position is compared with each n-gram."""
    rows = X if X.ndim == 2 else X.unsqueeze(0)
    counts = F.zeros([rows.shape[0], columns], dtype=F.float32)
    for length, table in tables.items():
        grams = F.tensor(list(table), dtype=X.dtype).reshape(-1, length)
        for step in _steps(length, max_skip_count, rows.shape[1]):
            width = rows.shape[1] - (length - 1) * step
            if width > 0:
                places = F.stack([rows.narrow(1, i * step, width) for i in range(length)], -1)
                hits = (places.unsqueeze(2) == grams).all(-1).sum(1, dtype=F.float32)
                counts = counts.index_add(1, F.tensor(list(table.values())), hits)
    return counts.reshape(-1) if X.ndim == 1 else counts


def _results_of_vectorizer(F: Any, X: Any, *, ngram_indexes: Sequence[int], **others: Any) -> Any:
    return [([*X.shape[:-1], max(ngram_indexes, default=-1) + 1], F.float32)]


@op(
    "TfIdfVectorizer",
    9,
    choices={"mode": ("TF", "IDF", "TFIDF")},
    call="opaque",
    results=_results_of_vectorizer,
    traits=["number_by_number"],
)
def tf_idf_vectorizer(
    F: Any,
    X: Any,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Any:
    """Counts n-grams whose items lie `1 + skip` apart, for every skip up to `max_skip_count` (for 1-grams only 0).

    IDF gives the weight of an n-gram that occurs, TFIDF its weight times its count.
    """
    if mode not in ("TF", "IDF", "TFIDF"):
        raise OperatorError(f"mode={mode!r} is none of TF, IDF, TFIDF.")
    pool = tuple(pool_strings or pool_int64s or ())
    tables = _grams(pool, tuple(ngram_counts), tuple(ngram_indexes), min_gram_length, max_gram_length)
    columns = max(ngram_indexes, default=-1) + 1
    scale = np.ones(columns, dtype=np.float32)
    if mode != "TF":
        scale[np.asarray(ngram_indexes)] = np.asarray(weights if weights else [1.0] * len(ngram_indexes))
    if isinstance(X, F.Tensor) and not has_values(F, X):
        found = _compared(F, X, tables, max_skip_count, columns)
        return (found > 0) * F.from_numpy(scale) if mode == "IDF" else found * F.from_numpy(scale)
    rows = X.tolist() if X.ndim == 2 else [X.tolist()]
    counts = np.zeros((len(rows), columns), dtype=np.float32)
    for row, items in enumerate(rows):
        hits = [
            table[gram]
            for length, table in tables.items()
            for step in _steps(length, max_skip_count, len(items))
            for gram in zip(*(items[i * step :] for i in range(length)), strict=False)
            if gram in table
        ]
        counts[row] = np.bincount(np.asarray(hits, dtype=np.int64), minlength=columns)
    counts = (counts > 0) * scale if mode == "IDF" else counts * scale
    return F.from_numpy(counts.reshape(-1) if X.ndim == 1 else counts)
