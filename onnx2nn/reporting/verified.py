"""The comparison with ONNX Runtime, in the plain values of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnx2nn.reporting.model_report import NodeError, OutputError, Verified
from onnx2nn.reporting.module_tree import ModuleTree
from onnx2nn.verification.node_reports import NodeComparison, NodeVerification
from onnx2nn.verification.outputs import Verification
from onnx2nn.verification.value_comparison import OutputComparison


def verified(
    outputs: Verification, nodes: NodeVerification, tree: ModuleTree, producers: Mapping[str, tuple[int, list[str]]]
) -> Verified:
    """Returns both comparisons.

    Args:
        outputs: of the outputs.
        nodes: node by node.
        tree: the modules.
        producers: name of a value of the file → the position of its node, and what it reads.
    """
    return Verified(
        outputs.oracle,
        outputs.verdict,
        nodes.verdict,
        outputs.ok and nodes.ok,
        [output_error(output) for output in outputs.outputs],
        [_node(node, tree, producers) for node in nodes.nodes],
        len(nodes.folded),
        [*outputs.notes, *nodes.notes],
    )


def output_error(output: OutputComparison) -> OutputError:
    """Returns the comparison of an output in plain values."""
    return OutputError(
        output.name,
        f"{output.dtype} {list(output.shape)}",
        _number(output.mse),
        _number(output.max_difference),
        output.tolerance,
        _number(output.noise),
        output.noise_ulps,
        output.ok,
        output.reason,
    )


def _node(node: NodeComparison, tree: ModuleTree, producers: Mapping[str, tuple[int, list[str]]]) -> NodeError:
    known = producers.get(node.output)
    return NodeError(
        known[0] if known is not None else None,
        node.output,
        tree.position(node.block),
        _number(node.introduced.max_abs),
        _number(node.inherited.max_abs),
        _number(node.total.max_abs),
        _number(node.introduced.max_rel),
        node.introduced.ulp,
        _number(node.introduced.noise),
        node.introduced.ok,
        node.introduced.reason or node.inherited.reason,
    )


def _number(value: float | None) -> float | None:
    """Returns a number with as many digits as a reader of differences needs, None for what is none."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None
