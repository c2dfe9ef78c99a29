"""Replaces what the rules match, each replacement first compared with the nodes that it replaces."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.importing.node_facts import inner_graphs
from onnx2nn.optable.registry import Table
from onnx2nn.provenance.exporter_metadata import keeps_names
from onnx2nn.rewrite import activation, attention, layout, linear, masks, multihead, norm, rotary
from onnx2nn.rewrite.channels import RULE, ChannelsFirst
from onnx2nn.rewrite.evaluation import TOLERANCE, Evaluator
from onnx2nn.rewrite.facts import Facts
from onnx2nn.rewrite.patterns import NODES, Match, matches, roots, tensor_of, uncast
from onnx2nn.rewrite.recurrent import RECURRENT, stacks
from onnx2nn.rewrite.rule import STANDARD, New, Replacement, Rule

_LOG = logging.getLogger("onnx2nn")

SMALL = 64
"""Elements of the largest constant that a verification is for: one of other values is verified anew."""
LARGE = 1 << 18
"""Elements of a sample from which on it is compared in float32, which is faster."""

_PASSING = ("Shape", "Identity", "Transpose")
"""What reads a value on the way to where only its shape is taken."""

SWEEPS: tuple[tuple[Rule, ...], ...] = (
    (*layout.RULES, *norm.CHANNELS_LAST, *masks.RULES),
    (*linear.RULES, *norm.RULES, *activation.RULES, *rotary.RULES, *attention.ATTENTION),
    (*multihead.MULTIHEAD,),
)
"""Rules of one sweep over the graph, from its end on; those of a later sweep build on what an earlier one made."""


@dataclass
class Raising:
    """What was raised.

    Attributes:
        raised: how many times each rule was applied.
        dropped: replacements that disagreed with what they would have replaced, one line each.
    """

    raised: Counter[str] = field(default_factory=Counter)
    dropped: list[str] = field(default_factory=list)


def _by_root(rules: Sequence[Rule], present: Set[str]) -> dict[str, list[Rule]]:
    """Returns the rules that may apply where these operators are, by the operators at which their patterns end."""
    index: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.needs <= present:
            for operator in roots(rule.pattern) & present:
                index.setdefault(operator, []).append(rule)
    return index


def raise_patterns(model: ir.Model, table: Table, F: Any) -> Raising:
    """Replaces, in place, decomposed operators by the one that they were.

    Args:
        model: as `reader.read` gives it.
        table: the op table.
        F: `torch`, or OneFlow behind its names, on which replacements are verified.
    """
    return _Raiser(model, table, F).run()


class _Raiser:
    def __init__(self, model: ir.Model, table: Table, F: Any):
        self.model, self.table, self.F = model, table, F
        self.facts = Facts(table, F, model.graph.opset_imports)
        self.result = Raising()
        self._agreed: dict[Any, bool] = {}

    def run(self) -> Raising:
        for graph, opsets in self._graphs():
            self.facts = Facts(self.table, self.F, opsets)
            operators = _operators(graph)
            for number, rules in enumerate(SWEEPS):
                if number == 1 and isinstance(graph, ir.Graph) and "Transpose" in operators.values():
                    self._turn(graph)
                    operators = _operators(graph)
                if self._sweep(graph, operators, rules):
                    operators = _operators(graph)
            for stack in stacks(graph, self.facts) if not RECURRENT.isdisjoint(operators.values()) else ():
                self._replace(graph, stack)
        return self.result

    def _sweep(self, graph: ir.Graph | ir.Function, operators: dict[ir.Node, str], rules: Sequence[Rule]) -> bool:
        """Applies `rules` from the end of the graph on, for the largest pattern ends last; returns whether any did."""
        index = _by_root(rules, set(operators.values()))
        done = False
        for node, operator in reversed(operators.items()) if index else ():
            found = index.get(operator)
            if found is not None and not node.domain and node.graph is graph:
                done |= self._raise(graph, node, found)
        return done

    def _turn(self, graph: ir.Graph) -> None:
        """Files that keep the author's names keep the author's transposes, and the layout of the weights."""
        if keeps_names(self.model):
            return
        channels = ChannelsFirst(graph, self.facts)
        fewer = channels.run()
        self.result.raised += Counter({RULE: fewer}) if fewer else Counter()
        for line in channels.dropped:
            self.result.dropped.append(line)
            _LOG.warning(line)

    def _graphs(self) -> Iterator[tuple[ir.Graph | ir.Function, dict[str, int]]]:
        opsets = dict(self.model.graph.opset_imports)
        pending = [self.model.graph]
        for graph in pending:
            pending += inner_graphs(graph)
            yield graph, opsets
        for function in self.model.functions.values():
            yield function, {**opsets, **function.opset_imports}

    def _raise(self, graph: ir.Graph | ir.Function, root: ir.Node, rules: Sequence[Rule]) -> bool:
        """Applies the first of `rules` that fits at the node `root`; returns whether one does."""
        for rule in rules:
            for match in matches(root.outputs[0], rule.pattern, {}):
                this = self._replacement(rule, match, root) if _is_closed(match[NODES], root) else None
                if this is not None and self._replace(graph, this):
                    return True
        return False

    def _replacement(self, rule: Rule, match: Match, root: ir.Node) -> Replacement | None:
        """Returns what a rule puts in the place of a match, None where it declines."""
        try:
            new = rule.build(match, self.facts)
            if new is None:
                return None
            sample = {match[name]: item for name, item in rule.sample(match, self.facts).items()}
        except (KeyError, IndexError, TypeError, ValueError):
            return None  # attributes that are missing or of another type: the import says what is wrong with them
        added = list(_nodes(new))
        return Replacement(rule.name, match[NODES], [root.outputs[0]], added, [added[-1].outputs[0]], sample)

    def _replace(self, graph: ir.Graph | ir.Function, this: Replacement) -> bool:
        if not self._agrees(this):
            for node in this.added:
                for index in range(len(node.inputs)):
                    node.replace_input_with(index, None)  # it reads nothing any more
            return False
        last, first = this.added[-1], this.nodes[0]
        last.name = _name(this.nodes, last.op_type)
        last.metadata_props.update(first.metadata_props)
        for old, new in zip(this.old, this.new, strict=True):
            new.name, new.shape, new.type = old.name, old.shape, old.type
        graph.insert_before(first, this.added)
        for old, new in zip(this.old, this.new, strict=True):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        _remove_unread(graph, this.nodes)
        self.result.raised[this.rule] += 1
        return True

    # ---- verification

    def _agrees(self, this: Replacement) -> bool:
        """Compares the nodes with the new ones, once for all replacements alike."""
        key = (this.rule, _signature(this.nodes), _signature(this.added), _shapes(this.sample))
        if key not in self._agreed:
            self._agreed[key] = True
            try:
                reason = self._difference(this)
            except AttributeError:  # the framework has no such function
                self._agreed[key], reason = False, ""
            if reason:
                self._agreed[key] = False
                name = this.nodes[0].name or this.nodes[0].outputs[0].name
                line = f"{this.rule} at {name!r} stays as the file has it: {reason}"
                self.result.dropped.append(line)
                _LOG.warning(line)
        return self._agreed[key]

    def _difference(self, this: Replacement) -> str:
        """Returns how the nodes and the new ones differ, `""` where they agree.

        Raises:
            AttributeError: the framework lacks a function.
        """
        random, inside = np.random.default_rng(0), {*this.nodes, *this.added}
        read = [*this.sample, *(output for node in this.nodes for output in node.outputs)]
        inside |= {use.node for value in read for use in value.uses() if use.node.op_type in _PASSING}
        size = sum(math.prod(item) for item in this.sample.values() if not isinstance(item, np.ndarray))
        floats: Any = np.float64 if size < LARGE else np.float32
        given = {
            value: item if isinstance(item, np.ndarray) else random.standard_normal(item, floats)
            for value, item in this.sample.items()
        }

        def leaf(value: ir.Value) -> np.ndarray[Any, Any] | None:
            return None if value.producer() in inside else self.facts.leaf(value)

        evaluator = Evaluator(self.table, self.F, self.facts.opsets, given, floats, leaf)
        try:
            pairs = [(evaluator.array(old), evaluator.array(new)) for old, new in zip(this.old, this.new, strict=True)]
        except AttributeError:
            raise
        except Exception as error:  # whatever a framework refuses is no proof of equality
            return f"it could not be verified, {type(error).__name__}: {str(error).strip()[:200]}"
        tolerance = TOLERANCE if floats is np.float64 else 10 * TOLERANCE
        return next(filter(None, (_gap(expected, got, tolerance) for expected, got in pairs)), "")


def _operators(graph: ir.Graph | ir.Function) -> dict[ir.Node, str]:
    return {node: node.op_type for node in graph}


def _gap(expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any], tolerance: float) -> str:
    """Returns how two arrays differ, `""` where they agree."""
    if got.shape != expected.shape:
        return f"shape {list(got.shape)} instead of {list(expected.shape)}"
    gap = float(np.max(np.abs(got.astype(np.float64) - expected), initial=0.0))
    scale = float(np.max(np.abs(expected), initial=1e-3))
    return "" if gap <= tolerance * scale else f"off by {gap:.3g} at scale {scale:.3g}"


def _is_closed(nodes: Sequence[ir.Node], root: ir.Node) -> bool:
    """Whether nothing but the matched nodes reads what they compute on the way.

    Shapes cost nothing twice, and a constant that is cast to a value's type does not read the value.
    """
    inside = set(nodes)
    for node in inside:
        for output in node.outputs if node is not root else node.outputs[1:]:
            readers = {use.node for use in output.uses()} - inside
            outside = output.is_graph_output() or not all(_reads_nothing(reader, inside) for reader in readers)
            if outside and (node is root or not _is_of_shapes(node)):
                return False
    return True


def _reads_nothing(node: ir.Node, inside: set[ir.Node]) -> bool:
    """Whether a node takes only the type or the shape of what it reads, or gives it on to the nodes `inside` alone."""
    passes = node.op_type in _PASSING and _is_for(node, inside)
    return passes or uncast(node.outputs[0]) is not node.outputs[0]


def _is_for(node: ir.Node, inside: set[ir.Node], depth: int = 12) -> bool:
    """Whether what a node computes ends in the nodes `inside`, in so many steps."""
    uses = [use.node for output in node.outputs for use in output.uses()]
    ends = not any(output.is_graph_output() for output in node.outputs) and depth > 0
    return ends and all(user in inside or _is_for(user, inside, depth - 1) for user in uses)


def _is_of_shapes(node: ir.Node, depth: int = 10) -> bool:
    """Whether a node computes with sizes and constants only, in so many steps."""
    if node.op_type in ("Shape", "Constant"):
        return True
    for value in node.inputs if depth else ():
        producer = None if value is None else value.producer()
        known = value is None or value.const_value is not None
        if not known and (producer is None or not _is_of_shapes(producer, depth - 1)):
            return False
    return depth > 0


def _remove_unread(graph: ir.Graph | ir.Function, nodes: Iterable[ir.Node]) -> None:
    """Removes those of `nodes`, and of what they alone read, whose outputs nothing reads any more."""
    pending = list(dict.fromkeys(nodes))
    while pending:
        node = pending.pop()
        if node.graph is not graph or any(output.uses() or output.is_graph_output() for output in node.outputs):
            continue
        pending += filter(None, (value.producer() for value in node.inputs if value is not None))
        graph.remove(node, safe=True)


def _nodes(new: New) -> Iterator[ir.Node]:
    """Makes the nodes of a replacement, in the order of their execution."""
    inputs: list[ir.Value | None] = []
    for item in new.inputs:
        if isinstance(item, New):
            before = list(_nodes(item))
            yield from before
            inputs.append(before[-1].outputs[0])
        elif isinstance(item, np.ndarray):
            constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(item))])
            yield constant
            inputs.append(constant.outputs[0])
        else:
            inputs.append(item)
    *domain, operator = new.operator.split("::")
    attributes = ir.convenience.convert_attributes(dict(new.attributes))
    yield ir.Node("".join(domain), operator, inputs, attributes, version=1 if domain else STANDARD)


def _signature(nodes: Iterable[ir.Node]) -> tuple[Any, ...]:
    """Returns what nodes do: operators, attributes, small constants, shapes of large ones."""
    return tuple(
        (
            node.op_type,
            *sorted((name, repr(attr.value)) for name, attr in node.attributes.items()),
            *(_constant(value) for value in node.inputs),
        )
        for node in nodes
    )


def _constant(value: ir.Value | None) -> Any:
    tensor = None if value is None else tensor_of(value)
    if tensor is None:
        return None
    shape = tuple(tensor.shape.numpy())
    return (shape, tensor.tobytes()) if tensor.size <= SMALL else shape


def _shapes(sample: Mapping[ir.Value, Any]) -> tuple[Any, ...]:
    return tuple((item.shape, item.tobytes()) if isinstance(item, np.ndarray) else item for item in sample.values())


def _name(nodes: Sequence[ir.Node], operator: str) -> str:
    """Returns a name for what replaces `nodes`: the innermost scope that all of their names share, and the operator."""
    names = [node.name or "" for node in nodes]
    if not all("/" in name for name in names):
        return names[0]
    scopes = [name.split("/")[:-1] for name in names]
    shared = []
    for steps in zip(*scopes, strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    return "/".join([*shared, operator.split("::")[-1]])
