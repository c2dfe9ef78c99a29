"""The ways onward from an import: files, sources, copies and traces, each of which gives what the import gives."""

from __future__ import annotations

import contextlib
import copy
import pickle
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import safetensors.torch
import torch

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from onnx2nn.optable.row import NeedsValues
from tests.drawn.oracle import NoKernel, answer, difference
from tests.drawn.subjects import Run, Subject, dimensions, given_inputs, outputs

SECONDS = 60
"""The most of one way of one subject: the exporters of torch may take any time."""

Runner = Callable[[Run], list[Any] | None]
"""Gives the outputs for inputs, None where the description of a file says that it does not hold their sizes."""


class LateError(BaseException):
    """A way took longer than `SECONDS`; no Exception, which the exporters of torch catch to try another way."""


def _call(module: Callable[..., Any]) -> Runner:
    def run(given: Run) -> list[Any]:
        with torch.no_grad():
            return outputs(module(*given.tensors()))

    return run


_UNREAD = {torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu}
"""What torch writes into a plain pickle and does not read back, of any module; `torch.save` and copies hold it."""


def copies(subject: Subject, folder: Path) -> Iterator[Runner]:
    """Copies, pickles, and the modes of training and back."""
    copied = copy.deepcopy(subject.module)
    yield _call(copied)
    if not any(value.dtype in _UNREAD for value in (*copied.parameters(), *copied.buffers())):
        yield _call(pickle.loads(pickle.dumps(copied)))
    copied.train()(*subject.runs[0].tensors())
    yield _call(copy.deepcopy(subject.module).train().eval())


def weights(subject: Subject, folder: Path) -> Iterator[Runner]:
    """The state alone, in memory and in a file, and the whole module in a file."""
    fresh = _emptied(onnx2nn.load(subject.model))
    fresh.load_state_dict({key: value.clone() for key, value in subject.module.state_dict().items()}, strict=True)
    yield _call(fresh)
    onnx2nn.save(subject.module, folder / "m.safetensors")
    safetensors.torch.load_model(_emptied(fresh), folder / "m.safetensors")
    yield _call(fresh)
    onnx2nn.save(subject.module, folder / "m.pth")
    yield _call(torch.load(folder / "m.pth", weights_only=False))


def _emptied(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for value in module.state_dict().values():
            value.zero_()
    return module


_FLOATS = (torch.float16, torch.float32, torch.float64, torch.bfloat16)


def types(subject: Subject, folder: Path) -> Iterator[Runner]:
    """Other types of floats, in which a module runs, whatever it gives."""
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        module = copy.deepcopy(subject.module).to(dtype)
        tensors = subject.runs[0].tensors()
        given = [value.to(dtype) if getattr(value, "dtype", None) in _FLOATS else value for value in tensors]
        with torch.no_grad():
            module(*given)
    yield from ()


def source(subject: Subject, folder: Path) -> Iterator[Runner]:
    """Python source, in a module of its own."""
    onnx2nn.to_python(subject.module, folder / "source")
    path = folder / "source" / "model.py"
    module = ModuleType(f"source_{folder.name}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for it
    try:
        exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), module.__dict__)
        written = module.load_model()
    finally:
        del sys.modules[module.__name__]
    assert written.state_dict().keys() == subject.module.state_dict().keys()
    yield _call(written)


def program(subject: Subject, folder: Path) -> Iterator[Runner]:
    """A program of torch.export, which refuses the sizes that its description names."""
    first = subject.runs[0]
    told = onnx2nn.save(subject.module, folder / "m.pt2", example_inputs=first.tensors(), dynamic_axes=subject.axes())
    run = _call(torch.export.load(folder / "m.pt2").module())

    def refusing(given: Run) -> list[Any] | None:
        if given is not first and any(0 in value.shape for value in given.feeds.values()):
            return None  # torch.export takes a dynamic size for 2 or more, see docs/dynamic.md
        try:
            return run(given)
        except AssertionError as error:
            condition = str(error).partition("Guard failed: ")[2]
            is_tie = re.fullmatch(r"\w+\.size\(\)\[\d+\] == \w+\.size\(\)\[\d+\]", condition)
            is_told = "fixed although dynamic" in told or condition in told.partition("refuses sizes without")[2]
            if given is not first and condition and (is_told or (is_tie and _TIED in told)):
                return None
            raise AssertionError(f"{error}, with the description: {told}") from error
        except RuntimeError as error:  # torch.cond takes a size that its branches give for 2 or more
            if given is not first and re.search(r"Runtime assertion failed for expression u\d+ >= 2 ", str(error)):
                return None
            raise

    yield refusing


_TIED = "it takes equal sizes alone of"


def optimized(subject: Subject, folder: Path) -> Iterator[Runner]:
    """The eager form for inference."""
    yield _call(onnx2nn.optimize(subject.module, "eager"))


def compiled(subject: Subject, folder: Path) -> Iterator[Runner]:
    """torch.compile, without the machine code, whose faults are inductor's."""
    torch._dynamo.reset()
    yield _call(torch.compile(subject.module, backend="aot_eager"))


def script(subject: Subject, folder: Path) -> Iterator[Runner]:
    """TorchScript, which holds what its description names of the example."""
    first = subject.runs[0]
    told = onnx2nn.save(subject.module, folder / "m.torchscript", example_inputs=first.tensors())
    run = _call(torch.jit.load(folder / "m.torchscript"))
    yield lambda given: None if given is not first and "it holds" in told else run(given)


def trace(subject: Subject, folder: Path) -> Iterator[Runner]:
    """A trace of torch's own, which may hold what it was traced with."""
    first = subject.runs[0]
    with torch.no_grad():
        run = _call(torch.jit.trace(subject.module, first.tensors(), check_trace=False))
    yield lambda given: run(given) if given is first else None


def export(subject: Subject, folder: Path) -> Iterator[Runner]:
    """ONNX again, with the names and the dynamic dimensions of the file, and its import."""
    first = subject.runs[0]
    told = onnx2nn.export_onnx(subject.module, folder / "m.onnx", example_inputs=first.tensors())
    written = onnx.load(folder / "m.onnx")
    known = subject.module.meta["onnx2nn"]["fixed"]  # a dimension that is equal to another one has that one's name
    fixed = {name: size if isinstance(size, str) else "" for name, size in known.items() if not isinstance(size, range)}
    are_tied = _TIED in told
    now, before = _interface(written, are_tied, {}), _interface(subject.model, are_tied, fixed)
    held = "it holds" in told
    if held and "dynamic dimensions: none" in told:  # the file takes the example's sizes alone
        now, before = (([i[:2] for i in inputs], outputs) for inputs, outputs in (now, before))
    assert now == before, f"{now}, not {before}: {told}"

    def in_onnxruntime(given: Run) -> list[Any] | None:
        try:
            return answer(written, given.feeds) if given is first or not held else None
        except NoKernel:  # of Softplus in float64, where the original file has its parts
            return None

    yield in_onnxruntime
    again = _call(onnx2nn.load(written))
    yield lambda given: again(given) if given is first or not (held or are_tied) else None


def _interface(model: onnx.ModelProto, are_tied: bool, fixed: Mapping[str, str]) -> Any:
    """Returns the names and types of inputs and outputs, and the names of the inputs' dynamic dimensions."""

    def names(info: onnx.ValueInfoProto) -> list[Any]:
        found = [fixed.get(name, name) if isinstance(name, str) else "" for name in dimensions(info)]
        return [bool(name) if are_tied else name for name in found]

    inputs = [(info.name, info.type.tensor_type.elem_type, names(info)) for info in given_inputs(model.graph)]
    return inputs, [info.name for info in model.graph.output]


def exporter(subject: Subject, folder: Path) -> Iterator[Runner]:
    """torch.onnx.export, by torch.export."""
    shapes = tuple(dict.fromkeys(axes, torch.export.Dim.AUTO) for axes in subject.axes())
    yield _exported(subject, folder, dynamo=True, dynamic_shapes=shapes)


def older_exporter(subject: Subject, folder: Path) -> Iterator[Runner]:
    """torch.onnx.export, by TorchScript."""
    names = [info.name for info in subject.inputs()]
    axes = {name: axes for name, axes in zip(names, subject.axes(), strict=True) if axes}
    yield _exported(subject, folder, dynamo=False, dynamic_axes=axes)


def _exported(subject: Subject, folder: Path, **options: Any) -> Runner:
    """Runs the file of torch.onnx.export on the example: what it holds at other sizes is not said.

    Not where a sequence or an empty optional is an output: the file has the sequence's parts as outputs, or none.
    """
    first, path = subject.runs[0], folder / "m.onnx"
    names = [info.name for info in subject.inputs()]
    results = [info.name for info in subject.model.graph.output]
    with torch.no_grad():
        torch.onnx.export(
            subject.module,
            first.tensors(),
            str(path),
            input_names=names,
            output_names=results,
            verbose=False,
            external_data=False,
            **options,
        )
    written = onnx.load(path)
    kept = {info.name for info in written.graph.input}
    feeds = {name: value for name, value in first.feeds.items() if name in kept}
    are_tensors = all(isinstance(value, (torch.Tensor, np.ndarray)) for value in first.imported)
    return lambda given: answer(written, feeds) if given is first and are_tensors else None


@dataclass(frozen=True)
class Way:
    """A way onward.

    Attributes:
        take: goes it, and gives what runs then.
        refusals: what errors say that are not ours and refuse a subject all the same; None where all have to be ours.
    """

    take: Callable[[Subject, Path], Iterator[Runner]]
    refusals: str | None = None


WAYS = {way.__name__: Way(way) for way in (copies, weights, source, optimized, program, script, export)}
WAYS |= {
    way.__name__: Way(way, "") for way in (compiled, trace, exporter, older_exporter)
}  # torch's, with torch's errors
WAYS["types"] = Way(types, "not implemented for '(Half|BFloat16)'|Low precision dtypes not supported")


def outcome(way: Way, subject: Subject, folder: Path) -> tuple[str, str]:
    """Returns "right", "refused" or "wrong", and what there is to say.

    An output is right where it differs from the import's or from ONNX Runtime's by rounding alone.
    """
    try:
        with _limit():
            for number, runner in enumerate(way.take(subject, folder)):
                for run in subject.runs:
                    if said := _said(runner, run, subject.rtol):
                        sizes = [value.shape for value in run.feeds.values()]
                        return "wrong", f"form {number} at {sizes}: {said}"
    except Onnx2nnError as error:
        return "refused", str(error)
    except LateError as error:
        return "wrong", str(error)
    except Exception as error:  # of any class of torch's and ONNX Runtime's
        text = f"{type(error).__name__}: {error}"
        is_ours = "The sizes of the inputs do not fit" in text  # though a ValueError
        is_torchs = way.refusals is not None and re.search(way.refusals, text) is not None and not _is_raw(error)
        return "refused" if is_ours or is_torchs else "wrong", text
    return "right", ""


def _is_raw(error: Exception) -> bool:
    """Returns whether an error comes from a line of ours that did not mean to raise it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Path(onnx2nn.__file__).parent in Path(last.filename).parents and not isinstance(error, NeedsValues)


def _said(runner: Runner, run: Run, rtol: float) -> str:
    found = runner(run)
    if found is None:
        return ""
    if len(found) != len(run.wanted):
        return f"{len(found)} outputs, not {len(run.wanted)}"
    for place, (ours, imported, wanted) in enumerate(zip(found, run.imported, run.wanted, strict=True)):
        ours = _as_tensor(ours, imported)
        said = difference(ours, wanted, rtol)
        if said and not _is_import(ours, imported, rtol):
            return f"output {place}: {said}"
    return ""


def _as_tensor(found: Any, imported: Any) -> Any:
    """Returns an output of ONNX Runtime, which shows the bits of types that NumPy lacks, as an import gives it."""
    if isinstance(found, list) and isinstance(imported, list) and len(found) == len(imported):
        return [_as_tensor(*pair) for pair in zip(found, imported, strict=True)]
    if not isinstance(found, np.ndarray) or found.dtype.kind in "OU":
        return found
    tensor = torch.from_numpy(found.astype(found.dtype.name))
    is_short = isinstance(imported, torch.Tensor) and imported.is_floating_point() and not tensor.is_floating_point()
    return tensor.view(imported.dtype) if is_short and tensor.dtype.itemsize == imported.dtype.itemsize else tensor


def _is_import(ours: Any, imported: Any, rtol: float) -> bool:
    """Returns whether an output is the import's."""
    if isinstance(imported, list):
        same = isinstance(ours, list) and len(ours) == len(imported)
        return same and all(_is_import(*pair, rtol) for pair in zip(ours, imported, strict=True))
    if not isinstance(imported, torch.Tensor):
        return not difference(ours, imported, rtol)
    imported = imported.detach()
    if not isinstance(ours, torch.Tensor) or ours.dtype != imported.dtype:
        return False
    if imported.dtype.is_floating_point and imported.dtype not in (torch.float16, torch.float32, torch.float64):
        ours, imported = ours.float(), imported.float()
    return not difference(ours, imported.numpy(), rtol)


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    """Ends what is inside after `SECONDS`."""

    def ring(*_: Any) -> None:
        raise LateError(f"took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 10)  # again, where what was called forgets an error (in `__del__`)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
