"""Measures loading: memory for 256 MiB of weights, and time beside ONNX Runtime's session creation.

python benchmarks/load.py                     # all tables but the profiles
python benchmarks/load.py --only large        # 40,000 nodes, and 8 GB of external data on the meta device
python benchmarks/load.py --time a.onnx       # time of the loads of these files alone
python benchmarks/load.py --profile           # seconds of each pass of imports, and of export_onnx
python benchmarks/load.py --profile a.onnx    # of the imports of these files
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import operator
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import importers
import models
from rich.console import Console
from rich.table import Table

from onnx2nn.ground.pass_times import PassTimes, recorded

TIMED: dict[str, Callable[[], Path]] = {
    "ResNet50": lambda: models.exported("resnet50", "torchscript")[1],
    "BERT base": lambda: models.exported("bert_base", "dynamo")[1],
    "2000 nodes": lambda: models.many_nodes(2000),
    "text recogniser": lambda: models.exported("recogniser", "torchscript")[1],
    "voice detector": lambda: models.exported("voice_detector", "dynamo")[1],
}
LARGE: dict[str, Callable[[], Path]] = {"40,000 nodes": lambda: models.shifted_windows(40_000)}
"""Name of a model → writes its file where it is missing, and returns it."""

GIBIBYTES = 8
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


def measure_times(path: Path, repeats: int, names: Collection[str] = ()) -> dict[str, list[Seconds] | str]:
    """Returns the seconds of each importer's loads, or the reason of a failure.

    The importers take turns. The first round is not counted.

    Args:
        path: of the file.
        repeats: rounds that are counted.
        names: of the importers; all, if empty.
    """
    results: dict[str, list[Seconds] | str] = {}
    loads = {}
    known = {**importers.PARTS, **importers.IMPORTERS}
    for name, prepare in {name: known[name] for name in names or known}.items():
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


def time_table(
    files: Mapping[str, Callable[[], Path]], repeats: int, notes: list[str], names: Collection[str] = ()
) -> Table:
    """Returns a table with one row for each model and importer, with ratios of the medians and of processor time.

    On a busy machine the least processor time, of all threads, is what other programs disturb least.

    Appends the reasons of failures to `notes`.
    """
    table = Table(title="Import time (packages apart), ratio to ONNX Runtime's session creation")
    for column in ("model", "importer", "median s", "fastest s", "CPU s", "ratio", "CPU ratio"):
        table.add_column(column, justify="left" if column in ("model", "importer") else "right")
    for label, file in files.items():
        results = measure_times(file(), repeats, names)
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


def external_table(repeats: int, notes: list[str]) -> Table:
    """Returns a table of loads of 8 GiB of external data: mapped and never read, and mapped as weights, with a call.

    The file has no blocks on the disk. Appends the reasons of failures to `notes`.
    """
    path = models.sparse_weights(GIBIBYTES)
    table = Table(title=f"{GIBIBYTES} GiB of external data; mapped pages count as memory")
    for column in ("loaded by", "s of a load", "MiB at the peak", "MiB afterwards", "after a run", "x the weights"):
        table.add_column(column, justify="left" if column == "loaded by" else "right")
    for name in ("onnx2nn on the meta device", "onnx2nn, mapped"):
        for result in [measure_memory(name, path) for _ in range(repeats)]:
            if isinstance(result, str):
                notes.append(f"{name}: {result}")
                continue
            memory = [result[measure] / models.MIB for measure in MEASURES]
            most = f"{max(memory) / (GIBIBYTES << 10):.4f}"
            table.add_row(name, f"{result['seconds']:.3f}", *(f"{size:.0f}" for size in memory), most)
    return table


def pass_times(run: Callable[[], object], repeats: int) -> PassTimes:
    """Returns the processor seconds of each pass of the fastest of several runs, behind a first one."""
    run()
    found = []
    for _ in range(repeats):
        gc.collect()
        with recorded() as times:
            run()
        found.append(times)
    return min(found, key=lambda times: sum(times.values()))


def profile_table(title: str, runs: Mapping[str, Callable[[], object]], repeats: int) -> Table:
    """Returns a table with one row for each pass and one column for each run, in processor ms and their share."""
    times = {label: pass_times(run, repeats) for label, run in runs.items()}
    table = Table(title=title)
    table.add_column("pass")
    for label in times:
        table.add_column(label, justify="right")
    for name in dict.fromkeys(name for found in times.values() for name in found):
        cells = []
        for found in times.values():
            seconds = found.get(name)
            share = "" if seconds is None else f"{1000 * seconds:.1f} ({seconds / sum(found.values()):4.0%})"
            cells.append(share)
        table.add_row(name, *cells)
    table.add_section()
    table.add_row("all", *(f"{1000 * sum(found.values()):.1f}       " for found in times.values()))
    return table


def profiles(paths: Sequence[str], repeats: int) -> Iterator[Table]:
    """Yields tables of the passes of imports, and of exports of imported modules."""
    import onnx2nn

    given = {Path(path).name: Path(path) for path in paths}
    files = given or {label: file() for label, file in {**TIMED, **LARGE}.items()}

    def load(path: Path) -> Any:
        return onnx2nn.load(path).forward

    loads = {label: functools.partial(load, path) for label, path in files.items()}
    yield profile_table("Imports with their programs, ms of the processor", loads, repeats)
    modules = {label: onnx2nn.load(path) for label, path in files.items() if given or label in EXPORTED}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.onnx"
        exports = {label: functools.partial(onnx2nn.export_onnx, module, target) for label, module in modules.items()}
        yield profile_table("export_onnx, ms of the processor", exports, repeats)


EXPORTED = ("ResNet50", "BERT base")
"""Models whose export is profiled."""


PAIR = ("onnx2nn", "onnxruntime")
"""The importers that are timed where the others would take too long, or refuse the files."""


def tables(only: str | None, weights: int, repeats: int, console: Console, notes: list[str]) -> None:
    """Prints all tables, or `only` one kind of them; appends the reasons of failures to `notes`."""
    if only in (None, "memory"):
        console.print(memory_table(weights, repeats, notes))
    if only in (None, "time"):
        console.print(time_table(TIMED, repeats, notes))
    if only in (None, "large"):
        console.print(time_table(LARGE, repeats, notes, PAIR))
        console.print(external_table(repeats, notes))


def main() -> None:
    """Prints the tables, or those selected by the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("memory", "time", "large"), help="measure only one of them")
    parser.add_argument("--time", nargs="+", metavar="FILE", help="time the loads of these files alone")
    parser.add_argument("--profile", nargs="*", metavar="FILE", help="seconds of each pass, of these files if given")
    parser.add_argument("--weights", type=int, default=256, metavar="MIB", help="size of the weights (default 256)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each (default 5)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    console = Console()
    notes: list[str] = []
    if arguments.profile is not None:
        for table in profiles(arguments.profile, arguments.repeats):
            console.print(table)
        return
    if arguments.time is not None:
        files = {Path(path).name: functools.partial(Path, path) for path in arguments.time}
        console.print(time_table(files, arguments.repeats, notes, PAIR))
    else:
        tables(arguments.only, arguments.weights, arguments.repeats, console, notes)
    for note in notes:
        console.print(note, markup=False)


if __name__ == "__main__":
    main()
