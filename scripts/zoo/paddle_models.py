"""Writes the Paddle part of the model zoo: models with random weights and single operators, by paddle2onnx.

Runs in the environment of `constraints-paddle.txt` (``nox -s zoo_paddle``).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

# The exporter folds constants with polygraphy, which would install packages while it runs.
os.environ["POLYGRAPHY_AUTOINSTALL_DEPS"] = "0"

import numpy as np
import paddle
import runner
from paddle import nn
from paddle.nn import functional
from paddle.vision import models
from paddle_definitions.unet import UNet

OPSET = 17
BATCH = 2
CALIBRATION_BATCH = 16
CLASSES = 10


def export(path: Path, layer: nn.Layer, inputs: Mapping[str, np.ndarray], free_axes: Sequence[int]) -> runner.Sample:
    """Writes a layer as ONNX with `free_axes` of every input dynamic; returns its answer to `inputs`."""
    layer.eval()
    shapes = {
        name: [None if axis in free_axes else size for axis, size in enumerate(array.shape)]
        for name, array in inputs.items()
    }
    signature = [paddle.static.InputSpec(shapes[name], str(array.dtype), name) for name, array in inputs.items()]
    with paddle.no_grad():
        answer = layer(*map(paddle.to_tensor, inputs.values()))
    paddle.onnx.export(layer, str(path.with_suffix("")), input_spec=signature, opset_version=OPSET)
    outputs = answer if isinstance(answer, (list, tuple)) else [answer]
    return runner.Sample(inputs, [output.numpy() for output in outputs])


def randomise(model: nn.Layer, size: Sequence[int], generator: np.random.Generator) -> None:
    """Gives a fresh model weights that a test can tell apart.

    Constant weights (biases, scales) get noise. Batch normalization gets a random batch's statistics, which keep deep
    networks from fading or overflowing, and a shift of about one: at zero each ReLU behind it makes rounding errors 1.2
    times larger, thousands of times in 50 layers. Networks without it get kernels scaled for ReLU (He et al. 2015).
    """
    normalised = [layer for layer in model.sublayers() if isinstance(layer, (nn.BatchNorm, nn.BatchNorm2D))]
    for weight in model.parameters():
        if weight.stop_gradient:
            continue
        values = weight.numpy()
        if values.std() == 0:
            weight.set_value(values + 0.1 * generator.standard_normal(values.shape).astype(np.float32))
        elif not normalised and values.ndim == 4:
            fan_in = np.prod(values.shape[1:])
            weight.set_value((generator.standard_normal(values.shape) * np.sqrt(2 / fan_in)).astype(np.float32))
    for layer in normalised:
        layer.bias.set_value(layer.bias + 1)
        layer._momentum = 0.0
    model.train()
    with paddle.no_grad():
        model(paddle.to_tensor(generator.standard_normal((CALIBRATION_BATCH, *size)).astype(np.float32)))


def network(path: Path, build: Callable[[], nn.Layer], edge: int, free_axes: Sequence[int] = (0,)) -> runner.Sample:
    """Recipe of a model for images of `edge` pixels."""
    paddle.seed(0)
    generator = np.random.default_rng(0)
    size = (3, edge, edge)
    with paddle.utils.unique_name.guard():  # some models give their parameters fixed names
        model = build()
    randomise(model, size, generator)
    image = generator.standard_normal((BATCH, *size)).astype(np.float32)
    return export(path, model, {"image": image}, free_axes)


def paddleclas(module: str) -> ModuleType:
    """A module of PaddleClas's model collection, without the package's own imports.

    `import paddleclas` pulls in its training code with OpenCV, Faiss and a numpy that paddlepaddle 3 cannot use. The
    definitions need its logger and file helpers only, so the packages above them are entered without running them.
    """
    try:
        root = importlib.metadata.distribution("paddleclas").locate_file("paddleclas")
    except importlib.metadata.PackageNotFoundError:
        raise ModuleNotFoundError("paddleclas is not installed: pip install --no-deps paddleclas") from None
    for parts in ((), ("ppcls",), ("ppcls", "utils"), ("ppcls", "arch"), ("ppcls", "arch", "backbone")):
        name = ".".join(("paddleclas", *parts))
        if name not in sys.modules:
            package = ModuleSpec(name, None, is_package=True)
            package.submodule_search_locations = [str(Path(str(root), *parts))]
            sys.modules[name] = importlib.util.module_from_spec(package)
    utils = sys.modules["paddleclas.ppcls.utils"]
    utils.logger = importlib.import_module("paddleclas.ppcls.utils.logger")  # type: ignore[attr-defined]
    return importlib.import_module(f"paddleclas.ppcls.arch.backbone.{module}")


def collected(module: str, name: str, **options: Any) -> nn.Layer:
    """Builds a model of PaddleClas's collection."""
    return getattr(paddleclas(f"model_zoo.{module}"), name)(class_num=CLASSES, **options)


def narrow_vgg11() -> nn.Layer:
    """VGG11 with hidden fully connected layers of 256 instead of 4096, which would make a file of half a gigabyte."""
    model = models.vgg11(num_classes=CLASSES)
    hidden = [nn.Linear(512 * 7 * 7, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 256), nn.ReLU(), nn.Dropout()]
    model.classifier = nn.Sequential(*hidden, nn.Linear(256, CLASSES))
    return model


def of_vision(name: str, edge: int, **options: Any) -> runner.Recipe:
    """Recipe of a model of `paddle.vision.models`."""
    return partial(network, build=partial(getattr(models, name), num_classes=CLASSES, **options), edge=edge)


def of_clas(module: str, name: str, edge: int, **options: Any) -> runner.Recipe:
    """Recipe of a model of PaddleClas."""
    return partial(network, build=partial(collected, module, name, **options), edge=edge)


VIT = {"img_size": 64, "patch_size": 16, "embed_dim": 192, "depth": 12, "num_heads": 3, "qkv_bias": True}
MODELS: dict[str, runner.Recipe] = {
    "paddle_alexnet": of_vision("alexnet", 224),
    "paddle_vgg11": partial(network, build=narrow_vgg11, edge=224),
    "paddle_googlenet": of_vision("googlenet", 224),
    "paddle_resnet18": of_vision("resnet18", 64),
    "paddle_resnext50": of_vision("resnext50_32x4d", 64),
    "paddle_se_resnext50": of_clas("se_resnext", "SE_ResNeXt50_32x4d", 64),
    "paddle_senet": of_clas("se_resnet_vd", "SE_ResNet18_vd", 64),
    "paddle_mobilenet_v1": of_vision("mobilenet_v1", 64, scale=0.25),
    "paddle_mobilenet_v2": of_vision("mobilenet_v2", 64, scale=0.25),
    "paddle_mobilenet_v3_small": of_vision("mobilenet_v3_small", 64),
    "paddle_mobilenet_v3_large": of_vision("mobilenet_v3_large", 64),
    "paddle_regnet": of_clas("regnet", "RegNetX_400MF", 64),
    "paddle_densenet121": of_vision("densenet121", 64),
    "paddle_efficientnet_b0": of_clas("efficientnet", "EfficientNetB0", 64),
    "paddle_inception_v3": of_vision("inception_v3", 128),
    "paddle_inception_v4": of_clas("inception_v4", "InceptionV4", 128),
    "paddle_shufflenet_v2": of_vision("shufflenet_v2_x0_25", 64),
    "paddle_squeezenet": of_vision("squeezenet1_1", 64),
    "paddle_dpn68": of_clas("dpn", "DPN68", 64),
    "paddle_darknet53": of_clas("darknet", "DarkNet53", 64),
    "paddle_ghostnet": of_clas("ghostnet", "GhostNet_x0_5", 64),
    "paddle_repvgg": of_clas("repvgg", "RepVGG_A0", 64),
    "paddle_xception41": of_clas("xception", "Xception41", 71),
    "paddle_xception41_deeplab": of_clas("xception_deeplab", "Xception41_deeplab", 65),
    "paddle_vision_transformer": of_clas("vision_transformer", "VisionTransformer", 64, **VIT),
    "paddle_res2net50": of_clas("res2net", "Res2Net50_26w_4s", 64),
    "paddle_unet": partial(network, build=partial(UNet, CLASSES, width=16), edge=64),
    "paddle_unet_interpolated": partial(
        network, build=partial(UNet, CLASSES, width=16, learned=False), edge=70, free_axes=(0, 2, 3)
    ),
}


class Function(nn.Layer):
    """A layer that calls a function: the form in which the exporter takes single operators."""

    def __init__(self, function: Callable[..., paddle.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: paddle.Tensor, y: paddle.Tensor | None = None) -> paddle.Tensor:
        """Calls the function; the exporter does not know variable arguments."""
        return self.function(x) if y is None else self.function(x, y)


def operator(path: Path, function: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> runner.Sample:
    """Recipe of one operator: a function, or a class of layers, of float32 inputs `x` and `y` of these shapes."""
    paddle.seed(0)
    generator = np.random.default_rng(0)
    layer = function() if isinstance(function, partial) else Function(function)
    for weight in layer.parameters():
        weight.set_value(generator.uniform(0.5, 1.5, weight.shape).astype(np.float32))
    for buffer in layer.buffers():
        buffer.set_value(generator.uniform(0.5, 1.5, buffer.shape).astype(np.float32))
    arrays = [generator.standard_normal((BATCH, *shape)).astype(np.float32) for shape in shapes]
    return export(path, layer, dict(zip("xy", arrays, strict=False)), (0,))


IMAGE = (4, 9, 8)
EVEN_IMAGE = (4, 12, 8)
ROW = (4, 1, 8)
OPERATORS: dict[str, tuple[Any, ...]] = {  # name: function or layer, shape of each input without the batch
    "relu": (functional.relu, IMAGE),
    "concat": (lambda x, y: paddle.concat([x, y], axis=1), IMAGE, (3, 9, 8)),
    "unsqueeze": (lambda x: paddle.unsqueeze(x, 2), IMAGE),
    "transpose": (lambda x: paddle.transpose(x, (0, 2, 3, 1)), IMAGE),
    "batch_norm": (partial(nn.BatchNorm2D, 4), IMAGE),
    "slice": (lambda x: paddle.slice(x, (1, 2), (1, -6), (3, -1)), IMAGE),
    "strided_slice": (lambda x: x[:, 1:, ::2, -2::-3], IMAGE),
    "gather": (lambda x: paddle.gather(x, paddle.to_tensor([3, 0, 3, 2]), axis=1), IMAGE),
    "clip": (lambda x: paddle.clip(x, -0.5, 0.75), IMAGE),
    "conv2d": (partial(nn.Conv2D, 4, 6, 3, stride=2, padding=1), IMAGE),
    "conv2d_asymmetric": (partial(nn.Conv2D, 4, 6, (3, 2), padding=(0, 1, 2, 0), dilation=2), IMAGE),
    "conv2d_grouped": (partial(nn.Conv2D, 4, 6, 3, groups=2, padding="SAME"), IMAGE),
    "conv2d_depthwise": (partial(nn.Conv2D, 4, 8, 3, groups=4, padding=1), IMAGE),
    "flatten": (lambda x: paddle.flatten(x, 1), IMAGE),
    "add": (paddle.add, IMAGE, ROW),
    "sub": (paddle.subtract, IMAGE, ROW),
    "mul": (paddle.multiply, IMAGE, ROW),
    "div": (lambda x, y: paddle.divide(x, paddle.abs(y) + 0.5), IMAGE, ROW),
    "pow": (lambda x: paddle.pow(paddle.abs(x), 2.5), IMAGE),
    "sqrt": (lambda x: paddle.sqrt(paddle.abs(x)), IMAGE),
    "tanh": (paddle.tanh, IMAGE),
    "sigmoid": (functional.sigmoid, IMAGE),
    "erf": (paddle.erf, IMAGE),
    "cast": (lambda x: paddle.cast(x * 3, "int32"), IMAGE),
    "pad": (lambda x: functional.pad(x, (1, 0, 2, 3)), IMAGE),  # paddle2onnx 2.1 writes 1e-45 for any value
    "pad_reflect": (lambda x: functional.pad(x, (1, 0, 2, 3), mode="reflect"), IMAGE),
    "pad_replicate": (lambda x: functional.pad(x, (1, 0, 2, 3), mode="replicate"), IMAGE),
    "max_pool": (lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), IMAGE),
    "avg_pool": (lambda x: functional.avg_pool2d(x, 3, 2, 1, exclusive=True), IMAGE),
    "avg_pool_inclusive": (lambda x: functional.avg_pool2d(x, 3, 2, 1, exclusive=False), IMAGE),
    "adaptive_avg_pool": (lambda x: functional.adaptive_avg_pool2d(x, (3, 4)), EVEN_IMAGE),
    "adaptive_max_pool": (lambda x: functional.adaptive_max_pool2d(x, (3, 4)), EVEN_IMAGE),
    "global_avg_pool": (lambda x: functional.adaptive_avg_pool2d(x, 1), IMAGE),
    "global_max_pool": (lambda x: functional.adaptive_max_pool2d(x, 1), IMAGE),
    "reduce_mean": (lambda x: paddle.mean(x, axis=(1, -1), keepdim=True), IMAGE),
    "reshape": (lambda x: paddle.reshape(x, (0, -1, 6)), IMAGE),
    "softmax": (lambda x: functional.softmax(x, axis=1), IMAGE),
    "relu6": (lambda x: functional.relu6(4 * x), IMAGE),
    "cross_entropy": (
        lambda x: functional.cross_entropy(x, paddle.argmin(x, axis=1, keepdim=True), reduction="none"),
        (CLASSES,),
    ),
}


class Residual(nn.Layer):
    """A small residual network: most layers that paddle2onnx writes for images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2D(3, 8, 3, stride=2, padding=1), nn.BatchNorm2D(8), nn.Hardswish())
        self.depthwise = nn.Sequential(nn.Conv2D(8, 8, 3, padding=1, groups=8), nn.BatchNorm2D(8), nn.PReLU(8))
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2D(1), nn.Conv2D(8, 8, 1), nn.Hardsigmoid())
        self.up = nn.Conv2DTranspose(8, 8, 2, stride=2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        """Returns the logarithms of the classes' probabilities."""
        x = self.stem(image)
        x = x + self.depthwise(x) * self.squeeze(x)
        x = functional.max_pool2d(x, 3, 2, 1) + functional.avg_pool2d(x, 2, 2)
        x = functional.pad(self.up(x), [1, 0, 2, 3], mode="reflect")
        return functional.log_softmax(self.head(x.mean([2, 3])), axis=-1)


class Attention(nn.Layer):
    """Words, a transformer's encoder layer and a gated recurrent one over them, a class."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Linear(6, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, activation="gelu")
        self.recurrent = nn.GRU(16, 12, direction="bidirect")
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Returns the classes' probabilities."""
        states = self.recurrent(self.encoder(self.words(x)))[0]
        return functional.softmax(self.head(states.max(1)), axis=-1)


def small(path: Path, build: Callable[[], nn.Layer], shape: Sequence[int]) -> runner.Sample:
    """Recipe of a model of few weights."""
    paddle.seed(0)
    generator = np.random.default_rng(0)
    model = build()
    for weight in model.parameters():
        values = weight.numpy()
        if values.std() == 0:
            weight.set_value(values + 0.1 * generator.standard_normal(values.shape).astype(np.float32))
    for name, buffer in model.named_buffers():
        if name.endswith(("_mean", "_variance")):
            low = 0.5 if name.endswith("_variance") else -0.5
            buffer.set_value(generator.uniform(low, 1.5, buffer.shape).astype(np.float32))
    return export(path, model, {"x": generator.standard_normal((BATCH, *shape)).astype(np.float32)}, (0,))


SMALL: dict[str, runner.Recipe] = {
    "paddle_residual": partial(small, build=Residual, shape=(3, 32, 32)),
    "paddle_unet_narrow": partial(small, build=partial(UNet, CLASSES, width=4), shape=(3, 32, 32)),
    "paddle_attention": partial(small, build=Attention, shape=(9, 6)),
}
"""Those in `tests/data`."""

RECIPES = (
    MODELS
    | SMALL
    | {
        f"paddle_op_{name}": partial(operator, function=function, shapes=shapes)
        for name, (function, *shapes) in OPERATORS.items()
    }
)

if __name__ == "__main__":
    sys.exit(runner.main("paddle", RECIPES, __doc__))
