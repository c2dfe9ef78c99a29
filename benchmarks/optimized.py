"""Measures the run time of imported modules, as they are and optimised, beside ONNX Runtime."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

import importers
import models
import onnxruntime
import torch
from rich.console import Console
from rich.table import Table
from turns import turns

import onnx2nn

MODELS = ("resnet18", "mobilenet_v2", "vit_b_16", "bert_base", "recogniser", "voice_detector")
FORMS: dict[str, tuple[str | None, bool]] = {
    "literal": (None, False),
    "eager": ("eager", False),
    "compile": ("compile", False),
    "compile, fixed sizes": ("compile", True),
}
"""Name → the mode of `onnx2nn.load` or `onnx2nn.optimize`, and whether the sizes are fixed."""

COLUMNS = ("model", "form", "made in s", "median ms", "ratio", "CPU ratio", "largest difference")


def session(path: str, inputs: models.Tensors, threads: int) -> Callable[[], Any]:
    """Returns the call of ONNX Runtime's session of a file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {value.name: tensor.numpy() for value, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feeds)


def forms(
    path: str, inputs: models.Tensors, threads: int, names: Collection[str] = tuple(FORMS)
) -> Iterator[tuple[str, float, Callable[[], Any] | str]]:
    """Yields the name of each form of a model, the seconds to make it, and its call or the reason of a failure.

    They are made for the device of the inputs. ONNX Runtime is among them on the CPU.
    """
    if inputs[0].device.type == "cpu":
        start = time.perf_counter()
        call = session(path, inputs, threads)
        yield "ONNX Runtime", time.perf_counter() - start, call
    for form, (mode, fixed) in FORMS.items():
        if form not in names:
            continue
        start = time.perf_counter()
        try:
            module = made(path, inputs, mode, fixed)
        except Exception as error:  # of any class: the reason is in the table
            yield form, 0.0, importers.reason(error)
            continue
        yield form, time.perf_counter() - start, lambda module=module: module(*inputs)


def made(path: str, inputs: models.Tensors, mode: str | None, fixed: bool) -> torch.nn.Module:
    """Returns a form of a model. `load` makes it, which also replaces pairs of QuantizeLinear, where it can."""
    shapes: dict[str, list[int]] = {}
    device = inputs[0].device
    if mode == "compile":
        module = onnx2nn.load(path, device=device)
        signature = module.meta["onnx2nn"]["signature"]
        if fixed:
            shapes = {spec["name"]: list(tensor.shape) for spec, tensor in zip(signature, inputs, strict=True)}
        elif any(isinstance(size, str) for spec in signature for size in (spec["shape"] or ())[1:]):
            return onnx2nn.optimize(module, mode, example_inputs=inputs)
    made: torch.nn.Module = onnx2nn.load(path, device=device, input_shapes=shapes, optimize=mode)
    return made


def waiting(call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a call that ends when the GPU has done what it asked for."""

    def wait() -> Any:
        found = call()
        torch.cuda.synchronize()
        return found

    return wait


def measure(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[list[float], list[float]]]:
    """Returns the seconds and the processor seconds of each call; every round makes all of them, in shuffled order."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in calls}
    for name, counts in turns(calls, repeats, warming=3):
        start, busy = time.perf_counter(), time.process_time()
        calls[name]()
        if counts:
            times[name][0].append(time.perf_counter() - start)
            times[name][1].append(time.process_time() - busy)
    return times


def add_rows(table: Table, name: str, exporter: str, repeats: int, threads: int) -> None:
    """Adds the rows of one model."""
    with torch.enable_grad():  # without, nn.MultiheadAttention calls what the exporter lacks
        _, path, inputs = models.exported(name, exporter)
    made = list(forms(str(path), inputs, threads))
    calls = {form: call for form, _, call in made if callable(call)}
    times = measure(calls, repeats)
    expected = _flat(calls["ONNX Runtime"]())
    reference, busy = statistics.median(times["ONNX Runtime"][0]), min(times["ONNX Runtime"][1])
    for form, seconds, call in made:
        if not callable(call):
            table.add_row(name, form, "", "", "", "", call)
            continue
        passed, used = times[form]
        median = statistics.median(passed)
        largest = max(float((a - b).abs().max()) for a, b in zip(_flat(call()), expected, strict=True))
        ratios = f"{median / reference:.2f}", f"{min(used) / busy:.2f}"
        table.add_row(name, form, f"{seconds:.1f}", f"{median * 1e3:.2f}", *ratios, f"{largest:.1e}")
    table.add_section()


def _flat(outputs: Any) -> list[torch.Tensor]:
    found = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [torch.as_tensor(value).double() for value in found]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "models", nargs="*", default=MODELS, help=f"of {', '.join((*models.ORIGINALS, *models.QUANTISED))}"
    )
    parser.add_argument("--exporter", default="torchscript", choices=("torchscript", "dynamo"))
    parser.add_argument("--repeats", type=int, default=20, help="measurements of each (default 20)")
    parser.add_argument("--threads", type=int, default=1, help="of torch and of ONNX Runtime (default 1)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    versions = f"ONNX Runtime {onnxruntime.__version__}, torch {torch.__version__}, threads: {arguments.threads}"
    table = Table(title=f"Inference of one sample, ratio to ONNX Runtime ({versions})")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
    with contextlib.ExitStack() as stack:
        if "ONNX2NN_CACHE" not in os.environ:  # the time of compiling is measured
            os.environ["ONNX2NN_CACHE"] = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(torch.no_grad())
        for name in arguments.models:
            add_rows(table, name, arguments.exporter, arguments.repeats, arguments.threads)
    Console().print(table)


if __name__ == "__main__":
    main()
