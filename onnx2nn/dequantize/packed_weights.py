"""The float forms of ONNX Runtime's operators with packed weights of few bits, which read floats besides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from onnx2nn.dequantize.dequantizer import Dequantizer, attributes_of, inputs
from onnx2nn.dequantize.grouped_weights import GroupedWeight, grouped_forms
from onnx2nn.dequantize.registry import MICROSOFT, Rewrites
from onnx2nn.ground.element_types import BY_NAME
from onnx2nn.ops.contrib.packed_weights import bnb4_weight, gather_block_quantized, nbits_weight, unpacked
from onnx2nn.rewrite.patterns import attribute_of

REWRITES = Rewrites()

Packed = tuple["ir.Value | None", ...]


@REWRITES.of("MatMulNBits", MICROSOFT)
def _matmul_nbits(dequantizer: Dequantizer, node: ir.Node) -> bool:
    a, *_, bias = inputs(node, 6)
    kernel = _nbits_kernel(dequantizer, node)
    return a is not None and kernel is not None and _product(dequantizer, node, a, kernel, bias)


def _nbits_kernel(dequantizer: Dequantizer, node: ir.Node) -> ir.Value | None:
    """Returns the float matrix `(K, N)` of a MatMulNBits, the one that its quantiser read; None if it is not known."""
    packed = tuple(inputs(node, 5)[1:])
    if attribute_of(node, "weight_prepacked", 0):
        return None
    options = {name: attribute_of(node, name, 4) for name in ("K", "N", "bits", "block_size")}
    F = dequantizer.tensors.F
    kernel = _kernel(dequantizer, packed, options["K"], options["N"], lambda *t: nbits_weight(F, *t, **options).t())
    if kernel is not None and packed[-1] is None:
        dequantizer.result.forms[kernel.name or ""] = [lambda: _grouped(dequantizer, packed[:3], **options)]
    return kernel


def _grouped(dequantizer: Dequantizer, packed: Packed, K: int, N: int, bits: int, block_size: int) -> GroupedWeight:
    F, (B, scales, zero_points) = dequantizer.tensors.F, map(dequantizer.tensors.of, packed)
    blocks, middle = -(-K // block_size), 1 << (bits - 1)
    numbers = unpacked(F, B.reshape([N, blocks, -1]), bits).flatten(1)[:, :K]
    if zero_points is not None and zero_points.dtype == F.uint8:
        zero_points = unpacked(F, zero_points.reshape([N, -1]), bits)[:, :blocks]
        zero_points = (zero_points.to(F.int16) - middle).to(F.int8)
    elif zero_points is not None:
        zero_points = zero_points.reshape([N, blocks]) - middle
    signed = (numbers.to(F.int16) - middle).to(F.int8)
    return GroupedWeight(signed, scales.reshape([N, blocks]), zero_points, bits, block_size)


@REWRITES.of("MatMulBnb4", MICROSOFT)
def _matmul_bnb4(dequantizer: Dequantizer, node: ir.Node) -> bool:
    a, *packed = inputs(node, 3)
    options = {name: attribute_of(node, name, 0) for name in ("K", "N", "block_size", "quant_type")}
    rows, columns = options["K"], options["N"]
    if not attribute_of(node, "transB", 1):
        rows, columns = columns, rows

    def weight(*tensors: Any) -> Any:
        found = bnb4_weight(dequantizer.tensors.F, *tensors, **options)
        return found.t() if attribute_of(node, "transB", 1) else found

    kernel = _kernel(dequantizer, tuple(packed), rows, columns, weight)
    return a is not None and kernel is not None and _product(dequantizer, node, a, kernel, None)


def _kernel(
    dequantizer: Dequantizer, packed: Packed, rows: int, columns: int, weight: Callable[..., Any]
) -> ir.Value | None:
    """Returns the float weight `(rows, columns)` of packed inputs: its integers, scales, and others.

    The weight has the type of the scales and is computed when it is read. None where an input is no constant.
    """
    integers, scales = packed[:2]
    if integers is None or scales is None or not _are_constants(dequantizer, packed):
        return None
    if packed not in dequantizer.floats:
        made = dequantizer.weight(integers, _lazy(dequantizer, packed, (rows, columns), weight))
        dequantizer.floats[packed], dequantizer.result.forms[made.name or ""] = made, ()
    return dequantizer.floats[packed]


def _are_constants(dequantizer: Dequantizer, values: Packed) -> bool:
    return all(value is None or ir.convenience.get_const_tensor(value) is not None for value in values)


def _lazy(
    dequantizer: Dequantizer, packed: Packed, shape: tuple[int, ...], weight: Callable[..., Any]
) -> ir.LazyTensor:
    scales = packed[1]
    assert scales is not None
    tensor = ir.convenience.get_const_tensor(scales)
    assert tensor is not None
    kind = tensor.dtype

    def computed() -> ir.TensorProtocol:
        floats = weight(*map(dequantizer.tensors.of, packed)).to(
            getattr(dequantizer.tensors.F, BY_NAME[kind.name].dtype)
        )
        return dequantizer.tensors.constants.stored(floats)

    return ir.LazyTensor(computed, kind, shape=ir.Shape(shape), cache=False)


def _product(dequantizer: Dequantizer, node: ir.Node, a: ir.Value, kernel: ir.Value, bias: ir.Value | None) -> bool:
    y = dequantizer.emit(node, "MatMul", [a, kernel], node.outputs[0])
    if bias is not None:
        y = dequantizer.emit(node, "Add", [y, bias], node.outputs[0])
    dequantizer.replace(node, node.outputs[0], y)
    return True


@REWRITES.of("GatherBlockQuantized", MICROSOFT)
def _gather_block_quantized(dequantizer: Dequantizer, node: ir.Node) -> bool:
    """Rewrites a lookup as one in a table of floats, which a tied head shares."""
    data, indices, scales, zero_points = inputs(node, 4)
    table = _tied_table(dequantizer, node) or _table(dequantizer, node, data, scales, zero_points)
    if table is None:
        return False
    axis = attribute_of(node, "gather_axis", 0)
    dequantizer.replace(
        node, node.outputs[0], dequantizer.emit(node, "Gather", [table, indices], node.outputs[0], axis=axis)
    )
    return True


def _tied_table(dequantizer: Dequantizer, node: ir.Node) -> ir.Value | None:
    """Returns the transposed matrix of the MatMulNBits whose weights a lookup reads, in another shape."""
    data, _, scales, _ = inputs(node, 4)
    reshape = None if data is None else data.producer()
    packed = reshape.inputs[0] if reshape is not None and reshape.op_type == "Reshape" else data
    heads = [use.node for use in packed.uses() if use.node.op_type == "MatMulNBits"] if packed is not None else []
    for head in heads:
        same = ("bits", 4), ("block_size", 128)
        if head.inputs[2] is not scales or any(attribute_of(head, *key) != attribute_of(node, *key) for key in same):
            continue
        kernel = _nbits_kernel(dequantizer, head)
        if kernel is not None and kernel.shape is not None and attribute_of(node, "gather_axis", 0) == 0:
            made = dequantizer.emit(node, "Transpose", [kernel], kernel, perm=[1, 0])
            made.shape = ir.Shape(list(kernel.shape)[::-1])
            return made
    return None


def _table(
    dequantizer: Dequantizer,
    node: ir.Node,
    data: ir.Value | None,
    scales: ir.Value | None,
    zero_points: ir.Value | None,
) -> ir.Value | None:
    packed = (data, scales, zero_points)
    if data is None or scales is None or not _are_constants(dequantizer, packed):
        return None
    tensor = ir.convenience.get_const_tensor(data)
    assert tensor is not None
    options: dict[str, Any] = {**attributes_of(node), "_types": [tensor.dtype.name]}
    shape = list(tensor.shape.numpy())
    axis = options.get("gather_axis", 0)
    if tensor.dtype == ir.DataType.UINT8:
        shape[-1] *= 8 // options.get("bits", 4)
    key = (*packed, axis)

    def whole(data: Any, scales: Any, zero_points: Any) -> Any:
        rows = dequantizer.tensors.F.arange(data.shape[axis])
        return gather_block_quantized(dequantizer.tensors.F, data, rows, scales, zero_points, **options)

    if key not in dequantizer.floats:
        made = dequantizer.weight(data, _lazy(dequantizer, packed, tuple(shape), whole))
        dequantizer.floats[key], dequantizer.result.forms[made.name or ""] = made, ()
        if len(shape) == 2 and (axis, options.get("quantize_axis", 1)) == (0, 1):
            dequantizer.result.forms[made.name or ""] = _forms_of_table(
                dequantizer, packed, tensor.dtype, shape, options
            )
    return dequantizer.floats[key]


def _forms_of_table(
    dequantizer: Dequantizer, packed: Packed, kind: ir.DataType, shape: list[int], options: dict[str, Any]
) -> Sequence[Callable[[], GroupedWeight]]:
    block = options.get("block_size", 128)
    if kind == ir.DataType.UINT8 and shape[1] % block == 0:
        return [
            lambda: _grouped(dequantizer, packed, K=shape[1], N=shape[0], bits=options.get("bits", 4), block_size=block)
        ]
    numbers, scales, zero_points = map(dequantizer.tensors.of, packed)
    return (
        ()
        if kind == ir.DataType.UINT8
        else grouped_forms(dequantizer.tensors.F, numbers, scales, zero_points, 1, block, kind)
    )
