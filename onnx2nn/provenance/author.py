"""Gives weights of files that torch exported the author's names back, and splits again what the exporter folded.

The exporters keep the key of a weight as its initializer's name unless they change the values: a transposed matrix
becomes `val_14` or `onnx::MatMul_406`, a batch normalisation vanishes into the convolution before it. What the file
notes elsewhere (see `exporter_notes`) says which weight that was. Nothing here changes what a model computes.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.naming import is_generated
from onnx2nn.provenance import exporter_metadata, relative_positions
from onnx2nn.provenance.exporter_metadata import Call, Place, State

_SLOTS = {"Conv": ("weight", "bias"), "ConvTranspose": ("weight", "bias"), "Gemm": ("weight", "bias")}
_BATCH_NORMS = {
    "aten._native_batch_norm_legit_no_training.default": (5, 6),
    "aten.batch_norm.default": (6, 7),
}
"""Calls of a batch normalisation → where momentum and epsilon stand; weight, bias, mean, variance follow the input."""

_UNSQUEEZED = {
    ("PRelu", "aten.prelu.default"): 1,
    ("Mul", "aten.group_norm.default"): 2,
    ("Add", "aten.group_norm.default"): 3,
}
"""Operators and calls whose weight has one number a channel, which the exporter gives dimensions of 1 → its place."""

_TIED = (
    (".bias", ".decoder.bias"),
    ("shared.weight", "encoder.embed_tokens.weight"),
    ("encoder.embed_tokens.weight", "shared.weight"),
    ("decoder.embed_tokens.weight", "shared.weight"),
)
"""Keys that are called the one way, to which no node refers → how the key is called of the weight that they are."""

_EXPANDED = re.compile(r"expand(_\d+)?")
"""What calls of Tensor.expand are called."""

_BATCH_NORM_VERSION = 15

_MOST_NODES_BEHIND = 32
"""So many nodes may compute a bias from the author's (that of Swin Transformer V2 has zeros in its midst)."""

_BY_PLACE = "the module that its node stands in"
_COMPUTED_WEIGHT = "the exporter computed its weight; the file does not say what from"
_ZEROS = "zeros, which the exporter left out"
_FOLDED = "the exporter folded its batch normalisation into it; the file does not say what that was called"


@dataclass
class Author:
    """What a file still says of the state_dict of the module that it was exported from.

    Attributes:
        listed: whether the file lists the author's parameters and buffers.
        states: they, by key.
        names: initializers that are called by their key.
        moved: those of them whose values the exporter had rearranged, so that their shape in the file is not the
            author's → how: `"transposed"` or `"unsqueezed"`.
        ties: key → initializer that is the same weight, for weights that have several keys.
        restored: key → what it was found out by, where it is not an initializer of the file.
        unnamed: weights without a name of the author's → why.
        computed: initializers that the exporter computed → the keys, of which the file holds no weight any more, that
            it did so from; None where the file does not note such things.
    """

    listed: bool
    states: dict[str, State] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    restored: dict[str, str] = field(default_factory=dict)
    unnamed: dict[str, str] = field(default_factory=dict)
    computed: dict[str, set[str]] | None = None

    @functools.cached_property
    def _complete(self) -> bool:
        """Whether every parameter that the file lists has its place, so that any other constant is no weight."""
        return self.listed and all(
            key in self.names or key in self.restored for key, state in self.states.items() if state.parameter
        )

    def may_train(self, name: str) -> bool:
        """Returns whether an initializer that is called by no key may be a weight: it is computed from parameters."""
        if self._complete:
            return False
        return self.computed is None or any(self.states[key].parameter for key in self.computed.get(name, ()))

    @functools.cached_property
    def outer(self) -> frozenset[str]:
        """Paths of modules that hold other modules with weights, so that they are no layers."""
        modules = {name.rpartition(".")[0] for name in self.names}
        return frozenset(path[:end] for path in modules for end, letter in enumerate(path) if letter == ".")

    def holds(self, key: str) -> bool:
        """Returns whether `key` is one of the author's that state_dict has."""
        return self.states[key].persistent if key in self.states else not self.listed and key in self.names

    def trains(self, key: str) -> bool:
        """Returns whether `key` is a parameter; the files that do not list them do not tell it from a buffer."""
        return self.states[key].parameter if key in self.states else True


def restore(model: ir.Model, *, unfold: bool = True) -> Author | None:
    """Renames the weights of `model` in place.

    Args:
        model: as `reader.read` gives it.
        unfold: whether a batch normalisation that was folded into a convolution becomes a node again.

    Returns:
        What is known of the author's names; None where no exporter wrote the file that keeps them.
    """
    return _Restorer(model.graph, unfold).run() if exporter_metadata.keeps_names(model) else None


class _Restorer:
    def __init__(self, graph: ir.Graph, unfold: bool):
        self.graph, self.unfold = graph, unfold
        noted = exporter_metadata.signature(graph)
        self.called = noted or {}
        self.author = Author(noted is not None, {state.key: state for state in self.called.values()})
        self.author.names = {name for name in graph.initializers if self._is_key(name)}
        self.absent = set(self.author.states) - self.author.names

    def run(self) -> Author:
        for node in list(self.graph):
            if node.domain:
                continue
            if node.op_type == "Identity":
                self._split_duplicate(node)
                continue
            if node.op_type == "MatMul":
                self._name_matrix(node)
            elif node.op_type in _SLOTS:
                self._name_slots(node)
                self._drop_zeros(node)
                self._add_zeros(node)
                self._batch_norm(node)
            elif node.op_type in ("PRelu", "Mul", "Add"):
                self._name_channels(node)
            elif node.op_type == "Gather":
                self._tie_embedding(node)
            if node.op_type in ("Add", "Reshape"):
                self._relative_positions(node)
        if self.absent:
            self._split_equal()
        for node in self.graph if self.absent else ():
            self._tie_by_place(node)
        self._tie_unused()
        for value in list(self.graph.initializers.values()) if self.absent else ():
            self._expanded(value)
        if self.absent - self.author.names:
            self.author.computed = self._computed()
        return self.author

    def _computed(self) -> dict[str, set[str]] | None:
        noted = {name: exporter_metadata.folded_from(value) for name, value in self.graph.initializers.items()}
        lost = self.absent - self.author.names
        return {name: keys & lost for name, keys in noted.items() if keys & lost} if any(noted.values()) else None

    def _is_key(self, name: str) -> bool:
        if self.author.listed:
            return name in self.author.states
        return "/" not in name and all(name.split(".")) and not is_generated(name)

    def _weight(self, node: ir.Node, position: int) -> ir.Value | None:
        """Returns the initializer that is an input of `node`, None where the input is something else."""
        value = node.inputs[position] if position < len(node.inputs) else None
        fits = value is not None and value.is_initializer() and not value.is_graph_input()
        return value if fits else None

    def _rename(self, value: ir.Value, key: str, how: str, moved: str = "") -> None:
        ties = self.author.ties.items()
        self.author.ties = {key if a == value.name else a: key if b == value.name else b for a, b in ties}
        self.author.names.add(key)
        if moved:
            self.author.moved[key] = moved
        self.author.restored[key] = f"{how}{', ' if moved else ''}{moved}; the file calls it {value.name!r}"
        value.name = key

    def _free(self, key: str) -> bool:
        """Returns whether `key` may be given to a weight: the author has it, and no initializer is called so."""
        return key not in self.graph.initializers and (not self.author.listed or key in self.author.states)

    # ---- places

    def _place(self, node: ir.Node) -> Place | None:
        """Returns the module in which `node` stands, with the modules around it that were not called themselves."""
        place = exporter_metadata.place_of(node)
        if place is None or not self._uncalled:
            return place
        outer, inner = place.path, ""
        while outer and not self._uncalled.get(outer):
            outer, _, last = outer.rpartition(".")
            inner = f".{last}{inner}"
        return place._replace(path=f"{self._uncalled[outer]}{inner}") if outer else place

    @functools.cached_property
    def _uncalled(self) -> dict[str, str]:
        """Scopes that lack a module, as their path in the names of nodes → the path of the module that they are.

        torch's older exporter writes the modules that were called: where a model calls `self.model.decoder(x)` the
        nodes stand in `decoder`. Weights in there have the whole path as their key. A scope of which two weights say
        different things is none (`""`).
        """
        found: dict[str, str] = {}
        for node in self.graph if not self.author.listed else ():
            for value in node.inputs:
                key = value.name if value is not None and value.is_initializer() else None
                if key is None or key not in self.author.names or not (node.name or "").startswith("/"):
                    continue
                place = exporter_metadata.place_of(node)
                for scope, module in _lacking(place.path, key.rpartition(".")[0]) if place is not None else ():
                    found[scope] = module if found.get(scope, module) == module else ""
        return found

    # ---- matrices

    def _name_matrix(self, node: ir.Node) -> None:
        """Names the second factor of a product by the call of linear, the bias added to it, or the node's place."""
        weight = self._weight(node, 1)
        if weight is None or self._is_key(weight.name or "") or weight.shape is None or len(weight.shape) != 2:
            return
        for key, how in self._matrix_keys(node):
            if key in self.author.moved and _is_equal(weight.const_value, self.graph.initializers[key].const_value):
                return self._call_again(node, weight, key)
            twin = self._twin(weight, key)
            if twin is not None:
                return self._read_from(node, twin, key)
            if self._free(key):
                return self._rename(weight, key, how, "transposed")
        if not self.author.listed:
            self.author.unnamed[weight.name or ""] = "neither its node nor a bias says what it was called"
        return None

    def _call_again(self, node: ir.Node, copy: ir.Value, key: str) -> None:
        """Lets `node` read the weight `key`, of which it has a copy: the exporter transposes it for each call."""
        node.replace_input_with(1, self.graph.initializers[key])
        if not copy.uses() and copy.name is not None:
            self.graph.initializers.pop(copy.name)
            self.author.ties.pop(copy.name, None)

    def _matrix_keys(self, node: ir.Node) -> list[tuple[str, str]]:
        call = exporter_metadata.call_of(node)
        if call is not None:
            state = self._argument(call, 1) if call.target.startswith("aten.linear.") else None
            return [] if state is None else [(state.key, "an argument of the call of linear")]
        if self.author.listed:
            return []
        place = self._place(node)
        alone = place is not None and place.path and (node.name or "").endswith("/MatMul")
        for add, bias in self._biases(node):
            if place is None or not place.path or f"{bias.name}.".startswith(f"{place.path}."):
                return [(f"{(bias.name or '')[:-4]}weight", f"its product is added to {bias.name!r}")]
            module = (bias.name or "")[: -len(".bias")]
            if alone and re.fullmatch(rf"{re.escape(module)}_\d+", place.path):  # so it numbers calls of one module
                return [(f"{path}.weight", _BY_PLACE) for path in (module, place.path)]
            if alone and bias in add.inputs and place == self._place(add):  # its own, tied to that one
                add.replace_input_with(add.inputs.index(bias), self._alias(f"{place.path}.bias", bias))
        return [(f"{place.path}.weight", _BY_PLACE)] if alone and place is not None else []

    def _biases(self, node: ir.Node) -> list[tuple[ir.Node, ir.Value]]:
        """Returns the nodes that add one of the author's biases to what `node` gives, and those biases."""
        adds = [use.node for use in node.outputs[0].uses() if use.node.op_type == "Add"]
        added = [(add, value) for add in adds for value in add.inputs if value is not None]
        found = [(add, value) for add, value in added if self._is_bias(value)]
        behind = ((add, self._bias_behind(value)) for add, value in added if value is not node.outputs[0])
        return found or [(add, bias) for add, bias in behind if bias is not None]

    def _is_bias(self, value: ir.Value) -> bool:
        return value.name in self.author.names and value.name.endswith("bias")

    def _bias_behind(self, value: ir.Value) -> ir.Value | None:
        """Returns the only weight from which `value` is computed, if that is a bias; looks at few nodes."""
        waiting, weights = [value], set[ir.Value]()
        for _ in range(_MOST_NODES_BEHIND):
            if not waiting:
                break
            node = waiting.pop().producer()
            if node is None or node.graph is not self.graph:
                return None
            given = [v for v in node.inputs if v is not None]
            weights.update(v for v in given if v.is_initializer() and v.name in self.author.names)
            waiting += [v for v in given if not v.is_initializer()]
        bias = next(iter(weights)) if len(weights) == 1 and not waiting else None
        return bias if bias is not None and self._is_bias(bias) else None

    def _argument(self, call: Call, position: int) -> State | None:
        if position >= len(call.arguments):
            return None
        return self.called.get(call.arguments[position].removeprefix("%"))

    def _twin(self, weight: ir.Value, key: str) -> ir.Value | None:
        """Returns the initializer that `weight` is a transposed copy of: `key`, or one that it was tied to."""
        own = self.graph.initializers.get(key)
        if own is not None:
            return own if _is_transposed(weight.const_value, own.const_value) else None
        if self.author.listed:
            return None
        return next((table for table in self._tables if _is_transposed(weight.const_value, table.const_value)), None)

    @functools.cached_property
    def _tables(self) -> list[ir.Value]:
        """The tables of embeddings: what a matrix may be tied to."""
        found = (self._weight(node, 0) for node in self.graph if node.op_type == "Gather" and node.inputs)
        return [table for table in dict.fromkeys(found) if table is not None and table.name in self.author.names]

    def _read_from(self, node: ir.Node, twin: ir.Value, key: str) -> None:
        if twin.name != key:
            twin = self._alias(key, twin)
        turned = ir.Node("", "Transpose", [twin], {"perm": ir.AttrInt64s("perm", [1, 0])})
        turned.outputs[0].name = f"{key}.transposed_for.{node.name}"
        self.graph.insert_before(node, turned)
        node.replace_input_with(1, turned.outputs[0])

    def _alias(self, key: str, same: ir.Value) -> ir.Value:
        """Returns a second initializer that holds the same weight under the name `key`."""
        self._lay_out(key, same)
        value = ir.Value(name=key, shape=same.shape, type=same.type, const_value=same.const_value)
        self.graph.register_initializer(value)
        self.author.names.add(key)
        self.author.ties[key] = same.name or ""
        self.author.restored[key] = f"tied to {same.name!r}"
        return value

    # ---- layers whose weights keep their layout

    def _name_slots(self, node: ir.Node) -> None:
        """Names the weights that a file without notes numbers: those of a node are called as its module."""
        place = self._place(node) if not self.author.listed else None
        if place is None or not place.path or not (node.name or "").endswith(f"/{node.op_type}"):
            return
        slots = zip(_SLOTS[node.op_type], (self._weight(node, position) for position in (1, 2)), strict=True)
        numbered = {s: value for s, value in slots if value is not None and not self._is_key(value.name or "")}
        turned = _is_turned(node)
        if list(numbered) == ["weight"] and not turned:  # a batch normalisation would have given it a bias
            self.author.unnamed[place.path] = _COMPUTED_WEIGHT
            return
        for slot, value in numbered.items():
            key = f"{place.path}.{slot}"
            if self._free(key):
                self._rename(value, key, _BY_PLACE, "transposed" if slot == "weight" and turned else "")
        if len(numbered) == 2:
            self.author.unnamed[place.path] = _FOLDED

    def _drop_zeros(self, node: ir.Node) -> None:
        """Takes the zeros off a convolution that the exporter writes where the call has no bias."""
        added = node.inputs[2] if len(node.inputs) > 2 else None
        call = exporter_metadata.call_of(node) if added is not None and not added.is_initializer() else None
        if call is None or added is None or not call.target.startswith("aten.conv"):
            return
        if call.arguments[2:3] not in ((), ("None",)):
            return
        made = added.producer()
        while made is not None and made.op_type in ("Expand", "CastLike", "Cast") and made.inputs[0] is not None:
            added, made = made.inputs[0], made.inputs[0].producer()
        value = made.attributes.get("value") if made is not None and made.op_type == "Constant" else None
        tensor = added.const_value if value is None else value.as_tensor()
        if tensor is not None and not tensor.numpy().any():
            node.replace_input_with(2, None)

    def _add_zeros(self, node: ir.Node) -> None:
        """Gives a layer its bias again, which the exporter leaves out where it is zero."""
        call = exporter_metadata.call_of(node) if self.absent and [*node.inputs, None, None][2] is None else None
        weight = self._weight(node, 1)
        if call is None or weight is None or not call.target.startswith(("aten.linear.", "aten.conv")):
            return
        state = self._argument(call, 2)
        if state is None or weight.const_value is None or state.key not in self.absent:
            return
        if self._free(state.key):
            if any(state.key in exporter_metadata.folded_from(value) for value in self.graph.initializers.values()):
                return
            self._add(state.key, np.zeros(_channels(node, weight), weight.const_value.dtype.numpy()), _ZEROS)
        elif self.author.restored.get(state.key) != _ZEROS:  # else those of another call of the layer
            return
        node.resize_inputs(3)
        node.replace_input_with(2, self.graph.initializers[state.key])

    def _name_channels(self, node: ir.Node) -> None:
        """Names a weight that has a number for each channel by the call, or the node's place."""
        weight = self._weight(node, 1)
        if weight is None or weight.shape is None or self._is_key(weight.name or ""):
            return
        found = self._channels_key(node)
        if found is None or not self._free(found[0]) or sum(size != 1 for size in weight.shape) > 1:
            return
        if self.author.listed or len(weight.shape) > 1:
            self._rename(weight, *found, "unsqueezed")

    def _channels_key(self, node: ir.Node) -> tuple[str, str] | None:
        if self.author.listed:
            call = exporter_metadata.call_of(node) if self.absent else None
            position = None if call is None else _UNSQUEEZED.get((node.op_type, call.target))
            state = None if call is None or position is None else self._argument(call, position)
            return None if state is None else (state.key, "an argument of the call")
        place = self._place(node) if (node.name or "").endswith(f"/{node.op_type}") else None
        if place is None or not (node.op_type == "PRelu" or place.path in self._group_norms):
            return None
        return f"{place.path}.{'bias' if node.op_type == 'Add' else 'weight'}", _BY_PLACE

    @functools.cached_property
    def _group_norms(self) -> set[str]:
        """Modules that the older exporter wrote as an instance normalisation of groups, and a factor and a sum."""
        places = (self._place(node) for node in self.graph if node.op_type == "InstanceNormalization")
        return {place.path for place in places if place is not None}

    def _batch_norm(self, node: ir.Node) -> None:
        """Puts a folded batch normalisation back behind `node`, such that it adds the bias and changes nothing else.

        With mean 0, variance 1 - epsilon and weight 1 the normalisation divides by 1. What the author's own statistics
        were is lost: the exporter multiplied them into the weight.
        """
        call = exporter_metadata.call_of(node)
        where = None if call is None else _BATCH_NORMS.get(call.target)
        weight = self._weight(node, 1)
        if call is None or where is None or weight is None or weight.const_value is None:
            return
        bias = self._weight(node, 2)
        if bias is None and len(node.inputs) > 2 and node.inputs[2] is not None:
            return
        states = [self._argument(call, position) for position in range(1, 5)]
        prefix, _, slot = (weight.name or "").rpartition(".")
        known = [state.key for state in states if state is not None]
        if slot != "weight" or len(known) < 4 or any(key in self.graph.initializers for key in known):
            return
        if not self.unfold:
            for key in known:
                self.author.unnamed[key] = "a batch normalisation that the exporter folded into the layer before it"
            return
        momentum, epsilon = (float(call.arguments[position]) for position in where)
        added = np.zeros(_channels(node, weight), weight.const_value.dtype.numpy()) if bias is None else _array(bias)
        self._insert_batch_norm(node, added, known, momentum, epsilon)
        own = f"{prefix}.bias"
        node.resize_inputs(3)
        node.replace_input_with(2, None)
        if own in self.author.states:
            self.graph.initializers.pop(own, None)  # what is folded is under the name of the convolution's own
            self._add(own, np.zeros_like(added), "the exporter folded it into the batch normalisation's bias")
            node.replace_input_with(2, self.graph.initializers[own])

    def _insert_batch_norm(
        self, node: ir.Node, values: np.ndarray[Any, Any], keys: list[str], momentum: float, epsilon: float
    ) -> None:
        variance = np.full_like(values, 1 - epsilon)
        arrays = (np.ones_like(values), values, np.zeros_like(values), variance)
        weight = node.inputs[1]
        assert weight is not None  # it is the convolution's
        for key, array in zip(keys, arrays, strict=True):
            self._add(key, array, f"of a batch normalisation that was folded into {weight.name!r}")
        old = node.outputs[0]
        norm = ir.Node(
            "",
            "BatchNormalization",
            [old, *(self.graph.initializers[key] for key in keys)],
            {
                "epsilon": ir.AttrFloat32("epsilon", epsilon),
                "momentum": ir.AttrFloat32("momentum", 1 - momentum),
            },
            version=_BATCH_NORM_VERSION,
            name=f"{node.name}/BatchNormalization",
            metadata_props=dict(node.metadata_props),
        )
        new = norm.outputs[0]
        new.shape, new.type = old.shape, old.type
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        norm.replace_input_with(0, old)
        self.graph.insert_after(node, norm)
        new.name, old.name = old.name, f"{old.name}.before_batch_norm"

    def _add(self, key: str, array: np.ndarray[Any, Any], how: str) -> None:
        self._initializer(key, array)
        self.author.restored[key] = how

    # ---- tables

    def _relative_positions(self, node: ir.Node) -> None:
        """Reads a window's relative position bias from its table again, as Swin Transformer does.

        The exporter folded the whole bias, an input of an Add, or the rows that it reshapes and transposes.
        """
        place = exporter_metadata.place_of(node) if self.absent and self.unfold else None
        whole = node.op_type == "Add"
        folded = self._weight(node, 1 if whole else 0)
        if place is None or folded is None or folded.const_value is None or self._is_key(folded.name or ""):
            return
        keys = [f"{place.path}.relative_position_{part}" for part in ("bias_table", "index")]
        bias = folded if whole else _transposed_heads(node)
        if bias is None or not self.absent.issuperset(keys) or not all(map(self._free, keys)):
            return
        found = relative_positions.unfold(_array(folded))
        if found is None:
            return
        table, index = found
        flat = ".swin_transformer." in place.kind and place.kind.startswith("torchvision.")  # others: for every pair
        for key, array in zip(keys, (table, index.ravel() if flat else index), strict=True):
            self._add(key, array, f"rows and places of what the exporter folded into {folded.name!r}")
        shape = [*[1] * whole, table.shape[1], *index.shape]
        made = _read_table(*(self.graph.initializers[key] for key in keys), shape=shape)
        for step, new in enumerate(made):
            new.name = new.outputs[0].name = f"{node.name}/relative_position_bias_{step}"
            new.metadata_props.update(node.metadata_props)
        self.graph.insert_before(node, made)
        if whole:
            node.replace_input_with(1, made[-1].outputs[0])
        else:
            bias.replace_all_uses_with(made[-1].outputs[0])

    def _expanded(self, folded: ir.Value) -> None:
        """Gives a weight that the exporter repeated for every item of the batch (a class token) its key again."""
        keys = exporter_metadata.folded_from(folded) & self.absent
        if len(keys) != 1 or not _EXPANDED.fullmatch(folded.name or "") or not all(map(self._free, keys)):
            return
        array, (key,) = _array(folded), keys
        if not array.ndim or not len(array) or not np.array_equal(array, np.broadcast_to(array[:1], array.shape)):
            return
        if len(array) == 1:
            self._rename(folded, key, "what the exporter notes that it folded")
        if len(array) == 1 or not self.unfold:
            return
        self._add(key, array[:1], f"what the exporter notes that it folded into {folded.name!r}")
        size = ir.Node(
            "", "Constant", [], {"value": ir.AttrTensor("value", ir.tensor(np.array(array.shape, np.int64)))}
        )
        made = [size, ir.Node("", "Expand", [self.graph.initializers[key], size.outputs[0]])]
        for node in made:
            node.name = node.outputs[0].name = f"{folded.name}/{node.op_type}"
        self.graph.insert_before(self.graph[0], made)
        folded.replace_all_uses_with(made[-1].outputs[0], replace_graph_outputs=True)
        self.graph.initializers.pop(folded.name or "")

    # ---- weights with several keys

    def _split_duplicate(self, node: ir.Node) -> None:
        """Gives weights that the exporter merged because their values are equal an initializer each.

        It merges those that the author tied too, and those only are tied here: what has one value everywhere (ones,
        zeros, a fresh layer scale) is equal without that, other tensors are not equal by chance.
        """
        source, key = self._weight(node, 0), node.outputs[0].name or ""
        if source is None or node.outputs[0].is_graph_output() or source.const_value is None:
            return
        if self.author.listed and not self._is_key(key):
            return  # an identity of the author's own, as Tensor.clone is one
        node.outputs[0].name = None
        copy = self._duplicate(key, source)
        if not self._is_key(key):
            self.author.names.discard(key)
        node.outputs[0].replace_all_uses_with(copy)
        self.graph.remove(node)

    def _split_equal(self) -> None:
        """Gives the weights of a call that the exporter merged with others of the same values one of their own each.

        Such a call names its own weights, its node reads the others, which calls of other nodes name. What no node's
        call names is another call's weight, into which this one's was folded.
        """
        calls = [(node, keys, self._given(node)) for node in self.graph if (keys := self._named_keys(node))]
        held = {value.name for _, keys, given in calls for value in given.values() if value.name in keys}
        copies: dict[tuple[str, str], ir.Value] = {}  # of a layer that is called several times
        for node, keys, given in calls:
            for position, key in self._pairs(node, keys, given):
                source = given[position].name or ""
                if source == key or source not in held or key not in self.absent:
                    continue
                if (key, source) not in copies and self._free(key):
                    copies[key, source] = self._equal(key, given[position])
                if (key, source) in copies:
                    node.replace_input_with(position, copies[key, source])

    def _named_keys(self, node: ir.Node) -> list[str]:
        """Returns the keys of the weights that the call of `node` names, in its order."""
        call = exporter_metadata.call_of(node) if not node.domain and node.op_type != "Identity" else None
        names = [text.removeprefix("%") for text in call.arguments] if call is not None else []
        return [self.called[name].key for name in names if name in self.called]

    def _given(self, node: ir.Node) -> dict[int, ir.Value]:
        """Returns the author's weights that `node` reads, by position."""
        inputs = enumerate(node.inputs)
        return {i: v for i, v in inputs if v is not None and v.is_initializer() and v.name in self.author.names}

    def _pairs(self, node: ir.Node, keys: list[str], given: dict[int, ir.Value]) -> list[tuple[int, str]]:
        """Returns which input of `node` is the weight of which key that its call names.

        What takes data first takes its weights in the same order in torch and ONNX. Of a call that became several nodes
        each has a part of the weights, which have the same last step as those that they are equal to, or are the only
        ones left.
        """
        if len(keys) == len(given) and 0 not in given and len(set(keys)) == len(keys):
            return list(zip(given, keys, strict=True))
        others = {i: value for i, value in given.items() if value.name not in keys}
        wanted = [key for key in keys if key in self.absent]
        slots = {i: [key for key in wanted if _slot(key) == _slot(value.name or "")] for i, value in others.items()}
        pairs = [(i, found[0]) for i, found in slots.items() if len(found) == 1]
        if len(others) == 1 and not pairs and len(left := [key for key in wanted if self._free(key)]) == 1:
            pairs = [(next(iter(others)), left[0])]
        return pairs if len({key for _, key in pairs}) == len(pairs) else []

    def _tie_by_place(self, node: ir.Node) -> None:
        """Gives a weight that the author tied the key that it has in the module of `node`; the call names another."""
        keys, place = self._named_keys(node), exporter_metadata.place_of(node)
        if not keys or place is None or len(node.inputs) < 2:
            return
        for position, value in self._given(node).items():
            key = f"{place.path}.{_slot(value.name or '')}"
            if value.name in keys and key in self.absent and self._free(key):
                node.replace_input_with(position, self._alias(key, value))

    def _tie_embedding(self, node: ir.Node) -> None:
        """Ties the weight of an embedding, as a file without notes names its node, to the other key that it reads."""
        table = self._weight(node, 0) if not self.author.listed and (node.name or "").endswith("/Gather") else None
        place = self._place(node) if table is not None and table.name in self.author.names else None
        if table is None or place is None or not place.path:
            return
        module, _, slot = (table.name or "").rpartition(".")
        key = f"{place.path}.weight"
        if slot == "weight" and not f"{module}.".startswith(f"{place.path}.") and self._free(key):
            node.replace_input_with(0, self._alias(key, table))

    def _tie_unused(self) -> None:
        """Ties weights that no node uses to those that transformers ties them to."""
        for key, (unused, used) in itertools.product(sorted(self.absent), _TIED):
            other = self.graph.initializers.get(f"{key.removesuffix(unused)}{used}")
            if other is not None and key.endswith(unused) and self._free(key):
                self._alias(key, other)

    def _duplicate(self, key: str, source: ir.Value) -> ir.Value:
        """Returns an initializer `key` with the values of `source`, tied to it unless they are all the same number."""
        array = _array(source)
        if not array.size or (array != array.flat[0]).any():
            return self._alias(key, source)
        return self._equal(key, source)

    def _equal(self, key: str, source: ir.Value) -> ir.Value:
        """Returns an initializer `key` with the values of `source`."""
        self._lay_out(key, source)
        self.author.restored[key] = f"equal to {source.name!r}, with which the exporter merged it"
        return self._initializer(key, np.array(_array(source)))

    def _lay_out(self, key: str, source: ir.Value) -> None:
        """Notes that a second `source` lies in the file as that does."""
        if source.name in self.author.moved:
            self.author.moved[key] = self.author.moved[source.name]

    def _initializer(self, key: str, array: np.ndarray[Any, Any]) -> ir.Value:
        tensor = ir.tensor(array, name=key)
        shape, kind = ir.Shape(array.shape), ir.TensorType(tensor.dtype)
        value = ir.Value(name=key, shape=shape, type=kind, const_value=tensor)
        self.graph.register_initializer(value)
        self.author.names.add(key)
        return value


def _lacking(scope: str, module: str) -> list[tuple[str, str]]:
    """Returns the parts of a node's scope from where on it lacks steps of its module, with those steps.

    `("model.decoder.norm", "model.model.decoder.norm")` gives `("model.decoder", "model.model.decoder")` and what was
    given; nothing where the scope lacks no steps in its midst.
    """
    short, long = scope.split("."), module.split(".")
    start = next((i for i, (one, other) in enumerate(zip(short, long, strict=False)) if one != other), len(short))
    more = len(long) - len(short)
    if more <= 0 or start == len(short) or short[start:] != long[start + more :]:
        return []
    ends = range(start + 1, len(short) + 1)
    return [(".".join(short[:end]), ".".join(long[: end + more])) for end in ends]


def _slot(key: str) -> str:
    """Returns what a weight is called in its module."""
    return key.rpartition(".")[2]


def _array(value: ir.Value) -> np.ndarray[Any, Any]:
    assert value.const_value is not None
    return value.const_value.numpy()


def _read_table(table: ir.Value, index: ir.Value, *, shape: list[int]) -> list[ir.Node]:
    """Returns nodes that read the columns of a table transposed: their result lies in order in memory."""
    heads = ir.Node("", "Transpose", [table], {"perm": ir.AttrInt64s("perm", [1, 0])})
    pairs = ir.Node("", "Gather", [heads.outputs[0], index], {"axis": ir.AttrInt64("axis", 1)})
    wanted = ir.Node("", "Constant", [], {"value": ir.AttrTensor("value", ir.tensor(np.array(shape, np.int64)))})
    return [heads, pairs, wanted, ir.Node("", "Reshape", [pairs.outputs[0], wanted.outputs[0]])]


def _transposed_heads(reshape: ir.Node) -> ir.Value | None:
    """Returns the bias (heads, places, places) that is made of rows, None where something else is made of them."""
    uses = list(reshape.outputs[0].uses())
    node = uses[0].node if len(uses) == 1 else None
    perm = node.attributes.get("perm") if node is not None and node.op_type == "Transpose" else None
    bias = node.outputs[0] if node is not None and perm is not None and list(perm.as_ints()) == [2, 0, 1] else None
    return None if bias is None or bias.is_graph_output() else bias


def _channels(node: ir.Node, weight: ir.Value) -> int:
    """Returns how many channels a layer gives that has this weight."""
    assert weight.const_value is not None
    shape = weight.const_value.shape.numpy()
    if node.op_type == "ConvTranspose":
        return int(shape[1]) * (node.attributes["group"].as_int() if "group" in node.attributes else 1)
    return int(shape[1 if _is_turned(node) else 0])


def _is_turned(node: ir.Node) -> bool:
    """Returns whether a layer's matrix is the other way round than nn.Linear has it."""
    return node.op_type == "Gemm" and ("transB" not in node.attributes or not node.attributes["transB"].as_int())


def _is_equal(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    """Returns whether two tensors hold the same values; reads little where they differ."""
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    a, b = one.numpy(), other.numpy()
    return np.array_equal(a[:1], b[:1]) and np.array_equal(a, b)


def _is_transposed(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    """Returns whether two matrices hold the same values, one of them transposed; reads little where they differ."""
    if one is None or other is None or one.dtype != other.dtype:
        return False
    if len(one.shape) != 2 or tuple(one.shape.numpy()) != tuple(other.shape.numpy())[::-1]:
        return False
    a, b = one.numpy(), other.numpy().T
    return math.prod(a.shape) > 0 and np.array_equal(a[0, :2], b[0, :2]) and np.array_equal(a, b)
