"""Measures which real models go on to NCNN: the table of docs/ncnn.md.

`pytest -m held tests/test_ncnn_models.py` compares layers and models with the table, `--write` writes it. Models of
Keras and Paddle are taken from the cache, where `nox -s zoo_tensorflow zoo_paddle -- --all` left them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import ncnn_models
import pytest
import torch
from ncnn_table import check_or_write, measure
from realmodels import CACHE, EXPORTERS, seeded
from torch import nn

from scripts import torchvision_schemas

torchvision_schemas.predefine()
import torchvision  # noqa: E402  # after the line above, without which it does not load

START, END = "<!-- measured -->", "<!-- end of what was measured -->"
VISION = ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5", "efficientnet_b0")
ZOO = (  # without Keras's EfficientNet: its softmax over random logits is one-hot, which proves nothing
    "tensorflow/keras_mobilenet_v2",
    "tensorflow/keras_mobilenet_v3_small",
    "paddle/paddle_resnet18",
    "paddle/paddle_mobilenet_v3_small",
    "paddle/paddle_ghostnet",
    "paddle/paddle_repvgg",
)


def models() -> dict[str, Callable[[], Path]]:
    """For every model a function that gives its ONNX file."""
    found: dict[str, Callable[[], Path]] = {
        "Keras digits (examples/digits)": lambda: ncnn_models.DIGITS / "digits.onnx"
    }
    for exporter in EXPORTERS:
        title = exporter.replace("torchscript", "TorchScript")
        for name in VISION:
            found[f"torchvision {name}, {title}"] = functools.partial(exported, name, exporter)
        found[f"ViT, 2 layers, {title}"] = functools.partial(exported, "vit", exporter)
    found["YOLO-style detector head"] = ncnn_models.MODELS["detector"]
    found["LSTM language model"] = ncnn_models.MODELS["recurrent"]
    for path in (CACHE.parent / f"{name}.onnx" for name in ZOO):
        if path.exists():
            found[path.stem.replace("_", " ", 1).capitalize()] = functools.partial(Path, path)
    return found


def exported(name: str, exporter: str) -> Path:
    image = (torch.linspace(-1, 1, 3 * 96 * 96).reshape(1, 3, 96, 96),)
    return EXPORTERS[exporter](f"ncnn_{name}_96", seeded(vit) if name == "vit" else ncnn_models.vision(name), image)


def vit() -> nn.Module:
    """A vision transformer of two layers."""
    return torchvision.models.VisionTransformer(96, 16, 2, 3, 48, 96, num_classes=10)


@pytest.mark.held
def test_the_table(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each model has as many layers as the table says; differences and times vary with the machine."""
    rows = [measure(name, file(), tmp_path / str(index)) for index, (name, file) in enumerate(models().items())]
    check_or_write(rows, (START, END), request)
