"""Products of ONNX Runtime with weights of float8, float4 and few bits in blocks, and fusions of such products."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ground.element_types import BY_NAME
from onnx2nn.ops.cast import convert, element_of
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.contrib.packed_weights import check_nbits, matmul_nbits, results_of_linear, shape_of_linear
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED, NeedsValues

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Float4, by the low three bits of a code; the fourth bit is the sign."""


def _along_rows(scale: Any, block_size: int, columns: Any) -> Any:
    """Returns scales `(rows, blocks)` for each column of a weight."""
    return scale.repeat_interleave(block_size, 1)[:, :columns]


def _results_of_fp8(F: Any, A: Any, B: Any, *_: Any, **__: Any) -> Any:
    return [(shape_of_linear(A, B.shape[1], B.shape[0]), A.dtype)]


@op("MatMulBlockQuantizedFp8Weight", 1, domain=MICROSOFT, call="packed", results=_results_of_fp8)
def matmul_block_quantized_fp8_weight(
    F: Any, A: Any, B: Any, b_scale: Any, a_scale: Any = None, bias: Any = None, *, block_size: int = 128
) -> Any:
    """A times the transpose of float8 weights `(N, K)`, scaled in blocks; with a_scale A is rounded to float8 first."""
    x = A.to(F.float32)
    if a_scale is not None:
        x = convert(F, x / a_scale, BY_NAME["FLOAT8E4M3FN"]).to(F.float32) * a_scale
    weight = B.to(F.float32) * _along_rows(b_scale, block_size, B.shape[1])
    return F.nn.functional.linear(x, weight, None if bias is None else bias.to(F.float32)).to(A.dtype)


def _results_of_fp4(F: Any, A: Any, B: Any, *_: Any, **__: Any) -> Any:
    return [(shape_of_linear(A, B.shape[1] * 2, B.shape[0]), A.dtype)]


@op("MatMulBlockQuantizedFp4Weight", 1, domain=MICROSOFT, call="packed", results=_results_of_fp4)
def matmul_block_quantized_fp4_weight(
    F: Any,
    A: Any,
    B: Any,
    weight_scale: Any,
    weight_scale_2: Any,
    input_scale: Any = None,
    bias: Any = None,
    *,
    block_size: int = 16,
) -> Any:
    """A times the transpose of float4 weights `(N, K)`, two a byte, low bits first, scaled in blocks.

    The weights are rounded to A's type; input_scale changes nothing.
    """
    codes = F.stack([B & 15, B // 16], -1).flatten(1).to(F.int64)
    table = F.tensor([*_E2M1, *(-value for value in _E2M1)], dtype=F.float32, device=B.device)
    scale = weight_scale.view(F.float8_e4m3fn).to(F.float32)
    weight = table[codes] * weight_scale_2 * _along_rows(scale, block_size, codes.shape[1])
    weight = weight.to(A.dtype).to(F.float32)
    bias = None if bias is None else bias.to(F.float32)
    return F.nn.functional.linear(A.to(F.float32), weight, bias).to(A.dtype)


@op("GemmFloat8", 1, domain=MICROSOFT)
def gemm_float8(
    F: Any,
    A: Any,
    B: Any,
    C: Any = None,
    scaleA: Any = None,
    scaleB: Any = None,
    scaleY: Any = None,
    *,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: int = 1,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    """alpha * A @ B + beta * C of floats of any size with scales, computed in float32.

    scaleY and GELU are refused: whether it divides, and which GELU, is not documented.
    """
    if scaleY is not None or activation not in (None, "NONE", "RELU"):
        raise OperatorError("scaleY and activations other than RELU are not defined by the documentation.")
    a, b = A.to(F.float32), B.to(F.float32)
    a, b = a if scaleA is None else a * scaleA, b if scaleB is None else b * scaleB
    Y = F.matmul(a.t() if transA else a, b.t() if transB else b) * alpha
    if C is not None and beta:
        Y = Y + C.to(F.float32) * beta
    return convert(F, F.relu(Y) if activation == "RELU" else Y, element_of(dtype))


def _check_fp_q4(blk_quant_type: int) -> None:
    if blk_quant_type not in (0, 1):
        raise OperatorError(f"blk_quant_type={blk_quant_type} is none of 0, 1.")


def _results_of_fp_q4(F: Any, A: Any, B: Any, B_shape: Any, *, blk_quant_type: int = 1) -> Any:
    _check_fp_q4(blk_quant_type)
    if not isinstance(B_shape, (list, tuple)):
        raise NeedsValues("the shape of the blob")
    return [(shape_of_linear(A, *B_shape), A.dtype)]


@op("MatMulFpQ4", 1, domain=MICROSOFT, static=["B_shape"], call="packed", results=_results_of_fp_q4)
def matmul_fp_q4(F: Any, A: Any, B: Any, B_shape: Any, *, blk_quant_type: int = 1) -> Any:
    """A times a matrix `(K, N)` in a blob of its columns' blocks of 32: a float32 scale, a zero point, 16 bytes.

    A byte holds the elements i, in its low bits, and i + 16. With blk_quant_type 0 there is no zero point, and 8 is
    meant; others are refused, as by ONNX Runtime's CPU.
    """
    _check_fp_q4(blk_quant_type)
    if not isinstance(B_shape, (list, tuple)):
        raise NeedsValues("the shape of the blob")
    K, N = B_shape
    blocks = -(-K // 32)
    blob = B.reshape([N, blocks, -1])
    scale = blob[..., :4].contiguous().view(F.float32)  # (N, blocks, 1)
    codes = blob[..., 4 + blk_quant_type :]
    codes = F.cat([codes & 15, codes // 16], -1).to(F.float32)
    weight = (codes - (blob[..., 4:5].to(F.float32) if blk_quant_type else 8.0)) * scale
    return F.nn.functional.linear(A, weight.flatten(1)[:, :K])


def _normalised(F: Any, A: Any, skip: Any, scale: Any, epsilon: float) -> tuple[Any, Any]:
    """Returns the RMS normalisation of A + skip in A's type, and the sum; A itself without a scale."""
    total = A if skip is None else A + skip
    if scale is None:
        return total, total
    wide = total.to(F.promote_types(total.dtype, F.float32))
    normal = F.nn.functional.rms_norm(wide, wide.shape[-1:], scale.to(wide.dtype), epsilon)
    return normal.to(A.dtype), total


def _check_mlp(activation: str, bits: int) -> None:
    if activation != "silu":
        raise OperatorError(f"activation={activation!r} is not supported: silu is the one that is documented.")
    check_nbits(None, bits=bits)


def _results_of_mlp(
    F: Any, A: Any, *_: Any, K: int, N: int, activation: str, bits: int = 4, _outputs: int = 1, **__: Any
) -> Any:
    _check_mlp(activation, bits)
    return [(shape_of_linear(A, K, N), A.dtype), ([*A.shape], A.dtype)][:_outputs]


@op("MatMulNBitsMlp", 1, domain=MICROSOFT, call="packed", results=_results_of_mlp)
def matmul_nbits_mlp(
    F: Any,
    A: Any,
    skip: Any = None,
    norm_scale: Any = None,
    gate_B: Any = REQUIRED,
    gate_scales: Any = REQUIRED,
    gate_bias: Any = None,
    up_B: Any = REQUIRED,
    up_scales: Any = REQUIRED,
    up_bias: Any = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    activation: str,
    bits: int = 4,
    block_size: int,
    epsilon: float = 1e-05,
    _outputs: int = 1,
) -> tuple[Any, ...]:
    """SiLU of one MatMulNBits times another, of A or its RMS normalisation; the second output is A + skip."""
    _check_mlp(activation, bits)
    x, total = _normalised(F, A, skip, norm_scale, epsilon)
    options = dict(K=K, N=N, bits=bits, block_size=block_size)
    gate = matmul_nbits(F, x, gate_B, gate_scales, None, None, gate_bias, **options)
    up = matmul_nbits(F, x, up_B, up_scales, None, None, up_bias, **options)
    Y = F.nn.functional.silu(gate) * up
    return (Y, total)[:_outputs]


def _results_of_qkv(
    F: Any, A: Any, *_: Any, K: int, Nkv: int, Nq: int, bits: int = 4, _outputs: int = 3, **__: Any
) -> Any:
    check_nbits(None, bits=bits)
    shapes = [*(shape_of_linear(A, K, rows) for rows in (Nq, Nkv, Nkv)), [*A.shape]]
    return [(shape, A.dtype) for shape in shapes[:_outputs]]


@op("MatMulNBitsQkv", 1, domain=MICROSOFT, call="packed", results=_results_of_qkv)
def matmul_nbits_qkv(
    F: Any,
    A: Any,
    skip: Any = None,
    norm_scale: Any = REQUIRED,
    q_B: Any = REQUIRED,
    q_scales: Any = REQUIRED,
    q_bias: Any = None,
    k_B: Any = REQUIRED,
    k_scales: Any = REQUIRED,
    k_bias: Any = None,
    v_B: Any = REQUIRED,
    v_scales: Any = REQUIRED,
    v_bias: Any = None,
    *,
    K: int,
    Nkv: int,
    Nq: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    epsilon: float = 1e-06,
    _outputs: int = 3,
) -> tuple[Any, ...]:
    """Three MatMulNBits of the RMS normalisation of A + skip, which is the fourth output."""
    x, total = _normalised(F, A, skip, norm_scale, epsilon)
    options = dict(K=K, bits=bits, block_size=block_size)
    Q = matmul_nbits(F, x, q_B, q_scales, None, None, q_bias, N=Nq, **options)
    key = matmul_nbits(F, x, k_B, k_scales, None, None, k_bias, N=Nkv, **options)
    value = matmul_nbits(F, x, v_B, v_scales, None, None, v_bias, N=Nkv, **options)
    return (Q, key, value, total)[:_outputs]


@op("MatMulNBitsQLoRA", 1, domain=MICROSOFT, call="packed", results=results_of_linear)
def matmul_nbits_qlora(
    F: Any,
    X: Any,
    W: Any,
    scales: Any,
    lora_A: Any,
    lora_A_scales: Any,
    lora_B: Any,
    lora_B_scales: Any,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int = 32,
    lora_bits: int = 8,
    lora_block_size: int = 32,
) -> Any:
    """MatMulNBits plus the two products of an adapter of few bits; an empty adapter adds nothing."""
    base = matmul_nbits(F, X, W, scales, K=K, N=N, bits=bits, block_size=block_size)
    if lora_B.numel() == 0:
        return base
    rank = lora_A_scales.numel() // -(-K // lora_block_size)
    options: dict[str, Any] = dict(bits=lora_bits, block_size=lora_block_size)
    if lora_A.numel() == 0:
        down = F.zeros([*X.shape[:-1], rank], dtype=X.dtype, device=X.device)
    else:
        down = matmul_nbits(F, X, lora_A, lora_A_scales, K=K, N=rank, **options)
    return base + matmul_nbits(F, down, lora_B, lora_B_scales, K=rank, N=N, **options)
