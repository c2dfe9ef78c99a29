"""In compiled programs, kernels of one element are products of pixels, and small products are torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import onnx2nn
from onnx2nn.optimization.product_code import multiply_pixels, multiply_small

_CONVOLUTION = torch.ops.mkldnn._convolution_pointwise.default
_ONE = ((0, 0), (1, 1), (1, 1), 1)
"""Padding, strides, dilation and groups of a convolution that reads its pixels one by one."""


def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any) -> fx.GraphModule:
    """Returns a graph of inductor's kind with one convolution, whose weights are constants."""
    graph, root, mode = fx.Graph(), nn.Module(), FakeTensorMode()
    nodes = [graph.placeholder("x")]
    root.register_buffer("weight", weight)
    root.register_buffer("bias", bias)
    nodes += [graph.get_attr("weight"), None if bias is None else graph.get_attr("bias")]
    for node, value in zip(nodes, (x, weight.to_dense() if weight.is_mkldnn else weight, bias), strict=True):
        if node is not None:
            node.meta["val"] = mode.from_tensor(value)
    call = graph.call_function(_CONVOLUTION, (*nodes, *settings))
    found = _CONVOLUTION(x, weight, bias, *settings)
    call.meta["val"] = mode.from_tensor(found)
    graph.output(call)
    return fx.GraphModule(root, graph)


def check(x: torch.Tensor, module: fx.GraphModule) -> str:
    """Compares results and layouts before and after the passes, and returns the code behind them."""
    expected = module(x)
    multiply_pixels(module.graph)
    multiply_small(module.graph)
    module.graph.lint()
    module.recompile()
    found = module(x)
    torch.testing.assert_close(found, expected)
    shown = module.graph.find_nodes(op="output")[0].args[0].meta["val"]
    assert shown.shape == expected.shape
    layouts = {value.is_contiguous(memory_format=torch.channels_last) for value in (expected, found, shown)}
    assert len(layouts) == 1
    return module.code


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 7), (65, 64)])
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_pixels(activation: str, size: tuple[int, int], packed: bool, bias: bool) -> None:
    x = (3 * torch.randn(2, 6, *size)).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(12, 6, 1, 1)
    if packed:
        weight = torch.ops.mkldnn._reorder_convolution_weight(weight, *map(list, _ONE[:3]), 1, list(x.shape))
    module = program(x, weight, torch.randn(12) if bias else None, *_ONE, activation, [], "")
    code = check(x, module)
    assert "mkldnn._convolution_pointwise" not in code
    assert ("mkldnn._linear_pointwise" in code) == (activation != "none" or size == (65, 64))


@pytest.mark.parametrize(
    ("weight", "settings"),
    [
        ((9, 6, 3, 3), ((1, 1), (1, 1), (1, 1), 1)),
        ((9, 6, 1, 1), ((0, 0), (2, 1), (1, 1), 1)),
        ((9, 6, 1, 1), ((0, 1), (1, 1), (1, 1), 1)),
        ((9, 2, 1, 1), ((0, 0), (1, 1), (1, 1), 3)),
    ],
)
def test_other_convolutions_stay(weight: tuple[int, ...], settings: Any) -> None:
    x = torch.randn(2, 6, 5, 7).contiguous(memory_format=torch.channels_last)
    assert "mkldnn._convolution_pointwise" in check(x, program(x, torch.randn(weight), None, *settings, "none", [], ""))


def test_other_layouts_stay() -> None:
    x = torch.randn(2, 6, 5, 7)
    code = check(x, program(x, torch.randn(9, 6, 1, 1), None, *_ONE, "none", [], ""))
    assert "mkldnn._convolution_pointwise" in code


class Gated(nn.Module):
    """A squeeze-and-excite block between convolutions with kernels of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.squeeze, self.excite, self.last = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), nn.Conv2d(16, 8, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.middle(nn.functional.hardswish(self.first(x)))
        gate = nn.functional.hardsigmoid(self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu()))
        return self.last(y * gate) + self.last(y)


@pytest.mark.slow
@pytest.mark.parametrize("open_image", [False, True])
def test_compiled(open_image: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX2NN_CACHE", str(tmp_path / "cache"))
    net = Gated().eval()
    axes = {0: "batch", 2: "height", 3: "width"} if open_image else {0: "batch"}
    path = tmp_path / "gated.onnx"
    torch.onnx.export(net, (torch.randn(2, 3, 8, 9),), path, dynamo=False, input_names=["x"], dynamic_axes={"x": axes})
    module = onnx2nn.load(path)
    made = onnx2nn.optimize(module, "compile", example_inputs=[torch.randn(2, 3, 8, 9)])
    assert type(made).__name__ == "CompiledModule"
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, *((11, 6) if open_image else (8, 9)))
        torch.testing.assert_close(made(x), module(x))
