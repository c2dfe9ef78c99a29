"""Products and look-ups of ONNX Runtime with weights of 2 to 8 bits, packed in blocks."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.axes import from_front
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.contrib.quantized import packed_op
from onnx2nn.ops.shape import demand
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import Lookup, has_values


def _in_a_byte(bits: int) -> int:
    """Returns how many numbers of so many bits a byte holds."""
    if bits not in (2, 4, 8):
        raise OperatorError(f"bits={bits} is none of 2, 4, 8.")
    return 8 // bits


def unpacked(F: Any, packed: Any, bits: int) -> Any:
    """Returns the unsigned `bits`-bit numbers in the bytes `packed`, low bits first, along the last dimension."""
    if _in_a_byte(bits) == 1:
        return packed
    mask = (1 << bits) - 1
    if has_values(F, packed) and hasattr(F, "bitwise_right_shift"):  # four times as fast as a division
        return F.stack([(packed >> shift) & mask for shift in range(0, 8, bits)], -1).flatten(-2)
    # Division, as torch.onnx.export writes a right shift as one of signed numbers.
    steps = F.tensor([1 << shift for shift in range(0, 8, bits)], dtype=F.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) // steps) & mask).flatten(-2)


def _centred(F: Any, numbers: Any, zero_points: Any, bits: int, dtype: Any) -> Any:
    """Returns blocks of numbers, (..., blocks, block), minus their zero points, (..., blocks), which may be packed."""
    if zero_points is None:
        return numbers.to(dtype) - float(1 << (bits - 1))
    if zero_points.dtype == F.uint8:
        blocks = numbers.shape[-2]
        zero_points = unpacked(F, zero_points.reshape([*numbers.shape[:-2], -1]), bits)[..., :blocks]
    return numbers.to(dtype) - zero_points.reshape(numbers.shape[:-1]).to(dtype).unsqueeze(-1)


def nbits_weight(
    F: Any,
    B: Any,
    scales: Any,
    zero_points: Any = None,
    g_idx: Any = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
) -> Any:
    """Returns the weights `(N, K)` of a MatMulNBits in float32."""
    blocks = -(-K // block_size)
    numbers = unpacked(F, B.reshape([N, blocks, -1]), bits)
    if g_idx is not None:
        return _of_groups(F, numbers.flatten(1)[:, :K], scales, zero_points, g_idx[:K].to(F.int64), bits)
    weight = _centred(F, numbers, zero_points, bits, F.float32) * scales.reshape([N, blocks, 1]).to(F.float32)
    return weight.flatten(1)[:, :K]


_INT8_BLOCKS = {2: (32, 64, 128), 4: (16, 32, 64, 128, 256), 8: (16, 32, 64, 128, 256)}
"""Block sizes by bits for which ONNX Runtime 1.31 has kernels with int8 activations, on x86-64."""


def _rounded_to_int8(F: Any, x: Any, block: int) -> Any:
    """Returns x, whose gradient passes, as multiples of a 127th of the largest magnitude in each block of a row.

    The arithmetic is MLAS's: it divides 127 by the magnitude and multiplies by the quotient. A block of numbers below
    1e-36, whose quotient is infinite, is zero.
    """
    size = x.shape[-1]
    padded = F.nn.functional.pad(x, [0, -size % block]).unflatten(-1, [-1, block])
    largest = padded.abs().amax(-1, keepdim=True)
    most = F.full_like(largest, 127.0)  # 127.0 / largest, and on a GPU largest / 127.0, would multiply by a reciprocal
    inverse = most / largest
    steps = F.round(padded * F.where(largest < 1e-36, 0.0, inverse))
    rounded = (steps * (largest / most)).flatten(-2)[..., :size]
    return x + (rounded - x).detach()  # exact, as both are within a factor of two or one is 0


def shape_of_linear(x: Any, columns: Any, rows: Any) -> list[Any]:
    """Returns the shape of `x` times the transpose of a weight `(rows, columns)`."""
    demand(x.shape[-1] == columns, "the inner dimension of a product")
    return [*x.shape[:-1], rows]


def results_of_linear(F: Any, A: Any, *_: Any, K: int, N: int, **__: Any) -> Any:
    """The results of a product of `A` with a weight `(N, K)` in any form, in A's type."""
    return [(shape_of_linear(A, K, N), A.dtype)]


def check_nbits(F: Any, zero_points: Any = None, g_idx: Any = None, *, bits: int, weight_prepacked: int = 0) -> None:
    """Refuses weights of a MatMulNBits that nothing defines."""
    if weight_prepacked:
        raise OperatorError(f"weight_prepacked={weight_prepacked} is a layout of one kind of GPU. Export it with 0.")
    _in_a_byte(bits)
    if g_idx is not None and (bits != 4 or (zero_points is not None and zero_points.dtype == F.uint8)):
        raise OperatorError("g_idx is defined for 4 bits without packed zero points only.")


def _results_of_nbits(
    F: Any,
    A: Any,
    B: Any,
    scales: Any,
    zero_points: Any = None,
    g_idx: Any = None,
    bias: Any = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    weight_prepacked: int = 0,
    **_: Any,
) -> Any:
    check_nbits(F, zero_points, g_idx, bits=bits, weight_prepacked=weight_prepacked)
    return results_of_linear(F, A, K=K, N=N)


@packed_op("MatMulNBits", 1, results=_results_of_nbits)
def matmul_nbits(
    F: Any,
    A: Any,
    B: Any,
    scales: Any,
    zero_points: Any = None,
    g_idx: Any = None,
    bias: Any = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
    _at_run_time: bool = False,
) -> Any:
    """A times weights of few bits, packed in blocks along the inner dimension, B (N, blocks, bytes).

    With `accuracy_level` 4, A is rounded to int8 in blocks of a row where ONNX Runtime does so: it has kernels for
    constant weights without g_idx, with packed zero points or none. float16 and bfloat16 are computed in float32.
    `g_idx`, (K,) or longer, is the group of each inner index: the index of its scale and zero point.
    """
    check_nbits(F, zero_points, g_idx, bits=bits, weight_prepacked=weight_prepacked)
    weight = nbits_weight(F, B, scales, zero_points, g_idx, K=K, N=N, bits=bits, block_size=block_size)
    x = A.to(F.float32)
    packed = g_idx is None and (zero_points is None or zero_points.dtype == F.uint8) and not _at_run_time
    if accuracy_level == 4 and packed and block_size in _INT8_BLOCKS.get(bits, ()):
        x = _rounded_to_int8(F, x, block_size)
    return F.nn.functional.linear(x, weight, None if bias is None else bias.to(F.float32)).to(A.dtype)


def _of_groups(F: Any, numbers: Any, scales: Any, zero_points: Any, group: Any, bits: int) -> Any:
    """Returns weights (N, K), dequantised by the groups `group`, (K,), of their columns instead of their blocks."""
    check_nbits(F, zero_points, group, bits=bits)
    parameters = (None if x is None else x.reshape([numbers.shape[0], -1]).to(F.float32) for x in (scales, zero_points))
    scale, zero_point = (None if x is None else x.index_select(1, group) for x in parameters)
    return (numbers.to(F.float32) - (8.0 if zero_point is None else zero_point)) * scale


_FP4 = (0.0, 0.0052083333, 0.6666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
"""FP4 of bitsandbytes, by the low three bits of a code; the fourth bit is the sign."""
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""NF4 of bitsandbytes: quantiles of the normal distribution."""


def bnb4_weight(F: Any, B: Any, absmax: Any, *, K: int, N: int, block_size: int, quant_type: int) -> Any:
    """Returns the weights `(N, K)` of a MatMulBnb4 in float32."""
    codes = F.stack([B // 16, B & 15], -1).flatten()[: N * K].to(F.int64)
    table = F.tensor(_NF4 if quant_type else (*_FP4, *(-v for v in _FP4)), dtype=F.float32, device=B.device)
    scales = absmax.to(F.float32).repeat_interleave(block_size)[: N * K]
    return (table[codes] * scales).reshape([N, K])


def _results_of_bnb4(F: Any, A: Any, *_: Any, K: int, N: int, transB: int = 1, **__: Any) -> Any:
    return [(shape_of_linear(A, *((K, N) if transB else (N, K))), A.dtype)]


@packed_op("MatMulBnb4", 1, results=_results_of_bnb4)
def matmul_bnb4(
    F: Any,
    A: Any,
    B: Any,
    absmax: Any,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Any:
    """Weights (N, K) as 4-bit codes of bitsandbytes, high bits first, in blocks of the flattened matrix."""
    weight = bnb4_weight(F, B, absmax, K=K, N=N, block_size=block_size, quant_type=quant_type)
    return F.nn.functional.linear(A.to(F.float32), weight if transB else weight.t()).to(A.dtype)


def _holds_packed(F: Any, data: Any, types: Any) -> bool:
    """Returns whether numbers of fewer than 8 bits are packed in the bytes of `data`, of `types` in the file."""
    return data.dtype == F.uint8 and not (types is not None and types[0] in ("INT4", "UINT4"))


def _results_of_block_gather(
    F: Any,
    data: Any,
    indices: Any,
    scales: Any,
    *_: Any,
    bits: int = 4,
    gather_axis: int = 0,
    _types: Any = None,
    **__: Any,
) -> Any:
    axis, shape = from_front(gather_axis, data.ndim), [*data.shape]
    if _holds_packed(F, data, _types):
        shape[-1] *= _in_a_byte(bits)
    return [([*shape[:axis], *indices.shape, *shape[axis + 1 :]], scales.dtype)]


@op(
    "GatherBlockQuantized",
    1,
    domain=MICROSOFT,
    call="packed",
    results=_results_of_block_gather,
    lookups=(Lookup("indices", "data", "gather_axis"),),
)
def gather_block_quantized(
    F: Any,
    data: Any,
    indices: Any,
    scales: Any,
    zero_points: Any = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
    _types: Any = None,
) -> Any:
    """Gathers slices of `data` and dequantises them; uint8 packs numbers of `bits` bits along the last dimension.

    An index out of range gives zeros.
    """
    gather_axis, quantize_axis = from_front(gather_axis, data.ndim), from_front(quantize_axis, data.ndim)
    packed = _holds_packed(F, data, _types)
    size = data.shape[gather_axis]
    inside = (indices >= -size) & (indices < size)
    rows = F.where(inside, indices % size, 0).flatten().to(F.int64)

    def taken(x: Any) -> Any:
        # A parameter of size 1 along the gathered axis broadcasts over the rows.
        return x if x.shape[gather_axis] == 1 != size else x.index_select(gather_axis, rows)

    x = taken(data)
    dtype = F.float32
    x = (unpacked(F, x, bits) if packed else x).to(dtype)

    def along(parameter: Any) -> Any:
        if gather_axis == quantize_axis:
            wide = parameter.repeat_interleave(block_size or size, gather_axis)
            return wide.index_select(gather_axis, rows)
        wide = taken(parameter).repeat_interleave(block_size or x.shape[quantize_axis], quantize_axis)
        return wide.narrow(quantize_axis, 0, x.shape[quantize_axis])

    if zero_points is not None:
        if packed:
            zero_points = unpacked(F, zero_points, bits).narrow(-1, 0, scales.shape[-1])
        x = x - along(zero_points).to(dtype)
    elif packed:
        x = x - float(1 << (bits - 1))
    x = x * along(scales).to(dtype)
    mask = inside.flatten().reshape([-1, *[1] * (x.ndim - gather_axis - 1)])
    x = F.where(mask, x, 0.0).to(scales.dtype)
    return x.reshape([*x.shape[:gather_axis], *indices.shape, *x.shape[gather_axis + 1 :]])
