"""Where constants and layers of an imported graph stand in its module tree: under the author's names where known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oneflow_bridge.from_onnx.constants import Constant
from oneflow_bridge.from_onnx.import_state import FlowImport
from oneflow_bridge.from_onnx.layers import Layer
from oneflow_bridge.from_onnx.program import Program
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.ground.naming import split_path
from onnx2nn.importing.placement import ConstantName, Position, constant_name, layer_path
from onnx2nn.provenance.exporter_metadata import exported_place


class Placement:
    """The placement of what one program holds.

    Args:
        state: what all graphs of the import share.
        program: the program.
        at: the node that is imported.
    """

    def __init__(self, state: FlowImport, program: Program, at: Position):
        self._state, self._program, self._at = state, program, at
        self._author = state.author
        self._origins: dict[int, Constant] = {}
        self._constants: list[Constant] = []

    def remember(self, constant: Constant) -> Any:
        """Returns the values of a constant that the program is to hold."""
        value = constant.value
        if isinstance(value, Tensor) and id(value.value) not in self._origins:
            self._origins[id(value.value)] = constant
            self._constants.append(constant)
        return value

    def constant_of(self, value: Tensor, weights: Sequence[Constant]) -> Constant:
        """Returns the constant that a tensor is, or is computed from the first of `weights` as."""
        known = next((c for c in self._constants if c._value is value), None)
        origin = weights[0] if weights and value.is_floating_point() else None
        return known or Constant.of(value, origin)

    def layer(self, layer: Layer, inputs: Sequence[Any]) -> list[str]:
        """Returns where a layer is held in the module tree: where the author's weights are, if it holds such.

        A tied weight is called as it is in the first of its layers; the others are found by what else they hold, or by
        the node's name in files of `oneflow_bridge.export`.
        """
        node = self._at.node
        assert node is not None
        names = set() if self._author is None else self._author.names
        origins = {slot: self.origin_of(tensor, inputs) for slot, tensor in layer.state.items()}
        paths = [n.removesuffix(f".{slot}") for slot, n in origins.items() if n in names and n.endswith(f".{slot}")]
        if paths:
            place = exported_place(self._state.model, node)
            free = [path for path in (*paths, place) if path and not self._program.has_layer(path)]
            return split_path(free[0] if free else paths[0])
        return layer_path(node, self._at.step, self.origin_of(layer.state.get("weight"), inputs))

    def one(self, tensor: Tensor | None, inputs: Sequence[Any]) -> Tensor | None:
        """Returns the one tensor that stands for a weight in every layer that holds it."""
        name = self.origin_of(tensor, inputs)
        return tensor if tensor is None or not name else self._state.one(name, tensor)

    def origin_of(self, weight: Tensor | None, inputs: Sequence[Any]) -> str:
        """Returns the name of the initializer that a layer's weight is, or is a permutation of."""
        if weight is None:
            return ""
        if id(weight.value) in self._origins:
            return self._origins[id(weight.value)].name
        weights = [value for value in inputs if isinstance(value, Constant) and value.weight]
        return next((c.name for c in weights if sorted(c.shape) == sorted(weight.shape)), "")

    def constant(self, tensor: Tensor) -> ConstantName:
        """Returns where a constant is held, and as what."""
        origin = self._origins.get(id(tensor.value))
        name = constant_name(self._author, self._at, origin, tensor.numel(), tensor.is_floating_point())
        return name._replace(persistent=False) if self._author is None and origin is None else name

    def loses_weight(self, inputs: Sequence[Any], folded: Any) -> bool:
        """Returns whether `folded` is computed from a weight of the author's, which is then no weight any more.

        A transposed matrix is one as long as a layer takes it, which holds it as the author's did.
        """
        node, author = self._at.node, self._author
        if author is None or node is None or not isinstance(folded, Constant) or not folded.kind.is_floating_point():
            return False
        weights = [v for v in inputs if isinstance(v, Constant) and v.weight and v.name in author.names]
        if not any(weight.kind.is_floating_point() and weight is not folded for weight in weights):
            return False
        users = [self._state.plan.table.newest(use.node.domain, use.node.op_type) for use in node.outputs[0].uses()]
        products = all(user is not None and "matrix_product" in user.traits for user in users)
        return node.op_type != "Transpose" or not products
