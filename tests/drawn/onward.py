"""The ways onward from an import, each of which gives what the import gives."""

from __future__ import annotations

import copy
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import torch

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from tests.drawn.oracle import answer, difference
from tests.drawn.subjects import Run, Subject, outputs

Runner = Callable[[Run], list[Any]]


def _call(module: Any) -> Runner:
    def run(given: Run) -> list[Any]:
        with torch.no_grad():
            return outputs(module(*given.tensors()))

    return run


def _from_arrays(values: list[Any]) -> list[Any]:
    return values


def _described(model: onnx.ModelProto) -> list[Any]:
    """Returns the names and types of inputs and outputs, and where inputs are open."""
    graph = model.graph
    inputs = [(i.name, i.type.tensor_type.elem_type, [d.dim_param for d in i.type.tensor_type.shape.dim]) for i in graph.input]
    return [inputs, [o.name for o in graph.output]]


def export(subject: Subject, folder: Path) -> list[Runner]:
    told = onnx2nn.export_onnx(subject.module, folder / "m.onnx")
    return exported_file(subject, folder, told)


def export_given(subject: Subject, folder: Path) -> list[Runner]:
    told = onnx2nn.export_onnx(subject.module, folder / "m.onnx", example_inputs=subject.runs[0].tensors())
    return exported_file(subject, folder, told)


def exported_file(subject: Subject, folder: Path, told: str) -> list[Runner]:
    written = onnx.load(folder / "m.onnx")
    fixed = subject.module.meta["onnx2nn"].get("fixed", {})
    now, before = _described(written), _described(subject.model)
    before[0] = [(n, t, [s if s not in fixed or isinstance(fixed[s], range) else "" for s in d]) for n, t, d in before[0]]
    # dims that are open
    if "it takes equal sizes alone" in told:
        now[0] = [(n, t, [bool(s) for s in d]) for n, t, d in now[0]]
        before[0] = [(n, t, [bool(s) for s in d]) for n, t, d in before[0]]
    if now != before:
        raise AssertionError(f"interface {now}, not {before}; {told}")
    again = onnx2nn.load(written)
    return [lambda run: answer(written, run.feeds), _call(again)]


def python(subject: Subject, folder: Path) -> list[Runner]:
    onnx2nn.to_python(subject.module, folder / "source")
    name = f"drawn_{uuid.uuid4().hex}"
    module = ModuleType(name)
    module.__file__ = str(folder / "source" / "model.py")
    import sys

    sys.modules[name] = module
    try:
        exec(compile((folder / "source" / "model.py").read_text(), module.__file__, "exec", dont_inherit=True), module.__dict__)
        loaded = module.load_model()
        assert set(loaded.state_dict()) == set(subject.module.state_dict()), "keys"
    finally:
        del sys.modules[name]
    return [_call(loaded)]


def pth(subject: Subject, folder: Path) -> list[Runner]:
    onnx2nn.save(subject.module, folder / "m.pth")
    return [_call(torch.load(folder / "m.pth", weights_only=False))]


def pt2(subject: Subject, folder: Path) -> list[Runner]:
    told = onnx2nn.save(
        subject.module, folder / "m.pt2", example_inputs=subject.runs[0].tensors(), dynamic_axes=subject.axes()
    )
    run = _told(_call(torch.export.load(folder / "m.pt2").module()), told)

    def refusing(given: Run) -> list[Any]:
        if given is not subject.runs[0] and any(not x.size for x in given.feeds.values()):
            return given.imported
        try:
            return run(given)
        except AssertionError as error:
            condition = str(error).partition("Guard failed: ")[2].partition(" [told")[0]
            known = condition in told.partition("it refuses sizes without")[2] or "fixed although dynamic" in told
            known = known or ("it takes equal sizes alone" in told and ".size()" in condition.partition("==")[2])
            if condition and known and given is not subject.runs[0]:
                return given.imported
            raise

    return [refusing]


def _told(run: Runner, told: str) -> Runner:
    """Adds the description of the file to an error at other sizes."""

    def described(given: Run) -> list[Any]:
        try:
            return run(given)
        except Exception as error:
            raise type(error)(f"{error} [told: {told}]") from error

    return described


def torchscript(subject: Subject, folder: Path) -> list[Runner]:
    told = onnx2nn.save(subject.module, folder / "m.torchscript", example_inputs=subject.runs[0].tensors())
    run = _told(_call(torch.jit.load(folder / "m.torchscript")), told)
    return [lambda given: given.imported if given is not subject.runs[0] and "it holds" in told else run(given)]


def safetensors(subject: Subject, folder: Path) -> list[Runner]:
    import safetensors.torch

    onnx2nn.save(subject.module, folder / "m.safetensors")
    fresh = onnx2nn.load(subject.model)
    with torch.no_grad():
        for value in fresh.state_dict().values():
            value.zero_()
    safetensors.torch.load_model(fresh, folder / "m.safetensors")
    return [_call(fresh)]


def jit(subject: Subject, folder: Path) -> list[Runner]:
    with torch.no_grad():
        traced = torch.jit.trace(subject.module, subject.runs[0].tensors(), check_trace=False)
    return [_call(traced)]


def deepcopy(subject: Subject, folder: Path) -> list[Runner]:
    copied = copy.deepcopy(subject.module)
    return [_call(copied), _call(pickle.loads(pickle.dumps(copied)))]


def modes(subject: Subject, folder: Path) -> list[Runner]:
    """Training and back; only that training runs."""
    module = copy.deepcopy(subject.module).train()
    module(*subject.runs[0].tensors())
    module = copy.deepcopy(subject.module).train().eval()
    return [_call(module)]


def state(subject: Subject, folder: Path) -> list[Runner]:
    fresh = onnx2nn.load(subject.model)
    saved = {key: value.clone() for key, value in subject.module.state_dict().items()}
    with torch.no_grad():
        for value in fresh.state_dict().values():
            value.zero_()
    fresh.load_state_dict(saved, strict=True)
    return [_call(fresh)]


def casts(subject: Subject, folder: Path) -> list[Runner]:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        module = copy.deepcopy(subject.module).to(dtype)
        given = [value.to(dtype) if value.is_floating_point() else value for value in subject.runs[0].tensors()]
        with torch.no_grad():
            module(*given)
    return []


def module_export(subject: Subject, folder: Path) -> list[Runner]:
    shapes = tuple(dict.fromkeys(axes, torch.export.Dim.AUTO) for axes in subject.axes())
    program = torch.export.export(subject.module, subject.runs[0].tensors(), dynamic_shapes=shapes)
    return [_call(program.module())]


def _onnx_export(subject: Subject, folder: Path, *, dynamo: bool) -> list[Runner]:
    names = [info.name for info in subject.model.graph.input]
    outs = [o.name for o in subject.model.graph.output]
    axes = subject.axes()
    more: dict[str, Any] = {}
    if dynamo:
        more["dynamic_shapes"] = tuple(dict.fromkeys(a, torch.export.Dim.AUTO) for a in axes) if axes else None
    else:
        more["dynamic_axes"] = {name: a for name, a in zip(names, axes, strict=True) if a}
    with torch.no_grad():
        torch.onnx.export(
            subject.module, subject.runs[0].tensors(), str(folder / "t.onnx"), dynamo=dynamo, verbose=False,
            input_names=names, output_names=outs, external_data=False, **more,
        )
    written = onnx.load(folder / "t.onnx")
    return [lambda run: answer(written, {k: v for k, v in run.feeds.items() if k in {i.name for i in written.graph.input}})]


def onnx_dynamo(subject: Subject, folder: Path) -> list[Runner]:
    return _onnx_export(subject, folder, dynamo=True)


def onnx_torchscript(subject: Subject, folder: Path) -> list[Runner]:
    return _onnx_export(subject, folder, dynamo=False)


WAYS = {f.__name__: f for f in (export, export_given, python, pth, pt2, torchscript, safetensors, jit, deepcopy, modes, state, casts, module_export, onnx_dynamo, onnx_torchscript)}


def _apart(ours: Any, theirs: Any, rtol: float) -> str:
    if isinstance(ours, np.ndarray):
        if ours.dtype.kind in "OU":
            return difference(ours, np.asarray(theirs), rtol)
        ours = torch.from_numpy(np.array(ours, np.dtype(ours.dtype.name)))
    if isinstance(theirs, torch.Tensor):
        if ours.dtype != theirs.dtype:
            # as ORT shows bits
            return f"{ours.dtype} not {theirs.dtype}"
        theirs = theirs.detach()
        if theirs.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            ours, theirs = ours.float(), theirs.float()
        theirs = theirs.numpy()
    return difference(ours, np.asarray(theirs), rtol)


def judged(way: str, subject: Subject, folder: Path) -> tuple[str, str]:
    """Returns "right", "refused" (an error of ours) or "wrong", with the cause."""
    try:
        runners = WAYS[way](subject, folder)
    except Onnx2nnError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception as error:
        return "raw", f"{type(error).__name__}: {error}"
    for number, runner in enumerate(runners):
        for index, run in enumerate(subject.runs):
            where = f"runner {number}, sizes {[x.shape for x in run.feeds.values()]}{' (first)' * (not index)}"
            try:
                found = runner(run)
            except Onnx2nnError as error:
                return "refused-run", f"{where}: {type(error).__name__}: {error}"
            except Exception as error:
                return "raw-run", f"{where}: {type(error).__name__}: {error}"
            if len(found) != len(run.wanted):
                return "wrong", f"{where}: {len(found)} outputs"
            for place, (ours, imported, wanted) in enumerate(zip(found, run.imported, run.wanted, strict=True)):
                said = _apart(ours, wanted, subject.rtol)
                if said and _apart(ours, imported, subject.rtol):
                    return "wrong", f"{where}, output {place}: {said}"
    return "right", ""
