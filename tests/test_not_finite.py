"""NaN and infinities in a comparison node by node: a node is named, in one screen, and the right import agrees.

The models are as a text-to-speech model of 8-bit integers: a chain of DynamicQuantizeLinear and MatMulInteger, then
DynamicQuantizeLSTM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import onnx2nn

WIDTH, HIDDEN = 16, 8


def model(layers: int, at: str = "", divisor: float = 1.0) -> onnx.ModelProto:
    """Returns a chain of quantised layers with an LSTM behind.

    Args:
        layers: how many.
        at: the operator, Log or Div, behind the layer in the middle, `""` for none.
        divisor: what Div divides by.
    """
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    stored: list[onnx.TensorProto] = []

    def weight(name: str, values: Any) -> str:
        stored.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(operator: str, inputs: list[str], outputs: list[str], **options: Any) -> None:
        nodes.append(helper.make_node(operator, inputs, outputs, name=f"/{outputs[0].replace('_', '/')}", **options))

    weight("divisor", np.float32(divisor))
    value = "x"
    for i in range(layers):
        matrix = weight(f"w{i}", rng.integers(-60, 60, (WIDTH, WIDTH)).astype(np.int8))
        node("DynamicQuantizeLinear", [value], [f"l{i}_q", f"l{i}_scale", f"l{i}_zero"])
        node("MatMulInteger", [f"l{i}_q", matrix, f"l{i}_zero"], [f"l{i}_sum"])
        node("Cast", [f"l{i}_sum"], [f"l{i}_float"], to=1)
        node("Mul", [f"l{i}_float", f"l{i}_scale"], [f"l{i}_y"])
        value = f"l{i}_y"
        if at and i == layers // 2:
            node(at, [value, "divisor"] if at == "Div" else [value], [f"l{i}_at"])
            value = f"l{i}_at"
        node("Tanh", [value], [f"l{i}_tanh"])
        value = f"l{i}_tanh"
    matrices = [
        weight(name, rng.integers(-60, 60, (1, rows, 4 * HIDDEN)).astype(np.int8))
        for name, rows in (("w", WIDTH), ("r", HIDDEN))
    ]
    scale, zero = weight("scale", np.float32([0.01])), weight("zero", np.int8([0]))
    inputs = [value, *matrices, "", "", "", "", "", scale, zero, scale, zero]
    node("DynamicQuantizeLSTM", inputs, ["lstm_y"], domain="com.microsoft", hidden_size=HIDDEN)
    graph = helper.make_graph(
        nodes,
        "speech",
        [helper.make_tensor_value_info("x", 1, ["T", 1, WIDTH])],
        [helper.make_empty_tensor_value_info("lstm_y")],
        stored,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


INPUT = {"x": np.random.default_rng(1).standard_normal((7, 1, WIDTH)).astype(np.float32)}


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize(("at", "divisor"), [("", 1.0), ("Div", 0.0), ("Div", np.inf), ("Div", 1e-45)])
def test_a_right_import_agrees(at: str, divisor: float, raised: bool) -> None:
    """Infinities through the chain: every node agrees with ONNX Runtime, and the outputs do."""
    proto = model(6, at, divisor)
    result = onnx2nn.verify_nodes(proto, onnx2nn.load(proto, raise_patterns=raised), inputs=INPUT)
    assert result.ok and result.first is None, str(result)
    middle = next(node for node in result.nodes if node.node == "/l3/tanh")
    assert middle.introduced.max_abs < 1e-6


def test_not_a_number_from_the_file_itself() -> None:
    """The Log of negative numbers is NaN on both sides: no node up to there is named."""
    proto = model(6, "Log")
    result = onnx2nn.verify_nodes(proto, inputs=INPUT)
    order = [node.node for node in result.nodes]
    upto = result.nodes[: order.index("/l3/tanh") + 1]
    assert all(node.introduced.ok for node in upto)
    assert result.ok == (result.first is None)


def _not_a_number(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x)
    y[0, 0, 3] = torch.nan
    return y


def _infinite(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x)
    y[-1, 0, 2] = torch.inf
    return y


@pytest.mark.parametrize(("wrong", "text"), [(_not_a_number, "[0, 0, 3]: nan"), (_infinite, "[6, 0, 2]: inf")])
def test_the_first_bad_node_is_named_in_one_screen(wrong: Any, text: str) -> None:
    proto = model(60)
    module = onnx2nn.load(proto)
    block = module.l40
    (node,) = (node for node in block.graph.nodes if "tanh" in node.name)
    node.op, node.target = "call_function", wrong
    block.recompile()
    result = onnx2nn.verify_nodes(proto, module, inputs=INPUT)
    assert not result.ok and result.first is not None
    assert (result.first.node, result.first.block) == ("/l40/tanh", "l40")
    report = str(result)
    assert "Tanh '/l40/tanh' introduces NaN or infinity on one side only in 1 of 112 elements" in report
    assert text in report
    assert len(report.splitlines()) <= 24 and len(report) < 6000
    assert f"and {len(result.nodes) - 15} more values, all within the threshold" in report
    assert result.to_dict()["first"]["node"] == "/l40/tanh"


def test_reports_of_many_bad_nodes_count_the_others() -> None:
    proto = model(30)
    module = onnx2nn.load(proto)
    for i in range(30):
        block = module.get_submodule(f"l{i}")
        (node,) = (node for node in block.graph.nodes if "tanh" in node.name)
        node.op, node.target = "call_function", _not_a_number
        block.recompile()
    result = onnx2nn.verify_nodes(proto, module, inputs=INPUT)
    bad = [node for node in result.nodes if not node.introduced.ok]
    assert result.first is not None and result.first.node == "/l0/tanh"
    assert len(bad) == 30
    assert f"and {len(result.nodes) - 15} more values, 15 of them over the threshold" in str(result)
    assert len(str(result).splitlines()) <= 24
