"""ONNX Runtime's hashes, as its CPU kernels compute them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.optable.registry import op

_WORD = 0xFFFFFFFF


def _turned(x: Any, bits: int) -> Any:
    return ((x << bits) | (x >> (32 - bits))) & _WORD


def _stirred(k: Any) -> Any:
    """Returns a word as it is mixed into the hash; all words are numbers of 32 bits in integers of 64."""
    return (_turned((k * 0xCC9E2D51) & _WORD, 15) * 0x1B873593) & _WORD


def _hash(h: Any, words: list[Any], tail: Any, length: int) -> Any:
    """Returns MurmurHash3_x86_32 of `words`, then of a `tail` of fewer than four bytes (None for none)."""
    for word in words:
        h = (_turned(h ^ _stirred(word), 13) * 5 + 0xE6546B64) & _WORD
    if tail is not None:
        h = h ^ _stirred(tail)
    h = h ^ length
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _WORD
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _WORD
    return h ^ (h >> 16)


def _of_text(text: str, seed: int) -> int:
    data = text.encode()
    whole = len(data) // 4 * 4
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, whole, 4)]
    tail = int.from_bytes(data[whole:], "little") if len(data) > whole else None
    return int(_hash(seed, words, tail, len(data)))


def _results_of_hash(F: Any, X: Any, *, positive: int = 1, seed: int = 0) -> Any:
    return [([*X.shape], F.uint32 if positive else F.int32)]


@op("MurmurHash3", 1, domain=MICROSOFT, call="opaque", results=_results_of_hash)
def murmur_hash3(F: Any, X: Any, *, positive: int = 1, seed: int = 0) -> Any:
    """MurmurHash3_x86_32 of each element's bytes, of a string's in UTF-8."""
    seed = seed & _WORD
    dtype = F.uint32 if positive else F.int32
    if isinstance(X, np.ndarray):
        hashes = [_of_text(text, seed) for text in X.flat]
        return F.tensor(hashes, dtype=F.int64).reshape(X.shape).to(dtype)
    size = X.dtype.itemsize
    if size not in (4, 8):
        raise OperatorError(f"the hash of {X.dtype} is not defined.")
    if X.is_floating_point() or X.dtype in (F.uint32, F.uint64):
        X = X.view(F.int32 if size == 4 else F.int64)
    bits = X.to(F.int64)
    words = [bits & _WORD] if size == 4 else [bits & _WORD, (bits >> 32) & _WORD]
    return _hash(F.full_like(bits, seed), words, None, size).to(dtype)


def _shifted(F: Any, ids: Any, past: Any, k: int, kept: int) -> Any:
    """Returns the ids `k` positions earlier, those before the first from the past `(N, kept)`."""
    return F.cat([past, ids], 1)[:, kept - k : kept - k + ids.shape[1]]


def _hashes(
    F: Any,
    shifted: list[Any],
    resets: Any,
    multipliers: Any,
    vocab_sizes: Any,
    head_offsets: Any,
    fill: Any,
    heads: int,
) -> Any:
    """Returns the hashes of the n-grams of ids, `(..., heads of all orders)`.

    Args:
        F: the namespace.
        shifted: the ids, then the ids one position earlier and so on.
        resets: for each shift, where a boundary lies between the id and the shifted one; None for nowhere.
        multipliers: one number a shift.
        vocab_sizes: one number a head.
        head_offsets: likewise, or None.
        fill: the id in front of a boundary.
        heads: the number of heads of each order.
    """
    mix, reset, found = shifted[0] * multipliers[0], None, []
    for k in range(1, len(shifted)):
        if resets[k] is not None:
            reset = resets[k] if reset is None else reset | resets[k]
        ids = shifted[k] if reset is None else F.where(reset, fill, shifted[k])
        mix = mix ^ (ids * multipliers[k])
        sizes = vocab_sizes[(k - 1) * heads : k * heads]
        found.append(F.remainder(mix.unsqueeze(-1), sizes))
    hashes = F.cat(found, -1)
    return hashes if head_offsets is None else hashes + head_offsets


@op("NGramHashMapping", 1, domain=MICROSOFT)
def ngram_hash_mapping(
    F: Any,
    input_ids: Any,
    multipliers: Any,
    vocab_sizes: Any,
    past_ids: Any = None,
    head_offsets: Any = None,
    eos_token_id: Any = None,
    segment_ids: Any = None,
    *,
    max_ngram_size: int,
    n_head_per_ngram: int,
    pad_id: int,
    reset_on_eos: int = 0,
    _outputs: int = 1,
) -> Any:
    """Hashes `(N, L, heads)` of the n-grams up to each id, of sizes 2 to max_ngram_size, and the last ids."""
    kept = max_ngram_size - 1
    fill = F.full_like(input_ids[:1, :1], pad_id) if eos_token_id is None else eos_token_id.reshape(1, 1)
    past = fill.expand(input_ids.shape[0], kept) if past_ids is None else past_ids
    shifted = [input_ids, *(_shifted(F, input_ids, past, k, kept) for k in range(1, max_ngram_size))]
    resets: list[Any] = [None] * max_ngram_size
    if reset_on_eos and eos_token_id is not None:
        resets = [None, *(ids == fill for ids in shifted[1:])]
    if segment_ids is not None:
        first = segment_ids[:, :1]
        starts = segment_ids != F.cat([first, segment_ids[:, :-1]], 1)
        none = F.zeros_like(past, dtype=F.bool)
        for k in range(1, max_ngram_size):
            boundary = _shifted(F, starts, none, k - 1, kept)
            resets[k] = boundary if resets[k] is None else resets[k] | boundary
    hashes = _hashes(F, shifted, resets, multipliers, vocab_sizes, head_offsets, fill, n_head_per_ngram)
    return hashes if _outputs == 1 else (hashes, F.cat([past, input_ids], 1)[:, -kept:])


def _results_of_varlen(
    F: Any, input_ids: Any, multipliers: Any, vocab_sizes: Any, cumulative_sequence_length: Any, *others: Any,
    max_ngram_size: int, n_head_per_ngram: int, state_update_capacity: int = 0, **attributes: Any,
) -> Any:  # fmt: skip
    kept, batch, dtype = max_ngram_size - 1, cumulative_sequence_length.shape[0] - 1, input_ids.dtype
    return [
        ([input_ids.shape[0], kept * n_head_per_ngram], dtype),
        ([batch, kept], dtype),
        ([batch, kept], F.int32),
        ([batch, state_update_capacity, kept], dtype),
    ]


@op("VarlenNGramHashMapping", 1, domain=MICROSOFT, call="opaque", results=_results_of_varlen)
def varlen_ngram_hash_mapping(
    F: Any,
    input_ids: Any,
    multipliers: Any,
    vocab_sizes: Any,
    cumulative_sequence_length: Any,
    past_ids: Any = None,
    head_offsets: Any = None,
    eos_token_id: Any = None,
    segment_ids: Any = None,
    past_segment_ids: Any = None,
    capture_count: Any = None,
    *,
    max_ngram_size: int,
    n_head_per_ngram: int,
    pad_id: int,
    reset_on_eos: int = 0,
    state_update_capacity: int = 0,
    _outputs: int = 1,
) -> tuple[Any, ...]:
    """NGramHashMapping of requests whose ids, `(tokens,)`, stand one behind the other.

    Segments and captured states are refused: what they hold in front of a request is not documented in full.
    """
    if segment_ids is not None or past_segment_ids is not None or state_update_capacity or _outputs > 2:
        raise OperatorError("segment_ids and state_update_capacity are not supported. Leave them out.")
    hashes, present = [], []
    ends = cumulative_sequence_length.tolist()
    for i, (start, end) in enumerate(itertools.pairwise(ends)):
        past = None if past_ids is None else past_ids[i : i + 1]
        found, last = ngram_hash_mapping(
            F, input_ids[start:end].unsqueeze(0), multipliers, vocab_sizes, past, head_offsets, eos_token_id,
            max_ngram_size=max_ngram_size, n_head_per_ngram=n_head_per_ngram, pad_id=pad_id, reset_on_eos=reset_on_eos,
            _outputs=2,
        )  # fmt: skip
        hashes.append(found.squeeze(0))
        present.append(last)
    return (F.cat(hashes), F.cat(present))[:_outputs]
