"""Measures which real models go on to NCNN: the table of docs/ncnn.md.

`pytest -m held tests/test_ncnn_models.py` compares layers and models with the table, `--write` writes it. Models of
Keras and Paddle are taken from the cache, where `nox -s zoo_tensorflow zoo_paddle -- --all` left them.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_ncnn
import torch
from realmodels import CACHE, EXPORTERS, seeded
from torch import nn

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from onnx2nn.importing import inputs
from onnx2nn.output.ncnn import NcnnModel
from onnx2nn.output.ncnn.runner import mat_of
from onnx2nn.reading import reader
from onnx2nn.verification.module_runs import run_module
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
    cells: tuple[str, ...] = ()
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


TITLES = ("model", "layers", "fp32", "fp16", "int8", "MB fp32 / fp16 / int8", "time fp16 / int8")
SAMPLES = 16
"""Random inputs that decide the scales of integers."""


def measure(name: str, path: Path, folder: Path) -> Row:
    sizes = inputs.resolve_shapes(inputs.input_specs(reader.read(path)))
    return measured(name, onnx2nn.load(path, input_shapes=sizes), folder)


def measured(name: str, module: Any, folder: Path) -> Row:
    """Converts a module with fixed sizes, the first of its random inputs being the example."""
    specs = inputs.specs_of(module)
    shapes = inputs.resolve_shapes(specs)
    samples = [[*inputs.example_inputs(specs, shapes, seed=seed).values()] for seed in range(SAMPLES)]
    try:
        model = onnx2nn.to_ncnn(module, folder, example_inputs=samples[0], calibration=samples)
    except Onnx2nnError as error:
        return Row(name, reason=" ".join(str(error).split()))
    forms = (model.fp32, model.fp16, model.int8)
    errors = [f"{max(o.max_difference / max(o.scale, 1e-12) for o in outputs):.1e}" for outputs in forms]
    assert model.int8_param is not None and model.int8_weights is not None
    files = (model.weights, model.half_weights, model.int8_weights)
    megabytes = " / ".join(short(file.stat().st_size / 1e6) for file in files)
    pairs = ((model.half_param, model.half_weights), (model.int8_param, model.int8_weights))
    own = _fastest(lambda: run_module(module, samples[0]))
    times = " / ".join(f"{_fastest(_on_ncnn(*pair, model, samples[0])) / own:.2g}" for pair in pairs)
    return Row(name, (str(sum(model.layers.values())), *errors, megabytes, times))


def _on_ncnn(param: Path, weights: Path, model: NcnnModel, sample: Sequence[np.ndarray]) -> Callable[[], None]:
    """Returns a run with ncnn's default options and one thread."""
    import ncnn

    net = ncnn.Net()
    net.opt.use_vulkan_compute, net.opt.num_threads = False, 1
    assert not net.load_param(str(param)) and not net.load_model(str(weights))
    mats = {name: mat_of(array, axis) for (name, axis), array in zip(model.input_axes.items(), sample, strict=True)}

    def run() -> None:
        extractor = net.create_extractor()
        for name, mat in mats.items():
            extractor.input(name, mat)
        for name in model.output_axes:
            assert extractor.extract(name)[0] == 0

    return run


def _fastest(call: Callable[[], Any]) -> float:
    """Returns the seconds of the processor, of one thread, of the fastest of five calls behind a first one."""
    threads, found = torch.get_num_threads(), []
    torch.set_num_threads(1)
    for _ in range(6):
        start = time.thread_time()
        call()
        found.append(time.thread_time() - start)
    torch.set_num_threads(threads)
    return min(found[1:])


def short(megabytes: float) -> str:
    return f"{megabytes:.1f}" if megabytes >= 1 else f"{megabytes:.2g}"


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [f"| {' | '.join(TITLES)} |", f"|{'---|' * len(TITLES)}"]
    lines += [f"| {' | '.join((row.model, *row.cells))} |" for row in rows if not row.reason]
    failed = [f"- {row.model}: {row.reason}" for row in rows if row.reason]
    return "\n".join([*lines, *(["", "These do not go:", "", *failed] if failed else [])])


def check_or_write(rows: list[Row], marks: tuple[str, str], request: pytest.FixtureRequest) -> None:
    """Compares the numbers of layers with the table between two marks of the document, or writes it."""
    start, end = marks
    head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(start)
    if request.config.getoption("--write"):
        DOCUMENT.write_text(f"{head}{start}\n\n{table(rows)}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")
        return
    known = dict(re.findall(r"^\| ([^|]+) \| (\d+) \|", rest, flags=re.MULTILINE))
    assert {row.model: (row.cells or ("",))[0] for row in rows} == {row.model: known.get(row.model, "") for row in rows}


@pytest.mark.held
def test_the_table(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each model has as many layers as the table says; differences and times vary with the machine."""
    rows = [measure(name, file(), tmp_path / str(index)) for index, (name, file) in enumerate(models().items())]
    check_or_write(rows, (START, END), request)
