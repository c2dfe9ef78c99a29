"""Operators of ONNX Runtime whose inputs are integers without floats: products, sums, and 8-bit parts of BERT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops import quantize
from onnx2nn.ops.axes import once
from onnx2nn.ops.contrib.attention import attention_of_rows
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.contrib.quantized import element_like
from onnx2nn.ops.linalg import matmul
from onnx2nn.ops.quantized_numbers import round_to
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED, Lookup


def _whole(F: Any, x: Any, zero_point: Any) -> Any:
    x = x.to(F.int32)
    return x if zero_point is None else x - zero_point.to(F.int32)


@op("MulInteger", 1, domain=MICROSOFT)
def mul_integer(F: Any, A: Any, A_zero_point: Any = None, B: Any = REQUIRED, B_zero_point: Any = None) -> Any:
    return _whole(F, A, A_zero_point) * _whole(F, B, B_zero_point)


@op("ReduceSumInteger", 1, domain=MICROSOFT)
def reduce_sum_integer(F: Any, data: Any, *, axes: Sequence[int], keepdims: int) -> Any:
    """The sum of int8 is int32, that of uint8 uint32."""
    total = data.sum(once(axes, data.ndim), keepdim=bool(keepdims), dtype=F.int64)
    return total.to(F.int32 if data.dtype == F.int8 else F.uint32)


@op("QLinearReduceMean", 1, domain=MICROSOFT)
def qlinear_reduce_mean(
    F: Any,
    data: Any,
    data_scale: Any,
    data_zero_point: Any = None,
    reduced_scale: Any = REQUIRED,
    reduced_zero_point: Any = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> Any:
    reduced = once(axes, data.ndim)
    mean = quantize.dequantize_linear(F, data, data_scale, data_zero_point).mean(reduced, keepdim=bool(keepdims))
    return round_to(F, mean / reduced_scale, reduced_zero_point, element_like(F, data))


@op("MatMulInteger16", 1, domain=MICROSOFT)
def matmul_integer_16(F: Any, A: Any, B: Any) -> Any:
    """Sums of 32 bits wrap around. They are added in float64, exactly: 2**21 products of 32 bits fit."""
    unsigned = A.dtype == F.uint16 and B.dtype == F.uint16
    total = matmul(F, A.to(F.int64).to(F.float64), B.to(F.int64).to(F.float64)).to(F.int64)
    return total.to(F.uint32 if unsigned else F.int32)


@op("QAttention", 1, domain=MICROSOFT)
def qattention(
    F: Any,
    input: Any,
    weight: Any,
    bias: Any,
    input_scale: Any,
    weight_scale: Any,
    mask_index: Any = None,
    input_zero_point: Any = None,
    weight_zero_point: Any = None,
    past: Any = None,
    *,
    do_rotary: int | None = None,
    mask_filter_value: float | None = None,
    num_heads: int,
    past_present_share_buffer: int | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
    _outputs: int = 1,
) -> Any:
    """Attention whose projection is a product of 8-bit integers, with float results."""
    if do_rotary or past_present_share_buffer:
        raise OperatorError("do_rotary and past_present_share_buffer are not defined: no input holds what they need.")
    product = quantize.integer_matmul(F, input, weight, input_zero_point, weight_zero_point)
    packed = product.to(bias.dtype) * (input_scale * weight_scale) + bias
    return attention_of_rows(
        F, packed, mask_index, past, None, None,
        mask_filter_value=mask_filter_value, num_heads=num_heads, sizes=[weight.shape[1] // 3] * 3, scale=scale,
        unidirectional=unidirectional, _outputs=_outputs,
    )  # fmt: skip


@op(
    "QEmbedLayerNormalization",
    1,
    domain=MICROSOFT,
    lookups=(Lookup("input_ids", "word_embedding_quant"), Lookup("segment_ids", "segment_embedding")),
)
def qembed_layer_normalization(
    F: Any,
    input_ids: Any,
    segment_ids: Any = None,
    word_embedding_quant: Any = REQUIRED,
    position_embedding_quant: Any = REQUIRED,
    segment_embedding: Any = None,
    gamma_quant: Any = REQUIRED,
    beta_quant: Any = REQUIRED,
    mask: Any = None,
    word_embedding_scale: Any = REQUIRED,
    position_embedding_scale: Any = REQUIRED,
    segment_embedding_scale: Any = None,
    gamma_scale: Any = REQUIRED,
    beta_scale: Any = REQUIRED,
    word_embedding_zero_point: Any = REQUIRED,
    position_embedding_zero_point: Any = REQUIRED,
    segment_embedding_zero_point: Any = None,
    gamma_zero_point: Any = REQUIRED,
    beta_zero_point: Any = REQUIRED,
    *,
    epsilon: float = 1e-12,
    _outputs: int = 2,
) -> Any:
    """EmbedLayerNormalization of 8-bit tables; only the rows that are looked up become floats."""
    embedding, whole = F.nn.functional.embedding, quantize.dequantize_linear
    rows = whole(F, embedding(input_ids, word_embedding_quant), word_embedding_scale, word_embedding_zero_point)
    positions = position_embedding_quant[: input_ids.shape[1]]
    total = rows + whole(F, positions, position_embedding_scale, position_embedding_zero_point)
    if segment_ids is not None:
        segments = embedding(segment_ids, segment_embedding)
        total = total + whole(F, segments, segment_embedding_scale, segment_embedding_zero_point)
    gamma = whole(F, gamma_quant, gamma_scale, gamma_zero_point)
    beta = whole(F, beta_quant, beta_scale, beta_zero_point)
    Y = F.nn.functional.layer_norm(total, total.shape[-1:], gamma, beta, epsilon)
    if _outputs == 1:
        return Y
    if mask is None:
        return Y, F.zeros(input_ids.shape[:1], dtype=F.int32)
    return Y, (mask == 1).sum(1, dtype=F.int32)
