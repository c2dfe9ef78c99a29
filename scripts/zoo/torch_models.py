"""Writes the PyTorch part of the model zoo that the tests do not export: three classifiers, and single operators.

Runs where `onnx2nn[test]` is installed (``nox -s zoo_torch``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import runner
import torch
from torch import nn
from torch.nn import functional
from torch_definitions.classifiers import MobileNetV1, SENet, ShuffleNetV1

BATCH = 2
CALIBRATION_BATCH = 16
CLASSES = 10


def export(path: Path, module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> runner.Sample:
    """Writes a module as ONNX with a dynamic batch; returns its answer to `inputs`."""
    batch = torch.export.Dim("batch")
    shapes = tuple({0: batch} for _ in inputs)
    values = tuple(inputs.values())
    program = torch.onnx.export(
        module, values, dynamo=True, dynamic_shapes=shapes, input_names=list(inputs), verbose=False
    )
    assert program is not None
    program.save(str(path), external_data=False)
    with torch.no_grad():
        answer = module(*values)
    return runner.Sample({name: value.numpy() for name, value in inputs.items()}, [answer.numpy()])


def network(path: Path, build: Callable[[], nn.Module], edge: int) -> runner.Sample:
    """Recipe of a model for images of `edge` pixels, batch normalisations with the statistics of random images."""
    torch.manual_seed(0)
    model = build()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
            nn.init.uniform_(layer.weight, 0.8, 1.2)
            nn.init.normal_(layer.bias, 1.0, 0.1)  # see `randomise` of the other families
    images = torch.randn(CALIBRATION_BATCH, 3, edge, edge)
    with torch.no_grad():
        model(images)
    return export(path, model.eval(), {"image": images[:BATCH]})


MODELS: dict[str, runner.Recipe] = {
    "torch_mobilenet_v1": partial(network, build=partial(MobileNetV1, CLASSES, 0.25), edge=64),
    "torch_shufflenet_v1": partial(network, build=partial(ShuffleNetV1, CLASSES), edge=64),
    "torch_senet": partial(network, build=partial(SENet, CLASSES, 32), edge=64),
}


class Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        """Calls the function."""
        return self.function(x) if y is None else self.function(x, y)


def operator(path: Path, function: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> runner.Sample:
    """Recipe of one operator: a function, or a maker of a layer, of float32 inputs `x` and `y` of these shapes."""
    torch.manual_seed(0)
    module = function() if isinstance(function, partial) else Function(function)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    inputs = {name: torch.randn(BATCH, *shape) for name, shape in zip("xy", shapes, strict=False)}
    return export(path, module.eval(), inputs)


IMAGE = (4, 9, 8)
ROW = (4, 1, 8)
OPERATORS: dict[str, tuple[Any, ...]] = {  # name: function or layer, shape of each input without the batch
    "relu": (torch.relu, IMAGE),
    "cat": (lambda x, y: torch.cat([x, y], 1), IMAGE, (3, 9, 8)),
    "unsqueeze": (lambda x: x.unsqueeze(2), IMAGE),
    "transpose": (lambda x: x.transpose(1, 3), IMAGE),
    "batchnorm": (partial(nn.BatchNorm2d, 4), IMAGE),
    "slice": (lambda x: x[:, 1:3, ::2, -5:], IMAGE),
    "gather": (lambda x: torch.gather(x, 2, torch.tensor([3, 0, 3])[None, None, :, None].expand(2, 4, 3, 8)), IMAGE),
    "clamp": (lambda x: x.clamp(-0.5, 0.75), IMAGE),
    "conv2d": (partial(nn.Conv2d, 4, 6, 3, 2, 1), IMAGE),
    "conv2d_grouped": (partial(nn.Conv2d, 4, 6, 3, groups=2), IMAGE),
    "conv2d_depthwise": (partial(nn.Conv2d, 4, 8, 3, groups=4, dilation=2), IMAGE),
    "flatten": (lambda x: x.flatten(1), IMAGE),
    "add": (torch.add, IMAGE, ROW),
    "sub": (torch.sub, IMAGE, ROW),
    "mul": (torch.mul, IMAGE, ROW),
    "div": (lambda x, y: x / (y.abs() + 0.5), IMAGE, ROW),
    "pow": (lambda x: x.abs() ** 2.5, IMAGE),
    "sqrt": (lambda x: x.abs().sqrt(), IMAGE),
    "tanh": (torch.tanh, IMAGE),
    "sigmoid": (torch.sigmoid, IMAGE),
    "erf": (torch.erf, IMAGE),
    "cast": (lambda x: (x * 3).to(torch.int32), IMAGE),
    "pad": (lambda x: functional.pad(x, (1, 2, 0, 3), value=0.5), IMAGE),
    "pad_reflect": (lambda x: functional.pad(x, (1, 2, 0, 3), mode="reflect"), IMAGE),
    "maxpool": (partial(nn.MaxPool2d, 3, 2, 1, ceil_mode=True), IMAGE),
    "avgpool": (partial(nn.AvgPool2d, 3, 2, 1, count_include_pad=False), IMAGE),
    "globalavgpool": (partial(nn.AdaptiveAvgPool2d, 1), IMAGE),
    "globalmaxpool": (partial(nn.AdaptiveMaxPool2d, 1), IMAGE),
    "adaptive_avg_pool": (partial(nn.AdaptiveAvgPool2d, (3, 4)), IMAGE),
    "adaptive_max_pool": (partial(nn.AdaptiveMaxPool2d, (3, 4)), IMAGE),
    "reduce_mean": (lambda x: x.mean((1, 3), keepdim=True), IMAGE),
    "reshape": (lambda x: x.reshape(-1, 6, 12, 4), IMAGE),
    "softmax": (lambda x: x.softmax(1), IMAGE),
    "relu6": (lambda x: functional.relu6(4 * x), IMAGE),
    "cross_entropy": (lambda x: functional.cross_entropy(x, x.flip(1).argmax(1), reduction="none"), IMAGE),
}
RECIPES = MODELS | {
    f"torch_op_{name}": partial(operator, function=function, shapes=shapes)
    for name, (function, *shapes) in OPERATORS.items()
}

if __name__ == "__main__":
    sys.exit(runner.main("torch", RECIPES, __doc__))
