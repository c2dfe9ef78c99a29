"""Moves channels-last nodes of TensorFlow's files to channels first, so that transposes cancel.

TensorFlow's images are `(N, H, W, C)`, ONNX's convolutions take `(N, C, H, W)`. TensorFlow's exporters therefore put
transposes around each convolution. Many nodes between two transposes can compute on either order of dimensions. The
choice of order for each of them that leaves the fewest transposes is a minimum cut. A node moves only if its results on
a small random input stay the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.registry import TABLE
from onnx2nn.rewrite.channels_first_forms import (
    SAMPLE_SIZES,
    ChannelsFirstForm,
    form_of,
    is_elementwise,
    to_channels_first,
    to_channels_last,
)
from onnx2nn.rewrite.channels_first_rewriter import Rewriter, channels_first_constant, channels_first_node
from onnx2nn.rewrite.evaluation import TOLERANCE, Evaluator
from onnx2nn.rewrite.minimum_cut import FlowNetwork
from onnx2nn.rewrite.patterns import ints_of, tensor_of
from onnx2nn.rewrite.value_facts import ValueFacts

RULE = "channels first"

_INNER_COST, _BOUNDARY_COST = 4, 3
"""Costs of a transpose inside a graph and at its inputs and outputs. Of two equal choices, the boundary wins."""


class ChannelsFirst:
    """The pass over one graph.

    Args:
        graph: the graph, changed in place.
        facts: static facts about its values.

    Attributes:
        dropped: one line for each node whose channels-first form gave other results.
    """

    def __init__(self, graph: ir.Graph, facts: ValueFacts):
        self.graph, self.facts = graph, facts
        self.dropped: list[str] = []
        self._ranks: dict[ir.Value, int] = {}
        self._forms: dict[ir.Node, ChannelsFirstForm] = {}
        self._towards_first: dict[ir.Node, bool] = {}
        """Transposes between the two orders → whether they lead to channels first."""
        self._agreed: dict[Any, str] = {}

    def run(self) -> int:
        """Rewrites the graph; returns the number of transposes removed."""
        if not self._has_both():
            return 0
        before = self._count()
        self._collect()
        while True:
            chosen = self._choose()
            wrong = [node for node in chosen if not self._agrees(node)]
            if not wrong:
                break
            for node in wrong:
                del self._forms[node]
        if self._towards_first:
            Rewriter(self.graph, self._forms, self._towards_first, self._ranks).run(chosen)
        return before - self._count()

    def _has_both(self) -> bool:
        perms = [_perm(node) for node in self.graph if node.op_type == "Transpose"]
        first = sum(perm is not None and len(perm) > 2 and perm == to_channels_first(len(perm)) for perm in perms)
        last = sum(perm is not None and len(perm) > 2 and perm == to_channels_last(len(perm)) for perm in perms)
        threes = sum(perm == [0, 2, 1] for perm in perms)
        return first > 0 and last > 0 and first + last - threes > 1

    def _count(self) -> int:
        return sum(node.op_type == "Transpose" for node in self.graph)

    def _collect(self) -> None:
        """Collects the transposes between the two orders, and what could compute on either order beside them."""
        first = set[ir.Value]()
        for node in self.graph:
            source, perm = node.inputs[0] if node.inputs else None, _perm(node)
            if (
                perm is not None
                and len(perm) > 2
                and perm in (to_channels_first(len(perm)), to_channels_last(len(perm)))
            ):
                ambiguous = len(perm) == 3 and source in first
                self._towards_first[node] = perm == to_channels_first(len(perm)) and not ambiguous
                first |= {node.outputs[0]} if self._towards_first[node] else set()
            elif not node.domain and "channels_first" in TABLE.traits_of(node.op_type):
                first.add(node.outputs[0])
            elif source in first and form_of(node) is not None:
                first.update(node.outputs)
        reached = self._reached()
        for node in self.graph if reached else ():
            form = self._form(node) if node in reached else None
            if form is not None:
                self._forms[node] = form
                for output in node.outputs:
                    self._ranks[output] = form.output_rank if output.shape is None else len(output.shape)

    def _reached(self) -> set[ir.Node]:
        """Returns the nodes to which channels first can spread from the transposes, by the operators alone."""
        reached = set[ir.Node]()
        values = [v for node, first in self._towards_first.items() for v in (node.inputs if first else node.outputs)]
        seen = set(values)
        for value in values:
            if value is None or tensor_of(value) is not None:
                continue
            for node in (value.producer(), *(use.node for use in value.uses())):
                if node is not None and node not in reached and form_of(node) is not None:
                    reached.add(node)
                    others = [other for other in (*node.inputs, *node.outputs) if other not in seen]
                    values += others
                    seen.update(others)
        return reached

    def _form(self, node: ir.Node) -> ChannelsFirstForm | None:
        for value in node.inputs:
            if value is not None and value not in self._ranks and (rank := self.facts.rank(value)) is not None:
                self._ranks[value] = rank
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
            return None  # missing attributes, or attributes of a wrong type: the import reports them
        data = [] if form is None else [node.inputs[position] for position in form.data or (0,)]
        return form if any(value is not None and tensor_of(value) is None for value in data) else None

    def _choose(self) -> list[ir.Node]:
        """Returns the nodes to move to channels first, in the graph's order, such that the fewest transposes remain."""
        network: FlowNetwork[Any] = FlowNetwork()
        for value, producer, readers in self._values():
            ends = value.is_graph_input() or all(reader is _LAST for reader in readers)
            cost = _BOUNDARY_COST if ends and (value.is_graph_input() or value.is_graph_output()) else _INNER_COST
            others = [reader for reader in readers if reader is not producer]
            if producer is not _LAST and any(reader is not _FIRST for reader in others):
                network.add_edge(producer, (value, "last"), cost)
                for reader in others:
                    network.add_edge((value, "last"), reader)
            if producer is not _FIRST and any(reader is not _LAST for reader in others):
                network.add_edge((value, "first"), producer, cost)
                for reader in others:
                    network.add_edge(reader, (value, "first"))
        chosen = network.source_side(_FIRST, _LAST)
        return [node for node in self._forms if node in chosen]

    def _values(self) -> Iterator[tuple[ir.Value, Any, list[Any]]]:
        """Yields values with producer and readers: nodes that can move, or a fixed order, `_FIRST` or `_LAST`."""
        beside = (value for node in (*self._towards_first, *self._forms) for value in (*node.inputs, *node.outputs))
        for value in dict.fromkeys(beside):
            if value is None or tensor_of(value) is not None:
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

    def _agrees(self, node: ir.Node) -> bool:
        """Compares a node with its channels-first form, once for all nodes of one signature."""
        form = self._forms[node]
        constants = tuple(self._constant(node, position) for position in range(len(node.inputs)))
        attributes = tuple(sorted((name, repr(attr.value)) for name, attr in node.attributes.items()))
        key = (node.op_type, attributes, constants, len(node.outputs), repr(dataclasses.replace(form, inputs={})))
        if key not in self._agreed:
            self._agreed[key] = self._difference(node, form)
            if self._agreed[key]:
                name = node.name or node.outputs[0].name
                line = f"{RULE} is not applied at node {name!r}, which stays as in the file: {self._agreed[key]}"
                self.dropped.append(line)
        return not self._agreed[key]

    def _constant(self, node: ir.Node, position: int) -> Any:
        value = node.inputs[position]
        tensor = tensor_of(value)
        if tensor is None:
            return None if value is None else self._ranks.get(value)
        shape = tuple(tensor.shape.numpy())
        return (shape, tensor.tobytes()) if tensor.size <= 16 else shape

    def _difference(self, node: ir.Node, form: ChannelsFirstForm) -> str:
        random, given, inputs = np.random.default_rng(0), dict[ir.Value, Any](), list(node.inputs)
        for position in form.data:
            value, tensor = node.inputs[position], tensor_of(node.inputs[position])
            if value is None:
                continue
            if tensor is not None:
                given[value] = tensor.numpy()
                inputs[position] = stored = ir.Value(name="stored", type=value.type)
                given[stored] = channels_first_constant(tensor.numpy(), form.output_rank, is_elementwise(node))
                continue
            rank = self._ranks[value]
            if value not in given:
                shape = [form.sample_sizes.get(axis, SAMPLE_SIZES[axis]) for axis in range(rank)]
                given[value] = _sample(node, position, shape, random, form)
            stored = ir.Value(name="stored", type=value.type)
            given[stored] = np.ascontiguousarray(given[value].transpose(to_channels_first(rank)))
            inputs[position] = stored
        given |= {value: form.reordered[i] for i, value in enumerate(node.inputs) if value and i in form.reordered}
        for position, value in enumerate(node.inputs):
            rank = 0 if value is None else self._ranks.get(value, 0)
            if value is not None and tensor_of(value) is None and value not in given and (not rank or not position):
                given[value] = random.standard_normal(
                    [form.sample_sizes.get(axis, SAMPLE_SIZES[axis]) for axis in range(rank)]
                )
        new, before = channels_first_node(node, form, inputs)
        try:
            evaluator = Evaluator(self.facts.table, self.facts.F, self.facts.opsets, self.facts.account, given)
            for old, other in zip(node.outputs, new.outputs, strict=True):
                expected, got = evaluator.array(old), evaluator.array(other)
                order = to_channels_first(form.output_rank) if form.outputs else list(range(form.output_rank))
                expected = expected.transpose(order)
                scale = np.abs(expected[np.isfinite(expected)]).max(initial=1e-3)
                if expected.shape != got.shape or not np.allclose(got, expected, 0, TOLERANCE * scale, equal_nan=True):
                    return "its results on channels first differ"
        except Exception as error:  # an error of any type means that equality was not shown
            return f"the verification failed with {type(error).__name__}: {str(error).strip()[:200]}"

        finally:
            for made in (new, *before):
                for index in range(len(made.inputs)):
                    made.replace_input_with(index, None)
        return ""


_FIRST, _LAST = "channels first", "channels last"


def _perm(node: ir.Node) -> list[int] | None:
    """Returns the permutation of a Transpose node, None for other nodes and where the file does not say it."""
    return ints_of(node, "perm") if node.op_type == "Transpose" and not node.domain and len(node.inputs) == 1 else None


def _sample(
    node: ir.Node, position: int, shape: Sequence[int], random: np.random.Generator, form: ChannelsFirstForm
) -> np.ndarray[Any, Any]:
    if position in form.bools:
        return random.random(shape) < 0.5
    if node.op_type == "DequantizeLinear":
        zero = tensor_of(node.inputs[2]) if len(node.inputs) > 2 else None
        return random.integers(0, 100, shape).astype(np.uint8 if zero is None else zero.dtype.numpy())
    return random.standard_normal(shape)
