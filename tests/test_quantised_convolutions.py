"""A module that is optimised computes convolutions between pairs of QuantizeLinear and DequantizeLinear on integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from onnx2nn.ops import integer_convolutions

RULE = "convolution of integers"
STEP = np.float32(0.05)
"""The step of the result."""


def model(
    *,
    activation: str = "",
    x_type: type = np.uint8,
    y_type: type = np.uint8,
    y_zero: int = 0,
    per_channel: bool = False,
    group: int = 1,
    bias: bool = True,
    bias_scale: float = 1.0,
    read: bool = False,
    kernel: tuple[int, ...] = (3, 3),
) -> onnx.ModelProto:
    """Returns a convolution of four channels between pairs of quantisations, as ONNX Runtime's tools write it."""
    generator = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "x_scale": np.float32(0.02),
        "x_zero": x_type(3),
        "w": generator.integers(-127, 128, (6 if group == 1 else 4, 4 // group, *kernel), np.int8),
        "w_scale": np.float32(0.003),
        "w_zero": np.int8(0),
        "y_scale": STEP,
        "y_zero": y_type(y_zero),
    }
    outputs = weights["w"].shape[0]
    if per_channel:
        weights["w_scale"] = generator.uniform(0.001, 0.004, outputs).astype(np.float32)
        weights["w_zero"] = np.zeros(outputs, np.int8)
    weights["b"] = generator.integers(-9000, 9000, outputs, np.int32)
    weights["b_scale"] = np.float32(bias_scale) * weights["x_scale"] * weights["w_scale"]
    weights |= {"low": np.float32(0), "high": np.float32(6)}

    def dequantized(name: str) -> onnx.NodeProto:
        inputs = [name if name in ("w", "b") else f"{name}_q", f"{name}_scale"]
        inputs += [] if name == "b" else [f"{name}_zero"]
        return helper.make_node("DequantizeLinear", inputs, [f"{name}_float"], axis=0)

    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_q"]),
        *(dequantized(name) for name in ("x", "w", "b")[: 2 + bias]),
        helper.make_node(
            "Conv", ["x_float", "w_float", "b_float"][: 2 + bias], ["c"], group=group, pads=[1] * 2 * len(kernel)
        ),
        helper.make_node(activation or "Identity", ["c", "low", "high"] if activation == "Clip" else ["c"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "y_scale", "y_zero"], ["y_q"]),
        dequantized("y"),
        helper.make_node("Neg", ["x_float"], ["z"]),
    ]
    image = ["n", 4, *["h", "w", "d"][: len(kernel)]]
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y_float", "z", "c")]
    graph = helper.make_graph(
        nodes,
        "pairs",
        values,
        results[: 2 + read],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


TAKEN: list[dict[str, Any]] = [
    {},
    {"activation": "Relu"},
    {"activation": "Relu", "y_type": np.int8, "y_zero": -128},
    {"x_type": np.int8, "y_type": np.int8, "y_zero": 5, "per_channel": True},
    {"group": 4, "per_channel": True},
    {"bias": False, "y_zero": 128},
    {"kernel": (3,)},
]
LEFT: list[dict[str, Any]] = [
    {"activation": "Relu", "y_zero": 3},  # numbers below 0 are in the result's range
    {"activation": "Clip"},  # as are numbers above 6
    {"bias_scale": 1.5},
    {"read": True},
    {"kernel": (3, 3, 3)},
    {"y_type": np.uint16},
]


@pytest.mark.parametrize("options", [*TAKEN, *LEFT], ids=str)
def test_pairs(options: dict[str, Any]) -> None:
    if options.get("y_type") is np.uint16:
        file = model(**options)
        file.opset_import[0].version = 21
    else:
        file = model(**options)
    literal, eager = onnx2nn.load(file), onnx2nn.load(file, optimize="eager")
    assert RULE not in literal.meta["onnx2nn"]["raising"]["raised"]
    here = integer_convolutions.available(torch)
    assert eager.meta["onnx2nn"]["raising"] == {"raised": {RULE: 1} if here and options in TAKEN else {}, "dropped": []}
    x = torch.randn(2, 4, *[9] * len(options.get("kernel", (3, 3))))
    with torch.no_grad():
        expected, found = literal(x), eager(x)
    steps = (found[0] - expected[0]).abs() / float(STEP)
    assert float(steps.max()) < 1.01 and float((steps > 0.5).float().mean()) < 0.01
    assert float((expected[0] != expected[0].flatten()[0]).float().mean()) > 0.1
    assert all(torch.equal(a, b) or options == {"read": True} for a, b in zip(found[1:], expected[1:], strict=True))


def test_numbers_in_constant_nodes() -> None:
    """So torch's older exporter writes a module of torch.ao; the file declares no types of theirs."""
    file = model()
    held = {tensor.name: tensor for tensor in file.graph.initializer if tensor.name.endswith(("_scale", "_zero"))}
    constants = [helper.make_node("Constant", [], [name], value=tensor) for name, tensor in held.items()]
    nodes = [*constants, *file.graph.node]
    del file.graph.node[:]
    file.graph.node.extend(nodes)
    for tensor in held.values():
        file.graph.initializer.remove(tensor)
    literal, eager = onnx2nn.load(file), onnx2nn.load(file, optimize="eager")
    raised = eager.meta["onnx2nn"]["raising"]["raised"]
    assert raised == ({RULE: 1} if integer_convolutions.available(torch) else {})
    x = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
    steps = (eager(x)[0] - literal(x)[0]).abs() / float(STEP)
    assert float(steps.max()) < 1.01


def test_limits_of_a_clip() -> None:
    """A ReLU6 is the saturation of a result whose largest number is 6."""
    file = model(activation="Clip")
    (scale,) = (tensor for tensor in file.graph.initializer if tensor.name == "y_scale")
    scale.CopyFrom(numpy_helper.from_array(np.float32(6 / 255), "y_scale"))
    raised = onnx2nn.load(file, optimize="eager").meta["onnx2nn"]["raising"]["raised"]
    assert raised == ({RULE: 1} if integer_convolutions.available(torch) else {})


def test_weights_that_are_an_input_stay_as_they_are() -> None:
    node = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"])
    kinds = {"x": [1, 2, 5, 5], "w": [3, 2, 3, 3]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.UINT8, shape) for name, shape in kinds.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.UINT8, None)]
    held = [numpy_helper.from_array(np.float32(0.5), "s"), numpy_helper.from_array(np.uint8(3), "z")]
    graph = helper.make_graph([node], "input", inputs, outputs, held)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x, w = (torch.randint(0, 7, shape, dtype=torch.uint8) for shape in kinds.values())
    with torch.no_grad():
        assert torch.equal(onnx2nn.load(file, optimize="eager")(x, w), onnx2nn.load(file)(x, w))


def test_operators_on_integers() -> None:
    """A file whose convolutions are of integers, as the pairs are replaced by ONNX Runtime."""
    file = model()
    graph = file.graph
    conv = helper.make_node(
        "QLinearConv",
        ["x_q", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "b"],
        ["y_q"],
        pads=[1] * 4,
    )
    nodes = [*graph.node[:2], conv, *graph.node[-2:]]
    del graph.node[:]
    graph.node.extend(nodes)
    literal, eager = onnx2nn.load(file), onnx2nn.load(file, optimize="eager")
    if integer_convolutions.available(torch):
        assert eager.meta["onnx2nn"]["raising"]["raised"] == {"fused convolution of integers": 1}
        assert "FusedQLinearConv(" in eager.code
    x = torch.randn(2, 4, 9, 9)
    assert float((literal(x)[0].detach() - eager(x)[0]).abs().max()) < 1.01 * float(STEP)
