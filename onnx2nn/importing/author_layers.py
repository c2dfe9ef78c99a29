"""Which of the author's modules a layer is, and whether it is one, for every framework."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import onnx_ir as ir

from onnx2nn.ground.naming import split_path, without_call_number
from onnx2nn.importing.constants import Constant
from onnx2nn.importing.placement import LayerName, layer_name
from onnx2nn.provenance.author import Author
from onnx2nn.provenance.exporter_metadata import Place, computed_weights, place_of

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Where a word begins in the name of a class."""

_RECURRENT = frozenset({"RNN", "LSTM", "GRU"})
_WITHOUT_MODE = frozenset({"Linear"} | {f"Conv{kind}{n}d" for kind in ("", "Transpose") for n in (1, 2, 3)})
"""Layers that a function of their weights replaces, in training too."""

_PLAIN = _WITHOUT_MODE | {"Embedding", "LayerNorm", "GroupNorm", "RMSNorm"}
"""Layers that torch's exporters write as one operator, once the patterns of several are raised."""


class HeldWeights(NamedTuple):
    """The weights that a layer would hold.

    Attributes:
        kind: name of the layer's class (`"Conv2d"`).
        slots: dotted names of its parameters and buffers (`"out_proj.weight"`), also of absent ones.
        origins: slot → the constant of the file that its tensor is, or from which it is computed; None where it comes
            from no constant. Absent slots are not in it.
        sizes: slot → number of elements, for the same slots.
        rearranged: slots whose tensors are an author's weights in another layout than the author's.
    """

    kind: str
    slots: Collection[str]
    origins: Mapping[str, Constant | None]
    sizes: Mapping[str, int]
    rearranged: Collection[str]


class AuthorLayers:
    """Compares layers with the modules of the author's, by the keys of their weights and by the places of nodes.

    Args:
        author: the author's names, None where they are unknown.
    """

    def __init__(self, author: Author | None):
        self._author = author
        self._computed_in = functools.cache(computed_weights)

    @functools.cached_property
    def _slots_of(self) -> dict[str, set[str]]:
        """The names of the author's weights in each module, without those of modules inside it."""
        found: dict[str, set[str]] = {}
        for name in self._author.names if self._author is not None else ():
            module, _, slot = name.rpartition(".")
            found.setdefault(module, set()).add(slot)
        return found

    def name(self, node: ir.Node, step: int, held: HeldWeights) -> LayerName:
        """Returns the path of a layer: the author's, where the file says whose weights it holds or where its node is.

        Args:
            node: the node that becomes the layer.
            step: its number in the graph.
            held: the layer's weights.
        """
        names = [origin.name for origin in held.origins.values() if origin is not None]
        place = place_of(node) if self._author is not None else None
        key = self._key(held.origins, names, place)
        if key is not None:
            return LayerName(key.split(".")[:-1], own=True)
        if place is not None and place.path and (not names or self._is_around_layers(node, place)):
            return LayerName(self._path_in(node, place, held.kind))
        weight = held.origins.get("weight")
        return layer_name(node, step, weight.name if weight is not None else "")

    def _key(self, slots: Collection[str], names: Collection[str], place: Place | None) -> str | None:
        """Returns the author's key of one of a layer's weights, None where none is known.

        Args:
            slots: the names of the weights in the layer.
            names: the names of the constants that they are.
            place: the module of the node.
        """
        author = self._author
        if author is None:
            return None
        here = [f"{place.path}.{slot}" for slot in slots] if place is not None else []
        keys = [key for key in here if author.ties.get(key) in names]  # of a layer that several modules share
        keys += [name for name in names if name in author.names]
        if place is not None and not self.holds_others(place):  # a module around layers is not this one
            keys += here
        return next((key for key in keys if key in author.names or key in author.states), None)

    def _path_in(self, node: ir.Node, place: Place, kind: str) -> list[str]:
        """Returns the path of a layer without an author's weight: its place, or one inside where that holds others."""
        path = split_path(place.path)
        return [*path, _WORD.sub("_", kind).lower()] if self._is_around_layers(node, place) else path

    def _is_around_layers(self, node: ir.Node, place: Place) -> bool:
        """Returns whether the module of a node is one around layers, by its keys or by the weights of its nodes.

        Several recurrent nodes of one module are the layers of a stack.
        """
        several = node.op_type not in _RECURRENT and len(self._computed_in(node.graph).get(place.path, ())) > 1
        return several or self.holds_others(place)

    def holds_others(self, place: Place) -> bool:
        """Returns whether the author's keys have the path of a place as that of a module around layers."""
        return self._author is not None and any(key.startswith(f"{place.path}.") for key in self._author.names)

    def fits(self, node: ir.Node | None, held: HeldWeights, *, outer: bool = False) -> bool:
        """Returns whether a layer would hold the author's weights unchanged, under their keys.

        Args:
            node: the node that would become the layer, None for none of the file's.
            held: the layer's weights.
            outer: whether a module around the one with the layer holds the author's weights.
        """
        author = self._author
        if author is None:
            return True
        others = (self._is_computed, self._is_table, _is_embedding, self._is_untrained)  # no layers of the author's
        if node is not None and any(is_other(node, held, author) for is_other in others):
            return False
        modules = set()
        for slot, origin in held.origins.items():
            if origin is None or origin.name not in author.names:
                continue
            module = origin.name.removesuffix(f".{slot}")
            if outer or module == origin.name or slot in held.rearranged:
                return False
            modules.add(module)
        if held.kind in _WITHOUT_MODE and any(_passes_on(node, module) for module in modules):
            return False
        if held.kind in _PLAIN and any(_computes_more(use, module) for module in modules for use in _alike(node, held)):
            return False
        kept = {"num_batches_tracked", *held.origins}
        if any(not self._slots_of.get(module, kept) <= kept for module in modules):
            return False  # torch's layer has no such weight, or the call does not use it
        if len(modules) > 1 or not any("." in slot for slot in held.slots):
            return len(modules) < 2 and modules.isdisjoint(author.outer)
        own = {f"{module}.{slot}" for module in modules for slot in held.slots}
        return not any(name.startswith(f"{module}.") for module in modules for name in author.names - own)

    def _is_computed(self, node: ir.Node, held: HeldWeights, author: Author) -> bool:
        """Returns whether a layer would hold a tensor that the exporter computed from a weight, under the weight's key.

        The layer's path comes from its node. Therefore `1 + weight` (Gemma's normalisation) would get the key
        `norm.weight`. A layer inside the node's module has another key.
        """
        if held.kind in _RECURRENT:
            return False  # the file reorders the weights, and the layer has the author's order again
        place = place_of(node)
        origins = held.origins
        keys = {slot: origin.name for slot, origin in origins.items() if origin and origin.name in author.names}
        modules = {key.removesuffix(f".{slot}") for slot, key in keys.items()}
        path = min(modules) if modules else place.path if place is not None else ""
        inside = not keys and place is not None and self._is_around_layers(node, place)
        known = author.states if author.listed else author.names
        for slot in (origins.keys() - keys) if path else ():
            if f"{path}.{slot}" in known:
                return True
            numbered = slot == "weight" and getattr(origins[slot], "weight", False) and not author.listed
            if numbered and node.op_type not in ("MatMul", "Linear") and not inside:
                return True
        return False

    def _is_table(self, node: ir.Node, held: HeldWeights, author: Author) -> bool:
        """Returns whether a layer would be the lookup of a table that is no weight, in a module that is no embedding.

        An author's `anchors[best]` is an expression; as a layer it would have a key that the author's weights lack.
        """
        if held.kind != "Embedding":
            return False
        place, origin = place_of(node), held.origins.get("weight")
        named = origin is not None and origin.name in author.names
        return place is not None and not named and (not place.path or self.holds_others(place))

    def _is_untrained(self, node: ir.Node, held: HeldWeights, author: Author) -> bool:
        """Returns whether a layer would train a constant that is known to be no weight of the author's."""
        names = {slot: "" if origin is None else origin.name for slot, origin in held.origins.items()}
        if author.listed:
            return author.complete and any(name and name not in author.names for name in names.values())
        place = place_of(node)
        made = _sizes_made(node) if author.names or (place is not None and place.path) else set()
        return any(not name and held.sizes[slot] in made for slot, name in names.items())


def _is_embedding(node: ir.Node, held: HeldWeights, author: Author) -> bool:
    """Returns whether a linear layer would hold the table of an embedding, under a key that this has."""
    origin, graph = held.origins.get("weight"), node.graph
    if held.kind != "Linear" or origin is None or origin.name not in author.names or graph is None:
        return False
    table = graph.initializers.get(origin.name)
    return table is not None and any(use.node.op_type == "Gather" and use.idx == 0 for use in table.uses())


def _sizes_made(node: ir.Node) -> set[int]:
    """Returns the numbers of elements of a node's constants that torch's older exporter wrote as nodes.

    They are no weights, such as the kernel of a fixed filter. Of a frozen script, without keys and scopes, all are.
    """
    made = (value for value in node.inputs if value is not None and not value.is_initializer())
    tensors = map(ir.convenience.get_const_tensor, made)
    return {tensor.size for tensor in tensors if tensor is not None}


def _passes_on(node: ir.Node | None, module: str) -> bool:
    """Returns whether a module gives what the node computes to a module inside it, as no layer of torch does."""
    uses = [use.node for output in node.outputs for use in output.uses()] if node is not None else []
    places = [place for place in map(place_of, uses) if place is not None]
    return any(place.path.startswith(f"{module}.") for place in places)


def _alike(node: ir.Node | None, held: HeldWeights) -> list[ir.Node]:
    """Returns a node, and the others of its operator that use its weight: one module has them as calls of itself."""
    if node is None or node.graph is None:
        return []
    origin = held.origins.get("weight")
    weight = None if origin is None else node.graph.initializers.get(origin.name)
    uses = [] if weight is None else [use.node for use in weight.uses()]
    return [node, *(other for other in uses if other is not node and other.op_type == node.op_type)]


def _computes_more(node: ir.Node | None, module: str) -> bool:
    """Returns whether the module of a node's weight computes something of the node's input or result itself.

    Hooks of a layer in its place, and those who call it, would miss that. What only prepares the input for a layer of
    torch (a padding mode, another type), and the shape of rows that a matrix is multiplied with, is the layer's.
    """
    place = None if node is None else place_of(node)
    if node is None or place is None or place.kind.startswith("torch.nn."):
        return False
    last = place.path.rpartition(".")[2]
    if module.rpartition(".")[2] not in (last, without_call_number(last)):
        return False  # a function of the weight in the module around
    given = node.inputs[1 if node.op_type == "Gather" else 0]
    before = None if given is None else given.producer()
    around = [before] if before is not None and before.op_type not in ("Pad", "Constant") else []
    around += [use.node for output in node.outputs for use in output.uses()]
    others = (other for other in around if other.op_type not in ("Cast", "Reshape", "Shape"))
    return any((at := place_of(other)) is not None and at.path == place.path for other in others)
