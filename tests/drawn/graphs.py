"""Graphs of several nodes, whose values are known while they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.drawn.draw import Draw


class NoCallError(Exception):
    """What was drawn is no valid graph."""


@dataclass(frozen=True)
class Value:
    """A value of the graph.

    Attributes:
        name: its name.
        array: what it is at the sizes that were drawn.
    """

    name: str
    array: np.ndarray


class Graph:
    """A graph that grows node by node, each of which is computed at once.

    Args:
        d: makes all choices.

    Attributes:
        dtype: of its floats.
        opset: the version of its operators.
        made: the values of its nodes.
        outputs: its outputs; a value in between becomes another one now and then.
    """

    def __init__(self, d: Draw):
        self.d = d
        self.dtype = d.one((np.float32,) * 7 + (np.float64,))
        self.opset = d.one((13, 17, 18, 18, 20))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[Value] = []
        self.made: list[Value] = []
        self.outputs: list[Value] = []

    def constant(self, array: Any) -> Value:
        """Adds an initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return Value(name, np.asarray(array))

    def ints(self, *values: int) -> Value:
        """Adds an initializer of sizes, axes or positions."""
        return self.constant(np.array(values, np.int64))

    def input(self, array: np.ndarray) -> Value:
        """Adds an input of the graph."""
        value = Value(f"x{len(self.inputs)}", array)
        self.inputs.append(value)
        return value

    def leaf(self, shape: Sequence[int], *, constant: bool = False) -> Value:
        """Adds an input or a constant of floats."""
        array = self.d.array(shape, self.dtype)
        return self.constant(array) if constant else self.input(array)

    def node(self, op: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
        """Adds a node of one output and computes it, see `results`."""
        return self.results(op, inputs, 1, **attributes)[0]

    def results(self, op: str, inputs: Sequence[Value | None], count: int, **attributes: Any) -> list[Value]:
        """Adds a node and computes its outputs.

        Raises:
            NoCallError: the operator does not take the inputs.
        """
        names = ["" if value is None else value.name for value in inputs]
        made = [f"v{len(self.nodes)}", *(f"v{len(self.nodes)}_{place}" for place in range(1, count))]
        node = helper.make_node(op, names, made, f"n{len(self.nodes)}", **attributes)
        infos = [
            helper.make_tensor_value_info(v.name, helper.np_dtype_to_tensor_dtype(v.array.dtype), v.array.shape)
            for v in {v.name: v for v in inputs if v is not None}.values()
        ]
        graph = helper.make_graph([node], "one", infos, [*map(helper.make_empty_tensor_value_info, made)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)
        feeds = {value.name: value.array for value in inputs if value is not None}
        try:
            with np.errstate(all="ignore"):
                arrays = [np.asarray(array) for array in ReferenceEvaluator(model).run(None, feeds)]
        except Exception as error:  # of any class of the reference's and NumPy's
            raise NoCallError(f"{op}: {error}") from error
        if sum(array.size for array in arrays) > 20_000:
            raise NoCallError("too large")
        self.nodes.append(node)
        values = [Value(name, array) for name, array in zip(made, arrays, strict=True)]
        self.made += values
        return values

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """Returns the model, of which some dimensions are open, and its inputs."""
        d = self.d
        feeds = {value.name: value.array for value in self.inputs}
        infos = []
        for value in self.inputs:
            shape = [f"{value.name}_{axis}" if d.flag(3) else size for axis, size in enumerate(value.array.shape)]
            infos.append(helper.make_tensor_value_info(value.name, _kind(value), shape))
        outputs = {value.name: value for value in self.outputs}
        if d.flag(8) and self.made:
            more = d.one(self.made)
            outputs[more.name] = more
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            infos,
            [helper.make_tensor_value_info(v.name, _kind(v), [None] * v.array.ndim) for v in outputs.values()],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9), feeds


def _kind(value: Value) -> int:
    return int(helper.np_dtype_to_tensor_dtype(value.array.dtype))
