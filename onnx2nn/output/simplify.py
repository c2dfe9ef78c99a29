"""Simplifies an ONNX model with onnxsim, in a process of its own that may fail, crash or stall without harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

import onnx

from onnx2nn.errors import InputError, Onnx2nnError, first_line
from onnx2nn.ground.atomic_files import check_writable, replacing
from onnx2nn.ground.extras import require
from onnx2nn.ground.limits import Account, Limits
from onnx2nn.importing import inputs as model_inputs
from onnx2nn.reading import reader
from onnx2nn.reading.embedded import embedded
from onnx2nn.verification.oracle import Oracle, Stored, stored
from onnx2nn.verification.value_comparison import OutputComparison, compare

_PROTOBUF_LIMIT = 2**31 - 2**20  # protobuf refuses messages of 2 GiB; 1 MiB for all but the weights


@dataclass(frozen=True)
class Simplification:
    """The result of simplifying a model.

    Attributes:
        model: the simplified model, or the original one where `simplified` is false.
        simplified: whether the simplifier ended, and its result passed every check.
        report: a line for the user: how much was gained, or why the model is unchanged.
    """

    model: onnx.ModelProto
    simplified: bool
    report: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model; weights go to `<name>.data` beside it where the model exceeds protobuf's 2 GB.

        Raises:
            InputError: the file cannot be written.
        """
        check_writable(path)
        target = Path(path)
        if self.model.ByteSize() < _PROTOBUF_LIMIT:
            with replacing(target) as temporary:
                onnx.save(self.model, temporary)
            return
        with replacing(target.with_name(target.name + ".data")) as data, replacing(target) as temporary:
            copy = onnx.ModelProto()
            copy.CopyFrom(self.model)  # onnx.save moves the weights out of the object it is given
            onnx.save(copy, temporary, save_as_external_data=True, location=data.name)
            for tensor in copy.graph.initializer:
                for entry in tensor.external_data:
                    if entry.key == "location":
                        entry.value = target.name + ".data"
            onnx.save(copy, temporary)


class _Rejected(Exception):
    """The simplifier's result is not used; the text says why."""


def simplify(
    source: Stored | BinaryIO,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    keep_dynamic: bool = False,
    shape_inference: bool = True,
    optimisation: bool = True,
    constant_folding: bool = True,
    comparisons: int = 3,
    time_limit: float = 300.0,
    follow_links: bool = False,
    limits: Limits | None = None,
) -> Simplification:
    """Simplifies a model to a fixed point of shape inference, optimisation and constant folding.

    The result is checked by ONNX's checker, must keep the names of inputs and outputs, and is compared with the
    original on random inputs. A failure is reported, not raised, and leaves the model unchanged.

    Args:
        source: a path, a URL, bytes, a ModelProto or an open binary file.
        input_shapes: input name → sizes; fixed in the result unless `keep_dynamic`.
        keep_dynamic: use `input_shapes` for the comparisons only, and keep dynamic dimensions dynamic.
        shape_inference: run shape inference.
        optimisation: run the optimiser's rewrites (fusions, eliminations).
        constant_folding: evaluate nodes that depend on constants alone.
        comparisons: number of random comparisons before and after; 0 leaves them out.
        time_limit: seconds after which the simplifier is ended.
        follow_links: as for `onnx2nn.load`; onnxsim has a rule of its own for links.
        limits: as for `load`, for reading the file.

    Returns:
        The model to go on with, and a line for the user.

    Raises:
        InputError: a shape is given for an unknown input, or does not fit it; a number is out of range.
        MissingDependencyError: onnxsim or onnxruntime is not installed.
        LimitError: the file costs more than a limit allows.
        ModelFileError: the source is not a readable model.
    """
    if not time_limit > 0:
        raise InputError(f"time_limit={time_limit!r} is no number of seconds. Give one above 0.")
    if comparisons < 0:
        raise InputError(f"comparisons={comparisons!r} is no number of comparisons. Give 0 or more.")
    require("onnxsim", extra="simplify", purpose="Simplifying a model")
    source = stored(source, limits)
    account = Account(limits)
    with reader.opened(source, follow_links=follow_links, account=account) as model:
        specs = model_inputs.input_specs(model)
    shapes = model_inputs.fixed_shapes(specs, input_shapes)
    original = embedded(source, follow_links=follow_links, account=account)
    with tempfile.TemporaryDirectory(prefix="onnx2nn-") as folder:
        try:
            flags = _onnxsim_flags(shapes, keep_dynamic, shape_inference, optimisation, constant_folding)
            simplified = _run_onnxsim(
                _as_file(source, Path(folder)), Path(folder, "simplified.onnx"), flags, time_limit
            )
            _check(original, simplified)
            if comparisons:
                sizes = model_inputs.resolve_shapes(specs, shapes)
                _compare_models(original, simplified, specs, sizes, comparisons)
        except (_Rejected, Onnx2nnError) as error:
            return Simplification(original, False, f"not simplified, going on with the model as it was: {error}")
    before, after = len(original.graph.node), len(simplified.graph.node)
    compared = f"equal in {comparisons} random comparisons" if comparisons else "not compared"
    return Simplification(simplified, True, f"simplified from {before} to {after} nodes, {compared}")


def _as_file(source: Stored, folder: Path) -> Path:
    if isinstance(source, bytes):
        path = folder / "original.onnx"
        path.write_bytes(source)
        return path
    if isinstance(source, onnx.ModelProto):
        path = folder / "original.onnx"
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        onnx.save(copy, path, save_as_external_data=copy.ByteSize() >= _PROTOBUF_LIMIT)
        return path
    return Path(source).absolute()


def _onnxsim_flags(
    shapes: Mapping[str, Sequence[int]],
    keep_dynamic: bool,
    shape_inference: bool,
    optimisation: bool,
    constant_folding: bool,
) -> list[str]:
    # Its result is compared here. From 0.8 on (not for Python 3.10) onnxsim compares too, unless it is told not to.
    flags = ["--no-certify"] if _release("onnxsim") >= (0, 8) else []
    if shapes and not keep_dynamic:
        flags.append("--overwrite-input-shape")
        flags += [f"{name}:{','.join(map(str, sizes))}" for name, sizes in shapes.items()]
    if not shape_inference:
        flags.append("--skip-shape-inference")
    if not constant_folding:
        flags.append("--skip-constant-folding")
    if not optimisation:
        flags.append("--skip-optimization")  # last: it would take a following word for an optimiser's name
    return flags


def _release(package: str) -> tuple[int, int]:
    """Returns the first two numbers of an installed package's version."""
    major, minor = metadata.version(package).split(".")[:2]
    return int(major), int(minor)


def _run_onnxsim(source: Path, target: Path, flags: Sequence[str], time_limit: float) -> onnx.ModelProto:
    command = [sys.executable, "-m", "onnxsim", str(source), str(target), *flags]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=target.parent,  # python -m looks for modules in its folder first, and the user's may hold any
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(time_limit)
        except subprocess.TimeoutExpired:
            raise _Rejected(f"onnxsim did not end within {time_limit:g} seconds") from None
        finally:
            _end(process)
        log.seek(0)
        last = next((line for line in reversed(log.read().decode(errors="replace").splitlines()) if line.strip()), "")
    if status < 0:
        raise _Rejected(f"onnxsim crashed ({signal.Signals(-status).name})")
    if status or not target.exists():
        raise _Rejected(f"onnxsim failed: {last.strip()[:300] or f'exit status {status}'}")
    return embedded(target)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the simplifier and its child processes if it still runs."""
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _check(original: onnx.ModelProto, simplified: onnx.ModelProto) -> None:
    for kind, names in (("inputs", _input_names), ("outputs", _output_names)):
        if names(original) != names(simplified):
            raise _Rejected(f"onnxsim changed the {kind} from {names(original)} to {names(simplified)}")
    if simplified.ByteSize() < _PROTOBUF_LIMIT:
        try:
            onnx.checker.check_model(simplified)
        except onnx.checker.ValidationError as error:
            raise _Rejected(f"its result is not valid ONNX: {first_line(error)}") from error


def _input_names(model: onnx.ModelProto) -> list[str]:
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in initializers]


def _output_names(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.output]


def _compare_models(
    original: onnx.ModelProto,
    simplified: onnx.ModelProto,
    specs: Sequence[model_inputs.InputSpec],
    sizes: Mapping[str, Sequence[int]],
    comparisons: int,
) -> None:
    before, after = Oracle(original), Oracle(simplified)
    for seed in range(comparisons):
        feeds = model_inputs.example_inputs(specs, sizes, seed=seed)
        wrong = [
            output for output in compare(before.output_names, after.run(feeds), before.run(feeds)) if not output.ok
        ]
        if wrong:
            raise _Rejected(f"its outputs differ from the original's: {_named(wrong)}")


def _named(outputs: Sequence[OutputComparison]) -> str:
    return "; ".join(map(str, outputs[:3]))
