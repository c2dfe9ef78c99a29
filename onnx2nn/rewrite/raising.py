"""Applies the rewrite rules to a model. Each replacement is first compared numerically with the nodes it replaces."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.limits import Account
from onnx2nn.ground.pass_times import timed
from onnx2nn.importing.node_facts import inner_graphs
from onnx2nn.optable.registry import Table
from onnx2nn.provenance.exporter_metadata import keeps_names, place_of
from onnx2nn.rewrite.evaluation import TOLERANCE, Evaluator
from onnx2nn.rewrite.patterns import NODES, Match, matches, may_match, operators_below, tensor_of, uncast
from onnx2nn.rewrite.rewrite_rule import NewNode, Replacement, Rule
from onnx2nn.rewrite.rule_sets import FOR_INFERENCE, SWEEPS, applicable_rules
from onnx2nn.rewrite.value_facts import ValueFacts

SMALL_CONSTANT = 64
"""Elements of the largest constant whose values are part of a replacement's signature.

Replacements with one signature are verified once. Of larger constants only the shape is part of it.
"""
LARGE_SAMPLE = 1 << 18
"""Samples of at least this many elements are compared in float32, which is faster than float64."""

_SHAPE_PASSING = ("Shape", "Identity", "Transpose")
"""Operators that may stand between a value and the computation of its shape."""

_MOVED_BEFORE = 2
"""The number of the sweep before which channels move to the front: behind what reads transposes, before layers."""


@dataclass
class Raising:
    """The report of a raising.

    Attributes:
        raised: how often each rule was applied, by its name.
        dropped: one line for each replacement that differed numerically from the nodes it would have replaced.
    """

    raised: Counter[str] = field(default_factory=Counter)
    dropped: list[str] = field(default_factory=list)


def _by_root(rules: Sequence[Rule], present: Set[str]) -> dict[str, list[Rule]]:
    """Returns rules by the operators of `present` that may be the last one of their pattern."""
    index: dict[str, list[Rule]] = {}
    for rule in rules:
        for operator in rule.roots & present:
            index.setdefault(operator, []).append(rule)
    return index


@timed("raising")
def raise_patterns(
    model: ir.Model, table: Table, F: Any, account: Account | None = None, *, for_inference: bool = False
) -> Raising:
    """Replaces decomposed operators by single operators, in place.

    Args:
        model: the model from `reader.read`.
        table: the op table.
        F: `torch`, or the OneFlow namespace that has torch's function names. Replacements are verified with it.
        account: counts what the verifications take; by default a new one with the default limits.
        for_inference: whether replacements may round otherwise, and have no gradients.

    Returns:
        The report.
    """
    sweeps = (*SWEEPS, *FOR_INFERENCE) if for_inference else SWEEPS
    return _Raiser(model, table, F, account or Account(), sweeps).run()


class _Raiser:
    def __init__(self, model: ir.Model, table: Table, F: Any, account: Account, sweeps: Sequence[Sequence[str]]):
        self.model, self.table, self.F, self.account, self.sweeps = model, table, F, account, sweeps
        self.facts = ValueFacts(table, F, model.graph.opset_imports, account)
        self.result = Raising()
        self._agreed: dict[Any, bool] = {}

    def run(self) -> Raising:
        for graph, opsets in self._graphs():
            self.facts = ValueFacts(self.table, self.F, opsets, self.account)
            operators = _operators(graph)
            for number, rule_sets in enumerate(self.sweeps):
                if number == _MOVED_BEFORE and "Transpose" in operators.values():
                    self._move_channels_first(graph)
                    operators = _operators(graph)
                if self._sweep(graph, operators, rule_sets):
                    operators = _operators(graph)
            if "Loop" in operators.values() and self._replace_recurrent_loops(graph):
                operators = _operators(graph)
            if any("recurrent" in self.table.traits_of(operator) for operator in set(operators.values())):
                self._merge_recurrent_layers(graph)
        return self.result

    def _replace_recurrent_loops(self, graph: ir.Graph) -> bool:
        """Makes recurrent layers of the loops that compute them; returns whether there are any."""
        from onnx2nn.rewrite.recurrent_loops import detach, recurrent_loops  # few models need it

        found = list(recurrent_loops(graph, self.facts))
        for layer in found:
            self._apply(graph, layer)
            detach(layer.nodes[0].attributes)
        return bool(found)

    def _merge_recurrent_layers(self, graph: ir.Graph) -> None:
        from onnx2nn.rewrite.recurrent_layers import stacks  # few models need it

        for stack in stacks(graph, self.facts):
            self._replace(graph, stack)

    def _sweep(self, graph: ir.Graph, operators: dict[ir.Node, str], rule_sets: Sequence[str]) -> bool:
        """Applies the rules of some sets from the end of the graph to its start; returns whether any applied.

        The largest of several overlapping patterns ends last, so that it is tried first.
        """
        present = set(operators.values())
        index = _by_root(applicable_rules(rule_sets, present), present)
        done = False
        for node, operator in reversed(operators.items()) if index else ():
            found = index.get(operator)
            if found is not None and not node.domain and node.graph is graph:
                done |= self._raise(graph, node, found)
        return done

    def _move_channels_first(self, graph: ir.Graph) -> None:
        """Moves channels-last nodes to channels first, except in files that keep the author's names.

        Such files keep the author's transposes, and the memory layout of the weights.
        """
        if keeps_names(self.model):
            return
        from onnx2nn.rewrite.channels_first import RULE, ChannelsFirst  # few models need it

        channels = ChannelsFirst(graph, self.facts)
        fewer = channels.run()
        self.result.raised += Counter({RULE: fewer}) if fewer else Counter()
        for line in channels.dropped:
            self.result.dropped.append(line)

    def _graphs(self) -> Iterator[tuple[ir.Graph, dict[str, int]]]:
        opsets = dict(self.model.graph.opset_imports)
        pending = [self.model.graph]
        for graph in pending:
            pending += inner_graphs(graph)
            yield graph, opsets
        calls = self._calls() if self.model.functions else {}
        for name, function in self.model.functions.items():
            self._declare_ranks(function, calls.get(name, []))
            pending = [function.graph]
            for graph in pending:
                pending += inner_graphs(graph)
                yield graph, {**opsets, **function.opset_imports}

    def _calls(self) -> dict[ir.OperatorIdentifier, list[ir.Node]]:
        """Returns the calls of each operator, in the functions too."""
        found: dict[ir.OperatorIdentifier, list[ir.Node]] = {}
        for graph in (self.model.graph, *(function.graph for function in self.model.functions.values())):
            for node in graph.all_nodes():
                found.setdefault(node.op_identifier(), []).append(node)
        return found

    def _declare_ranks(self, function: ir.Function, calls: Sequence[ir.Node]) -> None:
        """Gives inputs of a function, of which files tell no shapes, the rank that they have in all its calls."""
        for position, value in enumerate(function.inputs):
            given = [call.inputs[position] if position < len(call.inputs) else None for call in calls]
            ranks = {None if each is None else self.facts.rank(each) for each in given}
            rank = ranks.pop() if len(ranks) == 1 else None
            if value.shape is None and rank is not None:
                value.shape = ir.Shape([None] * rank)

    def _raise(self, graph: ir.Graph, root: ir.Node, rules: Sequence[Rule]) -> bool:
        """Applies the first of `rules` that matches at the node `root`; returns whether one does."""
        below = operators_below(root)
        for rule in rules:
            found = matches(root.outputs[0], rule.pattern, {}) if may_match(rule.pattern, below) else ()
            for match in found:
                contained = _is_self_contained(match[NODES], root, rule.shared)
                contained = contained and not (rule.one_layer and _is_in_several_modules(match[NODES]))
                this = self._replacement(rule, match, root) if contained else None
                if this is not None and self._replace(graph, this):
                    return True
        return False

    def _replacement(self, rule: Rule, match: Match, root: ir.Node) -> Replacement | None:
        """Returns the replacement of a match, None where the rule declines."""
        try:
            new = rule.build(match, self.facts)
            if new is None:
                return None
            sample, larger = (
                {match[name]: item for name, item in rule.sample(match, facts).items()}
                for facts in (self.facts, self.facts.larger)
            )
        except (KeyError, IndexError, TypeError, ValueError):
            return None  # missing attributes, or attributes of a wrong type: the import reports them
        nodes, added = match[NODES], list(_nodes(new))
        kept = _kept(rule.repeats, nodes, added)
        outputs = [root.outputs[0]], [added[-1].outputs[0]]
        return Replacement(rule.name, nodes, outputs[0], added, outputs[1], sample, rule.rounds, larger, kept)

    def _replace(self, graph: ir.Graph, this: Replacement) -> bool:
        if not self._agrees(this):
            for node in this.added:
                for index in range(len(node.inputs)):
                    node.replace_input_with(index, None)  # removes the dropped node from its inputs' uses
            return False
        self._apply(graph, this)
        return True

    def _apply(self, graph: ir.Graph, this: Replacement) -> None:
        last, first = this.added[-1], this.nodes[0]
        if not last.name:
            _stand_like(last, this.nodes)
        for old, new in zip(this.old, this.new, strict=True):
            new.name, new.shape, new.type = old.name, old.shape, old.type
        graph.insert_before(first, this.added)
        for old, new in zip(this.old, this.new, strict=True):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        _remove_unread(graph, this.nodes)
        self.result.raised[this.rule] += 1

    def _agrees(self, this: Replacement) -> bool:
        """Compares the nodes with their replacement, once for all replacements of one signature."""
        shapes = [_shapes(sample) for sample in (this.sample, this.larger) if sample is not None]
        key = (this.rule, *(_signature(nodes, this) for nodes in (this.nodes, this.added)), *shapes)
        if key not in self._agreed:
            self._agreed[key] = True
            try:
                reason = self._difference(this)
            except AttributeError:  # the framework has no such function
                self._agreed[key], reason = False, ""
            if reason:
                self._agreed[key] = False
                name = this.nodes[0].name or this.nodes[0].outputs[0].name
                line = f"{this.rule} is not applied at node {name!r}, which stays as in the file: {reason}"
                self.result.dropped.append(line)
        return self._agreed[key]

    def _difference(self, this: Replacement) -> str:
        """Returns how the nodes and their replacement differ, `""` where they agree.

        Where dimensions are dynamic, constants of the file may equal their first sizes by chance. The nodes and the
        replacement have to agree at other sizes too.

        Raises:
            AttributeError: the framework has no function of a name that a row uses.
        """
        reason = self._difference_at(this, this.sample, self.facts)
        if reason or this.larger is None or _shapes(this.larger) == _shapes(this.sample):
            return reason
        reason = self._difference_at(this, this.larger, self.facts.larger)
        return f"at other sizes of its dynamic dimensions, {reason}" if reason else ""

    def _difference_at(self, this: Replacement, sample: Mapping[ir.Value, Any], facts: ValueFacts) -> str:
        random, inside = np.random.default_rng(0), {*this.nodes, *this.added}
        read = [*sample, *(output for node in this.nodes for output in node.outputs)]
        inside |= {use.node for value in read for use in value.uses() if use.node.op_type in _SHAPE_PASSING}
        size = sum(math.prod(item) for item in sample.values() if not isinstance(item, np.ndarray))
        if 4 * size > facts.account.free_bytes:
            return f"its values are too large for a comparison, {size} elements"
        floats: Any = np.float64 if size < LARGE_SAMPLE else np.float32
        given = {
            value: item if isinstance(item, np.ndarray) else random.standard_normal(item, floats)
            for value, item in sample.items()
        }

        def placeholder(value: ir.Value) -> np.ndarray[Any, Any] | None:
            return None if value.producer() in inside else facts.placeholder(value)

        evaluator = Evaluator(self.table, self.F, facts.opsets, facts.account, given, floats, placeholder, this.repeats)
        try:
            pairs = [(evaluator.array(old), evaluator.array(new)) for old, new in zip(this.old, this.new, strict=True)]
        except AttributeError:
            raise
        except Exception as error:  # an error of any type means that equality was not shown
            return f"the verification failed with {type(error).__name__}: {str(error).strip()[:200]}"
        tolerance = TOLERANCE if floats is np.float64 else 10 * TOLERANCE
        gap = _steps_apart if this.rounds else functools.partial(_gap, tolerance=tolerance)
        return next(filter(None, (gap(expected, got) for expected, got in pairs)), "")


def _operators(graph: ir.Graph) -> dict[ir.Node, str]:
    return {node: node.op_type for node in graph}


def _gap(expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any], tolerance: float) -> str:
    """Returns how two arrays differ, `""` where they agree."""
    if got.shape != expected.shape:
        return f"the result has the shape {list(got.shape)} instead of {list(expected.shape)}"
    gap = float(np.max(np.abs(got.astype(np.float64) - expected), initial=0.0))
    scale = float(np.max(np.abs(expected), initial=1e-3))
    return "" if gap <= tolerance * scale else f"the result differs by {gap:.3g} at a scale of {scale:.3g}"


_BETWEEN_STEPS = 0.01
"""The largest share of numbers that lie in the middle of two steps."""


def _steps_apart(expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> str:
    """Returns how two arrays of steps differ, `""` where a few are the next ones."""
    if got.shape != expected.shape:
        return _gap(expected, got, 0)
    apart = np.abs(got.astype(np.int64) - expected.astype(np.int64))
    if apart.max(initial=0) <= 1 and apart.sum() <= max(1, _BETWEEN_STEPS * apart.size):
        return ""
    return f"{np.count_nonzero(apart)} of {apart.size} numbers are other steps, by up to {apart.max()}"


def _is_self_contained(nodes: Sequence[ir.Node], root: ir.Node, shared: Set[str]) -> bool:
    """Returns whether the intermediate values of the matched nodes have no readers outside, but those of `shared` ones.

    Allowed are readers of shapes and dtypes. A node that computes shapes may have readers outside: it stays for them.
    """
    inside = set(nodes)
    for node in inside:
        for output in node.outputs if node is not root else node.outputs[1:]:
            readers = {use.node for use in output.uses()} - inside
            outside = output.is_graph_output() or not all(_reads_no_elements(reader, inside) for reader in readers)
            if outside and (node is root or not (node.op_type in shared or _is_shape_computation(node))):
                return False
    return True


def _is_in_several_modules(nodes: Sequence[ir.Node]) -> bool:
    """Returns whether the file says of nodes that different modules compute them.

    A layer that does what both do would be one of them: called alone, one does too much, and the other one nothing. A
    Reshape may have the place of the transpose that it was.
    """
    places = [place_of(node) for node in nodes if node.op_type not in ("Cast", "Reshape")]
    return len({place.path for place in places if place is not None}) > 1


def _reads_no_elements(node: ir.Node, inside: set[ir.Node]) -> bool:
    """Returns whether a node takes no elements of its input to nodes outside.

    A CastLike of a constant reads only the dtype. Shape, Identity and Transpose nodes may lead to the nodes `inside`.
    """
    passes = node.op_type in _SHAPE_PASSING and _ends_in(node, inside)
    return passes or uncast(node.outputs[0]) is not node.outputs[0]


def _ends_in(node: ir.Node, inside: set[ir.Node], depth: int = 12) -> bool:
    """Returns whether all paths from a node end in the nodes `inside`, after at most `depth` nodes."""
    uses = [use.node for output in node.outputs for use in output.uses()]
    ends = not any(output.is_graph_output() for output in node.outputs) and depth > 0
    return ends and all(user in inside or _ends_in(user, inside, depth - 1) for user in uses)


def _is_shape_computation(node: ir.Node, depth: int = 10) -> bool:
    """Returns whether a node depends on shapes and constants only, through at most `depth` nodes."""
    if node.op_type in ("Shape", "Constant"):
        return True
    for value in node.inputs if depth else ():
        producer = None if value is None else value.producer()
        known = value is None or value.const_value is not None
        if not known and (producer is None or not _is_shape_computation(producer, depth - 1)):
            return False
    return depth > 0


def _remove_unread(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Removes those of `nodes`, and of the nodes before them, whose outputs have no readers."""
    pending, unread = list(dict.fromkeys(nodes)), dict[ir.Node, None]()
    while pending:
        node = pending.pop()
        if node in unread or node.graph is not graph:
            continue
        if all(use.node in unread for output in node.outputs for use in output.uses()) and not any(
            output.is_graph_output() for output in node.outputs
        ):
            unread[node] = None
            pending += filter(None, (value.producer() for value in node.inputs if value is not None))
    graph.remove(unread, safe=True)


def _nodes(new: NewNode) -> Iterator[ir.Node]:
    """Makes the nodes of a replacement, in execution order."""
    inputs: list[ir.Value | None] = []
    for item in new.inputs:
        if isinstance(item, NewNode):
            before = list(_nodes(item))
            yield from before
            inputs.append(before[-1].outputs[0])
        elif isinstance(item, np.ndarray):
            constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(item))])
            yield constant
            inputs.append(constant.outputs[0])
        else:
            inputs.append(item)
    *domain, operator = new.operator.split("::")
    attributes = ir.convenience.convert_attributes(dict(new.attributes))
    node = ir.Node("".join(domain), operator, inputs, attributes, version=1 if domain else new.version)
    if new.like:
        _stand_like(node, new.like)
    yield node


def _kept(repeats: Mapping[str, int], nodes: Iterable[ir.Node], added: Iterable[ir.Node]) -> Mapping[str, int]:
    """Returns those of the attributes `repeats` that a replacement has as the nodes have them."""
    kept = {}
    for name, most in repeats.items():
        old, new = (
            [node.attributes[name].value for node in all_ if name in node.attributes] for all_ in (nodes, added)
        )
        if all(isinstance(number, int) for number in [*old, *new]) and sorted(old) == sorted(new):
            kept[name] = most
    return kept


def _signature(nodes: Iterable[ir.Node], this: Replacement) -> tuple[Any, ...]:
    """Returns the signature of nodes: operators, attributes, small constants, shapes of large constants.

    Args:
        nodes: the nodes.
        this: the replacement; the position of a value in whose place a comparison takes a sample stands for it.
    """
    sampled = {value: ("sampled", position) for position, value in enumerate(this.sample)}
    return tuple(
        (
            node.op_type,
            *sorted((name, _form(attr, this.repeats.get(name))) for name, attr in node.attributes.items()),
            *(sampled[value] if value in sampled else _constant(value) for value in node.inputs),
        )
        for node in nodes
    )


def _form(attribute: ir.Attr, most: int | None) -> str:
    """Returns what a comparison takes an attribute for, as a text."""
    if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        tensor = attribute.value  # its own text costs as much as a comparison
        return f"{tensor.dtype!r} {tuple(tensor.shape)} {tensor.tobytes()!r}"
    return repr(attribute.value if most is None else min(attribute.value, most))


def _constant(value: ir.Value | None) -> Any:
    tensor = tensor_of(value)
    if tensor is None:
        return None
    shape = tuple(tensor.shape.numpy())
    return (shape, tensor.tobytes()) if tensor.size <= SMALL_CONSTANT else shape


def _shapes(sample: Mapping[ir.Value, Any]) -> tuple[Any, ...]:
    return tuple((item.shape, item.tobytes()) if isinstance(item, np.ndarray) else item for item in sample.values())


def _stand_like(node: ir.Node, replaced: Sequence[ir.Node]) -> None:
    """Gives a node the name and the notes of nodes that it replaces."""
    node.name = _name(replaced, node.op_type)
    node.metadata_props.update(replaced[0].metadata_props)


def _name(nodes: Sequence[ir.Node], operator: str) -> str:
    """Returns a name for the replacement of `nodes`: the innermost scope that their names share, and the operator."""

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
