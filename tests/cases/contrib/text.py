"""Cases of ONNX Runtime's operators on strings, words and token ids."""

from __future__ import annotations

import numpy as np

from tests.cases import f32, i64, of
from tests.cases.contrib.fused import ms

_LINES = np.array([["a,b;c  d", "xx,,yy"], ["", "é,語z"]], dtype=object)
_EMPTY = np.array([",", ""], dtype=object)
_WORDS = np.array([[1, 4, 2, 0, 0], [3, 0, 0, 0, 0], [5, 5, 1, 2, 3]], np.int32)
_TOKENS = np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]])


def _tokens(texts: np.ndarray, mark: int = 0, mincharnum: int = 1, **options: object) -> object:
    return ms("Tokenizer", texts, mark=mark, mincharnum=mincharnum, pad_value="#", **options)


CASES = [
    *(
        _tokens(_LINES, mark, shortest, separators=separators)
        for separators in ([",", ";"], [",+", " "], [" ", "a|ab"])
        for mark in (0, 1)
        for shortest in (1, 2)
    ),
    _tokens(_LINES, separators=[""]),
    _tokens(_LINES[0], 1, tokenexp="."),
    _tokens(_LINES, 1, tokenexp="[a-z]+"),
    _tokens(_LINES[1], 0, 2, tokenexp="[a-z語]+"),
    _tokens(np.array(["abab", "aXbb"], dtype=object), tokenexp="a|ab", note="longest"),
    _tokens(_EMPTY, 1, separators=[","], note="nothing"),
    ms("WordConvEmbedding", _WORDS, f32(6, 1, 2, 4), f32(6), f32(7, 4), constant=(1, 2, 3)),
    ms("WordConvEmbedding", _WORDS, f32(6, 1, 3, 4), f32(6), f32(7, 4), embedding_size=6, conv_window_size=3,
       char_embedding_size=4),
    *(ms("NGramRepeatBlock", _TOKENS, f32(2, 7), ngram_size=size) for size in (1, 2, 3, 5, 6, 8)),
    ms("BifurcationDetector", i64(1, 2, 3, 4, 5), i64(1, 2), i64(0), outputs=2, note="no prediction"),
    *(
        ms("BifurcationDetector", i64(1, 2, 3, 2, 5), i64(*tokens), i64(start), i64(*predicted), outputs=2,
           note=f"{tokens} {start} {predicted}", **options)
        for tokens, start, predicted, options in (
            ((1, 2), 2, (3, 2, 5, 7), {}), ((1, 2), 2, (3, 7, 5, 7), {}), ((7,), 3, (2, 6, 1), {}),
            ((1,), 1, (2, 3, 4, 2, 3), {"max_ngram_size": 2}), ((9, 1, 2), 3, (4, 5, 2), {"min_ngram_size": 2}),
            ((3,), 4, (2, 5), {}),
        )
    ),
    ms("BifurcationDetector", i64(1, 2, 1, 2, 3), of(np.int64, 3), i64(5), i64(2), outputs=2, note="at the end"),
]  # fmt: skip
