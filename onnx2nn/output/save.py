"""Saves an imported PyTorch module in the format of the file's ending."""

from __future__ import annotations

import os
import pickletools
import re
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx2nn.errors import InputError, VerificationError, first_line
from onnx2nn.ground.atomic_files import check_folder_writable, check_writable, enduring, replacing
from onnx2nn.ground.extras import require
from onnx2nn.importing import inputs as model_inputs
from onnx2nn.output.source_folder import save_source
from onnx2nn.output.stored_types import check_types
from onnx2nn.output.weight_files import written_by_safetensors
from onnx2nn.verification.module_runs import check_same, inputs_for

if TYPE_CHECKING:
    import torch
    from torch import fx


def save(
    module: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    example_inputs: Sequence[np.ndarray | torch.Tensor] | None = None,
    dynamic_axes: Sequence[Mapping[int, str] | None] | None = None,
    compiled: bool = False,
) -> str:
    """Saves a module.

    | ending | content | read back with |
    |---|---|---|
    | `.pth`, `.pt` | the module, pickled | `torch.load(path, weights_only=False)` |
    | `.safetensors` | parameters and buffers | `safetensors.torch.load_model(module, path)` |
    | `.pt2` | a torch.export program | `torch.export.load(path).module()` |
    | `/` | a folder: `model.py`, `model.safetensors`, `config.json` | `from model import load_model`, without onnx2nn |
    | `.torchscript` | a traced TorchScript module with both branches of If nodes | `torch.jit.load(path)` |

    A folder is a repository of Hugging Face's hub as `huggingface_hub.upload_folder` takes it: weights under the name
    that the hub knows, the source of `to_python`, and the inputs and outputs in `config.json`. It is compared with the
    module where `example_inputs` are given.

    With `compiled`, and for a module of `onnx2nn.optimize(module, "compile")`, a `.pt2` is a package of machine code
    and weights, read back with `torch._inductor.aoti_load_package(path)`. It runs without onnx2nn, on the processor
    that it was compiled for, and does not check its inputs.

    A program or traced module is run once on `example_inputs` and compared with the module before it is written. If it
    calls operators of `torch.ops.onnx2nn`, `import onnx2nn.operators` before reading it; the returned line says so. A
    whole module needs torch alone to be read back, unless it calls operators that torch lacks, which the line lists.

    Args:
        module: the module, in eval mode.
        path: of the file, which appears complete or not at all; a text that ends in `/` for a folder.
        example_inputs: one array or tensor for each input; needed for `.pt2` and `.torchscript`.
        dynamic_axes: for each input axis → name of the dynamic dimensions, kept dynamic in `.pt2` where torch.export
            can; as in the module's file if left out, which machine code always has.
        compiled: whether a `.pt2` is machine code.

    Returns:
        A line that describes the file, also the conditions on sizes that a traced module does not check, and the Loop
        nodes of which it holds the example's iterations.

    Raises:
        InputError: no module, unknown ending, missing `example_inputs`, or the file cannot be written.
        MissingDependencyError: torch or safetensors is not installed.
        VerificationError: the module cannot be exported or traced, a trace cannot hold both branches of an If or would
            hold numbers of the example, or the result gives other outputs.
    """
    target = Path(path)
    writer = check_target(path)
    torch = require("torch", extra="torch", purpose="Saving a PyTorch module")
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"A {type(module).__name__} cannot be saved. Give a module.")
    from onnx2nn.optimization.compiled_module import CompiledModule

    if compiled or isinstance(module, CompiledModule):
        if writer is not _save_program:
            raise InputError(f"Machine code is a .pt2, not {target.suffix}. Name a .pt2.")
        return _save_package(module, target, example_inputs)
    tensors = None
    if example_inputs is not None:
        tensors = tuple(inputs_for(module, example_inputs))
    elif writer in (_save_program, _save_torchscript):
        raise InputError(f"Saving {target.suffix} needs example inputs to trace the module with. Give example_inputs.")
    if writer is save_source:
        return save_source(module, target, tensors)
    with replacing(target) as temporary:
        return writer(module, temporary, tensors, dynamic_axes)


def check_target(path: str | os.PathLike[str]) -> Callable[..., str]:
    """Check ending and folder before any long work; give the function that writes this ending.

    Raises:
        InputError: unknown ending, or the file cannot be written.
    """
    target = Path(path)
    if os.fspath(path).endswith(("/", os.sep)):
        check_folder_writable(target)
        return save_source
    writer = _WRITERS.get(target.suffix.lower())
    if writer is None:
        raise InputError(f"Cannot save {target}: its ending is none of {', '.join(_WRITERS)}, / for a folder.")
    check_writable(target)
    return writer


def _save_package(
    module: torch.nn.Module, target: Path, example_inputs: Sequence[np.ndarray | torch.Tensor] | None
) -> str:
    from onnx2nn.optimization import optimize
    from onnx2nn.optimization.compiled_module import CompiledModule

    made = module if isinstance(module, CompiledModule) else optimize(module, "compile", example_inputs=example_inputs)
    if not isinstance(made, CompiledModule):
        raise VerificationError("AOTInductor does not compile the module as a whole, see the warning.")
    with replacing(target) as temporary, enduring(temporary) as file, made.package.open("rb") as package:
        shutil.copyfileobj(package, file)
    return f"machine code, read back with torch._inductor.aoti_load_package; {made.entry}"


def _save_module(module: torch.nn.Module, path: Path, *_: Any) -> str:
    import torch

    with enduring(path) as file:
        torch.save(module, file)
    needed = _without_torch(module, path)
    return "whole module, read back with torch.load(..., weights_only=False)" + (
        f" where onnx2nn is installed: torch has no {', '.join(needed)}" if needed else ""
    )


_IMPORT = re.compile(r"^from onnx2nn\S* import (\S+)", re.MULTILINE)
"""A line in the source of a program, which the pickle of a GraphModule holds."""


def _without_torch(module: torch.nn.Module, path: Path) -> list[str]:
    """Returns the operators, modules and hooks of onnx2nn that the pickle at `path` names, with the names of nodes."""
    names: dict[str, None] = {}
    with zipfile.ZipFile(path) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        for code, argument, _ in pickletools.genops(archive.read(member)):
            if isinstance(argument, str) and code.name == "GLOBAL" and argument.startswith("onnx2nn."):
                names[argument.partition(" ")[2]] = None
            elif isinstance(argument, str) and "onnx2nn" in argument:
                names |= dict.fromkeys(_IMPORT.findall(argument))
    nodes: dict[str, dict[str, None]] = {}
    titles: dict[str, str] = {}
    for part in _programs(module):
        for node in part.graph.nodes:
            row = getattr(node.target, "row", None)
            if row is not None:
                titles[node.target.__name__] = f"{row.domain}::{row.operator}" if row.domain else row.operator
                if "onnx" in node.meta:
                    nodes.setdefault(node.target.__name__, {})[repr(node.meta["onnx"][2])] = None
    return [titles.get(name, name) + (f" ({', '.join(nodes[name])})" if name in nodes else "") for name in names]


def _save_state(module: torch.nn.Module, path: Path, *_: Any) -> str:
    safetensors = require("safetensors.torch", extra="torch", purpose="Saving .safetensors")
    state = module.state_dict()
    check_types(safetensors, state)
    if turned := _turned(state):
        raise VerificationError(
            "safetensors holds no weight that has the memory of another one in another layout: "
            f"{', '.join(map(repr, turned))}. Save .pth."
        )
    with written_by_safetensors(path):
        safetensors.save_model(module, str(path))
    count = sum(value.numel() for value in state.values())
    return f"state of {count} numbers, read back with safetensors.torch.load_model"


def _turned(state: Mapping[str, torch.Tensor]) -> list[str]:
    """Returns the keys of weights that have all memory of another one, in another layout."""
    first: dict[int, torch.Tensor] = {}
    found = []
    for key, value in state.items():
        held = first.setdefault(value.data_ptr(), value) if value.numel() else value
        if held.numel() == value.numel() and (held.shape, held.stride()) != (value.shape, value.stride()):
            found.append(key)
    return found


def _save_program(
    module: torch.nn.Module,
    path: Path,
    tensors: tuple[torch.Tensor, ...],
    dynamic_axes: Sequence[Mapping[int, str] | None] | None,
) -> str:
    import torch

    from onnx2nn.output.exported_program import exported_program
    from onnx2nn.output.file_comparison import other_outputs
    from onnx2nn.output.other_values import TEXTS, other_values
    from onnx2nn.output.wide_traces import small_runs

    if dynamic_axes is None:
        dynamic_axes = [*model_inputs.dynamic_axes(module).values()] or [None] * len(tensors)
    axes = [dict(given or {}) for given in dynamic_axes]
    shapes = tuple(dict.fromkeys(given, torch.export.Dim.AUTO) for given in axes)
    try:
        program, refused = exported_program(module, tensors, shapes)
    except Exception as error:  # torch.export raises errors of many unrelated classes
        reason = endless(module) or other_values(module, tensors, [TEXTS]) or failed_node(module, error) or error
        raise VerificationError(f"torch.export cannot export the module: {reason}") from error
    check_same(module, program.module(), tensors, "exported program")
    with enduring(path) as file:
        try:
            torch.export.save(program, file)
        except Exception as error:  # some operators on sizes can be exported but not written
            raise VerificationError(f"torch.export cannot write the program: {error}") from error
    told = f"torch.export program, read back with torch.export.load{_first(module)}; {_kept_dynamic(program, axes)}"
    told += f"; it refuses sizes without {', '.join(refused)}" if refused else ""
    names = program.graph_signature.user_outputs
    return told + other_outputs(program.module(), small_runs(module, axes, tensors), list(map(str, names)), {})


def _first(module: torch.nn.Module) -> str:
    """Returns the import that torch needs before it reads the file back, `""` where it needs none."""
    rows = [getattr(node.target, "row", None) for part in _programs(module) for node in part.graph.nodes]
    return " after `import onnx2nn.operators`" if any(row is not None and row.custom_op for row in rows) else ""


def _programs(module: torch.nn.Module) -> list[fx.GraphModule]:
    from torch import fx

    around = [module.one_sample] if hasattr(type(module), "one_sample") else []  # the program of a vectorised module
    return [part for part in (*around, *module.modules()) if isinstance(part, fx.GraphModule)]


def _kept_dynamic(program: torch.export.ExportedProgram, axes: Sequence[Mapping[int, str]]) -> str:
    """Lists the dynamic dimensions of the file that are dynamic in the program, and the others."""
    import torch

    from onnx2nn.optimization.entry import inputs_of
    from onnx2nn.output.checked_sizes import tied
    from onnx2nn.output.exported_program import is_symbolic

    names = program.graph_signature.user_inputs
    kept: list[str] = []
    fixed: list[str] = []
    sizes: list[tuple[str, str]] = []
    for name, value, given in zip(names, inputs_of(program), axes, strict=True):
        for axis, dimension in given.items():
            open_ = isinstance(value, torch.Tensor) and is_symbolic(value.shape[axis])
            (kept if open_ else fixed).append(f"{dimension or '?'} (axis {axis} of {name})")
            if open_:
                sizes.append((str(value.shape[axis]), dimension or kept[-1]))
    text = f"dynamic: {', '.join(kept) or 'nothing'}"
    return text + (f"; fixed although dynamic in the file: {', '.join(fixed)}" if fixed else "") + tied(sizes)


def _save_torchscript(module: torch.nn.Module, path: Path, tensors: tuple[torch.Tensor, ...], *_: Any) -> str:
    import torch

    from onnx2nn.output.other_values import NO_ELEMENTS, NOTHING, other_values
    from onnx2nn.output.scripted_programs import trace

    if counted := _counted_by_runs(module):
        raise VerificationError(
            f"A trace would hold the example's numbers of {', '.join(counted)}: data or sizes decide them. Save .pth, "
            ".pt2 or source."
        )
    try:
        traced, repeated = trace(module, tensors)
    except Exception as error:  # torch.jit raises errors of many classes
        reason = other_values(module, tensors, [NOTHING, NO_ELEMENTS])
        if isinstance(error, VerificationError) and not reason:
            raise
        raise VerificationError(f"torch.jit.trace cannot trace the module: {reason or error}") from error
    check_same(module, traced, tensors, "exported program")
    with enduring(path) as file:
        torch.jit.save(traced, file)
    lost = unchecked(module) + one_sided(module, repeated=set(map(module.get_submodule, repeated))) + held_parts(module)
    return f"traced TorchScript module, read back with torch.jit.load{_first(module)}{lost}"


def _counted_by_runs(module: torch.nn.Module) -> list[str]:
    """Returns the inputs of nodes that functions read as numbers when they run, and that are no constants."""
    from torch import fx

    found: dict[str, None] = {}
    for part in _programs(module):
        constant: set[fx.Node] = set()
        for node in part.graph.nodes:
            if node.op == "get_attr" or (node.op == "call_function" and constant.issuperset(node.all_input_nodes)):
                constant.add(node)
            row = getattr(node.target, "row", None)
            if row is None or row.custom_op:
                continue
            for position, value in enumerate(node.args):
                read, used = row.input_name(position), list[fx.Node]()
                fx.map_arg(value, used.append)  # a list of numbers has them among its elements
                if read in row.static and not constant.issuperset(used):
                    _, operator, name = node.meta.get("onnx", ("", row.operator, str(node)))
                    found[f"input {read} of node {name!r} ({operator})"] = None
    return list(found)


def held_parts(module: torch.nn.Module) -> str:
    """Returns of which sequences a trace holds as many elements as the example has, as the end of a description."""
    from onnx2nn.control_flow import SequenceMap

    found: dict[str, None] = {}
    for part in _programs(module):
        for node in part.graph.nodes:
            row = getattr(node.target, "row", None)
            called = part.get_submodule(str(node.target)) if node.op == "call_module" else None
            traits = frozenset() if row is None else row.traits
            by_column = "column_by_column" in traits and node.kwargs.get("axis") is not None
            if isinstance(called, SequenceMap) or "takes_apart" in traits or by_column:
                _, operator, name = node.meta.get(
                    "onnx", ("", "SequenceMap" if row is None else row.operator, str(node))
                )
                found[f"{name!r} ({operator})"] = None
    return f"; of node {', '.join(found)} it holds as many parts as the example has" if found else ""


def unchecked(module: torch.nn.Module, axes: Mapping[str, Collection[int]] | None = None) -> str:
    """Returns the conditions on sizes that are lost in a format that holds none, as the end of a description.

    Args:
        module: the module; `""` is returned for one without guards.
        axes: the dynamic axes of each input in that format, None for all axes.
    """
    guards = getattr(module, "meta", {}).get("onnx2nn", {}).get("guards", ())
    lost: dict[str, None] = {}
    for guard in guards:
        places = [place for place in guard["dimensions"].values() if place is not None]
        if axes is None or not places or any(axis in axes.get(name, ()) for name, axis in places):
            lost[guard["condition"]] = None
    return f"; it does not check {', '.join(lost)}" if lost else ""


def one_sided(
    module: torch.nn.Module, single: Collection[torch.nn.Module] = (), repeated: Collection[torch.nn.Module] = ()
) -> str:
    """Returns what a format holds for the example's sizes only, as the end of a description.

    Args:
        module: the module; `""` is returned for one of which nothing is lost.
        single: the Ifs of which the format holds one branch.
        repeated: the Loops and Scans of which it holds all iterations. Of the others it holds the example's.
    """
    from torch import fx

    from onnx2nn.control_flow import BatchedScan, Loop, Scan

    branches: dict[str, None] = {}
    loops: dict[str, None] = {}
    for part in _programs(module):
        for node in part.graph.nodes:
            called = part.get_submodule(str(node.target)) if node.op == "call_module" else None
            _, operator, name = node.meta.get("onnx", ("", type(called).__name__, str(node)))
            if called in single:
                branches[f"{name!r} ({operator})"] = None
            elif called not in repeated and (
                (isinstance(called, Loop) and any(isinstance(value, fx.Node) for value in node.args[:2]))
                or (isinstance(called, Scan) and called.length is None)
                or isinstance(called, BatchedScan)
            ):
                loops[f"{name!r} ({operator})"] = None
    text = f"; of what is chosen at node {', '.join(branches)} it holds the side that the example takes"
    text = text if branches else ""
    return text + (f"; of node {', '.join(loops)} it holds as many iterations as the example has" if loops else "")


def endless(module: torch.nn.Module) -> str:
    """Returns why torch.export finds no end of a Loop: data decide it, and it stacks results; `""` for no such Loop."""
    from onnx2nn.control_flow import Loop
    from onnx2nn.output.scripted_programs import chooses_its_end

    names: dict[str, None] = {}
    for part in _programs(module):
        for node in part.graph.nodes:
            called = part.get_submodule(str(node.target)) if node.op == "call_module" else None
            if isinstance(called, Loop) and called.empty and chooses_its_end(called):
                _, operator, name = node.meta.get("onnx", ("", "Loop", str(node)))
                names[f"{name!r} ({operator})"] = None
    return _repeated_by_data(names) if names else ""


def _repeated_by_data(names: Iterable[str]) -> str:
    text = f"data decide how often node {', '.join(names)} repeats, and torch.export holds a fixed number of iterations"
    return f"{text}. Save .pth, source or .torchscript."


_EXECUTED = re.compile(r"While executing %(\w+)")
"""Where torch.fx says which call raised an error."""


def failed_node(module: torch.nn.Module, error: BaseException) -> str:
    """Returns at which If or Loop torch.export ended, and why.

    It is `""` where its error, which names calls of programs, names none.
    """
    from torch import fx

    from onnx2nn.control_flow import If, Loop
    from onnx2nn.fx.modules.failed_nodes import passed

    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    names = {name for cause in causes for name in (*_EXECUTED.findall(str(cause)), *passed(cause))}
    for part in _programs(module):
        for node in part.graph.find_nodes(op="call_module"):
            called = part.get_submodule(str(node.target))
            if node.name not in names or "onnx" not in node.meta or not isinstance(called, (If, Loop)):
                continue
            _, operator, name = node.meta["onnx"]
            why = first_line(causes[-1])
            if isinstance(called, If) and isinstance(causes[-1], KeyError):  # it is a size, as a key of torch's own
                why = "torch.cond finds no common sizes of what its branches return. Save .pth or source."
            elif isinstance(called, Loop) and "data-dependent" in str(causes[-1]):
                if any(isinstance(value, fx.Node) for value in node.args[:2]):
                    return _repeated_by_data([f"{name!r} ({operator})"])
                why = f"data decide a size in its iterations: {why}. Save .pth or source."
            return f"at node {name!r} ({operator}), {why}"
    return ""


_WRITERS: dict[str, Callable[..., str]] = {
    ".pth": _save_module,
    ".pt": _save_module,
    ".safetensors": _save_state,
    ".pt2": _save_program,
    ".torchscript": _save_torchscript,
}
