"""Makes the ONNX model of one sample a model of a batch: a Scan runs it on each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir


def scan_over_batch(model: ir.Model, inputs: Sequence[int | None], outputs: Sequence[int | None], batch: str) -> None:
    """Moves the nodes of a model to the body of a Scan; the weights stay outside.

    Args:
        model: a model of opset 13 or later, changed in place.
        inputs: for each input the axis of the batch, which is 1 for one sample; None for an input that all share.
        outputs: for each output the axis of the batch, which is 1 for one sample; None for a new first axis.
        batch: the name of the batch.
    """
    graph = model.graph
    taken = {value.name for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    taken |= {value.name for node in graph.all_nodes() for value in node.outputs}

    def named(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    def changed(operator: str, value: ir.Value, axis: int | None) -> list[ir.Node]:
        """Returns the nodes that add or remove the axis of the batch."""
        if axis is None:
            return [ir.node("Identity", [value])]
        constant = ir.node("Constant", [], {"value": ir.tensor(np.array([axis]))})
        constant.outputs[0].name = named(f"{value.name}_axis")
        return [constant, ir.node(operator, [value, constant.outputs[0]])]

    nodes = list(graph)
    results = list(graph.outputs)
    graph.remove(nodes)
    before: list[ir.Node] = []
    outer: list[ir.Value] = []
    samples: list[ir.Value] = []
    for index, axis in enumerate(inputs):
        if axis is None:
            continue
        value = graph.inputs[index]
        dims = list(value.shape or ())
        whole = ir.Value(name=value.name, type=value.type, shape=ir.Shape([*dims[:axis], batch, *dims[axis + 1 :]]))
        inner = ir.Value(name=named(f"{value.name}_sample"), type=value.type)
        inner.shape = ir.Shape([*dims[:axis], *dims[axis + 1 :]])
        before += changed("Unsqueeze", inner, axis)
        before[-1].outputs[0].name = named(f"{value.name}_one")
        value.replace_all_uses_with(before[-1].outputs[0])
        graph.inputs[index] = whole
        outer.append(whole)
        samples.append(inner)
    after: list[ir.Node] = []
    ends: list[ir.Value] = []
    wholes: list[ir.Value] = []
    for value, axis in zip(results, outputs, strict=True):
        name, shape = value.name, value.shape
        whole = ir.Value(name=name, type=value.type)
        if shape is not None:
            dims = list(shape)
            whole.shape = ir.Shape([batch, *dims] if axis is None else [*dims[:axis], batch, *dims[axis + 1 :]])
        value.name = named(f"{name}_one")
        after += changed("Squeeze", value, axis)
        end = after[-1].outputs[0]
        end.name, end.type = named(f"{name}_sample"), value.type
        end.shape = shape if shape is None or axis is None else ir.Shape([*shape[:axis], *shape[axis + 1 :]])
        ends.append(end)
        wholes.append(whole)
    body = ir.Graph(samples, ends, nodes=[*before, *nodes, *after], name="sample")
    attributes: dict[str, Any] = {
        "body": body,
        "num_scan_inputs": len(outer),
        "scan_input_axes": [axis for axis in inputs if axis is not None],
        "scan_output_axes": [axis or 0 for axis in outputs],
    }
    known = ir.convenience.convert_attributes(attributes)
    scan = ir.Node("", "Scan", outer, known, outputs=wholes, name=named("batch"))
    graph.append(scan)
    graph.outputs[:] = wholes
