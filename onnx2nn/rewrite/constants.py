"""What rules ask about the constants of a graph, without reading them."""

from __future__ import annotations

import onnx_ir as ir

from onnx2nn.rewrite.patterns import origin, tensor_of

_KEEP_SHAPE = frozenset({"Cast", "DequantizeLinear", "Identity"})


def constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Returns the shape of a value that is known at import, None for any other.

    Known are initializers, constants, and what casts, transposes or dequantizes them: exporters leave those in.
    """
    if value is None:
        return None
    value = origin(value)
    tensor = tensor_of(value)
    if tensor is not None:
        return tuple(tensor.shape.numpy())
    node = value.producer()
    if node is None or node.domain or not all(constant_shape(v) is not None for v in node.inputs) or not node.inputs:
        return None
    shape = constant_shape(node.inputs[0])
    if shape is None or node.op_type in _KEEP_SHAPE:
        return shape
    if node.op_type == "Transpose":
        perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(shape))[::-1]
        return tuple(shape[axis] for axis in perm)
    return None


def is_float(value: ir.Value) -> bool:
    """Returns whether a constant holds floating point numbers."""
    value = origin(value)
    tensor = tensor_of(value)
    kind = value.dtype if tensor is None else tensor.dtype
    if kind is not None:
        return ir.DataType(kind).is_floating_point()
    node = value.producer()
    if node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
        return is_float(node.inputs[0])
    return node is not None and node.op_type == "DequantizeLinear"
