"""Compiles a module ahead of time with torch's AOTInductor."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onnx2nn.errors import InputError, VerificationError, first_line
from onnx2nn.ground.atomic_files import replacing
from onnx2nn.ground.cache_folder import cache_folder
from onnx2nn.ground.device_placement import device_of
from onnx2nn.importing.inputs import InputSpec, example_inputs, resolve_shapes, specs_of
from onnx2nn.ops import integer_convolutions, integer_kernels
from onnx2nn.ops.machine_code import MachineCode, traced_for
from onnx2nn.optimization import cache
from onnx2nn.optimization.batch_norms import without_batch_norms
from onnx2nn.optimization.compiled_module import CompiledModule
from onnx2nn.optimization.eager import optimized
from onnx2nn.optimization.entry import Entry, entry_of
from onnx2nn.optimization.frozen import Frozen
from onnx2nn.optimization.half_code import compute_in_float32
from onnx2nn.optimization.integer_code import call_kernels, integer_convolution, requantized_convolution
from onnx2nn.optimization.packed_code import pack_convolutions
from onnx2nn.optimization.product_code import multiply_pixels, multiply_small
from onnx2nn.optimization.scaled_code import fold_numbers
from onnx2nn.optimization.unpacked_code import keep_convolutions, restore_convolutions
from onnx2nn.verification.module_runs import check_same, inputs_for


def _before_freezing(graph: torch.fx.Graph) -> None:
    fold_numbers(graph)
    keep_convolutions(graph)


def _use_kernels(graph: torch.fx.Graph) -> None:
    restore_convolutions(graph)
    call_kernels(graph)
    multiply_pixels(graph)
    multiply_small(graph)
    pack_convolutions(graph)


_CONFIG: dict[str, Any] = {
    "freezing": True,
    "joint_custom_pre_pass": _before_freezing,
    "post_grad_custom_pre_pass": _use_kernels,
}
"""Of inductor: weights are constants, so that they are folded and packed for the kernels that read them."""


def _config(device: torch.device) -> dict[str, Any]:
    """Returns the settings of inductor for a device; passes for the CPU's kernels are for the CPU alone."""
    return _CONFIG if device.type == "cpu" else {**_CONFIG, "post_grad_custom_pre_pass": restore_convolutions}


def compiled(module: Any, given: Sequence[Any] | None) -> nn.Module:
    """Returns a module of machine code, see `onnx2nn.optimize`."""
    specs, device = specs_of(module), device_of(module, torch.device("cpu"))
    example = _example(module, specs, given)
    dynamic = [
        {axis: str(size) for axis, size in enumerate(spec.shape or ()) if isinstance(size, str)} for spec in specs
    ]
    fixed = [f"{value.dtype} {list(value.shape)}" for value in example]
    package = cache_folder() / f"{cache.key(module, [repr(dynamic), *fixed])}.pt2"
    described = package.with_suffix(".json")
    if not (package.exists() and described.exists()):
        try:
            _write(module, example, dynamic, package, described, device)
        except (VerificationError, InputError):
            raise
        except Exception as error:  # torch.export and inductor raise errors of many unrelated classes
            return _without_package(module, example, error, device)
    return CompiledModule(package, _entry(described), module.meta)


def _example(module: nn.Module, specs: Sequence[InputSpec], given: Sequence[Any] | None) -> tuple[torch.Tensor, ...]:
    if given is None:
        try:
            shapes = resolve_shapes(specs)
        except InputError as error:
            raise InputError(f"{error} Compiling needs an example: give example_inputs.") from error
        given = [*example_inputs(specs, shapes).values()]
    tensors = inputs_for(module, given)
    return tuple(_doubled(value, spec) for value, spec in zip(tensors, specs, strict=True))


def _doubled(value: torch.Tensor, spec: InputSpec) -> torch.Tensor:
    """Returns an example whose dynamic dimensions are at least 2: torch.export takes a 1 for a constant."""
    for axis, size in enumerate(spec.shape or ()):
        if isinstance(size, str) and value.shape[axis] == 1:
            value = torch.cat([value, value], axis)
    return value


def _write(
    module: nn.Module,
    example: tuple[torch.Tensor, ...],
    dynamic: Sequence[dict[int, str]],
    package: Path,
    described: Path,
    device: torch.device,
) -> None:
    """Writes a package and the description of its entry, after comparing it with the module."""
    shapes = tuple(dict.fromkeys(axes, torch.export.Dim.AUTO) for axes in dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inductor, on its own code
        with traced_for(_target(device)):
            program = torch.export.export(without_batch_norms(module), example, dynamic_shapes=shapes)
        if device.type == "cpu":
            compute_in_float32(program.graph)
        entry = entry_of(program, specs_of(module), device)
        with replacing(package) as temporary:
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(temporary), inductor_configs=_config(device)
            )
            made = CompiledModule(temporary, entry, {})
            check_same(module, made, example, "compiled module", other_kernels=True)
            entry = _down_to_one(module, made, example)
            with replacing(described) as text:
                text.write_text(json.dumps({**asdict(entry), "dtypes": list(map(str, entry.dtypes))}), encoding="utf-8")


def _target(device: torch.device) -> MachineCode:
    """Returns what code for the processor at hand has; kernels of integers are the CPU's."""
    if device.type != "cpu":
        return MachineCode(False, None, None)
    multiplies = integer_kernels.available(torch)
    if not integer_convolutions.available(torch):
        return MachineCode(multiplies, None, None)
    return MachineCode(multiplies, integer_convolution, requantized_convolution)


def _entry(described: Path) -> Entry:
    found = json.loads(described.read_text(encoding="utf-8"))
    return Entry(
        tuple(found["names"]),
        tuple(getattr(torch, name.removeprefix("torch.")) for name in found["dtypes"]),
        tuple(map(tuple, found["shapes"])),
        {name: tuple(bounds) for name, bounds in found["ranges"].items()},
        found["device"],
    )


def _down_to_one(module: nn.Module, made: CompiledModule, example: Sequence[torch.Tensor]) -> Entry:
    """Returns the entry with the sizes that may also be 1.

    torch.export takes no dynamic size below 2 into account: code for 1 may differ, where it is broadcast. It is right
    where the module's outputs agree for a size of 1, beside each choice of other sizes that are 1 too, with which the
    module runs. A size of 0 cannot be tried, as code that divides by it ends the process.
    """
    entry = made.entry
    for name in [name for name, (least, _) in entry.ranges.items() if least == 2]:
        made.entry = replace(entry, ranges={**entry.ranges, name: (1, entry.ranges[name][1])})
        others = [other for other, (least, _) in entry.ranges.items() if least == 1 and other != name]
        if not _agrees(module, made, [_narrowed(example, entry, {name, *some}) for some in _choices(others)]):
            made.entry = entry
        entry = made.entry
    return entry


def _agrees(module: nn.Module, made: CompiledModule, choices: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Returns whether code agrees with its module on each of some inputs that the module takes, and it takes one."""
    taken = False
    for given in choices:
        try:
            with torch.no_grad():
                module.forward(*given)  # a call of a GraphModule prints the errors of its code
        except Exception:  # of any class: the module refuses the sizes
            continue
        try:
            check_same(module, made, given, "compiled module", other_kernels=True)
        except Exception:  # of any class: the code refuses them, or its outputs differ
            return False
        taken = True
    return taken


def _choices(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    if not names:
        yield ()
        return
    for rest in _choices(names[1:]):
        yield rest
        yield (names[0], *rest)


def _narrowed(example: Sequence[torch.Tensor], entry: Entry, ones: set[str]) -> list[torch.Tensor]:
    found = []
    for value, shape in zip(example, entry.shapes, strict=True):
        index = tuple(slice(1) if size in ones else slice(None) for size in shape)
        found.append(value[index].contiguous())
    return found


def _without_package(
    module: nn.Module, example: tuple[torch.Tensor, ...], error: Exception, device: torch.device
) -> nn.Module:
    """Returns what runs where AOTInductor refuses a module, and warns."""
    reason = f"{type(error).__name__}: {first_line(error)}"
    if "compiler" in type(error).__name__.lower() or "compiler" in reason:
        warnings.warn(f"No machine code: there is no C++ compiler ({reason}). It is optimised for eager.", stacklevel=4)
        return optimized(module)
    wrapped = Frozen(torch.compile(module, options=_config(device)), module)
    try:
        check_same(module, wrapped, example, "compiled module", other_kernels=True)
    except VerificationError:
        raise
    except Exception as other:  # of any class: inductor may refuse what AOTInductor refuses, at the first call
        warnings.warn(
            f"AOTInductor refuses the module ({reason}), and so does torch.compile ({type(other).__name__}: "
            f"{first_line(other)}). It is optimised for eager.",
            stacklevel=4,
        )
        return optimized(module)
    warnings.warn(
        f"AOTInductor refuses the module ({reason}). torch.compile leaves out what cannot be compiled.", stacklevel=4
    )
    return wrapped
