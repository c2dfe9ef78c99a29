"""Measures loading: memory for 256 MiB of weights, and time beside ONNX Runtime's session creation."""

from __future__ import annotations

import argparse
import gc
import json
import operator
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import importers
import models
from rich.console import Console
from rich.table import Table

MEASURES = ("peak", "after", "after a run")


class Seconds(NamedTuple):
    """The duration of a load, and the processor time of all threads."""

    passed: float
    busy: float


def measure_memory(name: str, path: Path) -> dict[str, float] | str:
    """Returns bytes above the process's own by measure, or the reason of a failure."""
    small = models.weights_only(4, external=False)
    command = [sys.executable, str(Path(__file__).with_name("memory.py")), name, str(small), str(path), "1024"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:100]
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return result.get("error") or result


def memory_table(mebibytes: int, repeats: int, notes: list[str]) -> Table:
    """Returns a table with one row for each importer and file, of medians over `repeats` fresh processes.

    Appends the reasons of failures to `notes`.
    """
    table = Table(
        title=f"Resident memory for {mebibytes} MiB of weights, in MiB over the process's own (x the weights)"
    )
    for column in ("importer", "weights are", *MEASURES):
        table.add_column(column, justify="left" if column in ("importer", "weights are") else "right")
    for external in (False, True):
        path = models.weights_only(mebibytes, external=external)
        for name in importers.MEMORY:
            results = [measure_memory(name, path) for _ in range(repeats)]
            failed = [result for result in results if isinstance(result, str)]
            row = [importers.title(name), "external" if external else "in the file"]
            if failed:
                table.add_row(*row, "failed")
                notes.append(f"{row[0]}, {row[1]}: {failed[0]}")
                continue
            for measure in MEASURES:
                value = statistics.median(result[measure] for result in results) / models.MIB  # type: ignore[index]
                row.append(f"{value:.0f} ({value / mebibytes:.2f}x)")
            table.add_row(*row)
    return table


def measure_times(path: Path, repeats: int) -> dict[str, list[Seconds] | str]:
    """Returns the seconds of each importer's loads, or the reason of a failure.

    The importers take turns. The first round is not counted.
    """
    results: dict[str, list[Seconds] | str] = {}
    loads = {}
    for name, prepare in {**importers.PARTS, **importers.IMPORTERS}.items():
        try:
            loads[name] = prepare()
            results[name] = []
        except Exception as error:
            results[name] = importers.reason(error)
    for round_ in range(repeats + 1):
        for name, load in loads.items():
            times = results[name]
            if isinstance(times, str):
                continue
            gc.collect()
            start, busy = time.perf_counter(), time.process_time()
            try:
                loaded = load(path)
            except Exception as error:
                results[name] = importers.reason(error)
                continue
            if round_:
                times.append(Seconds(time.perf_counter() - start, time.process_time() - busy))
            del loaded
    return results


def time_table(repeats: int, notes: list[str]) -> Table:
    """Returns a table with one row for each model and importer, with ratios of the medians and of processor time.

    On a busy machine the least processor time, of all threads, is what other programs disturb least.

    Appends the reasons of failures to `notes`.
    """
    table = Table(title="Import time (packages apart), ratio to ONNX Runtime's session creation")
    for column in ("model", "importer", "median s", "fastest s", "CPU s", "ratio", "CPU ratio"):
        table.add_column(column, justify="left" if column in ("model", "importer") else "right")
    for label, path in {
        "ResNet50": models.exported("resnet50", "torchscript")[1],
        "BERT base": models.exported("bert_base", "dynamo")[1],
        "2000 nodes": models.many_nodes(2000),
        "text recogniser": models.exported("recogniser", "torchscript")[1],
        "voice detector": models.exported("voice_detector", "dynamo")[1],
    }.items():
        results = measure_times(path, repeats)
        reference = results["onnxruntime"]
        for name, times in results.items():
            if isinstance(times, str):
                table.add_row(label, importers.title(name), "failed")
                notes.append(f"{importers.title(name)}, {label}: {times}")
                continue
            figures = _figures(times)
            ratios = [] if isinstance(reference, str) else list(map(operator.truediv, figures, _figures(reference)))
            shown = [f"{ratio:.2f}" for ratio in (ratios[0], ratios[2])] if ratios else []
            table.add_row(label, importers.title(name), *(f"{figure:.3f}" for figure in figures), *shown)
        table.add_section()
    return table


def _figures(times: list[Seconds]) -> tuple[float, float, float]:
    """Returns the median, the shortest time and the least processor time."""
    passed = [seconds.passed for seconds in times]
    return statistics.median(passed), min(passed), min(seconds.busy for seconds in times)


def main() -> None:
    """Prints both tables, or the one selected by `--only`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("memory", "time"), help="measure only one of them")

    parser.add_argument("--weights", type=int, default=256, metavar="MIB", help="size of the weights (default 256)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each (default 5)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    console = Console()
    notes: list[str] = []
    if arguments.only != "time":
        console.print(memory_table(arguments.weights, arguments.repeats, notes))
    if arguments.only != "memory":
        console.print(time_table(arguments.repeats, notes))
    for note in notes:
        console.print(note, markup=False)


if __name__ == "__main__":
    main()
