"""Makes ONNX Runtime round each result of half precision, as the file says.

Its kernels for the CPU compute float16 in float32. It casts what they read and give, and leaves out the casts between
two of them: a chain of nodes keeps float32, even where a Cast of the file stands between, and what is beyond 65504 in
the file is a number.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import helper

from onnx2nn.verification.widening import TYPES

_HALF = onnx.TensorProto.FLOAT16


def may_have_halves(model: onnx.ModelProto) -> bool:
    """Returns whether anything in a model says that its values may be float16; nodes alone cannot make them that."""
    graph = model.graph
    if any(tensor.data_type == _HALF for tensor in graph.initializer):
        return True
    infos = (*graph.input, *graph.output, *graph.value_info)
    if any(info.type.tensor_type.elem_type == _HALF for info in infos):
        return True
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    return any(a.t.data_type == _HALF or (a.name in TYPES and a.i == _HALF) for a in attributes)


def rounded(model: onnx.ModelProto, halves: Collection[str]) -> onnx.ModelProto:
    """Returns a model in which the values `halves` pass two Identity nodes, before which they are rounded.

    ONNX Runtime computes one such node in float32 too, and two in a row on float16.
    """
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    nodes = [*graph.node]
    taken = {name for node in nodes for name in (*node.input, *node.output)}
    del graph.node[:]
    for node in nodes:
        passing: list[onnx.NodeProto] = []
        for position, name in enumerate(node.output):
            if name in halves:
                wide, passed = _unused(f"{name}/wide", taken), _unused(f"{name}/rounded", taken)
                node.output[position] = wide
                passing += [
                    helper.make_node("Identity", [wide], [passed]),
                    helper.make_node("Identity", [passed], [name]),
                ]
        graph.node.extend([node, *passing])
    return found


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
