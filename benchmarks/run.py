"""What running costs: an imported module in eager mode beside the module that was exported."""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
import warnings

import importers
import models
import torch
from rich.console import Console
from rich.table import Table

MODELS = ("resnet18", "mobilenet_v2", "vit_b_16")


def measure(contestants: dict[str, importers.Loaded], inputs: models.Tensors, repeats: int) -> dict[str, list[float]]:
    """Seconds of each contestant's calls; every round calls all of them in an order of its own."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    shuffle = random.Random(0).shuffle
    for round_ in range(repeats + 3):
        shuffle(names)
        for name in names:
            start = time.perf_counter()
            contestants[name](inputs)
            if round_ >= 3:  # the first rounds warm caches
                times[name].append(time.perf_counter() - start)
    return times


def add_rows(table: Table, name: str, exporter: str, repeats: int, notes: list[str]) -> None:
    """Adds rows of the original, of a copy, whose ratio is the error of all, and of each importer.

    What ended the failed ones is appended to `notes`.
    """
    original, path, inputs = models.exported(name, exporter)
    label = f"{name} ({exporter})"

    contestants = {
        "original": importers.without_gradients(torch, original),
        "a copy of it": importers.without_gradients(torch, copy.deepcopy(original)),
    }
    failed: dict[str, str] = {}
    for importer, prepare in importers.IMPORTERS.items():
        try:
            loaded = prepare()(path)
            loaded(inputs)
            contestants[importer] = loaded
        except Exception as error:
            failed[importer] = importers.reason(error)
    times = measure(contestants, inputs, repeats)
    for contestant, seconds in times.items():
        ratios = [ours / theirs for ours, theirs in zip(seconds, times["original"], strict=True)]
        median, fastest = statistics.median(seconds) * 1e3, min(seconds) * 1e3
        ratio = f"{statistics.median(ratios):.3f}"
        table.add_row(label, importers.title(contestant), f"{median:.2f}", f"{fastest:.2f}", ratio)
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
    for column in ("model", "who", "median ms", "fastest ms", "ratio"):
        table.add_column(column, justify="left" if column in ("model", "who") else "right")
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
