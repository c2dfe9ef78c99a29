"""Measures which real models go on to NCNN: the table of docs/ncnn.md.

`pytest -m held tests/test_ncnn_models.py` compares layers and models with the table, `--write` writes it. Models of
Keras and Paddle are taken from the cache, where `nox -s zoo_tensorflow zoo_paddle -- --all` left them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import test_ncnn
import torch
from realmodels import CACHE, EXPORTERS, seeded
from torch import nn

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from onnx2nn.importing import inputs
from onnx2nn.reading import reader
from scripts import torchvision_schemas

torchvision_schemas.predefine()
import torchvision  # noqa: E402

DOCUMENT = Path(__file__).parents[1] / "docs" / "ncnn.md"
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


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, or why the model does not go."""

    model: str
    layers: str = ""
    fp32: str = ""
    fp16: str = ""
    megabytes: str = ""
    reason: str = ""


def models() -> dict[str, Callable[[], Path]]:
    """For every model a function that gives its ONNX file."""
    found: dict[str, Callable[[], Path]] = {"Keras digits (examples/digits)": lambda: test_ncnn.DIGITS / "digits.onnx"}
    for exporter in EXPORTERS:
        title = exporter.replace("torchscript", "TorchScript")
        for name in VISION:
            found[f"torchvision {name}, {title}"] = functools.partial(exported, name, exporter)
        found[f"ViT, 2 layers, {title}"] = functools.partial(exported, "vit", exporter)
    found["YOLO-style detector head"] = test_ncnn.MODELS["detector"]
    found["LSTM language model"] = test_ncnn.MODELS["recurrent"]
    for path in (CACHE.parent / f"{name}.onnx" for name in ZOO):
        if path.exists():
            found[path.stem.replace("_", " ", 1).capitalize()] = functools.partial(Path, path)
    return found


def exported(name: str, exporter: str) -> Path:
    image = (torch.linspace(-1, 1, 3 * 96 * 96).reshape(1, 3, 96, 96),)
    return EXPORTERS[exporter](f"ncnn_{name}_96", seeded(vit) if name == "vit" else test_ncnn._vision(name), image)


def vit() -> nn.Module:
    """A vision transformer of two layers."""
    return torchvision.models.VisionTransformer(96, 16, 2, 3, 48, 96, num_classes=10)


def measure(name: str, path: Path, folder: Path) -> Row:
    try:
        sizes = inputs.resolve_shapes(inputs.input_specs(reader.read(path)))
        model = onnx2nn.to_ncnn(onnx2nn.load(path, input_shapes=sizes), folder)
    except Onnx2nnError as error:
        return Row(name, reason=" ".join(str(error).split()))
    half, full = (file.stat().st_size / 1e6 for file in (model.half_weights, model.weights))
    errors = [max(o.max_difference / max(o.scale, 1e-12) for o in outputs) for outputs in (model.fp32, model.fp16)]
    return Row(name, str(sum(model.layers.values())), *(f"{e:.1e}" for e in errors), f"{short(full)} / {short(half)}")


def short(megabytes: float) -> str:
    return f"{megabytes:.1f}" if megabytes >= 1 else f"{megabytes:.2g}"


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| model | layers | fp32 | fp16 | MB fp32 / fp16 |", "|---|---|---|---|---|"]
    lines += [f"| {r.model} | {r.layers} | {r.fp32} | {r.fp16} | {r.megabytes} |" for r in rows if not r.reason]
    failed = [f"- {row.model}: {row.reason}" for row in rows if row.reason]
    return "\n".join([*lines, *(["", "These do not go:", "", *failed] if failed else [])])


@pytest.mark.held
def test_the_table(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each model has as many layers as the table says; differences vary with the machine."""
    rows = [measure(name, file(), tmp_path / str(index)) for index, (name, file) in enumerate(models().items())]
    head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(START)
    if request.config.getoption("--write"):
        DOCUMENT.write_text(f"{head}{START}\n\n{table(rows)}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
        return
    known = dict(re.findall(r"^\| ([^|]+) \| (\d+) \|", rest, flags=re.MULTILINE))
    assert {row.model: row.layers for row in rows} == {row.model: known.get(row.model) for row in rows}
