"""Runs an imported PyTorch module on NumPy arrays, and beside another form of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx2nn.errors import CallError, Onnx2nnError, VerificationError, first_line
from onnx2nn.ground.device_placement import device_of, placed
from onnx2nn.ground.extras import require
from onnx2nn.verification.noise import SMALLEST_WEIGHT, growing_changes, moved_bits
from onnx2nn.verification.value_comparison import OutputComparison, compare, differences

if TYPE_CHECKING:
    import torch


def run_module(module: Callable[..., Any], arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
    """Calls a PyTorch module on arrays, without gradients, and returns its outputs as a tuple.

    Raises:
        VerificationError: the module failed on these inputs.
    """
    torch = require("torch", extra="torch", purpose="Running the imported module")
    tensors = inputs_for(module, arrays)
    try:
        with torch.no_grad():
            outputs = module(*tensors)
    except Exception as error:  # any error of the module's own run
        if isinstance(error, Onnx2nnError) and not isinstance(error, CallError):
            raise
        raise VerificationError(f"The imported module failed: {type(error).__name__}: {first_line(error)}") from error
    return tuple(outputs) if isinstance(outputs, tuple) else (outputs,)


def inputs_for(module: Callable[..., Any], values: Sequence[Any]) -> list[Any]:
    """Returns arrays and tensors as inputs of a PyTorch module, on the device of its weights."""
    import torch

    tensors = [to_tensor(value) if isinstance(value, np.ndarray) else value for value in values]
    device = device_of(module, None) if isinstance(module, torch.nn.Module) else None
    if device is None or device.type == "meta":
        return tensors
    return placed(tensors, device)


def to_tensor(array: np.ndarray) -> Any:
    """Returns an array as an input of an imported module: a tensor that owns its memory; strings stay NumPy arrays."""
    import torch

    if array.dtype.kind in "OUS":
        return array
    array = np.array(array, order="C")  # a copy: a module may work in place
    if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"):
        carrier = np.int16 if array.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(array.view(carrier)).view(getattr(torch, array.dtype.name))
    if array.dtype.name in ("int4", "uint4", "int2", "uint2"):
        array = array.astype(np.uint8 if array.dtype.name[0] == "u" else np.int8)
    return torch.from_numpy(array)


def check_same(
    module: Callable[..., Any],
    converted: Callable[..., Any],
    tensors: Sequence[Any],
    form: str,
    *,
    other_kernels: bool = False,
) -> None:
    """Runs a module and another form of it on the same inputs.

    Args:
        module: the module.
        converted: the other form.
        tensors: the inputs, which stay as they are.
        form: what the other form is, for the error.
        other_kernels: whether it adds in another order, so that the outputs may differ by the module's own noise.

    Raises:
        VerificationError: their outputs differ.
    """
    import torch

    with torch.no_grad():
        ours, theirs = (_as_tuple(run(*map(_copied, tensors))) for run in (converted, module))
    names = [f"output {index}" for index in range(len(theirs))]
    compared = compare(names, ours, theirs)
    if other_kernels and not all(output.ok for output in compared) and isinstance(module, torch.nn.Module):
        compared = _judged(module, tensors, compared, theirs, differences(names, ours, theirs))
    wrong = [str(output) for output in compared if not output.ok]
    if wrong:
        raise VerificationError(f"The {form} differs from the module: {'; '.join(wrong)}.")


def _copied(value: Any) -> Any:
    """Returns a copy of an input, which a module may write: a tensor, or an array of strings."""
    return value.clone() if hasattr(value, "clone") else copy.deepcopy(value)


def _judged(
    module: torch.nn.Module,
    tensors: Sequence[Any],
    compared: list[OutputComparison],
    theirs: Sequence[Any],
    found: Mapping[str, np.ndarray | None],
) -> list[OutputComparison]:
    """Returns the comparisons, with the noise of the module where they differ.

    The noise is how far its outputs change where its inputs and weights are moved: a quantised model rounds to another
    number then, as it does where another kernel adds in another order. A module that gives other outputs on each call
    has no noise that could be measured.
    """
    import torch

    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = {name: value for name, value in state.items() if value.numel() >= SMALLEST_WEIGHT}

    def run(ulps: int, trial: int) -> Sequence[Any] | None:
        moved = {name: moved_tensor(value.detach(), ulps, trial) for name, value in weights.items()}
        try:
            with torch.no_grad():
                given = tuple(moved_tensor(value, ulps, trial) for value in tensors)
                return _as_tuple(torch.func.functional_call(module, moved, given))
        except Exception:  # any error of the module's nodes, on values that they may refuse
            return None

    names = [output.name for output in compared]
    again = run(0, 0)
    if again is None or any(change is None or change.any() for change in differences(names, again, theirs).values()):
        return compared
    for changes in growing_changes(run, names):
        compared = [
            output
            if output.agrees
            else replace(
                output,
                noise=changes.noise(output.name),
                noise_ulps=changes.ulps,
                within_noise=changes.explain(output.name, found[output.name], output.tolerance),
            )
            for output in compared
        ]
        if all(output.ok for output in compared):
            break
    return compared


def moved_tensor(value: Any, ulps: int, trial: int) -> Any:
    """Returns a float tensor moved like `noise.moved` moves an array; anything else as it is."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    if value.is_complex():
        return torch.view_as_complex(moved_tensor(torch.view_as_real(value.resolve_conj()), ulps, trial))
    carriers = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
    carrier = torch.int64 if value.dtype == torch.float64 else carriers.get(value.dtype)
    if carrier is None or not value.numel():
        return value
    infinity = int(torch.full((1,), torch.inf, dtype=value.dtype).view(carrier))
    bits = value.detach().resolve_neg().contiguous().view(carrier).cpu().numpy()
    return torch.from_numpy(moved_bits(bits, infinity, ulps, trial)).view(value.dtype).to(value.device)


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
