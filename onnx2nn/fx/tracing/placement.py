"""The paths of constants and layers in an imported graph's module tree: the author's keys where they are known."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir
import torch
from torch import fx, nn

from onnx2nn.fx.constants import Constant
from onnx2nn.fx.origins import Origins
from onnx2nn.fx.tracing.layers import Layer
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.ground.naming import is_generated, split_path, without_call_number
from onnx2nn.importing.author_layers import AuthorLayers, HeldWeights
from onnx2nn.importing.control_flow import module_path
from onnx2nn.importing.node_facts import node_name
from onnx2nn.importing.placement import ConstantName, LayerName, Position, constant_name
from onnx2nn.provenance.author import Author
from onnx2nn.provenance.exporter_metadata import SCOPES, call_name, padding_index, place_of, source_of

_OF_GRAPHS = frozenset({"onnx2nn.control_flow", "onnx2nn.searches"})
"""Where the modules that run the graphs of a node are defined."""


class NamedPlacement:
    """Places a graph's constants and layers by the nodes that use them and the names of initializers.

    Args:
        author: the author's names, None where they are unknown.
        weights: the model's initializers, by name.
        origins: the origins of tensors.
        at: the node that is imported.
        prefix: the prefix of the author's keys in this graph, the path of its module.
        outer: whether the enclosing module holds the author's weights that this graph uses.
        called_by_torch: whether a control flow operator such as torch.cond calls this graph's module.
    """

    def __init__(
        self,
        author: Author | None,
        weights: Mapping[str, Constant],
        origins: Origins,
        at: Position,
        prefix: str = "",
        outer: bool = False,
        called_by_torch: bool = False,
    ):
        self.author, self.weights, self.origins, self.at = author, weights, origins, at
        self.prefix, self.outer, self.called_by_torch = prefix, outer, called_by_torch
        self._fixed: dict[fx.Node, bool] = {}
        self._layers = AuthorLayers(author)
        self._last: tuple[Layer, HeldWeights] | None = None

    def inline(self, tensor: torch.Tensor) -> bool:
        """Returns whether a constant may be written as a number: it is no weight, or its name is generated."""
        origin = self.origins.find(tensor)
        return origin is None or not origin.weight or is_generated(origin.name)

    def base(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the author's weight of which `tensor` is another view; `tensor` itself where there is none."""
        author = self.author
        if author is None:
            return tensor
        return self._stored(tensor, self.origins.find(tensor), author)

    def _stored(self, tensor: torch.Tensor, origin: Constant | None, author: Author) -> torch.Tensor:
        """Returns the author's weight of which `tensor` is another view, by the constant from which it comes."""
        if origin is None or origin.name not in author.names:
            return tensor
        constant = self.weights.get(origin.name)
        base = constant.value if constant is not None else tensor
        if isinstance(base, torch.Tensor) and origin.name in author.moved:
            base = base.T if author.moved[origin.name] == "transposed" else base.reshape(-1)
        if not isinstance(base, torch.Tensor) or base.numel() != tensor.numel():
            return tensor
        if base.shape == tensor.shape and base.stride() == tensor.stride():
            return tensor
        if origin.name in author.quantised and tensor.ndim == 2 and base.dtype != tensor.dtype:  # floats of integers
            return tensor.T if base.shape == tensor.T.shape and base.stride() == tensor.T.stride() else tensor
        return base if base.dtype == tensor.dtype else tensor

    def constant(self, tensor: torch.Tensor) -> ConstantName:
        """Returns the path and kind of a constant."""
        origin = self.origins.find(tensor)
        if origin is not None and self.author is not None and origin.name in self.author.names:
            stored = self.weights.get(origin.name)
            if stored is not None and math.prod(stored.shape) != tensor.numel():
                origin = None  # a part of a weight is not what the author's key stands for
        name = constant_name(self.author, self.at, origin, tensor.numel(), tensor.is_floating_point())
        if name.own and origin is not None:
            return name._replace(steps=self._steps(origin.name), outer=self.outer)
        return name

    def beside(self, tensor: torch.Tensor, slot: str) -> torch.Tensor | None:
        """Returns the author's weight of a name in the module of another one, None where there is none.

        Args:
            tensor: the other weight.
            slot: the name in the module.
        """
        origin = self.origins.find(tensor)
        if origin is None or self.author is None or origin.name not in self.author.names:
            return None
        constant = self.weights.get(f"{origin.name.rpartition('.')[0]}.{slot}")
        value = None if constant is None else self.origins.remember(constant)
        return value if isinstance(value, torch.Tensor) else None

    def _steps(self, key: str) -> list[str]:
        """Returns the path of one of the author's keys in this graph's module."""
        return key.removeprefix(self.prefix).split(".")

    def layer(self, layer: Layer) -> LayerName:
        """Returns the path of a layer."""
        node = self.at.node
        assert node is not None
        name = self._layers.name(node, self.at.step, self._held(layer))
        return name._replace(steps=self._steps(".".join(name.steps))) if name.own else name

    def _held(self, layer: Layer) -> HeldWeights:
        """Returns the weights of a layer, with the constants that they come from; once for the questions about it."""
        if self._last is not None and self._last[0] is layer:
            return self._last[1]
        held = {slot: tensor for slot, tensor in layer.state.items() if tensor is not None}
        origins = {slot: self.origins.find(tensor) for slot, tensor in held.items()}
        author = self.author
        rearranged = [
            slot
            for slot, tensor in held.items()
            if author is not None and self._stored(tensor, origins[slot], author) is not tensor
        ]
        sizes = {slot: tensor.numel() for slot, tensor in held.items()}
        found = HeldWeights(layer.kind.__name__, layer.state, origins, sizes, rearranged)
        self._last = layer, found
        return found

    def of_graphs(self, node: ir.Node) -> list[str]:
        """Returns the path of the module that runs a node's graphs, such as the branches of an If.

        It stands in the author's module that called `torch.cond`, without the number of the call: equal modules have
        equal programs. A file that an import was written to names the module itself, as it does layers.
        """
        place = place_of(node) if self.author is not None and SCOPES in node.metadata_props else None
        if place is None or not place.path:
            return module_path(node)
        path = split_path(place.path)
        named = place.kind.rpartition(".")[0] in _OF_GRAPHS
        return path if named else [*path, *split_path(without_call_number(call_name(node)))]

    def caller(self) -> str | None:
        """Returns the author's module that computes what is being recorded, None where the file does not say."""
        node = self.at.node
        place = place_of(node) if node is not None and self.author is not None else None
        return None if place is None else place.path

    def is_read_once(self) -> bool:
        """Returns whether one node alone reads the first output of the node that is recorded."""
        output = None if self.at.node is None else self.at.node.outputs[0]
        return output is not None and not output.is_graph_output() and len(output.uses()) == 1

    def fits(self, layer: Layer) -> bool:
        """Returns whether a layer would hold the author's weights unchanged, under their keys.

        A lookup by an index table of the module's is no layer of the author's.
        """
        if layer.kind is nn.Embedding and any(
            isinstance(value, Tensor) and self._is_fixed(value.node) for value in layer.inputs
        ):
            return False
        if self.called_by_torch and issubclass(layer.kind, nn.RNNBase):
            return False  # its forward writes to the module, which torch.cond and similar operators refuse
        return self.holds(layer)

    def holds(self, layer: Layer) -> bool:
        """Returns whether a layer would hold the author's weights unchanged, under their keys."""
        author = self.author  # without a list of keys, layers stay layers, in the graph's module
        return author is None or self._layers.fits(self.at.node, self._held(layer), outer=self.outer and author.listed)

    def _is_fixed(self, node: fx.Node) -> bool:
        """Returns whether a value is computed from the module's state only; without recursion, as networks are deep."""
        pending, fixed = [node], self._fixed
        while pending:
            last = pending[-1]
            inputs = last.all_input_nodes
            if unknown := [value for value in inputs if value not in fixed]:
                pending += unknown
            else:
                fixed[last] = last.op == "get_attr" or (bool(inputs) and all(map(fixed.get, inputs)))
                pending.pop()
        return fixed[node]

    def describe(self, module: nn.Module) -> None:
        """Notes a layer's node in the file on the layer, in plain strings, which every way of saving keeps.

        An embedding gets the index of its row without a gradient, which only the note on a call says.
        """
        node = self.at.node
        assert node is not None
        if type(module) is nn.Embedding and (index := padding_index(node)) is not None:
            module.padding_idx = index
        notes = {"onnx_op": node.op_type, "onnx_name": node_name(node), "onnx_source": source_of(node)}
        vars(module).update((name, text) for name, text in notes.items() if text)
