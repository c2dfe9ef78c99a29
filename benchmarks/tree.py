"""Measures what the tree of modules costs: loading, generating programs, calls and memory, beside the flat program.

It measures processor time, which other programs disturb less than the time that passes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import models  # first: it makes the checkout importable
import torch
from memory import resident, settle
from rich.console import Console
from rich.table import Table
from turns import turns

import onnx2nn
from onnx2nn.fx import attempt
from onnx2nn.fx.blocks import scopes
from onnx2nn.fx.blocks.block import _CLASSES, Block
from onnx2nn.fx.blocks.flattening import flattened
from onnx2nn.fx.blocks.program import Notes, Program

MODELS = ("resnet18", "bert_small", "transformer_48")

Load = Callable[[Path], Any]


@contextlib.contextmanager
def no_tree() -> Iterator[None]:
    """Leaves the programs of imports flat, which `load` has no option for."""
    with mock.patch.object(attempt, "nest", lambda module, *_: {"blocks": {}, "flat": {}, "calls": 0, "inside": 0}):
        yield


def load_flat(path: Path) -> Any:
    """Returns an import whose layers one flat program calls."""
    with no_tree():
        return onnx2nn.load(path)


LOADS: dict[str, Load] = {"flat": load_flat, "flat again": load_flat, "tree": onnx2nn.load}


def measure_loads(path: Path, repeats: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns processor seconds of loads, and of loads with the programs of all classes; the ways take turns at random.

    The first round is not counted. Each load is a first one: the classes that an earlier import made are forgotten, and
    the scopes that it read.
    """
    loads: dict[str, list[float]] = {name: [] for name in LOADS}
    ready: dict[str, list[float]] = {name: [] for name in LOADS}
    for name, counts in turns(LOADS, repeats, warming=1):
        _forget()
        gc.collect()
        start = time.process_time()
        module = LOADS[name](path)
        loaded = time.process_time() - start
        module.forward  # noqa: B018, its first look-up generates the programs
        if counts:
            loads[name].append(loaded)
            ready[name].append(time.process_time() - start)
        del module
    return loads, ready


def _forget() -> None:
    _CLASSES.clear()
    for cached in (scopes.parsed_list, scopes.step_name, scopes.path_of, scopes.is_attribute):
        cached.cache_clear()


def measure_least(path: Path, repeats: int) -> float:
    """Returns the processor seconds of what every tree needs, alone: the shortest of several times.

    It reads the scope of each call, makes the modules that the flat form lacks and a class for each program, compares
    each block's program with those before it, and makes the graph of the root. Which calls, arguments and results a
    block has is decided already.
    """
    tree, flat = onnx2nn.load(path), load_flat(path)
    there = {name: type(inner) for name, inner in flat.named_modules(remove_duplicate=False)}
    made = [name for name, inner in tree.named_modules() if name and there.get(name) is not type(inner)]
    blocks = [inner for inner in tree.modules() if isinstance(inner, Block)]
    programs = [type(block).program.calls for block in blocks]
    names = sorted({type(block).__name__ for block in blocks})
    root = Program.of(tree.graph)
    notes = Notes([node.name for node in tree.graph.nodes if node.op == "placeholder"], [{} for _ in root.calls])
    times = []
    for _ in range(repeats):
        _forget()
        start = time.process_time()
        for node in flat.graph.nodes:
            scopes.declared_scope(node)
        holder = torch.nn.Module()
        for number, _ in enumerate(made):
            holder.add_module(str(number), torch.nn.Module())
        for name in names:
            type(name, (Block,), {})
        len({Program(calls) for calls in programs})
        root.graph(notes)
        times.append(time.process_time() - start)
    return min(times)


def measure_calls(path: Path, inputs: models.Tensors, repeats: int) -> dict[str, list[float]]:
    """Returns processor seconds of calls of one import as a tree and flat, with the same layers, in turns."""
    module = onnx2nn.load(path)
    called = {"flat": flattened(module), "flat again": flattened(module), "tree": module}
    times: dict[str, list[float]] = {name: [] for name in called}
    with torch.no_grad():
        for name, counts in turns(called, repeats, warming=3):  # the first call generates the programs
            start = time.process_time()
            called[name](*inputs)
            if counts:
                times[name].append(time.process_time() - start)
    return times


def measure_memory(path: Path, repeats: int) -> dict[str, list[float]]:
    """Returns the resident memory that an import with its programs holds, in MB, of the ways in turns.

    The first round is not counted: it imports modules and fills caches.
    """
    held: dict[str, list[float]] = {name: [] for name in LOADS}
    for name, counts in turns(LOADS, repeats, warming=1):
        settle()
        before = resident()["now"]
        module = LOADS[name](path)
        module.forward  # noqa: B018, its first look-up generates the programs
        settle()
        if counts:
            held[name].append((resident()["now"] - before) / 1e6)
        del module
    return held


def add_rows(table: Table, name: str, exporter: str, repeats: int) -> None:
    """Adds the rows of one file. The ratio of the second flat program is the error of the measurement."""
    _, path, inputs = models.exported(name, exporter)
    loads, ready = measure_loads(path, repeats)
    least = measure_least(path, 3 * repeats)
    for what, times in {
        "load, ms": _milliseconds(loads),
        "flat, and what every tree needs, ms": _milliseconds({**loads, "tree": [one + least for one in loads["flat"]]}),
        "load, generate, ms": _milliseconds(ready),
        "call, ms": _milliseconds(measure_calls(path, inputs, 10 * repeats)),
        "held, MB": measure_memory(path, repeats),
    }.items():
        row = [f"{name} ({exporter})", what]
        for form, values in times.items():
            ratios = [ours / theirs for ours, theirs in zip(values, times["flat"], strict=True) if theirs]
            row += [f"{statistics.median(values):.1f}"] if form != "flat again" else []
            row += [f"{statistics.median(ratios):.3f}"] if form != "flat" else []
        table.add_row(*row)
    table.add_section()


def _milliseconds(times: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [second * 1e3 for second in seconds] for name, seconds in times.items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help=f"of {', '.join(models.ORIGINALS)}")
    parser.add_argument("--exporter", choices=("torchscript", "dynamo"), default="dynamo")
    parser.add_argument("--repeats", type=int, default=15, help="loads, a tenth of the calls (default 15)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    table = Table(
        title=f"Tree and flat program, processor time ({arguments.threads} threads) and memory; ratios: medians"
    )
    for column in ("model", "what", "flat", "flat again, ratio", "tree", "tree, ratio"):
        table.add_column(column, justify="left" if column in ("model", "what") else "right")
    for name in arguments.models:
        add_rows(table, name, arguments.exporter, arguments.repeats)
    Console().print(table)


if __name__ == "__main__":
    main()
