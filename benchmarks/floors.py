"""Measures what torch's own kernels and calls take of a form of a network, beside ONNX Runtime: no form is faster.

    python benchmarks/floors.py --write   # measures, stores in floors.json and writes docs/benchmarks.md
    python benchmarks/floors.py resnet18  # prints one

ONNX Runtime and the form are called in shuffled order, then the form under torch's profiler. A part is the sum of its
calls' times, each the least of the rounds; a kernel's time has what oneDNN does to find it. Of an LSTM with weights of
8 bits the part is measured alone: the calls of torch that a step needs, on the memory that it has.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import models
import onnxruntime
import optimized
import peers_page
import stored
import torch
from peers_page import ABOVE_5_MS, ORT
from torch.profiler import ProfilerActivity, profile

Parts = dict[str, Callable[[str], bool]]

MACHINE_CODE: Parts = {
    "kernels of oneDNN": lambda name: name.startswith("aoti_torch"),
    "loops": lambda name: "cpp_" in name,
}
_PRODUCTS = frozenset({"aten::conv2d", "aten::linear", "aten::matmul"})
LITERAL: Parts = {
    "torch's convolutions and products": lambda name: name in _PRODUCTS,
    "other calls of torch": lambda name: name.startswith("aten::") and name not in _PRODUCTS,
}
STEPS = "calls of torch that steps need"

FLOORS = (
    *((name, "compile, fixed sizes") for name in ABOVE_5_MS),
    ("mobilenet_v2", "compile, fixed sizes"),
    ("resnet18_qdq_int8", "compile, fixed sizes"),
    ("mobilenet_v2_qdq_int8", "compile, fixed sizes"),
    *((f"{name}_dynamic_int8", "compile, fixed sizes") for name in models.LSTMS),
    ("voice_detector_dynamic_int8", "compile, fixed sizes"),
    ("minilm_qdq_int8", "compile, fixed sizes"),
    ("resnet18_qdq_int8", "literal"),
    ("mobilenet_v2_qdq_int8", "literal"),
    ("minilm_qdq_int8", "literal"),
    *((f"{name}_dynamic_int8", "literal") for name in ("lstm_64", "lstm_128", "lstm_256")),
)
"""Networks and forms that are measured."""


def measured(name: str, form: str, repeats: int) -> dict[str, Any]:
    """Returns the milliseconds of ONNX Runtime, of a form of a network, and of its parts."""
    with torch.enable_grad():
        _, path, inputs = models.exported(name, "torchscript")
    session = optimized.session(str(path), inputs, torch.get_num_threads())
    module = optimized.made(str(path), inputs, *optimized.FORMS[form])
    calls = {ORT: session, form: lambda: module(*inputs)}
    parts: Parts = {}
    base, _ = models.QUANTISED.get(name, (name, None))
    if form.startswith("compile"):
        parts = MACHINE_CODE
    elif base in models.LSTMS:
        calls[STEPS] = _steps(*models.LSTMS[base])
    else:
        parts = LITERAL
    times = optimized.measure(calls, repeats)
    least = {key: min(busy) for key, (_, busy) in times.items()}
    if parts is MACHINE_CODE:
        with _named_kernels():  # they take longer, each by as much as a short call
            module = optimized.made(str(path), inputs, *optimized.FORMS[form])
    profiles = [_profiled(lambda: module(*inputs)) for _ in range(repeats if parts else 0)]
    for part, belongs in parts.items():
        own = zip(*([seconds for name, seconds in events if belongs(name)] for events in profiles), strict=True)
        least[part] = sum(map(min, own))
    return {
        "name": name,
        "form": form,
        "date": datetime.date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1),
        "repeats": repeats,
        "versions": {"torch": torch.__version__, "ONNX Runtime": onnxruntime.__version__},
        "machine": stored.machine(),
        "ms": {key: round(seconds * 1e3, 3) for key, seconds in least.items()},
    }


@contextlib.contextmanager
def _own_cache() -> Iterator[None]:
    """Keeps packages of machine code apart from those of other versions of this checkout."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"ONNX2NN_CACHE": folder}):
        yield


@contextlib.contextmanager
def _named_kernels() -> Iterator[None]:
    """Lets inductor's code name its calls for the profiler; such packages are not kept."""
    with _own_cache(), torch._inductor.config.patch({"cpp.enable_kernel_profile": True}):
        yield


def _profiled(call: Callable[[], Any]) -> list[tuple[str, float]]:
    """Returns name and seconds of the calls of torch, without those inside of other calls: of the second of two calls.

    The profiler's start empties the caches of the processor.
    """
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
        call()
    outer = sorted((event for event in found.events() if event.cpu_parent is None), key=lambda e: e.time_range.start)
    return [(event.name, event.cpu_time_total / 1e6) for event in outer[len(outer) // 2 :]]


def _steps(hidden: int, layers: int, steps: int) -> Callable[[], None]:
    """Returns the calls of torch in the steps of a DynamicQuantizeLSTM of one sequence, see ops/quantized_steps.py."""
    state, gates, weights = torch.rand(hidden + 1), torch.rand(1, 4 * hidden), torch.rand(hidden, 4 * hidden)
    row, limits, last, cell = (
        torch.rand(1, hidden),
        torch.rand(2).unbind(0),
        torch.rand(1, hidden),
        torch.rand(1, hidden),
    )
    sigmoids, (enter, _, _, new) = gates[:, : 3 * hidden], gates.chunk(4, 1)

    def call() -> None:
        for _ in range(layers * steps):
            torch.aminmax(state, out=limits)
            torch.mm(row, weights, out=gates)
            sigmoids.sigmoid_()
            new.tanh_()
            cell.addcmul_(enter, new)
            torch.tanh(cell, out=last)

    return call


def main() -> None:
    """Measures, prints, stores and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*dict.fromkeys(name for name, _ in FLOORS)])
    parser.add_argument("--repeats", type=int, default=20, help="rounds (default 20)")
    parser.add_argument("--write", action="store_true", help="store the results and write the page")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows = peers_page.floors()
    with torch.no_grad(), _own_cache():
        for name, form in FLOORS:
            if name not in arguments.models:
                continue
            row = measured(name, form, arguments.repeats)
            print(name, form, {key: round(ms / row["ms"][ORT], 3) for key, ms in row["ms"].items()}, flush=True)
            rows = [other for other in rows if (other["name"], other["form"]) != (name, form)] + [row]
            if arguments.write:
                rows.sort(key=lambda row: FLOORS.index((row["name"], row["form"])))
                results = json.loads(peers_page.RESULTS.read_text(encoding="utf-8"))
                stored.store(peers_page.FLOOR_RESULTS, rows, peers_page.PAGE, peers_page.page(results, rows))


if __name__ == "__main__":
    main()
