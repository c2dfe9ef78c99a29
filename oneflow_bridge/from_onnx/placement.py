"""The paths of constants and layers in the module tree: the author's names where the file has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oneflow_bridge.from_onnx.constants import Constant
from oneflow_bridge.from_onnx.import_state import FlowImport
from oneflow_bridge.from_onnx.layers import Layer
from oneflow_bridge.from_onnx.program import Program
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.ground.naming import split_path
from onnx2nn.importing.placement import ConstantName, Position, constant_name, declared_scope, layer_name
from onnx2nn.provenance.exporter_metadata import exported_place


class Placement:
    """The paths of the constants and layers of one program.

    Args:
        state: the state that all graphs of the import share.
        program: the program.
        at: the node that is being imported.
    """

    def __init__(self, state: FlowImport, program: Program, at: Position):
        self._state, self._program, self._at = state, program, at
        self._author = state.author
        self._origins: dict[int, Constant] = {}
        self._constants: list[Constant] = []

    def remember(self, constant: Constant) -> Any:
        """Returns the values of a constant, and notes the constant as the origin of their tensor."""
        value = constant.value
        if isinstance(value, Tensor) and id(value.value) not in self._origins:
            self._origins[id(value.value)] = constant
            self._constants.append(constant)
        return value

    def constant_of(self, value: Tensor, weights: Sequence[Constant]) -> Constant:
        """Returns the constant of a tensor, the known one or a new one that is computed from the first of `weights`."""
        known = next((c for c in self._constants if c._value is value), None)
        origin = weights[0] if weights and value.is_floating_point() else None
        return known or Constant.of(value, origin)

    def layer(self, layer: Layer, inputs: Sequence[Any]) -> list[str]:
        """Returns the path of a layer in the module tree: the author's, where the layer holds an author's weight.

        A tied weight has the name of the first layer that holds it. Further layers get their path from other weights,
        or from the node's name in files of `oneflow_bridge.export`.
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
        return layer_name(node, self._at.step, self.origin_of(layer.state.get("weight"), inputs)).steps

    def scope(self) -> tuple[str, ...] | None:
        """Returns the path of the module in which the file says the node is, None where it says nothing."""
        node = self._at.node
        assert node is not None
        exported = exported_place(self._state.model, node)
        found = split_path(exported) if exported else declared_scope(node)
        return None if found is None else tuple(found)

    def shared_weight(self, tensor: Tensor | None, inputs: Sequence[Any]) -> Tensor | None:
        """Returns the one tensor that all layers with this weight hold."""
        name = self.origin_of(tensor, inputs)
        return tensor if tensor is None or not name else self._state.shared_weight(name, tensor)

    def origin_of(self, weight: Tensor | None, inputs: Sequence[Any]) -> str:
        """Returns the name of the initializer that a layer's weight is, or a permutation of it is; "" for none."""
        if weight is None:
            return ""
        if id(weight.value) in self._origins:
            return self._origins[id(weight.value)].name
        weights = [value for value in inputs if isinstance(value, Constant) and value.weight]
        return next((c.name for c in weights if sorted(c.shape) == sorted(weight.shape)), "")

    def constant(self, tensor: Tensor) -> ConstantName:
        """Returns the path of a constant, and whether it is a parameter or a buffer."""
        origin = self._origins.get(id(tensor.value))
        name = constant_name(self._author, self._at, origin, tensor.numel(), tensor.is_floating_point())
        return name._replace(persistent=False) if self._author is None and origin is None else name

    def loses_weight(self, inputs: Sequence[Any], folded: Any) -> bool:
        """Returns whether the constant `folded` would replace an author's weight by a value computed from it.

        A transposed weight does not count where matrix products use it: their layer holds it in the author's layout.
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
