"""The state that all graphs of one import to OneFlow share: sample sizes and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge.from_onnx.constants import dtype_of
from oneflow_bridge.namespace.dtypes import numpy_dtype
from oneflow_bridge.namespace.tensor import Tensor, from_array
from onnx2nn.errors import OperatorError
from onnx2nn.importing.import_state import ImportState
from onnx2nn.importing.plan import Plan

MAX_ELEMENTS = 1 << 31
"""Largest number of elements of a node's result with known sizes; a small file can declare a larger one."""


class ShapeConflictError(Exception):
    """A node fails at the sample sizes."""

    def __init__(self, node: ir.Node, reason: str):
        super().__init__(reason)
        self.node, self.reason = node, reason


class FlowImport(ImportState):
    """One import at one choice of sample sizes.

    Args:
        model: the model.
        plan: its plan.
        inputs: dimensions of the inputs.
        sizes: the sample sizes of each dynamic dimension.
        strict: whether a node that fails at the sample sizes ends the import by `ShapeConflictError`; otherwise it
            becomes one line that evaluates its row.
        refused: nodes that failed at all sample sizes → the reason.
    """

    def __init__(
        self,
        model: ir.Model,
        plan: Plan,
        inputs: Mapping[str, list[int | str] | None],
        sizes: Mapping[str, tuple[int, ...]],
        strict: bool,
        refused: Mapping[str, str] | None = None,
    ):
        super().__init__(model, plan)
        self.inputs, self.sizes, self.strict = inputs, sizes, strict
        self.refused = refused or {}
        self.points = max((len(set(values)) for values in sizes.values()), default=1)
        self._weights: dict[tuple[str, tuple[int, ...], str], Tensor] = {}

    def shared_weight(self, name: str, tensor: Tensor) -> Tensor:
        """Returns the one tensor that all layers with this weight hold, also where it is transposed."""
        known = self._weights.setdefault((name, tuple(tensor.shape), tensor.dtype.name), tensor)
        return known if known is tensor or np.array_equal(known.numpy(), tensor.numpy()) else tensor

    def samples(self, value: ir.Value, limit: int | None) -> list[Any] | None:
        """Returns samples of an input of the model, one per sample size; None where the file gives no shape.

        Args:
            value: the input.
            limit: of an input that holds indices: the size of the dimension that they index.

        Raises:
            OperatorError: the samples are too large, or OneFlow has no dtype for them.
        """
        if not isinstance(value.type, (ir.TensorType, type(None))) or value.dtype == ir.DataType.STRING:
            return None
        dtype = dtype_of(value.dtype) if value.dtype is not None else None
        dims = self.inputs[value.name or ""]
        if dims is None or dtype is None:
            return None
        samples = []
        for point in range(self.points):
            shape = [self.sizes[d][min(point, len(self.sizes[d]) - 1)] if isinstance(d, str) else d for d in dims]
            if np.prod(shape, dtype=float) > MAX_ELEMENTS:
                raise OperatorError(f"its shape is {shape} and the limit is {MAX_ELEMENTS} elements.")
            if dtype.is_floating_point:
                array = np.random.default_rng(point).random(shape, dtype=np.float32).astype(numpy_dtype(dtype))
            else:
                array = np.full(shape, 0 if limit is not None and limit < 2 else 1, dtype=numpy_dtype(dtype))
            samples.append(from_array(array, dtype))
        return samples
