"""Builds a family of ONNX files for the tests: what `tensorflow_models.py`, `paddle_models.py`, `jax_models.py`,
`torch_models.py` and `oneflow_models.py` share.

A family is a table of recipes. A recipe builds one model, writes it as ONNX and returns a seeded input with the
framework's own answer to it. For each recipe the cache folder gets, under the family's name:

* ``NAME.onnx``
* ``NAME.npz``: ``input0``, ``input1`` ... in the graph's order, ``output0`` ... the framework's own outputs,
  ``difference`` between them and ONNX Runtime's, and ``recipe``, a digest of the scripts and pinned versions that made
  the file: one made otherwise is made again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from fingerprint import CACHE, digest, is_current
from rich.console import Console
from rich.table import Table

MAX_EXPORT_DIFFERENCE = 1e-3


@dataclass(frozen=True)
class Sample:
    """A seeded input and the framework's own answer.

    Attributes:
        inputs: arrays by the ONNX graph's input names; the batch is axis 0.
        outputs: the framework's outputs in its order.
    """

    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[np.ndarray]


Recipe = Callable[[Path], Sample]


@dataclass(frozen=True)
class Result:
    """One row of the closing table; `problem` is empty where all went well."""

    name: str
    state: str
    megabytes: float = 0.0
    difference: float = 0.0
    seconds: float = 0.0
    problem: str = ""

    def line(self) -> str:
        """What is printed when the recipe is done."""
        if self.problem:
            return f"{self.name}: FAILED {self.problem}"
        measured = f"{self.megabytes:.1f} MB, difference to the framework {self.difference:.1e}"
        return f"{self.name}: {self.state}, {measured}, {self.seconds:.1f} s"


def main(family: str, recipes: Mapping[str, Recipe], description: str) -> int:
    """Runs the command line of one family; returns the exit status, 1 if a recipe failed.

    Raises:
        SystemExit: with status 2, when the command line names an unknown model.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=CACHE, help="cache folder (default: .cache/zoo, or ONNX2NN_ZOO)")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--all", action="store_true", help="build every model (as without --only)")
    choice.add_argument("--only", action="append", metavar="NAME", help="build this model only; may be repeated")
    parser.add_argument("--again", action="store_true", help="build models that the cache already holds, too")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(recipes))
        return 0
    names = arguments.only or list(recipes)
    if unknown := [name for name in names if name not in recipes]:
        parser.error(f"unknown model {', '.join(unknown)}; --list prints the names")

    console = Console(file=os.fdopen(os.dup(sys.stdout.fileno()), "w"), soft_wrap=True, highlight=False)
    folder = arguments.out / family
    folder.mkdir(parents=True, exist_ok=True)
    today = digest(family)
    results = []
    for index, name in enumerate(names, 1):
        with console.status(f"{name} ({index} of {len(names)})"):
            results.append(_make(name, recipes[name], folder, today, arguments.again))
        console.print(f"[{index}/{len(names)}] {results[-1].line()}", markup=False)
    console.print(_table(family, results))
    return int(any(result.problem for result in results))


def _make(name: str, recipe: Recipe, folder: Path, today: str, again: bool) -> Result:
    """Runs one recipe into temporary names and renames them at the end; a failure becomes a result."""
    started = time.monotonic()
    final = {ending: folder / f"{name}{ending}" for ending in (".onnx", ".npz")}
    unfinished = {ending: folder / f".unfinished-{os.getpid()}{ending}" for ending in final}
    log = folder / f"{name}.log"
    try:
        if again or not is_current(final[".onnx"], today):
            with _chatter_to(log):
                arrays = _check(unfinished[".onnx"], recipe(unfinished[".onnx"]))
            np.savez_compressed(unfinished[".npz"], recipe=today, **arrays)
            for ending in final:
                unfinished[ending].replace(final[ending])
            log.unlink()
            state = "made"
        else:
            state = "kept"
        with np.load(final[".npz"]) as arrays:
            difference = float(arrays["difference"])
    except (Exception, SystemExit) as error:
        with log.open("a") as file:
            traceback.print_exc(file=file)
        cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error  # paddle2onnx exits
        text = " ".join(str(cause).split())[:300]
        return Result(name, "failed", problem=f"{type(cause).__name__}: {text} (log: {log})")
    finally:
        for path in unfinished.values():
            path.unlink(missing_ok=True)
    return Result(name, state, final[".onnx"].stat().st_size / 1e6, difference, time.monotonic() - started)


def _check(path: Path, sample: Sample) -> dict[str, np.ndarray]:
    """Checks the file and that a test of it could fail; returns the arrays to store.

    Raises:
        ValueError: if inputs and graph do not match, no output says something about the input, or ONNX Runtime's
            answer is not the framework's, which would be the exporter's error and not the importer's.
    """
    model = onnx.load(path)
    onnx.checker.check_model(model)
    stored = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in stored]
    if set(names) != set(sample.inputs):
        raise ValueError(f"the graph's inputs are {names}, the recipe's {list(sample.inputs)}")
    if not any(_says_something(output) for output in sample.outputs):
        raise ValueError("no output depends on the input, or nearly all of it is zero, so comparing would show nothing")
    difference = _difference(path, sample)
    if difference > MAX_EXPORT_DIFFERENCE:
        raise ValueError(f"the exported file differs from the framework by {difference:.2g} of the output's scale")
    arrays = {f"input{index}": sample.inputs[name] for index, name in enumerate(names)}
    arrays |= {f"output{index}": output for index, output in enumerate(sample.outputs)}
    return arrays | {"difference": np.asarray(difference)}


def _says_something(output: np.ndarray) -> bool:
    """Whether rows of the batch differ, and a quarter of the elements count, at a thousandth of the output's scale."""
    values = np.asarray(output, np.float64)
    counts = 1e-3 * np.abs(values).max()
    return bool(np.abs(values - values[:1]).max() > counts and (np.abs(values) > counts).mean() > 0.25)


def _difference(path: Path, sample: Sample) -> float:
    """Largest difference between ONNX Runtime and the framework, relative to each output's largest magnitude."""
    # Pad_Fusion moves a pad with 0 into the MaxPool behind it, which pads with -inf (1.31 on Keras's ResNet50V2).
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"], disabled_optimizers=["Pad_Fusion"])
    worst = 0.0
    for got, want in zip(session.run(None, dict(sample.inputs)), sample.outputs, strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            raise ValueError(f"the file gives {got.dtype}{got.shape}, the framework {want.dtype}{want.shape}")
        scale = np.abs(want.astype(np.float64)).max()
        worst = max(worst, float(np.abs(got.astype(np.float64) - want).max() / scale))
    return worst


@contextlib.contextmanager
def _chatter_to(log: Path) -> Iterator[None]:
    """Sends what the frameworks print, from Python and from C++, to a file; it is kept when a recipe fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with log.open("wb") as file:
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in enumerate(kept, 1):
                os.dup2(copy, number)
                os.close(copy)


def _table(family: str, results: Sequence[Result]) -> Table:
    failed = sum(bool(result.problem) for result in results)
    table = Table(title=f"{family}: {len(results) - failed} of {len(results)} models")
    for heading in ("model", "state", "MB", "difference", "s"):
        table.add_column(heading, justify="left" if heading in ("model", "state") else "right")
    for row in results:
        numbers = (
            ("", "", "") if row.problem else (f"{row.megabytes:.1f}", f"{row.difference:.1e}", f"{row.seconds:.1f}")
        )
        table.add_row(row.name, row.state, *numbers, style="red" if row.problem else None)
    return table
