"""Runs the graph of an imported module twice side by side: on its own values, and on the oracle's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from onnx2nn.errors import InputError, first_line
from onnx2nn.ground.progress import tracked
from onnx2nn.optable.registry import TABLE
from onnx2nn.verification.block_reports import blocks_around
from onnx2nn.verification.gaps import Gap, gap
from onnx2nn.verification.module_runs import inputs_for, to_tensor
from onnx2nn.verification.node_reports import NodeComparison
from onnx2nn.verification.noise import rounding_floor
from onnx2nn.verification.probe import Probe, node_name, operator_name
from onnx2nn.verification.value_comparison import differences, to_array

if TYPE_CHECKING:
    from torch import fx


@dataclass(frozen=True)
class Suspect:
    """What a node introduces, where it is more than the rounding that needs no measurement.

    Attributes:
        difference: of each element; None where memory does not suffice for more of them.
        floor: the difference that needs no measurement.
    """

    difference: np.ndarray | None
    floor: float


def _has_calls(graph: fx.Graph) -> bool:
    """Returns whether a call computes an output: where constants and inputs are all, no names can be lost."""
    return any(node.op.startswith("call_") for node in graph.output_node().all_input_nodes)


@dataclass(frozen=True)
class _Failed:
    """Replaces the value of an fx node that raised, and of all nodes that use it."""

    reason: str


class Lockstep:
    """Runs an fx graph on its own values and on the oracle's, node by node.

    Attributes:
        notes: values that were left out, and why.
        outputs: the module's own outputs after `run`; None where it fails.
        computed: output of the graph → the module's own value of the node that computes it.
        expected: the oracle's outputs of the same run.
        suspects: output of a node → what it introduces, where that is more than ordinary rounding.
        shares: output of a node → its largest difference in units of ordinary rounding.
        memory: bytes left for the differences of suspects.
        drawn: fx node → the oracle's value of a random node, which both runs took.
    """

    def __init__(self, module: fx.GraphModule, probe: Probe, tolerance: float | None):
        from torch import fx

        self.module, self.probe, self.tolerance = module, probe, tolerance
        self.notes: list[str] = []
        self.outputs: tuple[Any, ...] | None = None
        self.computed: dict[str, Any] = {}
        self.expected: list[Any] = probe.outputs
        self.suspects: dict[str, Suspect] = {}
        self.memory = 0
        self.shares: dict[str, float] = {}
        self.drawn: dict[fx.Node, Any] = {}
        self.blocks = module.meta.get("onnx2nn", {}).get("tree", {}).get("blocks", {})
        graph = getattr(module, "graph", None)
        self.named = {
            node: [name for name in node.meta.get("onnx_outputs", ()) if name in probe.producers]
            for node in (graph.nodes if graph is not None else ())
        }
        if not any(self.named.values()) and probe.model.graph.node and graph is not None and _has_calls(graph):
            raise InputError(
                "The module's graph has no names of the file's values, which pickling loses. Load the file again."
            )
        self.runs = fx.Interpreter(module), fx.Interpreter(module)
        self.results = [output.name for output in probe.model.graph.output]
        self.random = {name for name, node in probe.producers.items() if self._is_random(node)}
        if self.random:
            self.notes.append(f"random nodes were not compared: {', '.join(sorted(self.random))}")
            for names in self.named.values():  # what a Cast or Identity gives on unchanged is the same draw
                if not self.random.isdisjoint(names):
                    self.random.update(names)

    def _is_random(self, node: onnx.NodeProto) -> bool:
        versions = {opset.domain: opset.version for opset in self.probe.model.opset_import}
        row = TABLE.find(node.domain, node.op_type, versions.get(node.domain, 1))
        return row is not None and row.random

    def run(self, memory_limit: int) -> Iterator[NodeComparison]:
        """Yields the comparisons in the graph's order; `outputs` are the graph's afterwards."""
        import torch

        self.memory = memory_limit
        with torch.no_grad():
            given = self._values(memory_limit)
            own, fed = self.runs
            inputs = iter(inputs_for(self.module, [*self.probe.feeds.values()]))
            for node in tracked(list(self.module.graph.nodes)):
                if node.op == "output":
                    self.outputs = self._result(own, node)
                    return
                if node.op == "placeholder":
                    own.env[node] = fed.env[node] = next(inputs)
                else:
                    own.env[node], fed.env[node] = _run(own, node), _run(fed, node)
                    yield from self._compare(node, given)
                for interpreter in self.runs:
                    for unused in interpreter.user_to_last_uses.get(node, ()):
                        interpreter.env.pop(unused, None)

    def _result(self, own: fx.Interpreter, node: fx.Node) -> tuple[Any, ...] | None:
        value = _run(own, node)
        if isinstance(value, _Failed):
            self.notes.append(f"the module gives no outputs: {value.reason}")
            return None
        return tuple(value) if isinstance(value, tuple) else (value,)

    def _compare(self, node: fx.Node, given: Iterator[dict[str, Any]]) -> Iterator[NodeComparison]:
        names = self.named[node]
        if not names:
            return
        own, fed = self.runs
        values = next(given)
        for name in names:
            if name not in values:
                continue
            expected = values[name]
            if name not in self.random or not _same_form(own.env[node], expected):
                producer = self.probe.producers[name]
                self._suspect(name, fed.env[node], expected)
                if name in self.results:
                    self.computed[name] = own.env[node]
                yield NodeComparison(
                    node_name(producer),
                    operator_name(producer),
                    name,
                    node.name,
                    self._gap(name, fed.env[node], expected),
                    self._gap(name, own.env[node], fed.env[node]),
                    self._gap(name, own.env[node], expected),
                    blocks_around(node, self.blocks)[-1],
                )
        if names[0] in values:
            (fed.env[node],) = inputs_for(self.module, [_as_torch(values[names[0]])])
            if names[0] in self.random:
                own.env[node] = self.drawn[node] = fed.env[node]

    def _suspect(self, name: str, actual: Any, expected: Any) -> None:
        """Keeps the differences of a float tensor that are larger than ordinary rounding."""
        if isinstance(actual, _Failed) or not _is_float_array(expected):
            return
        difference = differences([name], [actual], [expected])[name]
        if difference is None or not difference.size:
            return
        floor = rounding_floor(to_array(expected))
        self.shares[name] = float(difference.max()) / floor
        if self.shares[name] > 1:
            self.memory -= difference.nbytes // 2
            kept = difference.astype(np.float32) if self.memory > 0 else None
            self.suspects[name] = Suspect(kept, floor)

    def _gap(self, name: str, actual: Any, expected: Any) -> Gap:
        for value in (actual, expected):
            if isinstance(value, _Failed):
                return Gap(math.inf, math.inf, None, False, value.reason)
        return gap(name, actual, expected, self.tolerance)

    def _values(self, memory_limit: int) -> Iterator[dict[str, Any]]:
        """Yields the oracle's values for every named fx node; a session gives as many as fit into memory."""
        waiting: list[tuple[list[str], int]] = self._sizes()
        while waiting:
            count, total = 0, 0
            while count < len(waiting) and (not count or self.random or total + waiting[count][1] <= memory_limit):
                total += waiting[count][1]
                count += 1
            chunk, waiting = waiting[:count], waiting[count:]
            results = self.results if self.random else []
            values = self.probe.values([*(name for names, _ in chunk for name in names), *results])
            if all(name in values for name in results) and results:  # random numbers are others in each run
                self.expected = [values[name] for name in results]
            for names, _ in chunk:
                yield {name: values[name] for name in names if name in values}

    def _sizes(self) -> list[tuple[list[str], int]]:
        """Returns the names of every named fx node and the bytes of its value, found by running the module."""
        from torch import fx

        measuring = fx.Interpreter(self.module)
        inputs = iter(inputs_for(self.module, [*self.probe.feeds.values()]))
        result = []
        for node in self.module.graph.nodes:
            if node.op == "output":
                break
            measuring.env[node] = next(inputs) if node.op == "placeholder" else _run(measuring, node)
            if self.named[node] and node.op != "placeholder":
                result.append((self.named[node], _bytes(measuring.env[node])))
            for unused in measuring.user_to_last_uses.get(node, ()):
                measuring.env.pop(unused, None)
        return result


def _run(interpreter: fx.Interpreter, node: fx.Node) -> Any:
    for used in node.all_input_nodes:
        if isinstance(interpreter.env[used], _Failed):
            return interpreter.env[used]
    try:
        return interpreter.run_node(node)
    except Exception as error:  # any error of a node, which the report then names
        return _Failed(f"{node.name} failed: {type(error).__name__}: {first_line(error)}")


def _same_form(actual: Any, expected: Any) -> bool:
    """Returns whether shape and dtype agree, which is all that two draws of random numbers have in common."""
    if isinstance(actual, _Failed) or not hasattr(actual, "detach"):
        return False
    return tuple(actual.shape) == np.shape(expected) and actual.dtype == _as_torch(expected).dtype


def _is_float_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.name.startswith(("float", "bfloat", "complex"))


def _bytes(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(_bytes(item) for item in value)
    return int(getattr(value, "nbytes", 0))


def _as_torch(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_torch(item) for item in value]
    return to_tensor(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value
