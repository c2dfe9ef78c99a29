"""Names of the arguments of blocks and of a file's functions: no program mistakes one for what else it reads."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from onnx2nn.fx.blocks.block import Block

NAMES = [
    "self",
    "torch",
    "device",
    "inf",
    "nan",
    "slice",
    "getattr",
    "math",
    "class",
    "X",
    "a b",
    "a\nb",
    "ﬁ",
    "forward",
]
OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]


def constants() -> list[onnx.NodeProto]:
    values = {"pads": {"value_ints": [0, 0, 1, 0, 0, 1]}, "low": {"value_float": -float("inf")}}
    values |= {"start": {"value_ints": [0]}, "end": {"value_ints": [1 << 40]}}
    return [helper.make_node("Constant", [], [name], **value) for name, value in values.items()]


def body(first: str, second: str, result: str) -> list[onnx.NodeProto]:
    """Returns nodes whose program has an infinity, a slice and a size: the largest of three neighbours, scaled."""
    return [
        helper.make_node("Pad", [first, "pads", "low"], ["padded"], name="/block/Pad"),
        helper.make_node("Slice", ["padded", "start", "end"], ["cut"], name="/block/Slice"),
        helper.make_node("MaxPool", ["cut"], ["largest"], kernel_shape=[3], name="/block/MaxPool"),
        helper.make_node("Mul", ["largest", second], [result], name="/block/Mul"),
    ]


def graph_of(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], *functions: onnx.FunctionProto) -> Any:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1, 4]) for name in ("x", "z", "y")]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:], weights)
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=9)


def check(model: onnx.ModelProto, folder: Path) -> torch.nn.Module:
    x, z = torch.randn(2, 1, 4), torch.randn(2, 1, 4)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    (expected,) = session.run(None, {"x": x.numpy(), "z": z.numpy()})
    module = onnx2nn.load(model)
    onnx2nn.to_python(module, folder)
    spec = importlib.util.spec_from_file_location("argument_names_model", folder / "model.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(loaded := importlib.util.module_from_spec(spec))
    with torch.no_grad():
        for other in (module, pickle.loads(pickle.dumps(module)), loaded.load_model()):
            torch.testing.assert_close(other(x, z), torch.from_numpy(expected))
    return module


@pytest.mark.parametrize("other", ["x", "a_b", "class_", "outer_2"])
@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_functions(name: str, other: str, tmp_path: Path) -> None:
    """Names that a program uses itself, and two that are one as identifiers or as torch writes values: `X` and `x`."""
    inputs = [name, other]
    function = helper.make_function("local", "f", inputs, ["r"], [*constants(), *body(*inputs, "r")], OPSETS[:1])
    calls = [helper.make_node("f", [value, "z"], [result], domain="local") for value, result in ("xh", "hy")]
    check(graph_of(calls, [], function), tmp_path)


@pytest.mark.parametrize("name", ["inf", "nan", "slice", "getattr", "operator", "max", "x", "self", "torch"])
def test_arguments_of_blocks(name: str, tmp_path: Path) -> None:
    """The result of a layer is an argument of its name."""
    weights = [
        numpy_helper.from_array(np.full((1, 1, 1), scale, np.float32), f"{layer}.weight")
        for layer, scale in ((name, 2), ("other", 3), ("block.layer", 4))
    ]
    nodes = [
        helper.make_node("Conv", ["x", f"{name}.weight"], ["first"], name=f"/{name}/Conv"),
        helper.make_node("Conv", ["z", "other.weight"], ["second"], name="/other/Conv"),
        *body("second", "first", "scaled"),
        helper.make_node("Conv", ["scaled", "block.layer.weight"], ["y"], name="/block/layer/Conv"),
    ]
    model = graph_of([*constants(), *nodes], weights)
    model.producer_name = "pytorch"
    module = check(model, tmp_path)
    assert isinstance(module.block, Block)


@pytest.mark.parametrize("name", ["__import__", "__init__"])
def test_classes_with_names_of_python(name: str, tmp_path: Path) -> None:
    """Python gives `__import__2` another name in a class."""
    weight = numpy_helper.from_array(np.ones((1, 1, 1), np.float32), "block.layer.weight")
    node = helper.make_node("Conv", ["x", "block.layer.weight"], ["scaled"], name="node_conv")
    scopes, classes = ["", "block", "block.layer", "conv"], ["model", f"net.{name}", "torch.nn.Conv1d", "aten.conv1d"]
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(scopes))
    node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=repr(classes))
    relu, add = helper.make_node("Relu", ["scaled"], ["h"]), helper.make_node("Add", ["h", "z"], ["y"])
    for key, value in (
        ("name_scopes", ["", "block", "relu"]),
        ("class_hierarchy", ["model", f"net.{name}", "aten.relu"]),
    ):
        relu.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=repr(value))
    check(graph_of([node, relu, add], [weight]), tmp_path)
