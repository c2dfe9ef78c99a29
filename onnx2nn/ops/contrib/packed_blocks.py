"""Operators of ONNX Runtime on weights in the packed blocks of GGUF files; a format's number is its number in ggml.

Formats whose numbers are entries of large codebooks (IQ2, IQ3) are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from onnx2nn.errors import OperatorError
from onnx2nn.ops.cast import convert, element_of
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.contrib.packed_weights import results_of_linear
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED

_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The numbers of IQ4_NL and IQ4_XS."""


class _Format(NamedTuple):
    """A packed format.

    Attributes:
        numbers: how many numbers a block holds.
        size: bytes of a block.
        unpack: `unpack(F, blocks)` returns the numbers `(..., numbers)` of blocks `(..., size)`, in float32.
    """

    numbers: int
    size: int
    unpack: Callable[[Any, Any], Any]


def _half(F: Any, blocks: Any, start: int) -> Any:
    """Returns the float16 at a byte of each block, `(..., 1)`, in float32."""
    return blocks[..., start : start + 2].contiguous().view(F.float16).to(F.float32)


def _nibbles(F: Any, x: Any) -> Any:
    """Returns the low halves of bytes, then the high halves."""
    return F.cat([x & 15, x >> 4], -1)


def _q4_0(F: Any, blocks: Any) -> Any:
    return _half(F, blocks, 0) * (_nibbles(F, blocks[..., 2:]).to(F.float32) - 8.0)


def _q5_0(F: Any, blocks: Any) -> Any:
    fifth = (blocks[..., 2:6].unsqueeze(-1) >> F.arange(8, dtype=F.uint8, device=blocks.device)) & 1
    return _half(F, blocks, 0) * ((_nibbles(F, blocks[..., 6:]) | (fifth.flatten(-2) << 4)).to(F.float32) - 16.0)


def _q8_0(F: Any, blocks: Any) -> Any:
    return _half(F, blocks, 0) * blocks[..., 2:].contiguous().view(F.int8).to(F.float32)


def _scales_and_least(F: Any, x: Any) -> tuple[Any, Any]:
    """Returns eight scales and eight least numbers of six bits, from twelve bytes."""
    a, b, c = x[..., :4], x[..., 4:8], x[..., 8:]
    scales = F.cat([a & 63, (c & 15) | ((a >> 6) << 4)], -1)
    least = F.cat([b & 63, (c >> 4) | ((b >> 6) << 4)], -1)
    return scales.to(F.float32), least.to(F.float32)


def _q5_k(F: Any, blocks: Any) -> Any:
    scales, least = _scales_and_least(F, blocks[..., 4:16])
    fifth = blocks[..., 16:48].unsqueeze(-2) >> F.arange(8, dtype=F.uint8, device=blocks.device).unsqueeze(-1)
    low = blocks[..., 48:].unflatten(-1, (4, 32))
    numbers = F.stack([low & 15, low >> 4], -2).flatten(-3, -2) | ((fifth & 1) << 4)  # (..., 8, 32)
    factor, offset = _half(F, blocks, 0) * scales, _half(F, blocks, 2) * least
    return (factor.unsqueeze(-1) * numbers.to(F.float32) - offset.unsqueeze(-1)).flatten(-2)


def _q6_k(F: Any, blocks: Any) -> Any:
    low, high = blocks[..., :128].unflatten(-1, (2, 2, 32)), blocks[..., 128:192].unflatten(-1, (2, 1, 32))
    low = F.cat([low & 15, low >> 4], -2)  # (..., 2, 4, 32)
    high = (high >> (2 * F.arange(4, dtype=F.uint8, device=blocks.device)).unsqueeze(-1)) & 3
    numbers = (low | (high << 4)).to(F.float32) - 32.0
    scales = blocks[..., 192:208].contiguous().view(F.int8).to(F.float32) * _half(F, blocks, 208)
    return (numbers.flatten(-3).unflatten(-1, (16, 16)) * scales.unsqueeze(-1)).flatten(-2)


def _levels(F: Any, codes: Any) -> Any:
    return F.tensor(_LEVELS, dtype=F.float32, device=codes.device)[codes.to(F.int64)]


def _iq4_nl(F: Any, blocks: Any) -> Any:
    return _half(F, blocks, 0) * _levels(F, _nibbles(F, blocks[..., 2:]))


def _iq4_xs(F: Any, blocks: Any) -> Any:
    high = blocks[..., 2:4].unsqueeze(-1) >> F.arange(0, 8, 2, dtype=F.uint8, device=blocks.device)
    low = blocks[..., 4:8]
    low = F.stack([low & 15, low >> 4], -1).flatten(-2)
    scales = (low | ((high.flatten(-2) & 3) << 4)).to(F.float32) - 32.0
    numbers = _levels(F, _nibbles(F, blocks[..., 8:].unflatten(-1, (8, 16))))
    return ((_half(F, blocks, 0) * scales).unsqueeze(-1) * numbers).flatten(-2)


def _two_bits(F: Any, blocks: Any) -> Any:
    numbers = (blocks[..., 2:].unsqueeze(-1) >> F.arange(0, 8, 2, dtype=F.uint8, device=blocks.device)) & 3
    return _half(F, blocks, 0) * (numbers.flatten(-2).to(F.float32) - 1.0)


def _of_type(name: str) -> Callable[[Any, Any], Any]:
    return lambda F, blocks: blocks.contiguous().view(getattr(F, name)).to(F.float32)


_FORMATS = {
    0: _Format(1, 4, _of_type("float32")),
    1: _Format(1, 2, _of_type("float16")),
    2: _Format(32, 18, _q4_0),
    6: _Format(32, 22, _q5_0),
    8: _Format(32, 34, _q8_0),
    13: _Format(256, 176, _q5_k),
    14: _Format(256, 210, _q6_k),
    20: _Format(32, 18, _iq4_nl),
    23: _Format(256, 136, _iq4_xs),
    30: _Format(1, 2, _of_type("bfloat16")),
    42: _Format(64, 18, _two_bits),
}


def _format(kind: int) -> _Format:
    known = _FORMATS.get(kind)
    if known is None:
        raise OperatorError(f"packed_type={kind} is none of {', '.join(map(str, _FORMATS))}, whose blocks are known.")
    return known


def _unpacked(F: Any, data: Any, kind: int) -> Any:
    """Returns the numbers of packed rows `(..., bytes)`, in float32."""
    known = _format(kind)
    if data.shape[-1] % known.size:
        raise OperatorError(f"rows of {data.shape[-1]} bytes are no blocks of {known.size} bytes.")
    return known.unpack(F, data.unflatten(-1, (-1, known.size))).flatten(-2)


def _results_of_gather(F: Any, data: Any, indices: Any, *, K: int, output_dtype: int = 16, packed_type: int) -> Any:
    _format(packed_type)
    return [([*indices.shape, K], getattr(F, element_of(output_dtype).dtype))]


@op("GatherPacked", 1, domain=MICROSOFT, call="packed", results=_results_of_gather)
def gather_packed(F: Any, data: Any, indices: Any, *, K: int, output_dtype: int = 16, packed_type: int) -> Any:
    """Rows of a packed table `(vocabulary, bytes)`, unpacked; an index that is no row means the first row."""
    row = indices.to(F.int64)
    row = F.where((row >= 0) & (row < data.shape[0]), row, 0)
    found = _unpacked(F, data[row.flatten()], packed_type)
    return convert(F, found.reshape([*indices.shape, K]), element_of(output_dtype))


_ACTIVATIONS = ("none", "relu2", "relu_squared", "silu")


def _check_activation(activation_type: str) -> None:
    if activation_type not in _ACTIVATIONS:
        raise OperatorError(f"activation_type={activation_type!r} is none of {', '.join(_ACTIVATIONS)}.")


def _results_of_product(
    F: Any, A: Any, *_: Any, K: int, N: int, activation_type: str = "none", packed_type: int
) -> Any:
    _format(packed_type)
    _check_activation(activation_type)
    return results_of_linear(F, A, K=K, N=N)


@op("MatMulPacked", 1, domain=MICROSOFT, call="packed", results=_results_of_product)
def matmul_packed(
    F: Any, A: Any, B: Any, global_scale: Any = None, *, K: int, N: int, activation_type: str = "none", packed_type: int
) -> Any:
    """A times the transpose of a packed weight, rounded to A's type; the sums are float32."""
    _check_activation(activation_type)
    weight = _unpacked(F, B, packed_type).reshape([N, K]).to(A.dtype).to(F.float32)
    Y = F.nn.functional.linear(A.to(F.float32), weight)
    Y = (Y if global_scale is None else Y * global_scale).to(A.dtype)
    if activation_type in ("relu2", "relu_squared"):
        return F.relu(Y) * F.relu(Y)
    return F.nn.functional.silu(Y.to(F.float32)).to(A.dtype) if activation_type == "silu" else Y


def _results(F: Any, input: Any, *others: Any, **attributes: Any) -> Any:
    return [([*input.shape], input.dtype)]


@op("MoEPacked", 1, domain=MICROSOFT, call="opaque", results=_results, custom_op=True)
def moe_packed(
    F: Any,
    input: Any,
    router_probs: Any,
    gate_experts_weights: Any,
    up_experts_weights: Any = None,
    down_experts_weights: Any = REQUIRED,
    router_weights: Any = None,
    *,
    activation_type: str = "swiglu",
    down_type: int,
    gate_type: int,
    k: int = 1,
    normalize_routing_weights: int = 1,
    routed_scaling_factor: float = 1.0,
    routing_epsilon: float = 0.0,
    up_type: int = -1,
) -> Any:
    """Each token's `k` best experts, mixed, with packed weights of SwiGLU; of equal ones the first comes first.

    router_probs are logits, of which softmax is computed, or scores beside router_weights, the shares. All is computed
    in float32; relu2 is refused: its weights have a format of codebooks.
    """
    if activation_type != "swiglu" or up_experts_weights is None:
        raise OperatorError(f"activation_type={activation_type!r} is not supported, or swiglu has no up weights.")
    rows, scores = input.flatten(0, -2).to(F.float32), router_probs.to(F.float32)
    shares = F.softmax(scores, -1) if router_weights is None else router_weights.to(F.float32)
    experts = scores.argsort(dim=-1, descending=True, stable=True)[:, :k]
    chosen = shares.gather(1, experts)
    if normalize_routing_weights:
        total = chosen.sum(-1, keepdim=True) + routing_epsilon
        chosen = F.where(total == 0, 0.0, chosen / total)
    chosen = chosen * routed_scaling_factor
    out = F.zeros_like(rows)
    for expert in range(gate_experts_weights.shape[0]):
        token, place = (experts == expert).nonzero(as_tuple=True)
        if token.numel():
            x = rows[token]
            gate = F.nn.functional.linear(x, _unpacked(F, gate_experts_weights[expert], gate_type))
            up = F.nn.functional.linear(x, _unpacked(F, up_experts_weights[expert], up_type))
            y = F.nn.functional.silu(gate) * up
            y = F.nn.functional.linear(y, _unpacked(F, down_experts_weights[expert], down_type))
            out = out.index_add(0, token, y * chosen[token, place].unsqueeze(1))
    return out.reshape(input.shape).to(input.dtype)
