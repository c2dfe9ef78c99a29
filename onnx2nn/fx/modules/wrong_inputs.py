"""Says what is wrong with the inputs of a call: their number, names, shapes or element types.

What torch would take without an error, and compute something else from than the model does, is found before a call: a
program holds the file's fixed sizes as numbers, and integers as integers. A wrong number or name of inputs always fails
by itself, and is explained afterwards. Guards refuse the sizes that nodes fix. A float type in place of another one is
no error: modules and autocast have float types of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx2nn.errors import OperatorError
from onnx2nn.fx.constants import torch_dtype


def wrong_inputs(declared: Sequence[Mapping[str, Any]], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Returns what is wrong, and what to do; `""` where the inputs fit the file's declarations.

    Args:
        declared: `meta["onnx2nn"]["declared"]` of an imported module.
        args: the call's inputs by position.
        kwargs: its inputs by the names in the file.
    """
    names = [str(spec["name"]) for spec in declared]
    listed = ", ".join(map(repr, names)) or "none"
    if len(args) > len(names):
        return f"The call has {len(args)} inputs, the model takes {len(names)}: {listed}."
    for name in kwargs:
        if name not in names:
            return f"The call has an input {name!r}. The model's inputs are {listed}."
        if name in names[: len(args)]:
            return f"The call gives the input {name!r} twice, by position and by name. Give it once."
    missing = [name for name in names[len(args) :] if name not in kwargs]
    if missing:
        return f"The call lacks the input {missing[0]!r}. The model takes {len(names)}: {listed}."
    given = [*args, *(kwargs[name] for name in names[len(args) :])]
    return next(filter(None, map(_wrong_input, declared, given)), "")


def misfit(declared: Sequence[Mapping[str, Any]], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Returns what torch might not refuse, and what to do: another rank, fixed size, or kind of numbers; else `""`.

    Args:
        declared: as for `wrong_inputs`.
        args: the call's inputs by position.
        kwargs: its inputs by name.
    """
    for spec, value in zip(declared, args, strict=False):
        if not _fits(spec, value):
            return _reason(spec, value)
    if kwargs:
        for spec in declared:
            value = kwargs.get(spec["name"])
            if value is not None and not _fits(spec, value):
                return _reason(spec, value)
    return ""


def _fits(spec: Mapping[str, Any], value: Any) -> bool:
    """Whether an input may be used; in a few comparisons, as each call asks for each input."""
    shape = spec["shape"]
    if shape is None or not isinstance(value, torch.Tensor):
        return True
    sizes = value.shape
    if len(sizes) != len(shape):
        return False
    for size, wanted in zip(sizes, shape, strict=True):
        if wanted.__class__ is int and size != wanted:
            return False
    dtype = _dtype(spec["dtype"])
    return value.dtype is dtype or dtype is None or (dtype.is_floating_point and value.dtype.is_floating_point)


@functools.cache
def _dtype(kind: str | None) -> torch.dtype | None:
    """Returns the type in torch of a type of ONNX, None where it has none."""
    try:
        return None if kind is None or kind == "STRING" else torch_dtype(ir.DataType[kind])
    except OperatorError:
        return None


def _reason(spec: Mapping[str, Any], value: torch.Tensor) -> str:
    shape, name = spec["shape"], spec["name"]
    wanted = ", ".join("?" if size is None else str(size) for size in shape)
    if value.ndim != len(shape):
        return f"Input {name!r} has {value.ndim} dimensions, {list(value.shape)}. The model takes ({wanted})."
    for axis, (size, fixed) in enumerate(zip(value.shape, shape, strict=True)):
        if isinstance(fixed, int) and size != fixed:
            return (
                f"Input {name!r} has the shape {list(value.shape)}. The model takes ({wanted}). To make a dimension "
                f"dynamic that the file fixes, give load(..., dynamic={{{name!r}: {{{axis}: 'name'}}}})."
            )
    dtype = _dtype(spec["dtype"])
    return f"Input {name!r} has the type {value.dtype}, the model takes {dtype}. Convert it with .to({dtype})."


def _wrong_input(spec: Mapping[str, Any], value: Any) -> str:
    shape = spec["shape"]
    if spec["dtype"] in (None, "STRING") or shape is None or isinstance(value, (list, dict)) or value is None:
        return ""
    if not isinstance(value, torch.Tensor):
        return f"Input {spec['name']!r} is a {type(value).__name__}. Give a torch.Tensor."
    same_type = _dtype(spec["dtype"]) in (value.dtype, None)
    return "" if same_type and _fits(spec, value) else _reason(spec, value)
