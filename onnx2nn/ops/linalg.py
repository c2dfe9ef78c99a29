"""Matrix products, determinants and attention."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.arithmetic import halves_in_float32, widened
from onnx2nn.ops.shape import demand_equal
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import Lookup


def _is_weight(matrix: Any, other: Any) -> bool:
    """Whether `matrix` is a constant and `other` is not, so that the product is a linear layer."""
    return matrix.ndim == 2 and matrix.is_floating_point() and type(matrix) is not type(other)


def _factor(value: float, like: Any) -> Any:
    """Returns a factor of `like` as an int where `like` holds integers."""
    if like.is_floating_point():
        return value
    if value != int(value):
        raise OperatorError(f"the factor {value} of integers is no whole number.")
    return int(value)


@op("MatMul", 1, traits=["matrix_product"])
@widened
def matmul(F: Any, A: Any, B: Any) -> Any:
    if _is_weight(B, A):
        return F.nn.functional.linear(A, B.T)
    return A @ B


@op("Gemm", 11, traits=["matrix_product"])
@widened
def gemm(
    F: Any,
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    """alpha * A B + beta * C; constants are multiplied by their factors at import."""
    if C is not None and beta == 0:
        C = None
    A = A.T if transA else A
    if _is_weight(B, A):
        weight = B if transB else B.T
        weight = weight if alpha == 1 else weight * alpha
        constant = C is not None and type(C) is type(B)
        if C is None or (constant and (C.ndim <= 1 or C.shape[0] == 1)):
            return F.nn.functional.linear(A, weight, _bias(C, weight.shape[0], beta))
        Y = F.nn.functional.linear(A, weight)
        return Y + (C if beta == 1 else C * beta)
    B = B.T if transB else B
    if C is None:
        return A @ B if alpha == 1 else (A @ B) * _factor(alpha, A)
    return F.addmm(C, A, B, **_unless_one(beta=_factor(beta, A), alpha=_factor(alpha, A)))


def _bias(C: Any, size: int, beta: float) -> Any:
    if C is None:
        return None
    C = C if C.ndim == 1 else C.reshape(-1)
    C = C if C.shape[0] == size else C.expand(size).contiguous()
    return C if beta == 1 else C * beta


def _unless_one(**factors: Any) -> dict[str, Any]:
    return {name: value for name, value in factors.items() if value != 1}


gemm_7 = revision(gemm, 7, required=["C"])
# Later revisions always broadcast, which `broadcast` permits here.
revision(gemm_7, 1, unused={"broadcast": 0})


@op("Einsum", 12)
@widened
def einsum(F: Any, *Inputs: Any, equation: str) -> Any:
    """Integers are computed in int64: of some of them torch sums a dimension in int64, and multiplies no two types."""
    equation, dtype = equation.replace(" ", ""), Inputs[0].dtype
    if dtype == F.int64 or Inputs[0].is_floating_point():
        return F.einsum(equation, *Inputs)
    return F.einsum(equation, *(x.to(F.int64) for x in Inputs)).to(dtype)


@op("Det", 11)
@halves_in_float32
def det(F: Any, X: Any) -> Any:
    return F.linalg.det(X)


def _heads(X: Any, count: int | None) -> Any:
    """Returns (N, L, heads * size) as (N, heads, L, size)."""
    if count is None:
        raise OperatorError("q_num_heads or kv_num_heads is missing, which inputs of three dimensions need.")
    return X.unflatten(2, (count, -1)).transpose(1, 2)


def _attention_mask(
    F: Any,
    Q: Any,
    K: Any,
    attn_mask: Any,
    past_key: Any,
    nonpad_kv_seqlen: Any,
    is_causal: int,
    left_window_size: int,
    right_window_size: int,
) -> Any:
    """Returns mask, causal rule, windows and lengths as one mask: bool (True attends), float (added), or None."""
    queries, keys = Q.shape[2], K.shape[2]
    allowed = []
    if is_causal or left_window_size >= 0 or right_window_size >= 0:
        position = F.arange(queries).reshape(-1, 1)
        if past_key is not None:
            position = position + past_key.shape[2]
        elif nonpad_kv_seqlen is not None:
            position = position + (nonpad_kv_seqlen - queries).reshape(-1, 1, 1, 1)
        key = F.arange(keys)
        if is_causal or right_window_size >= 0:
            bound = min(right_window_size, 0) if is_causal and right_window_size >= 0 else max(right_window_size, 0)
            allowed.append(key <= position + bound if bound else key <= position)
        if left_window_size >= 0:
            allowed.append(key >= position - left_window_size)
    if nonpad_kv_seqlen is not None:
        allowed.append(F.arange(keys) < nonpad_kv_seqlen.reshape(-1, 1, 1, 1))
    mask = None
    for item in allowed:
        mask = item if mask is None else mask & item
    if attn_mask is None:
        return mask
    additive = attn_mask.dtype != F.bool
    if attn_mask.ndim == 1:
        attn_mask = attn_mask.unsqueeze(0)
    if (attn_mask.shape[-1] == keys) is not True:
        missing = (0, keys - attn_mask.shape[-1])
        attn_mask = F.nn.functional.pad(attn_mask, missing, value=-float("inf") if additive else False)
    if mask is None:
        return attn_mask
    return F.where(mask, attn_mask, -float("inf")) if additive else mask & attn_mask


_PRECISIONS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}


@op("Attention", 25)
def attention(
    F: Any,
    Q: Any,
    K: Any,
    V: Any,
    attn_mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    nonpad_kv_seqlen: Any = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    _outputs: int = 1,
) -> Any:
    """torch's scaled_dot_product_attention, or its parts where the node has a soft cap, a precision or scores.

    The result of a query that attends no key is 0 (ONNX Attention-25). float16 and bfloat16 are computed in float32 and
    each result is rounded once. torch's kernels for them round scores and weights too, at places that differ between
    processors, and in float16 that moves results by two units in the last place.
    """
    flat = Q.ndim == 3
    if flat:
        Q, K, V = _heads(Q, q_num_heads), _heads(K, kv_num_heads), _heads(V, kv_num_heads)
    if past_key is not None and past_value is not None:
        K, V = F.cat([past_key, K], 2), F.cat([past_value, V], 2)
    demand_equal(Q.shape[:1], K.shape[:1], "the batch of queries and keys")
    demand_equal(K.shape[:3], V.shape[:3], "batch, heads and length of keys and values")
    present = (K, V)
    V = V if V.dtype == Q.dtype else V.to(Q.dtype)
    if Q.shape[1] != K.shape[1]:
        repeats = Q.shape[1] // K.shape[1]
        K, V = K.repeat_interleave(repeats, 1), V.repeat_interleave(repeats, 1)
    dtype = Q.dtype
    if dtype in (F.float16, F.bfloat16):
        Q, K, V = (x.to(F.float32) for x in (Q, K, V))
        if attn_mask is not None and attn_mask.dtype != F.bool:
            attn_mask = attn_mask.to(F.float32)
        if softmax_precision and getattr(F, _PRECISIONS[softmax_precision]) == dtype:
            softmax_precision = None
    if softmax_precision and getattr(F, _PRECISIONS[softmax_precision]) == Q.dtype:
        softmax_precision = None
    plain = softcap == 0 and _outputs < 4 and softmax_precision is None
    restricted = any(item is not None for item in (attn_mask, past_key, nonpad_kv_seqlen))
    windows = left_window_size >= 0 or right_window_size >= 0
    scores = None
    if plain and is_causal and not restricted and not windows:
        Y = F.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=True, scale=scale)
    else:
        limits = (past_key, nonpad_kv_seqlen, is_causal, left_window_size, right_window_size)
        mask = _attention_mask(F, Q, K, attn_mask, *limits)
        if plain:
            Y = F.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=mask, scale=scale)
        else:
            Y, scores = _attend(F, Q, K, V, mask, scale, softcap, softmax_precision, qk_matmul_output_mode)
    if Y.dtype != dtype:
        Y, scores = Y.to(dtype), None if scores is None else scores.to(dtype)
    if flat:
        Y = Y.transpose(1, 2).flatten(2)
    return Y if _outputs == 1 else (Y, *present, scores)[:_outputs]


def _attend(
    F: Any,
    Q: Any,
    K: Any,
    V: Any,
    mask: Any,
    scale: float | None,
    softcap: float,
    softmax_precision: int | None,
    mode: int,
) -> tuple[Any, Any]:
    """Returns the attention and the scores at the stage `mode`: raw, capped, masked, after softmax."""
    root = (Q.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    stages = [(Q * root) @ (K.mT * root)]
    capped = F.tanh(stages[0] / softcap) * softcap if softcap else stages[0]
    biased = capped
    if mask is not None:
        biased = F.where(mask, capped, -float("inf")) if mask.dtype == F.bool else capped + mask
    logits = biased.to(getattr(F, _PRECISIONS[softmax_precision])) if softmax_precision else biased
    weights = F.softmax(logits, -1)
    if mask is not None:
        empty = ~mask if mask.dtype == F.bool else mask == -float("inf")
        weights = F.where(empty.all(-1, keepdim=True), 0.0, weights)
    weights = weights.to(Q.dtype)
    return weights @ V, (stages[0], capped, biased, weights)[mode]


attention_24 = revision(attention, 24, without=["left_window_size", "right_window_size"])
revision(attention_24, 23, without=["nonpad_kv_seqlen"])


@op("RotaryEmbedding", 23, lookups=(Lookup("position_ids", "cos_cache"),))
def rotary_embedding(
    F: Any,
    X: Any,
    cos_cache: Any,
    sin_cache: Any,
    position_ids: Any = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Any:
    """X: (N, heads, L, size), or (N, L, heads * size) with `num_heads`."""
    flat = X.ndim == 3
    if flat and not num_heads:
        raise OperatorError("num_heads is missing, which an input of three dimensions needs.")
    x = X.unflatten(2, (num_heads, -1)) if flat else X
    if position_ids is not None:
        cos_cache = F.nn.functional.embedding(position_ids, cos_cache)
        sin_cache = F.nn.functional.embedding(position_ids, sin_cache)
    cos, sin = (cache.unsqueeze(2 if flat else 1) for cache in (cos_cache, sin_cache))
    size = rotary_embedding_dim or x.shape[-1]
    demand_equal(cos_cache.shape, sin_cache.shape, "the shapes of cosines and sines")
    demand_equal(cos_cache.shape[-1:], [size // 2], "the numbers of cosines and of pairs that are rotated")
    rotated, rest = (x[..., :size], x[..., size:]) if rotary_embedding_dim else (x, None)
    if interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
    else:
        a, b = rotated[..., : size // 2], rotated[..., size // 2 :]
    real, imaginary = cos * a - sin * b, sin * a + cos * b
    Y = F.stack([real, imaginary], -1).flatten(-2) if interleaved else F.cat([real, imaginary], -1)
    Y = Y if rest is None else F.cat([Y, rest], -1)
    return Y.flatten(2) if flat else Y
