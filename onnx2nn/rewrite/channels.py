"""Channels last: transposes are pushed through the nodes between them and cancel, as files of TensorFlow need it.

TensorFlow holds images as (N, H, W, C), ONNX's convolutions want (N, C, H, W), so that its exporters put transposes
around each. A node that does not care about the order of dimensions can compute on either; which of them are to compute
on channels first, so that the fewest transposes remain, is a minimum cut. A node is turned only if it then gives the
same numbers on a small random input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.registry import load_rows
from onnx2nn.rewrite.channel_forms import ORDER, Turned, form_of, is_elementwise, to_first, to_last
from onnx2nn.rewrite.evaluation import TOLERANCE, Evaluator
from onnx2nn.rewrite.facts import Facts
from onnx2nn.rewrite.minimum_cut import Network
from onnx2nn.rewrite.patterns import tensor_of

RULE = "channels first"

_INSIDE, _AT_THE_END = 4, 3
"""What a transpose costs; at the inputs and outputs of a graph it costs less, so that of two places it takes these."""


class ChannelsFirst:
    """Turns what lies between transposes.

    Args:
        graph: a graph.
        facts: what is known of its values.
    """

    def __init__(self, graph: ir.Graph, facts: Facts):
        self.graph, self.facts = graph, facts
        self.dropped: list[str] = []
        self._ranks: dict[ir.Value, int] = {}
        self._forms: dict[ir.Node, Turned] = {}
        self._towards_first: dict[ir.Node, bool] = {}
        """The transposes between the two orders → whether they lead to channels first."""
        self._agreed: dict[Any, str] = {}

    def run(self) -> int:
        """Rewrites the graph; returns how many transposes are fewer."""
        if not self._has_both():
            return 0
        before = self._count()
        self._read()
        while True:
            turned = self._choose()
            wrong = [node for node in turned if not self._agrees(node)]
            if not wrong:
                break
            for node in wrong:
                del self._forms[node]
        if self._towards_first:
            _Rewriter(self.graph, self._forms, self._towards_first, self._ranks).run(turned)
        return before - self._count()

    def _has_both(self) -> bool:
        perms = [_perm(node) for node in self.graph if node.op_type == "Transpose"]
        first = sum(perm is not None and len(perm) > 2 and perm == to_first(len(perm)) for perm in perms)
        last = sum(perm is not None and len(perm) > 2 and perm == to_last(len(perm)) for perm in perms)
        threes = sum(perm == [0, 2, 1] for perm in perms)
        return first > 0 and last > 0 and first + last - threes > 1

    def _count(self) -> int:
        return sum(node.op_type == "Transpose" for node in self.graph)

    # ---- what may be turned

    def _read(self) -> None:
        """Finds the dimensions of all values, and the nodes that may compute on either order."""
        ranks, first = self._ranks, set[ir.Value]()
        ranks |= {v: len(v.shape) for v in self.graph.inputs if v.shape is not None}
        for node in self.graph:
            for value in node.inputs:
                if value is not None and value not in ranks:
                    rank = self.facts.rank(value, 0)
                    ranks |= {} if rank is None else {value: rank}
            source = node.inputs[0] if node.inputs else None
            rank, perm = None if source is None else ranks.get(source), _perm(node)
            if perm is not None and len(perm) > 2 and perm in (to_first(len(perm)), to_last(len(perm))):
                self._towards_first[node] = perm == to_first(len(perm)) and not (len(perm) == 3 and source in first)
                first |= {node.outputs[0]} if self._towards_first[node] else set()
            elif not node.domain and node.op_type in load_rows().operators("channels_first"):
                first.add(node.outputs[0])
                rank = rank or self.facts.rank(node.outputs[0], 1)
            elif form_of(node) is not None:
                first |= set(node.outputs) if source in first else set()
                form = self._form(node)
                if form is not None:
                    self._forms[node] = form
                    rank = form.ranks
                elif is_elementwise(node):
                    known = [ranks.get(value) for value in node.inputs if value is not None]
                    rank = None if None in known else max(size or 0 for size in known)
                else:
                    rank = None
            else:
                rank = len(perm) if perm is not None else self._product_rank(node)
            for output in node.outputs:
                declared = len(output.shape) if output.shape is not None else rank
                ranks |= {} if declared is None else {output: declared}

    def _product_rank(self, node: ir.Node) -> int | None:
        """Returns the dimensions of a product of matrices, None for other nodes."""
        if node.op_type not in ("MatMul", "Gemm") or node.domain:
            return None
        ranks = [self._ranks.get(value, 0) for value in node.inputs[:2] if value is not None]
        return max(ranks) if len(ranks) == 2 and min(ranks) >= 2 else None

    def _form(self, node: ir.Node) -> Turned | None:
        known = [self._ranks.get(v, 0) for v in node.inputs if v is not None and tensor_of(v) is None]
        several = is_elementwise(node) or node.op_type == "Concat"
        rank = max(known, default=0) if several else known[0] if known else 0
        if (rank < 3 and node.op_type != "Reshape") or any(
            attribute.is_ref() for attribute in node.attributes.values()
        ):
            return None
        try:
            make = form_of(node)
            form = None if make is None else make(node, rank, self.facts, self._ranks)
        except (IndexError, KeyError, TypeError, ValueError):
            return None  # attributes that are missing or of another type: the import says what is wrong with them
        data = [] if form is None else [node.inputs[position] for position in form.data or (0,)]
        return form if any(value is not None and tensor_of(value) is None for value in data) else None

    # ---- which are turned

    def _choose(self) -> list[ir.Node]:
        """Returns the nodes to turn, in their order, such that the fewest transposes remain."""
        network: Network[Any] = Network()
        for value, producer, readers in self._values():
            ends = value.is_graph_input() or all(reader is _LAST for reader in readers)
            cost = _AT_THE_END if ends and (value.is_graph_input() or value.is_graph_output()) else _INSIDE
            others = [reader for reader in readers if reader is not producer]
            if producer is not _LAST and any(reader is not _FIRST for reader in others):
                network.connect(producer, (value, "last"), cost)
                for reader in others:
                    network.connect((value, "last"), reader)
            if producer is not _FIRST and any(reader is not _LAST for reader in others):
                network.connect((value, "first"), producer, cost)
                for reader in others:
                    network.connect(reader, (value, "first"))
        chosen = network.side_of(_FIRST, _LAST)
        return [node for node in self.graph if node in self._forms and node in chosen]

    def _values(self) -> Iterator[tuple[ir.Value, Any, list[Any]]]:
        """Every value with what makes and what reads it: nodes that may be turned, `_FIRST` and `_LAST`."""
        values = [*self.graph.inputs, *(output for node in self.graph for output in node.outputs)]
        for value in values:
            if tensor_of(value) is not None:
                continue
            node = value.producer()
            producer: Any = _LAST
            if node in self._forms and self._forms[node].outputs:
                producer = node
            elif node is not None and self._towards_first.get(node) is False:
                producer = _FIRST
            readers = [self._reader(use.node, use.idx) for use in value.uses()]
            readers += [_LAST] if value.is_graph_output() else []
            readers = list(dict.fromkeys(reader for reader in readers if reader is not None))
            if producer is not _LAST or any(reader is not _LAST for reader in readers):
                yield value, producer, readers

    def _reader(self, node: ir.Node, position: int) -> Any:
        if node.op_type == "Shape" and not node.attributes:
            return None
        if node in self._forms and position in self._forms[node].data:
            return node
        return _FIRST if self._towards_first.get(node) else _LAST

    # ---- verification

    def _agrees(self, node: ir.Node) -> bool:
        """Compares a node with what it would become, once for all nodes alike."""
        form = self._forms[node]
        constants = tuple(self._constant(node, position) for position in range(len(node.inputs)))
        attributes = tuple(sorted((name, repr(attr.value)) for name, attr in node.attributes.items()))
        key = (node.op_type, attributes, constants, len(node.outputs), repr(dataclasses.replace(form, inputs={})))
        if key not in self._agreed:
            self._agreed[key] = self._difference(node, form)
            if self._agreed[key]:
                name = node.name or node.outputs[0].name
                self.dropped.append(f"{RULE} at {name!r} stays as the file has it: {self._agreed[key]}")
        return not self._agreed[key]

    def _constant(self, node: ir.Node, position: int) -> Any:
        value = node.inputs[position]
        tensor = tensor_of(value)
        if tensor is None:
            return None if value is None else self._ranks.get(value)
        shape = tuple(tensor.shape.numpy())
        return (shape, tensor.tobytes()) if tensor.size <= 16 else shape

    def _difference(self, node: ir.Node, form: Turned) -> str:
        random, given, inputs = np.random.default_rng(0), dict[ir.Value, Any](), list(node.inputs)
        for position in form.data:
            value, tensor = node.inputs[position], tensor_of(node.inputs[position])
            if value is None:
                continue
            if tensor is not None:
                given[value] = tensor.numpy()
                inputs[position] = stored = ir.Value(name="stored", type=value.type)
                given[stored] = _turned_constant(tensor.numpy(), form.ranks, is_elementwise(node))
                continue
            rank = self._ranks[value]
            if value not in given:
                shape = [form.sizes.get(axis, ORDER[axis]) for axis in range(rank)]
                given[value] = _sample(node, position, shape, random, form)
            stored = ir.Value(name="stored", type=value.type)
            given[stored] = np.ascontiguousarray(given[value].transpose(to_first(rank)))
            inputs[position] = stored
        given |= {value: form.reordered[i] for i, value in enumerate(node.inputs) if value and i in form.reordered}
        for position, value in enumerate(node.inputs):
            rank = 0 if value is None else self._ranks.get(value, 0)
            if value is not None and tensor_of(value) is None and value not in given and (not rank or not position):
                given[value] = random.standard_normal([form.sizes.get(axis, ORDER[axis]) for axis in range(rank)])
        new, before = _turned_node(node, form, inputs)
        try:
            evaluator = Evaluator(self.facts.table, self.facts.F, self.facts.opsets, given)
            for old, other in zip(node.outputs, new.outputs, strict=True):
                expected, got = evaluator.array(old), evaluator.array(other)
                order = to_first(form.ranks) if form.outputs else list(range(form.ranks))
                expected = expected.transpose(order)
                scale = np.abs(expected[np.isfinite(expected)]).max(initial=1e-3)
                if expected.shape != got.shape or not np.allclose(got, expected, 0, TOLERANCE * scale, equal_nan=True):
                    return "it gives other numbers on channels first"
        except Exception as error:  # whatever a framework refuses is no proof of equality
            return f"it could not be verified, {type(error).__name__}: {str(error).strip()[:200]}"
        finally:
            for made in (new, *before):
                for index in range(len(made.inputs)):
                    made.replace_input_with(index, None)
        return ""


_FIRST, _LAST = "channels first", "channels last"


def _perm(node: ir.Node) -> list[int] | None:
    if node.op_type != "Transpose" or node.domain or "perm" not in node.attributes or len(node.inputs) != 1:
        return None
    attribute = node.attributes["perm"]
    return list(attribute.as_ints()) if attribute.type == ir.AttributeType.INTS and not attribute.is_ref() else None


def _sample(
    node: ir.Node, position: int, shape: Sequence[int], random: np.random.Generator, form: Turned
) -> np.ndarray[Any, Any]:
    if position in form.bools:
        return random.random(shape) < 0.5
    if node.op_type == "DequantizeLinear":
        zero = tensor_of(node.inputs[2]) if len(node.inputs) > 2 else None
        return random.integers(0, 100, shape).astype(np.uint8 if zero is None else zero.dtype.numpy())
    return random.standard_normal(shape)


def _turned_node(node: ir.Node, form: Turned, inputs: Sequence[ir.Value | None]) -> tuple[ir.Node, list[ir.Node]]:
    """Returns a node on channels first and the constants that it reads besides the turned `inputs`."""
    before, values = [], list(inputs)
    values += [None] * (max(form.inputs, default=-1) + 1 - len(values))
    for position, array in form.inputs.items():
        made = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array))])
        made.outputs[0].name = f"{node.name or node.outputs[0].name}.input_{position}"
        before.append(made)
        values[position] = made.outputs[0]
    for position in form.reordered:
        order = ir.AttrTensor("value", ir.tensor(np.array(to_first(form.ranks), np.int64)))
        places = ir.Node("", "Constant", [], [order])
        picked = ir.Node("", "Gather", [inputs[position], places.outputs[0]], name=f"{node.name}.input_{position}")
        before += [places, picked]
        values[position] = picked.outputs[0]
    changed = {name: ir.convenience.convert_attribute(name, value) for name, value in form.attributes.items()}
    new = ir.Node(
        node.domain,
        node.op_type,
        values,
        {**node.attributes, **changed}.values(),
        num_outputs=len(node.outputs),
        version=node.version,
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    return new, before


def _turned_constant(array: np.ndarray[Any, Any], rank: int, strips: bool) -> np.ndarray[Any, Any]:
    """Returns what is broadcast against channels first as `array` is against channels last."""
    turned = array.reshape((1,) * (rank - array.ndim) + array.shape).transpose(to_first(rank))
    while strips and turned.ndim > 1 and turned.shape[0] == 1:
        turned = turned[0]
    return np.ascontiguousarray(turned)


class _Rewriter:
    """Puts turned nodes in the place of others."""

    def __init__(
        self,
        graph: ir.Graph,
        forms: Mapping[ir.Node, Turned],
        towards_first: Mapping[ir.Node, bool],
        ranks: Mapping[ir.Value, int],
    ):
        self.graph, self._forms, self._towards_first, self._ranks = graph, forms, towards_first, ranks
        self._stored: dict[ir.Value, ir.Value] = {}
        """Values → what holds them on channels first."""
        self._replaced: dict[ir.Value, ir.Value] = {}
        """Outputs of transposes that are gone → what stands for them."""
        self._constants: dict[tuple[ir.Value, int, bool], ir.Value] = {}

    def run(self, turned: Sequence[ir.Node]) -> None:
        """Turns these nodes, which stand in their order."""
        for node in turned:
            self._turn(node)
        for node, first in list(self._towards_first.items()):
            self._skip_pair(node, first)
        for node in turned:
            for output in node.outputs:
                self._read_turned(output, set(turned))
        _remove(self.graph, [*self._towards_first, *turned])
        self._keep_names()

    def _skip_pair(self, node: ir.Node, first: bool) -> None:
        """Lets what reads a value through two transposes, which lead back, read the value."""
        if node.graph is self.graph and not first:
            self._first(node.outputs[0])
            self._skip_transposes(node.outputs[0])
        elif node.graph is self.graph:
            for use in list(node.outputs[0].uses()):
                back, source = use.node, node.inputs[0]
                if self._towards_first.get(back) is False and not back.outputs[0].is_graph_output() and source:
                    back.outputs[0].replace_all_uses_with(source)

    def _turn(self, node: ir.Node) -> None:
        form, inputs = self._forms[node], list(node.inputs)
        data = {position: value for position in form.data if (value := node.inputs[position]) is not None}
        for value in data.values():
            if tensor_of(value) is None:
                self._first(value)  # which may replace what holds another one
        for position, value in data.items():
            constant = tensor_of(value) is not None
            inputs[position] = self._constant(value, form, node) if constant else self._first(value)
        new, before = _turned_node(node, form, inputs)
        self.graph.insert_before(node, [*before, new])
        for old, made in zip(node.outputs, new.outputs, strict=True):
            made.type, made.name = old.type, old.name
            if form.outputs and form.ranks > 2:
                self._stored[old] = made
                made.name = f"{old.name}.channels_first"
                made.shape = _shape(old.shape, to_first(form.ranks))
            else:
                made.shape = old.shape
                old.replace_all_uses_with(made, replace_graph_outputs=True)

    def _constant(self, value: ir.Value, form: Turned, reader: ir.Node) -> ir.Value:
        """Returns what a constant is on channels first; a weight stays a weight."""
        key = (value, form.ranks, is_elementwise(reader))
        if key in self._constants:
            return self._constants[key]
        tensor = tensor_of(value)
        assert tensor is not None
        turned = ir.tensor(_turned_constant(tensor.numpy(), form.ranks, key[2]))
        if value.is_initializer():
            made = ir.Value(name=f"{value.name}.channels_first_{form.ranks}_{int(key[2])}", const_value=turned)
            made.shape, made.type = ir.Shape(turned.shape.numpy()), ir.TensorType(turned.dtype)
            (value.graph or self.graph).register_initializer(made)
            self._constants[key] = made
            return made
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", turned)])
        node.outputs[0].name = value.name
        self.graph.insert_before(reader, node)
        self._constants[key] = node.outputs[0]
        return node.outputs[0]

    def _keep_names(self) -> None:
        """Gives weights that nothing reads on channels last any more their names back."""
        for (value, *_), made in self._constants.items():
            graph, name = made.graph, value.name
            if graph is None or name is None or value.uses() or value.is_graph_input():
                continue
            if made.is_initializer() and graph.initializers.get(name) is value:
                del graph.initializers[name]
                made.name = name

    def _first(self, value: ir.Value) -> ir.Value:
        """Returns what holds a value on channels first."""
        node = value.producer()
        if value not in self._stored and node is not None and self._towards_first.get(node) is False:
            assert node.inputs[0] is not None
            self._stored[value] = node.inputs[0]
        if value not in self._stored:
            turning = _transpose(value, to_first(self._ranks[value]), f"{value.name}.channels_first")
            first = next(iter(self.graph)) if node is None or node.graph is not self.graph else None
            if first is not None:
                self.graph.insert_before(first, turning)
            elif node is not None:
                self.graph.insert_after(node, turning)
            self._stored[value] = turning.outputs[0]
            self._skip_transposes(value)
        while self._stored[value] in self._replaced:
            self._stored[value] = self._replaced[self._stored[value]]
        return self._stored[value]

    def _read_turned(self, value: ir.Value, turned: set[ir.Node]) -> None:
        """Lets what reads a value that a turned node made read what holds it on channels first."""
        stored = self._stored.get(value)
        if stored is None:
            return
        self._skip_transposes(value)
        rank = self._ranks[value]
        for node in {use.node for use in value.uses() if use.node.op_type == "Shape" and not use.node.attributes}:
            sizes, places, picked = _shape_of(stored, rank, node)
            if node.graph is self.graph:
                self.graph.insert_before(node, [sizes, places, picked])
                picked.outputs[0].name = node.outputs[0].name
                node.outputs[0].replace_all_uses_with(picked.outputs[0], replace_graph_outputs=True)
                self._unread(node)
        if value.is_graph_output() or any(use.node not in turned for use in value.uses()):
            back = _transpose(stored, to_last(rank), value.name or "")
            back.outputs[0].shape, back.outputs[0].type = value.shape, value.type
            producer = stored.producer()
            assert producer is not None
            self.graph.insert_after(producer, back)
            value.replace_all_uses_with(back.outputs[0], replace_graph_outputs=True)

    def _skip_transposes(self, value: ir.Value) -> None:
        """Lets what reads a value through a transpose to channels first read what holds it so."""
        stored = self._stored[value]
        for node in [use.node for use in value.uses() if self._towards_first.get(use.node)]:
            output = node.outputs[0]
            if node.graph is not self.graph:
                continue
            if output.is_graph_output() and (stored.is_graph_output() or stored.producer() is None):
                continue
            if output.is_graph_output():
                stored.name, output.name = output.name, stored.name
            output.replace_all_uses_with(stored, replace_graph_outputs=True)
            self._replaced[output] = stored
            self._unread(node)

    def _unread(self, node: ir.Node) -> None:
        if node.graph is self.graph:
            self.graph.remove(node, safe=True)


def _shape(shape: Any, order: Sequence[int]) -> ir.Shape | None:
    return None if shape is None else ir.Shape([shape[axis] for axis in order])


def _transpose(value: ir.Value, perm: Sequence[int], name: str) -> ir.Node:
    node = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", perm)], name=name)
    node.outputs[0].name, node.outputs[0].type = name, value.type
    return node


def _shape_of(stored: ir.Value, rank: int, node: ir.Node) -> tuple[ir.Node, ir.Node, ir.Node]:
    """Returns nodes that give the shape on channels last of what is stored on channels first."""
    order = ir.AttrTensor("value", ir.tensor(np.array(to_last(rank), np.int64)))
    sizes, places = ir.Node("", "Shape", [stored], name=node.name), ir.Node("", "Constant", [], [order])
    return (
        sizes,
        places,
        ir.Node("", "Gather", [sizes.outputs[0], places.outputs[0]], name=f"{node.name}_channels_last"),
    )


def _remove(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Removes those of `nodes` whose outputs nothing reads."""
    for node in reversed(nodes):
        if node.graph is graph and not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
