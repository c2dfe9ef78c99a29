"""Measures networks beside every peer that runs them, and writes docs/benchmarks.md.

    python benchmarks/peers.py --write resnet18 bert_base   # measures these, keeps the stored results of the others
    python benchmarks/peers.py --write --device cuda        # the same on a GPU, beside the author's module
    python benchmarks/peers.py --page                       # writes the page again from the stored results

In each round every form of a network is called once, in shuffled order, in one process. The results are stored in
`peers.json`; a row is replaced when its network is measured again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import importers
import models
import onnxruntime
import optimized
import stored
import torch
from peers_page import CUDA, ORDER, ORIGINAL, PAGE, RESULTS, SHOWN, TIMM, ZOO, Row, floors, on_cuda, page, ratio

PEERS = ("onnx2torch", "onnx2pytorch", "onnx2fx")
ORIGINAL_COMPILED = f"{ORIGINAL}, torch.compile, frozen"
AUTHORS = (ORIGINAL, ORIGINAL_COMPILED)

Call = Callable[[], Any]


def measured(name: str, repeats: int, threads: int, names: Collection[str], device: str) -> Row:
    """Returns the milliseconds and ratios of each form of a network, and why a form is missing."""
    if device != "cpu":
        beside: tuple[str, ...] = (*AUTHORS, *PEERS)
    else:
        beside = () if name in ZOO else AUTHORS if name in TIMM else (*AUTHORS, *PEERS, "OpenVINO")
    with torch.enable_grad():  # without, nn.MultiheadAttention calls what the exporter lacks
        original, path, inputs = models.exported(name, "torchscript")
    original, inputs = original.to(device), tuple(tensor.to(device) for tensor in inputs)
    calls: dict[str, Call] = {}
    failed = {form: "not measured" for form in optimized.FORMS if form not in names}
    for form, _, call in optimized.forms(str(path), inputs, threads, names):
        if callable(call):
            calls[form] = call
        else:
            failed[form] = call
    for form, make in _peers(original, path, inputs).items():
        if form not in beside:
            continue
        if form == ORIGINAL_COMPILED and "compile" not in names:
            failed[form] = "not measured"
            continue
        try:
            call = make()
            call()
            calls[form] = call
        except Exception as error:  # of any class: the reason is in the page
            failed[form] = importers.reason(error)
    if device != "cpu":
        calls = {form: optimized.waiting(call) for form, call in calls.items()}
    times = optimized.measure(calls, repeats)
    counted = {form: busy if device == "cpu" else passed for form, (passed, busy) in times.items()}
    return {
        "date": datetime.date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1),
        "threads": threads,
        "repeats": repeats,
        "versions": _versions(device),
        "machine": stored.machine() if device == "cpu" else torch.cuda.get_device_name(device),
        "ms": {form: round(min(seconds) * 1e3, 3) for form, seconds in counted.items()},
        "passed ms": {form: round(statistics.median(passed) * 1e3, 3) for form, (passed, _) in times.items()},
        "failed": failed,
    }


def _peers(original: torch.nn.Module, path: Path, inputs: models.Tensors) -> dict[str, Callable[[], Call]]:
    def compiled() -> Call:
        module: Any = torch.compile(original)

        def call() -> Any:
            with torch._inductor.config.patch(freezing=True):  # Dynamo reads it, options come behind Dynamo
                return module(*inputs)

        return call

    def of(importer: str) -> Callable[[], Call]:
        def make() -> Call:
            loaded = importers.IMPORTERS[importer]()(path)
            return lambda: loaded(inputs)

        return make

    return {
        ORIGINAL: lambda: lambda: original(*inputs),
        ORIGINAL_COMPILED: compiled,
        **{importer: of(importer) for importer in PEERS},
        "OpenVINO": lambda: _openvino(path, inputs),
    }


def _openvino(path: Path, inputs: models.Tensors) -> Call:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    program = openvino.compile_model(openvino.convert_model(path), "CPU", settings)
    arrays = [tensor.numpy() for tensor in inputs]
    return lambda: program(arrays)


def _versions(device: str) -> dict[str, str]:
    of_cpu = ("openvino",) if device == "cpu" else ()
    packages = {package: importers.title(package).rpartition(" ")[2] for package in (*PEERS, *of_cpu)}
    runtime = {"ONNX Runtime": onnxruntime.__version__} if device == "cpu" else {}
    return {"torch": torch.__version__, **runtime} | {
        package: version for package, version in packages.items() if version != package
    }


def main() -> None:
    """Measures, stores and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(models.ORIGINALS)}")
    parser.add_argument("--repeats", type=int, default=20, help="rounds (default 20)")
    parser.add_argument(
        "--form", action="append", choices=tuple(optimized.FORMS), help="of onnx2nn, for each that is measured: all"
    )
    parser.add_argument("--threads", type=int, default=1, help="of every form (default 1)")
    parser.add_argument("--device", default="cpu", help="where the forms run: cpu (default) or cuda")
    parser.add_argument("--write", action="store_true", help="store the results and write the page")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page of the stored results")
    arguments = parser.parse_args()
    arguments.form = arguments.form or [*optimized.FORMS]
    arguments.models = arguments.models or (CUDA if arguments.device != "cpu" else (*SHOWN, *ZOO, *TIMM))
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    with torch.no_grad():
        for name in () if arguments.page else arguments.models:
            row = measured(name, arguments.repeats, arguments.threads, arguments.form, arguments.device)
            print(name, {form: round(ratio(row, form) or 0, 3) for form in row["ms"]}, row["failed"], flush=True)
            rows[name if arguments.device == "cpu" else on_cuda(name)] = row
            if arguments.write:
                _store(rows)
    if arguments.page:
        _store(rows)


def _store(rows: dict[str, Row]) -> None:
    ordered = {name: rows[name] for name in ORDER if name in rows}
    stored.store(RESULTS, ordered, PAGE, page(ordered, floors()))


if __name__ == "__main__":
    main()
