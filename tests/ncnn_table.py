"""The tables of docs/ncnn.md: what is measured of a model that goes on to NCNN."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from onnx2nn.importing import inputs
from onnx2nn.output.ncnn import NcnnModel
from onnx2nn.output.ncnn.runner import mat_of
from onnx2nn.reading import reader
from onnx2nn.verification.module_runs import run_module

DOCUMENT = Path(__file__).parents[1] / "docs" / "ncnn.md"


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, or why the model does not go."""

    model: str
    cells: tuple[str, ...] = ()
    reason: str = ""


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
    megabytes = " / ".join(_short(file.stat().st_size / 1e6) for file in files)
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


def _short(megabytes: float) -> str:
    return f"{megabytes:.1f}" if megabytes >= 1 else f"{megabytes:.2g}"


def _table(rows: list[Row]) -> str:
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
        DOCUMENT.write_text(f"{head}{start}\n\n{_table(rows)}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")
        return
    known = dict(re.findall(r"^\| ([^|]+) \| (\d+) \|", rest, flags=re.MULTILINE))
    assert {row.model: (row.cells or ("",))[0] for row in rows} == {row.model: known.get(row.model, "") for row in rows}
