"""Small files for the tests of reports: blocks named as torch's older exporter does, and names that attack pages."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HOSTILE = [
    "</script><script>document.title='run'</script>",
    "<img src=x onerror=\"document.title='run'\">",
    "<!--<script>",
    "]]></svg><b onclick=alert(1)>",
    "'\"`&amp;\\u003c",
    "javascript:document.title='run'",
    "left\u202eright",
    "nul\0bell\x07escape\x1b[2J\n\r\t",
    "zero\u200bwidth\ufefflines\u2028\u2029",
    "שלום عربى",
    "%%DATA%%",
    "x" * 30_000,
]
"""Names that mean something to HTML, JSON, JavaScript, terminals or the direction of text, and a very long one."""


def stacked(blocks: int, channels: int = 4, scale: float = 0.1) -> onnx.ModelProto:
    """Returns a model of residual blocks `layers.0`, ..., each of a convolution and an activation."""
    generator = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for number in range(blocks):
        scope = f"/layers.{number}"
        weight = scale * generator.standard_normal((channels, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"layers.{number}.conv.weight"))
        conv, active, added = (f"{scope}/{name}_output_0" for name in ("conv/Conv", "act/Relu", "Add"))
        nodes.append(
            helper.make_node("Conv", [value, weights[-1].name], [conv], f"{scope}/conv/Conv", pads=[1, 1, 1, 1])
        )
        nodes.append(helper.make_node("Relu", [conv], [active], f"{scope}/act/Relu"))
        nodes.append(helper.make_node("Add", [value, active], [added], f"{scope}/Add"))
        value = added
    return model(nodes, ["batch", channels, 8, 8], ["batch", channels, 8, 8], weights, value)


def nameless(nodes: int) -> onnx.ModelProto:
    """Returns a chain of nodes without scopes and weights, which becomes one program."""
    operators = ("Sin", "Cos", "Tanh")
    steps = [
        helper.make_node(operators[number % 3], [f"v{number}" if number else "x"], [f"v{number + 1}"], f"n{number}")
        for number in range(nodes)
    ]
    return model(steps, [1, 4], [1, 4], [], f"v{nodes}")


def hostile() -> onnx.ModelProto:
    """Returns a model in which everything that a file names has a hostile name."""
    nodes, weights, value = [], [], "x" + HOSTILE[0]
    first = value
    for number, name in enumerate(HOSTILE):
        weight = np.full((4, 4), 0.1 + number, np.float32)
        weights.append(numpy_helper.from_array(weight, f"{name}.weight"))
        nodes.append(helper.make_node("MatMul", [value, weights[-1].name], [f"{name}{number}"], f"/{name}/MatMul"))
        value = f"{name}{number}"
    nodes.append(helper.make_node("Relu", [value], ["last"], HOSTILE[-1]))
    made = model(nodes, [HOSTILE[1], 4], [HOSTILE[1], 4], weights, "last", first)
    made.producer_name, made.graph.name = HOSTILE[0], HOSTILE[1]
    return made


def unsupported() -> onnx.ModelProto:
    """Returns a model with operators that nobody knows, of hostile names."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "known"),
        helper.make_node(HOSTILE[0], ["a"], ["b"], HOSTILE[1], domain="mine"),
        helper.make_node("Frobnicate", ["b"], ["y"], "unknown", domain="mine"),
    ]
    made = model(nodes, [1, 4], [1, 4], [], "y")
    made.opset_import.append(helper.make_opsetid("mine", 1))
    return made


def model(
    nodes: list[onnx.NodeProto],
    taken: list[int | str],
    given: list[int | str],
    weights: list[onnx.TensorProto],
    result: str,
    first: str = "x",
) -> onnx.ModelProto:
    """Returns a model of one float input and one float output."""
    inputs = [helper.make_tensor_value_info(first, TensorProto.FLOAT, taken)]
    outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, given)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
