"""Tells rounding from wrong: judges the differences of a node-by-node comparison by the noise of nodes and model.

A node is judged by the oracle alone: on the oracle's own inputs, moved by units in the last place, how far does the
oracle's own result move? There the noise is small, also in an ill-conditioned model. The noise of the whole model may
be as large as its outputs; it excuses a difference only after every node was found to agree within its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx2nn.verification.gaps import Gap, gap
from onnx2nn.verification.lockstep import Lockstep
from onnx2nn.verification.node_reports import NodeComparison, NodeVerification
from onnx2nn.verification.noise import FACTOR, Changes, explains, quiet_agree
from onnx2nn.verification.probe import Probe, node_name, operator_name
from onnx2nn.verification.rounding_runs import module_changes, node_changes
from onnx2nn.verification.value_comparison import OutputComparison, differences

if TYPE_CHECKING:
    from torch import fx


class Judge:
    """Judges one run, of which `result` has the nodes and the outputs.

    Args:
        result: gets the judgement: the noise of nodes and outputs, and what is within it.
        module: the module that was compared.
        lockstep: its run.
        probe: the model and the inputs of the run.
        tolerance: the caller's threshold of nodes; noise does not excuse what is over it.
    """

    def __init__(
        self,
        result: NodeVerification,
        module: fx.GraphModule,
        lockstep: Lockstep,
        probe: Probe,
        tolerance: float | None,
    ):
        self.result, self.module, self.lockstep, self.probe = result, module, lockstep, probe
        self.tolerance = tolerance
        self.known = {node.output for node in result.nodes} | lockstep.random
        self.unexplained: dict[str, float] = {}
        self.measured: dict[str, np.ndarray] = {}

    def judge(self) -> None:
        """Leaves the result with every output in order, or with a first node that is not."""
        if self.tolerance is None:
            self._judge_nodes([i for i, node in enumerate(self.result.nodes) if not node.introduced.ok])
        if self.result.first is not None or self.result.ok:
            return
        # Rounding adds up, or an error below the tolerance grows: each node is held to its own noise.
        suspects = self.lockstep.suspects
        self._judge_nodes([i for i, node in enumerate(self.result.nodes) if node.output in suspects])
        if self.result.first is not None or self._name_lost_outputs():
            return
        self.result.outputs[:] = self.judged_outputs(self.result.outputs, self.lockstep.expected)
        if not self.result.ok:
            self._name_nearest()

    def _judge_nodes(self, positions: list[int]) -> None:
        """Measures the noise of nodes, up to the first whose noise does not explain what it introduces."""
        for position in positions:
            node = self.result.nodes[position]
            suspect = self.lockstep.suspects.get(node.output)
            if node.introduced.noise is not None:
                continue
            if suspect is None or suspect.difference is None:
                if not node.introduced.ok:
                    return
                continue
            difference, floor = suspect.difference, suspect.floor
            ok, changes = False, Changes()
            for changes in node_changes(self.probe, node.output, self.known - {node.output}):
                change = changes.largest.get(node.output)
                if change is None:
                    continue
                ok = explains(change, difference, floor) and quiet_agree(change, difference, floor)
                if ok:
                    break
            noise = changes.noise(node.output)
            self.unexplained[node.output] = node.introduced.max_abs / max(floor, FACTOR * noise)
            judged = replace(node.introduced, ok=ok, noise=noise, noise_ulps=changes.ulps)
            self.result.nodes[position] = replace(node, introduced=judged)
            if not ok:
                return
            self.measured[node.fx_node] = changes.largest[node.output]

    def judged_outputs(self, outputs: list[OutputComparison], expected: list[Any]) -> list[OutputComparison]:
        """Returns comparisons of the module's outputs with the noise of those that differ.

        Args:
            outputs: as `compare` gives them.
            expected: the values that they were compared with.
        """
        if all(output.ok for output in outputs):
            return outputs
        names = self.lockstep.results
        apart = differences(names, self.lockstep.outputs or (), expected)
        judged = outputs
        for changes in self._output_changes(names):
            judged = [output if output.ok else _judged(output, changes, apart) for output in judged]
            if all(output.ok for output in judged):
                break
        return judged

    def _name_lost_outputs(self) -> bool:
        """Adds the nodes of wrong outputs that no compared node computes, or of which the module returns another value.

        Noise excuses none of them, as no comparison of a node stands for them.
        """
        outputs = self.lockstep.outputs
        wrong = {output.name.partition("[")[0] for output in self.result.outputs if not output.ok}
        lost = []
        for index, name in enumerate(self.lockstep.results):
            if outputs is None:
                lost.append((name, index, self.lockstep.notes[-1]))
            elif name in wrong and name not in self.lockstep.computed:
                lost.append((name, index, ""))
            elif name in wrong and _apart(outputs[index], self.lockstep.computed[name]):
                lost.append((name, index, "the module returns another value than this node's"))
        for name, index, reason in lost:
            self._add_producer(name, index, reason)
        return bool(lost)

    def _name_nearest(self) -> None:
        """Marks the node to look at where outputs differ by more than the noise, and no node by more than its own."""
        shares = {**self.lockstep.shares, **self.unexplained}
        position = max(range(len(self.result.nodes)), key=lambda i: shares.get(self.result.nodes[i].output, 0.0))
        node = self.result.nodes[position]
        self.result.nodes[position] = replace(node, introduced=replace(node.introduced, ok=False))
        wrong = next(output.name for output in self.result.outputs if not output.ok)
        self.result.notes.append(
            f"output {wrong!r} differs by more than the model's own noise, though every node is within its own; "
            "the node named is the nearest to its limit"
        )

    def _add_producer(self, name: str, index: int, reason: str) -> None:
        """Adds the node of the file that gives an output as a comparison of its own, which fails."""
        total = Gap(math.inf, math.inf, None, False, reason)
        if not reason and self.lockstep.outputs is not None:
            total = replace(gap(name, self.lockstep.outputs[index], self.lockstep.expected[index]), ok=False)
        producer = self.probe.producers.get(name)
        title = name if producer is None else node_name(producer)
        operator = "" if producer is None else operator_name(producer)
        nothing = Gap(0.0, 0.0, None, True)
        self.result.nodes.append(NodeComparison(title, operator, name, "output", total, nothing, total))

    def _output_changes(self, names: list[str]) -> Iterator[Changes]:
        introducing = {node.fx_node for node in self.result.nodes if node.introduced.max_abs > 0}
        rounding = {node for node in self.module.graph.nodes if node.name in introducing}
        feeds = list(self.probe.feeds.values())
        measured = {node: self.measured.get(node.name) for node in rounding}
        return module_changes(self.module, feeds, names, measured, self.lockstep.drawn)


def _judged(output: OutputComparison, changes: Changes, apart: dict[str, np.ndarray | None]) -> OutputComparison:
    # A tenth: the tolerance of the average is that much smaller than the tolerance of an element.
    within = output.name in apart and changes.explain(output.name, apart[output.name], output.tolerance / 10)
    return replace(output, noise=changes.noise(output.name), noise_ulps=changes.ulps, within_noise=within)


def _apart(ours: Any, theirs: Any) -> bool:
    found = differences(["value"], [ours], [theirs])
    return any(difference is None or bool(difference.any()) for difference in found.values())
