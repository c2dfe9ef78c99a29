"""The state that all graphs of one import to OneFlow share: what is known of sizes, and weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge.from_onnx.constants import Constant, dtype_of
from oneflow_bridge.from_onnx.dim import Sizes
from oneflow_bridge.from_onnx.held import view_of
from oneflow_bridge.from_onnx.recording import Spec
from oneflow_bridge.from_onnx.trials import Trials
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.errors import OperatorError
from onnx2nn.importing.import_state import ImportState
from onnx2nn.importing.plan import Plan
from onnx2nn.sizes.expression import Symbol, of_symbol

MAX_ELEMENTS = 1 << 31
"""Largest number of elements of a node's result with known sizes; a small file can declare a larger one."""


class FlowImport(ImportState):
    """One import.

    Args:
        model: the model.
        plan: its plan.
        inputs: dimensions of the inputs.

    Attributes:
        sizes: what is known of sizes.
        trials: runs calls for the types of their results.
    """

    def __init__(self, model: ir.Model, plan: Plan, inputs: Mapping[str, list[int | str] | None]):
        super().__init__(model, plan)
        self.inputs = inputs
        self.sizes, self.trials = Sizes(), Trials()
        self._laid_out: dict[Constant, Tensor | None] = {}
        self._constants: dict[ir.Value, Constant] = {}
        self._weights: dict[tuple[str, tuple[int, ...], str], Tensor] = {}

    def shared_weight(self, name: str, tensor: Tensor) -> Tensor:
        """Returns the one tensor that all layers with this weight hold, also where it is transposed."""
        known = self._weights.setdefault((self._key(name), tuple(tensor.shape), tensor.dtype.name), tensor)
        return known if known is tensor or np.array_equal(known.numpy(), tensor.numpy()) else tensor

    def laid_out(self, weight: Constant) -> Tensor | None:
        """Returns a weight, or what was computed of it, in its author's layout, which the file may have changed.

        None for a part of a weight.
        """
        if weight not in self._laid_out:
            initializer = self.model.graph.initializers.get(weight.name)
            stored = self.constant(initializer) if initializer is not None else weight
            whole = math.prod(stored.shape) == math.prod(weight.shape)
            same = whole and view_of(stored.value, weight.value) is not None
            value: Any = stored.value if same else weight.value
            moved = self.author.moved.get(weight.name) if self.author is not None else None
            laid = value if moved is None else value.T if moved == "transposed" else value.reshape(-1)
            self._laid_out[weight] = self.shared_weight(weight.name, laid) if whole else None
        return self._laid_out[weight]

    def constant(self, value: ir.Value) -> Constant:
        """Returns an initializer as a constant, the same one in every graph that uses it."""
        if value not in self._constants:
            constant = self._constants[value] = Constant.initializer(value)
            other = self.model.graph.initializers.get(self._key(constant.name))
            if other is not None and other is not value:
                constant.tied = self.constant(other)
        return self._constants[value]

    def _key(self, name: str) -> str:
        """Returns the one initializer by whose name all tied ones are known."""
        while self.author is not None and name in self.author.ties:  # which lead from new initializers to older ones
            name = self.author.ties[name]
        return name

    def spec(self, value: ir.Value) -> Spec | None:
        """Returns what is known of an input of the model, None where the file gives no shape or no type.

        Each dynamic dimension is a symbol of its own: nothing checks that those with one name are equal.

        Raises:
            OperatorError: it is too large, or OneFlow has no dtype for it.
        """
        if not isinstance(value.type, (ir.TensorType, type(None))) or value.dtype == ir.DataType.STRING:
            return None
        dtype = dtype_of(value.dtype) if value.dtype is not None else None
        dims = self.inputs[value.name or ""]
        if dims is None or dtype is None:
            return None
        least = [dim for dim in dims if isinstance(dim, int)]
        if np.prod(least, dtype=float) > MAX_ELEMENTS:
            raise OperatorError(f"its shape is {dims} and the limit is {MAX_ELEMENTS} elements.")
        symbols = [dim if isinstance(dim, int) else Symbol(dim) for dim in dims]
        self.trials.batches |= {symbol for symbol in symbols[:1] if isinstance(symbol, Symbol)}
        return Spec(tuple(dim if isinstance(dim, int) else of_symbol(dim) for dim in symbols), dtype)
