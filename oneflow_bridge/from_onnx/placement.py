"""The paths of constants and layers in the module tree: the author's names where the file has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from oneflow_bridge.from_onnx.constants import Constant
from oneflow_bridge.from_onnx.held import HeldConstant, same_order, view_of
from oneflow_bridge.from_onnx.import_state import FlowImport
from oneflow_bridge.from_onnx.layers import Layer
from oneflow_bridge.from_onnx.program import Program
from oneflow_bridge.from_onnx.trials import leaves
from oneflow_bridge.namespace.dtypes import flow
from oneflow_bridge.namespace.tensor import Tensor
from onnx2nn.ground.naming import split_path
from onnx2nn.importing.author_layers import AuthorLayers, HeldWeights
from onnx2nn.importing.placement import LayerName, Position, constant_name, declared_scope
from onnx2nn.provenance.exporter_metadata import exported_place, padding_index


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
        self._noted: list[Any] = []  # keeps them alive: another tensor would get the id of one that is freed
        self._layers = AuthorLayers(state.author)
        self._known: dict[int, tuple[Layer, HeldWeights]] = {}

    def remember(self, constant: Constant) -> Any:
        """Returns the values of a constant, and notes the constant as the origin of their tensor.

        Of tied weights, which share a tensor, the last used one counts.
        """
        value = constant.value
        if isinstance(value, Tensor):
            self._origins[id(value.value)] = constant
        return value

    def note(self, values: Any, inputs: Sequence[Any]) -> None:
        """Notes the constants in the arguments of a call that are other views of weights among a node's inputs."""
        tensors = [value for value in leaves(values) if isinstance(value, Tensor)]
        for tensor, origin in zip(tensors, self._sources(tensors, inputs), strict=True):
            if origin is None or id(tensor.value) in self._origins:
                continue
            laid = self._state.laid_out(origin)
            if laid is not None and view_of(laid, tensor) is not None:
                self._origins[id(tensor.value)] = origin
                self._noted.append(tensor.value)

    def constant_of(self, value: Tensor, weights: Sequence[Constant]) -> Constant:
        """Returns the constant of a tensor, the known one or a new one that is computed from the first of `weights`."""
        known = self._origins.get(id(value.value))
        origin = weights[0] if weights and value.is_floating_point() else None
        return known if known is not None and known._value is value else Constant.of(value, origin)

    def fits(self, layer: Layer, inputs: Sequence[Any]) -> bool:
        """Returns whether a layer would hold the author's weights unchanged, under their keys."""
        node = self._at.node
        if node is not None and exported_place(self._state.model, node):
            return True  # the author's module was a layer there
        return self._layers.fits(node, self._held(layer, inputs))

    def layer(self, layer: Layer, inputs: Sequence[Any]) -> LayerName:
        """Returns the path of a layer in the module tree: the author's, where the file has it."""
        node = self._at.node
        assert node is not None
        held = self._held(layer, inputs)
        place = exported_place(self._state.model, node)
        path = self._free_path(held, place) if place else None
        return self._layers.name(node, self._at.step, held) if path is None else LayerName(split_path(path), own=True)

    def _free_path(self, held: HeldWeights, place: str) -> str | None:
        """Returns the path of a layer in a file of `oneflow_bridge.export`, None where its weights do not tell it.

        A tied weight has the name of the first layer that holds it. Further layers get their path from other weights,
        or from the node's.
        """
        names = set() if self._author is None else self._author.names
        keys = {slot: origin.name for slot, origin in held.origins.items() if origin is not None}
        paths = [
            key.removesuffix(f".{slot}") for slot, key in keys.items() if key in names and key.endswith(f".{slot}")
        ]
        return next((path for path in (*paths, place) if paths and not self._program.has_layer(path)), None)

    def _held(self, layer: Layer, inputs: Sequence[Any]) -> HeldWeights:
        """Returns the weights of a layer, with the constants that they come from; values are compared once a layer."""
        if id(layer) not in self._known:
            held = {slot: tensor for slot, tensor in layer.state.items() if tensor is not None}
            origins = dict(zip(held, self._sources([*held.values()], inputs), strict=True))
            sizes = {slot: tensor.numel() for slot, tensor in held.items()}
            rearranged = [slot for slot, of in origins.items() if of and self._is_rearranged(held[slot], of)]
            self._known[id(layer)] = layer, HeldWeights(layer.kind.__name__, layer.state, origins, sizes, rearranged)
        return self._known[id(layer)][1]

    def _is_rearranged(self, tensor: Tensor, origin: Constant) -> bool:
        """Returns whether a tensor is an author's weight in another layout than the author's, or computed from it."""
        if self._author is None or origin.name not in self._author.names:
            return False
        laid = self._state.laid_out(origin)
        if laid is None or laid.dtype is not tensor.dtype or laid.numel() != tensor.numel():
            return False  # it is computed from the weight
        view = view_of(laid, tensor)
        return (laid.shape != tensor.shape or not same_order(laid, tensor)) if view is None else bool(view)

    def is_author_key(self, name: str) -> bool:
        """Returns whether a constant's name is the author's key of a weight."""
        return self._author is not None and name in self._author.names

    def scope(self) -> tuple[str, ...] | None:
        """Returns the path of the module in which the file says the node is, None where it says nothing."""
        node = self._at.node
        assert node is not None
        exported = exported_place(self._state.model, node)
        found = split_path(exported) if exported else declared_scope(node)
        return None if found is None else tuple(found)

    def described(self, layer: Layer, inputs: Sequence[Any]) -> Layer:
        """Returns a layer with the tensors that all layers with its weights hold, and what the file notes of its call.

        An embedding gets the index of its row without a gradient.
        """
        node = self._at.node
        shared = {
            slot: self._state.shared_weight(origin.name, tensor)
            for slot, origin in self._held(layer, inputs).origins.items()
            if origin is not None and (tensor := layer.state[slot]) is not None
        }
        index = padding_index(node) if node is not None and layer.kind is flow.nn.Embedding else None
        config = layer.config if index is None else {**layer.config, "padding_idx": index}
        return dataclasses.replace(layer, config=config, state={**layer.state, **shared})

    def _sources(self, tensors: Sequence[Tensor], inputs: Sequence[Any]) -> list[Constant | None]:
        """Returns for each tensor of a call the constant that it is, of which it is another layout, or computed.

        A weight among the node's inputs is the source of one tensor at most: weights may have equal values.
        """
        found = [self._origins.get(id(tensor.value)) for tensor in tensors]
        left = [value for value in inputs if isinstance(value, Constant) and value.weight and value not in found]
        for place, tensor in enumerate(tensors):
            if found[place] is None:
                alike = [weight for weight in left if _dims(weight) == _dims(tensor)]
                equal = (weight for weight in alike if view_of(weight.value, tensor) is not None)
                found[place] = next(equal, alike[0] if len(alike) == 1 else None)
                left = [weight for weight in left if weight is not found[place]]
        return found

    def constant(self, tensor: Tensor) -> HeldConstant:
        """Returns how a module holds a constant, and how the constant is read from it."""
        origin = self._origins.get(id(tensor.value))
        laid = self._state.laid_out(origin) if origin is not None and origin.weight else None
        if origin is not None and origin.weight and laid is None:
            origin = None  # a part of a weight is not what the author's key stands for
        view = view_of(laid, tensor) if laid is not None else None
        name = constant_name(self._author, self._at, origin, tensor.numel(), tensor.is_floating_point())
        if self._author is None and origin is None:
            name = name._replace(persistent=False)
        return HeldConstant(name, tensor) if laid is None or view is None else HeldConstant(name, laid, view)

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


def _dims(value: Constant | Tensor) -> list[int]:
    """Returns the dimensions that are equal in all layouts of a weight: those above 1, sorted."""
    return sorted(size for size in value.shape if size != 1)
