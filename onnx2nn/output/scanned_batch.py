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
    body = _Body(graph)
    outer = [body.take_input(index, axis, batch) for index, axis in enumerate(inputs) if axis is not None]
    wholes = [body.give_output(value, axis, batch) for value, axis in zip(graph.outputs, outputs, strict=True)]
    attributes: dict[str, Any] = {
        "body": body.graph(),
        "num_scan_inputs": len(outer),
        "scan_input_axes": [axis for axis in inputs if axis is not None],
        "scan_output_axes": [axis or 0 for axis in outputs],
    }
    known = ir.convenience.convert_attributes(attributes)
    graph.append(ir.Node("", "Scan", outer, known, outputs=wholes, name=body.named("batch")))
    graph.outputs[:] = wholes


class _Body:
    """The body of the Scan; it takes the nodes of the model's graph."""

    def __init__(self, graph: ir.Graph):
        values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
        self._taken = {value.name for value in values}
        self._taken |= {value.name for node in graph.all_nodes() for value in node.outputs}
        self._outside, self._nodes = graph, list(graph)
        graph.remove(self._nodes)
        self._before: list[ir.Node] = []
        self._after: list[ir.Node] = []
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []

    def graph(self) -> ir.Graph:
        """Returns it, once its inputs and outputs are known."""
        return ir.Graph(self._inputs, self._outputs, nodes=[*self._before, *self._nodes, *self._after], name="sample")

    def named(self, name: str) -> str:
        """Returns a name that no other value has."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def take_input(self, index: int, axis: int, batch: str) -> ir.Value:
        """Makes samples of an input of the model; returns the input of the whole batch, which replaces it."""
        value = self._outside.inputs[index]
        dims = list(value.shape or ())
        whole = ir.Value(name=value.name, type=value.type, shape=ir.Shape([*dims[:axis], batch, *dims[axis + 1 :]]))
        sample = ir.Value(name=self.named(f"{value.name}_sample"), type=value.type)
        sample.shape = ir.Shape([*dims[:axis], *dims[axis + 1 :]])
        self._before += self._changed("Unsqueeze", sample, axis)
        self._before[-1].outputs[0].name = self.named(f"{value.name}_one")
        value.replace_all_uses_with(self._before[-1].outputs[0])
        self._outside.inputs[index] = whole
        self._inputs.append(sample)
        return whole

    def give_output(self, value: ir.Value, axis: int | None, batch: str) -> ir.Value:
        """Makes a result of a sample of an output of the model; returns the output of the whole batch."""
        name, shape = value.name, value.shape
        whole = ir.Value(name=name, type=value.type)
        if shape is not None:
            dims = list(shape)
            whole.shape = ir.Shape([batch, *dims] if axis is None else [*dims[:axis], batch, *dims[axis + 1 :]])
        value.name = self.named(f"{name}_one")
        self._after += self._changed("Squeeze", value, axis)
        sample = self._after[-1].outputs[0]
        sample.name, sample.type = self.named(f"{name}_sample"), value.type
        sample.shape = shape if shape is None or axis is None else ir.Shape([*shape[:axis], *shape[axis + 1 :]])
        self._outputs.append(sample)
        return whole

    def _changed(self, operator: str, value: ir.Value, axis: int | None) -> list[ir.Node]:
        """Returns the nodes that add or remove the axis of the batch."""
        if axis is None:
            return [ir.node("Identity", [value])]
        constant = ir.node("Constant", [], {"value": ir.tensor(np.array([axis]))})
        constant.outputs[0].name = self.named(f"{value.name}_axis")
        return [constant, ir.node(operator, [value, constant.outputs[0]])]
