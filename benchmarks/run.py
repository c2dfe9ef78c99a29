"""Measures the eager run time of imported modules beside that of the exported module."""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings

import importers
import models
import torch
from rich.console import Console
from rich.table import Table
from turns import turns

MODELS = ("resnet18", "mobilenet_v2", "vit_b_16")


def measure(modules: dict[str, importers.Loaded], inputs: models.Tensors, repeats: int) -> dict[str, list[float]]:
    """Returns the seconds of each module's calls; every round calls all of them in shuffled order."""
    times: dict[str, list[float]] = {name: [] for name in modules}
    for name, counts in turns(modules, repeats, warming=3):
        start = time.perf_counter()
        modules[name](inputs)
        if counts:
            times[name].append(time.perf_counter() - start)
    return times


def add_rows(table: Table, name: str, exporter: str, repeats: int, notes: list[str]) -> None:
    """Adds the rows of one file: the original, a copy of it, and each importer's module.

    The ratio of the copy is the measurement error. Appends the reasons of failures to `notes`.
    """
    original, path, inputs = models.exported(name, exporter)
    label = f"{name} ({exporter})"

    modules = {
        "original": importers.without_gradients(torch, original),
        "a copy of it": importers.without_gradients(torch, copy.deepcopy(original)),
    }
    failed: dict[str, str] = {}
    for importer, prepare in importers.IMPORTERS.items():
        try:
            loaded = prepare()(path)
            loaded(inputs)
            modules[importer] = loaded
        except Exception as error:
            failed[importer] = importers.reason(error)
    times = measure(modules, inputs, repeats)
    for module, seconds in times.items():
        ratios = [ours / theirs for ours, theirs in zip(seconds, times["original"], strict=True)]
        median, fastest = statistics.median(seconds) * 1e3, min(seconds) * 1e3
        ratio = f"{statistics.median(ratios):.3f}"
        table.add_row(label, importers.title(module), f"{median:.2f}", f"{fastest:.2f}", ratio)
    for importer, reason in failed.items():
        table.add_row(label, importers.title(importer), "failed")
        notes.append(f"{importers.title(importer)}, {label}: {reason}")
    table.add_section()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help=f"of {', '.join(models.ORIGINALS)}")
    parser.add_argument("--exporter", choices=("torchscript", "dynamo", "both"), default="both")
    parser.add_argument("--repeats", type=int, default=40, help="rounds (default 40)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch and ONNX Runtime")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    table = Table(
        title=f"Eager run time, batch 1, {arguments.threads} threads; ratio: median over rounds to the original"
    )
    for column in ("model", "module", "median ms", "fastest ms", "ratio"):
        table.add_column(column, justify="left" if column in ("model", "module") else "right")

    notes: list[str] = []
    for name in arguments.models:
        for exporter in ("torchscript", "dynamo") if arguments.exporter == "both" else (arguments.exporter,):
            add_rows(table, name, exporter, arguments.repeats, notes)
    console = Console()
    console.print(table)
    for note in notes:
        console.print(note, markup=False)


if __name__ == "__main__":
    main()
