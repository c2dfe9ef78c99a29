"""Simplifies an exported graph: onnx-ir's passes, and constant folding by onnxscript where it is installed.

Weights keep their names, layout and number: no weight is replaced by a folded constant.
"""

from __future__ import annotations

import logging

import onnx_ir as ir
from onnx_ir.passes import common

from onnx2nn.ground.pass_times import timed
from onnx2nn.optable.registry import TABLE

logging.getLogger("onnx_ir.passes").setLevel(logging.WARNING)


@timed("optimising")
def optimize(model: ir.Model) -> ir.Model:
    """Folds small constants, merges transposes and reshapes, removes duplicates and unused nodes, in place."""
    graph = model.graph
    _merge_transposes(graph)
    _merge_reshapes(graph)
    _fold_constants(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    return model


def _merge_transposes(graph: ir.Graph) -> None:
    """Merges two transposes in a row into one, or removes both where they cancel out."""
    for node in graph:
        if node.op_type != "Transpose" or node.domain:
            continue
        inner = node.inputs[0].producer() if node.inputs[0] is not None else None
        if inner is None or inner.op_type != "Transpose" or inner.domain:
            continue
        first, second = inner.attributes["perm"].as_ints(), node.attributes["perm"].as_ints()
        perm = [first[axis] for axis in second]
        source = inner.inputs[0]
        if source is None:
            continue
        if perm == list(range(len(perm))) and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(source)
        else:
            node.replace_input_with(0, source)
            node.attributes["perm"] = ir.AttrInt64s("perm", perm)


def _merge_reshapes(graph: ir.Graph) -> None:
    """A reshape of a reshape is the later one; a 0 in its target would copy from the shape between."""
    for node in graph:
        inner = node.inputs[0].producer() if node.op_type == "Reshape" and node.inputs[0] is not None else None
        if inner is None or inner.domain or "layout_only" not in TABLE.traits_of(inner.op_type):
            continue
        target = None if node.inputs[1] is None else ir.convenience.get_const_tensor(node.inputs[1])
        if target is not None and 0 not in target.numpy():
            node.replace_input_with(0, inner.inputs[0])


_LARGEST = 1024
"""Largest number of elements of a folded tensor: enough for sizes, masks and scalars."""


_FOLDED = frozenset(
    {
        *("Add", "And", "Cast", "Concat", "ConstantOfShape", "Equal", "Expand", "Flatten", "Gather", "Greater"),
        *("GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Range", "ReduceSum"),
        *("Reshape", "Slice", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where"),
    }
)
"""Operators that onnx.reference, which evaluates the folded nodes, computes as ONNX Runtime does.

Its CumSum widens int32, for example, and its Div rounds negative integers down.
"""


def _fold_constants(model: ir.Model) -> None:
    """Evaluates nodes that depend only on constants of the exporter, by onnxscript where it is installed."""
    try:
        from onnxscript.optimizer import fold_constants
    except ImportError:
        return
    weights = model.meta.get("weights", frozenset())

    def made(value: ir.Value | None) -> bool:
        if value is None or value.is_initializer():
            return value is None or value.name not in weights
        producer = value.producer()
        return producer is not None and producer.op_type == "Constant"

    def foldable(node: ir.Node) -> bool | None:
        return None if node.op_type in _FOLDED and node.inputs and all(map(made, node.inputs)) else False

    fold_constants(model, input_size_limit=_LARGEST, output_size_limit=_LARGEST, should_fold=foldable)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
