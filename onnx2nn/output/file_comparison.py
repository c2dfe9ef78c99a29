"""A written ONNX file is compared with the module that it was made of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import MissingDependencyError, Onnx2nnError, VerificationError
from onnx2nn.ground.pass_times import timed
from onnx2nn.ground.quiet import quiet
from onnx2nn.loading import load
from onnx2nn.output.trace_examples import Run
from onnx2nn.verification.module_runs import run_module
from onnx2nn.verification.oracle import Oracle
from onnx2nn.verification.outputs import short_floats, verify
from onnx2nn.verification.value_comparison import compare


@timed("verification")
def compare_file(path: Path, model: ir.Model, runs: Sequence[Run], small: Mapping[str, Run]) -> str:
    """Returns a description of the comparison of a file with runs of its module.

    Args:
        path: of the file.
        model: what it holds.
        runs: of the module, first one at the sizes that it was traced with.
        small: what a dimension is → a run there. Of these sizes, which torch's traces leave out of account, the
            description says where the file has other outputs. ONNX Runtime ends the process at some sizes of 0; the
            file's own import, which has its values, does not.

    Raises:
        VerificationError: it has other outputs in one of the `runs`, by more than its own noise.
    """
    names, short = [value.name or "" for value in model.graph.outputs], short_floats(model)
    try:
        oracle = Oracle(path)
    except MissingDependencyError:
        return "not compared, as onnxruntime is not installed"
    noises: dict[str, None] = {}
    for number, (arrays, expected) in enumerate(runs):
        feeds = dict(zip(oracle.input_names, arrays, strict=True))
        try:
            compared = compare(names, oracle.run(feeds), expected, short)
            wrong = [str(output) for output in compared if not output.ok]
            noise = _noise(path, feeds, names, expected, short) if wrong else ""
        except VerificationError as error:
            wrong, noise = [str(error)], ""
        if noise:
            noises[noise] = None
        elif wrong:
            shapes = ", ".join(str(list(array.shape)) for array in arrays)
            where = f" at sizes other than it was traced with ({shapes})" if number else ""
            raise VerificationError(
                f"The file of torch.onnx.export differs from the module{where}: {'; '.join(wrong)}."
            )
    told = f"agrees with {oracle.name}" + (f" ({'; '.join(noises)})" if noises else "")
    if small:
        with contextlib.suppress(Onnx2nnError), quiet():  # a file that is not imported
            told += other_outputs(load(path, mmap=True), small, names, short)
    return told


def other_outputs(
    again: Callable[..., Any], runs: Mapping[str, Run], names: Sequence[str], short: Mapping[str, str]
) -> str:
    """Returns the end of a description that says in which runs of a module another form has other outputs.

    Args:
        again: the other form, which may refuse their sizes.
        runs: of the module, by what a dimension is there.
        names: of the outputs.
        short: those that are narrow floats, see `compare`.
    """
    others = []
    for place, (arrays, expected) in runs.items():
        with contextlib.suppress(Onnx2nnError):
            if not all(output.ok for output in compare(names, run_module(again, arrays), expected, short)):
                others.append(place)
    return f"; it has other outputs than the module where {', or '.join(others)}" if others else ""


def _noise(
    path: Path,
    feeds: Mapping[str, np.ndarray],
    names: Sequence[str],
    expected: Sequence[Any],
    short: Mapping[str, str],
) -> str:
    """Returns what explains that the oracle computes other outputs of a file than its module, `""` if nothing does.

    In torch, where roundings are the module's, the file's own import has the module's outputs; and the oracle differs
    from this import by the model's own noise, of which `verify` asks node by node.
    """
    try:
        with quiet():
            again = load(path)
            if not all(output.ok for output in compare(names, run_module(again, [*feeds.values()]), expected, short)):
                return ""
            found = verify(path, again, inputs=feeds)
    except Onnx2nnError:  # a file that is not imported has no noise that excuses it
        return ""
    return found.verdict if found.ok else ""
