"""What rules ask about the values of a graph."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.importing.node_facts import is_generated
from onnx2nn.optable.registry import Table
from onnx2nn.rewrite.evaluation import Evaluator
from onnx2nn.rewrite.patterns import origin, tensor_of

_LEFT_IN = ("Cast", "DequantizeLinear", "Identity")
"""What exporters leave between a weight and its reader, besides transposes."""
_SIZES = (2, 3, 5, 7, 11, 13)


class Facts:
    """What a graph tells of its values before anything is imported.

    Args:
        table: the op table.
        F: `torch`, or OneFlow behind its names.
        opsets: opset versions by domain.
    """

    def __init__(self, table: Table, F: Any, opsets: dict[str, int]):
        self.table, self.F, self.opsets = table, F, opsets
        self._sizes: dict[str, int] = {}
        self._known: dict[ir.Value, bool] = {}
        self._arrays: dict[ir.Value, np.ndarray[Any, Any] | None] = {}

    def array(self, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
        """Returns a value that hangs on constants alone, None for any other."""
        if value is None:
            return None
        tensor = tensor_of(value)
        if tensor is not None:
            return tensor.numpy()
        if not self._is_known(value):
            return None
        if value not in self._arrays:
            try:
                self._arrays[value] = Evaluator(self.table, self.F, self.opsets, {}).array(value)
            except Exception:  # whatever the framework refuses on the way
                self._arrays[value] = None
        return self._arrays[value]

    def _is_known(self, value: ir.Value, depth: int = 12) -> bool:
        """Returns whether a value hangs on constants alone, in so many steps."""
        if tensor_of(value) is not None:
            return True
        if value not in self._known:
            node = value.producer()
            self._known[value] = (
                node is not None
                and node.op_type != "Shape"
                and depth > 0
                and all(v is None or self._is_known(v, depth - 1) for v in node.inputs)
            )
        return self._known[value]

    def number(self, value: ir.Value | None) -> float | None:
        """Returns a constant of one element, None for any other value."""
        array = self.array(value)
        return None if array is None or array.size != 1 or array.dtype.kind not in "fiu" else float(array.reshape(()))

    def ints(self, value: ir.Value | None) -> list[int | None] | None:
        """Returns the elements of a shape, None for each that only a run tells; None where their number is unknown."""
        array = self.array(value)
        if array is not None:
            return [int(item) for item in array.reshape(-1)]
        node = None if value is None else value.producer()
        if node is None:
            return None
        if node.op_type == "Concat":
            parts = [self.ints(part) for part in node.inputs]
            return None if any(part is None for part in parts) else [item for part in parts for item in part or ()]
        if node.op_type == "Cast":
            return self.ints(node.inputs[0])
        flat = node.op_type == "Reshape" and self.ints(node.inputs[1]) in ([1], [-1])
        if node.op_type == "Unsqueeze" or (flat and node.inputs[0] is not None and self.rank(node.inputs[0]) != 1):
            return [None]
        assert value is not None
        count = value.shape[0] if value.shape is not None and len(value.shape) == 1 else None
        return [None] * count if isinstance(count, int) else None

    def axes(self, node: ir.Node) -> list[int] | None:
        """Returns the axes of a reduction, of either form; None where they are not known."""
        if "axes" in node.attributes:
            return list(node.attributes["axes"].as_ints())
        return None if len(node.inputs) < 2 else [axis for axis in self.ints(node.inputs[1]) or () if axis is not None]

    def constant_shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Returns the shape of a value that is known at import without reading it, None for any other.

        Known are initializers, constants, and what casts, transposes or dequantizes them: exporters leave those in.
        """
        if value is None:
            return None
        value = origin(value)
        tensor = tensor_of(value)
        if tensor is not None:
            return tuple(tensor.shape.numpy())
        node = value.producer()
        if node is None or node.domain or not node.inputs:
            return None
        if node.op_type not in _LEFT_IN and node.op_type != "Transpose":
            return None
        shapes = [self.constant_shape(v) for v in node.inputs]
        shape = shapes[0]
        if any(s is None for s in shapes) or shape is None or node.op_type in _LEFT_IN:
            return None if any(s is None for s in shapes) else shape
        perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(shape))[::-1]
        return tuple(shape[axis] for axis in perm)

    def channels(self, value: ir.Value, data: ir.Value) -> int | None:
        """Returns how many numbers a constant has, one for each channel of `data`; None where it is another constant.

        Channels are the second dimension.
        """
        shape, rank = self.constant_shape(value), self.rank(data)
        if shape is None or rank is None or rank < 2 or len(shape) not in (rank - 1, rank):
            return None
        own = shape[len(shape) - rank + 1 :]
        return own[0] if math.prod(shape) == own[0] else None

    def is_float(self, value: ir.Value) -> bool:
        """Returns whether a constant holds floating point numbers."""
        value = origin(value)
        tensor = tensor_of(value)
        kind = value.dtype if tensor is None else tensor.dtype
        if kind is not None:
            return ir.DataType(kind).is_floating_point()
        node = value.producer()
        if node is not None and node.op_type == "Transpose" and node.inputs[0] is not None:
            return self.is_float(node.inputs[0])
        return node is not None and node.op_type == "DequantizeLinear"

    def is_made_up(self, value: ir.Value, number: float) -> bool:
        """Returns whether a constant is the exporter's and holds one number only, such as a missing weight's 1."""
        if tensor_of(value) is None or not is_generated(value.name or ""):
            return False
        array = self.array(value)
        return array is not None and bool((array == number).all())

    def rank(self, value: ir.Value, depth: int = 8) -> int | None:
        """Returns how many dimensions a value has, None where nothing near it tells."""
        if value.shape is not None:
            return len(value.shape)
        tensor, made, node = tensor_of(value), self._made_shape(value), value.producer()
        if made is not None:
            return len(made)
        if tensor is not None:
            return len(tensor.shape)
        if node is None or node.domain or not depth or not node.inputs or node.inputs[0] is None:
            return None
        if node.op_type == "Conv":
            weight = self.constant_shape(node.inputs[1])
            return self.rank(node.inputs[0], depth - 1) if weight is None else len(weight)
        if node.op_type == "Concat" and node.inputs[-1] is not None:
            return self.rank(node.inputs[-1], depth - 1)  # in a DenseNet the last one is a convolution's
        if node.op_type in ("Squeeze", "Unsqueeze"):
            before, axes = self.rank(node.inputs[0], depth - 1), self.axes(node)
            sign = 1 if node.op_type == "Unsqueeze" else -1
            return None if before is None or not axes else before + sign * len(axes)
        if node.op_type in self.table.operators("keeps_rank"):
            return self.rank(node.inputs[0], depth - 1)
        if node.op_type in self.table.operators("broadcasting"):
            ranks = [None if v is None else self.rank(v, depth - 1) for v in node.inputs]
            return None if None in ranks else max(rank or 0 for rank in ranks)
        return None

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Returns a value's shape with a small size for each dimension that is open, None where its rank is unknown."""
        if value.shape is not None:
            return tuple(dim if isinstance(dim, int) else self._size(dim) for dim in value.shape)
        made = self._made_shape(value)
        if made is None:
            return None
        return tuple(size if size is not None and size > 0 else _SIZES[i % 6] for i, size in enumerate(made))

    def _made_shape(self, value: ir.Value) -> list[int | None] | None:
        """Returns the shape that the node behind a value makes, None for each size that only a run tells."""
        node = value.producer()
        if node is None or node.domain:
            return None
        if node.op_type == "Transpose" and "perm" in node.attributes:
            return [None] * len(node.attributes["perm"].as_ints())
        return self.ints(node.inputs[1]) if node.op_type == "Reshape" and len(node.inputs) > 1 else None

    def _size(self, dim: ir.SymbolicDim) -> int:
        name = str(dim.value)
        if name not in self._sizes:
            used = len(self._sizes)
            self._sizes[name] = next(itertools.islice(itertools.chain(_SIZES, itertools.count(16)), used, None))
        return self._sizes[name]

    def leaf(self, value: ir.Value) -> np.ndarray[Any, Any] | None:
        """Returns zeros in a value's shape where something reads only its shape and the file tells it; else None."""
        if any(use.node.op_type == "Shape" for use in value.uses()):
            shape = self.shape(value)
            return None if shape is None else np.zeros(shape)
        return None
