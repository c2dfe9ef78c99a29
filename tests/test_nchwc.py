"""Files that ONNX Runtime saves at ORT_ENABLE_ALL, laid out for the processor, against the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from onnx2nn.errors import UnsupportedModelError
from onnx2nn.ground import processor

pytestmark = pytest.mark.skipif(
    processor.channels_of_a_block() is None, reason="ONNX Runtime's blocks are known for x86 with AVX2 or AVX-512 alone"
)
RNG = np.random.default_rng(0)


class _Net:
    """A chain of nodes on an image `(n, 3, h, w)`."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.last = "x"

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32) / 4, name))
        return name

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"y{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs or [self.last], [name], **attributes))
        self.last = name
        return name

    def conv(self, channels: int, out: int, size: int = 3, group: int = 1, **attributes: Any) -> str:
        weights = (self.weight(out, channels // group, size, size), self.weight(out))
        return self.add("Conv", self.last, *weights, group=group, pads=[size // 2] * 4, **attributes)

    def norm(self, channels: int) -> str:
        positive = self.constant(RNG.uniform(0.5, 2, channels).astype(np.float32))
        return self.add(
            "BatchNormalization", self.last, positive, self.weight(channels), self.weight(channels), positive
        )

    def model(self) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                 for name, shape in (("x", ["n", 3, 12, 10]), (self.last, None))]  # fmt: skip
        graph = helper.make_graph(self.nodes, "net", infos[:1], infos[1:], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _residual() -> _Net:
    """Like ResNet: a stem, pools, a residual connection, channels that are no whole blocks."""
    net = _Net()
    net.conv(3, 24, 5, strides=[2, 2])
    net.norm(24)
    net.add("Relu")
    start = net.add("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    net.conv(24, 24)
    net.add("Relu")
    end = net.conv(24, 24)
    net.add("Add", end, start)
    net.add("Relu")
    net.conv(24, 40, 1)
    net.add("GlobalAveragePool")
    net.add("Flatten")
    return net


def _separable() -> _Net:
    """Like MobileNet: depthwise and grouped convolutions, clipped activations, a gate."""
    net = _Net()
    net.conv(3, 32, strides=[2, 2])
    net.add("Clip", net.last, net.constant(np.float32(0)), net.constant(np.float32(6)))
    net.conv(32, 32, group=32)
    net.add("HardSigmoid")
    block = net.conv(32, 64, 1)
    net.add("GlobalAveragePool")
    net.conv(64, 64, 1)
    gate = net.add("Sigmoid")
    net.add("Mul", block, gate)
    net.conv(64, 64, group=2)
    net.add("AveragePool", kernel_shape=[2, 2], count_include_pad=1, pads=[1, 1, 0, 0])
    return net


def _joined() -> _Net:
    """Branches that are concatenated, a Resize, an output with few channels, and a depthwise norm."""
    net = _Net()
    net.conv(3, 16)
    start = net.add("LeakyRelu", alpha=0.1)
    net.conv(16, 32, dilations=[1, 1])
    left = net.add("MaxPool", kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1])
    net.add("Concat", start, left, axis=1)
    net.norm(48)
    net.add("Relu")
    net.conv(48, 48, 1)
    scales = net.constant(np.float32([1, 1, 2, 3]))
    net.add(
        "Resize",
        net.last,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    net.conv(48, 5)
    return net


def _saved(model: onnx.ModelProto, folder: Path) -> Path:
    """Returns the file that ONNX Runtime saves after all its optimisations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return folder / "optimised.onnx"


@pytest.mark.parametrize("net", [_residual, _separable, _joined], ids=lambda net: net.__name__.strip("_"))
def test_the_saved_file_is_the_model(net: Any, tmp_path: Path) -> None:
    model = net().model()
    path = _saved(model, tmp_path)
    assert any(node.domain == "com.microsoft.nchwc" for node in onnx.load(path).graph.node)
    with pytest.warns(UserWarning, match="that of this processor, is taken"):
        module = onnx2nn.load(path)
    for batch in (1, 3):
        x = RNG.standard_normal((batch, 3, 12, 10)).astype(np.float32)
        (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        found = module(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert any(isinstance(layer, torch.nn.Conv2d) for layer in module.modules())


def test_blocks_of_another_processor_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _saved(_residual().model(), tmp_path)
    monkeypatch.setattr("onnx2nn.ops.contrib.nchwc.channels_of_a_block", lambda: 64)
    with pytest.raises(UnsupportedModelError, match="another kind wrote the file"):
        onnx2nn.load(path)
