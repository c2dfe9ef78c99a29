"""Verifies freed dimensions: runs the module at the file's sizes and at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onnx2nn.errors import FrozenDimensionError, first_line
from onnx2nn.fx.constants import to_torch
from onnx2nn.importing.inputs import InputSpec, example_inputs

TOLERANCE = 1e-4  # relative to an output's scale: the order of a sum may depend on the batch size

_DRAWS = 6
"""How often inputs are drawn where the results of samples may be equal by chance; twice, with three and with two
samples, where they are not."""
_FEW = 8
"""Fewer values of an output than this may be those of another input by chance."""


def verify(
    original: nn.Module,
    module: Callable[..., Any],
    specs: Sequence[InputSpec],
    opened: Mapping[str, Sequence[int | str | None]],
    frozen: Mapping[str, int],
) -> None:
    """Runs both modules at the frozen sizes, where they must agree, and `module` at a second size of each dimension.

    If the second size is a multiple of the frozen one, the run computes several inputs at once. Its results must equal
    the original's results for each input, unless the original mixes the elements of the dimension. Where results of
    the samples of a batch have few values (classes, comparisons), other inputs are drawn, some times.

    Args:
        original: the module at the frozen sizes.
        module: the module with the dimensions dynamic, or a function that calls one.
        specs: the inputs.
        opened: their dimensions, dynamic ones by name.
        frozen: name of each freed dimension → its size in the file.

    Raises:
        FrozenDimensionError: the results differ, or nothing can be compared.
    """
    others = {d: 4 for dims in opened.values() for d in dims if isinstance(d, str) and d not in frozen}
    sizes = {**others, **frozen}
    inputs = example(specs, opened, sizes)
    expected = _attempt(original, inputs, f"{wish(frozen)} cannot be dynamic: as in the file")
    if 1 in frozen.values():
        lacks = "is no tensor" if any(output is None for output in expected) else "has no finite numbers"
        if not all(output is not None and bool(output.isfinite().any()) for output in expected):
            raise FrozenDimensionError(
                f"{wish(frozen)} cannot be dynamic: on generated inputs an output {lacks}, "
                "which shows nothing about other sizes."
            )
    found = _attempt(module, inputs, f"{wish(frozen)} cannot be dynamic: at the size in the file")
    difference = difference_of(expected, found)
    if difference > TOLERANCE:
        raise FrozenDimensionError(
            f"{wish(frozen)} cannot be dynamic: at the size in the file the outputs differ by {difference:.3g} of "
            "their scale from those of the model as it is."
        )
    for name in frozen:
        _verify_dimension(original, module, specs, opened, sizes, name)


def _verify_dimension(
    original: nn.Module,
    module: Callable[..., Any],
    specs: Sequence[InputSpec],
    opened: Mapping[str, Sequence[int | str | None]],
    sizes: Mapping[str, int],
    name: str,
) -> None:
    """Runs `module` at a second size of one dimension; `sizes` has the first ones, the rest is as for `verify`."""
    size = sizes[name]
    axes = {key: list(dims).index(name) for key, dims in opened.items() if name in dims}
    batch = size == 1 or set(axes.values()) == {0}
    more = size // 2 if size > 8 and size % 2 == 0 else 2 * size
    seen: list[list[torch.Tensor]] = []
    for draw in range(_DRAWS if batch else 1):
        more = (3 - draw % 2) * size if batch else more
        larger = example(specs, opened, {**sizes, name: more}, draw)
        if batch:
            larger = {key: _told_apart(value, axes[key]) if key in axes else value for key, value in larger.items()}
        results = _attempt(module, larger, f"{name!r} cannot be dynamic: at size {more}")
        if more <= size:
            break
        runs = _runs(original, larger, axes, size)
        if not _parts_agree(original, larger, results, runs, axes, size, batch):
            raise FrozenDimensionError(
                f"{name!r} ({size} in the file) cannot be dynamic: the results of {more} differ from those of "
                f"{more // size} calls of {size}: some constant of the file mixes what this dimension keeps apart."
            )
        seen += [[output for output in outputs if output is not None] for outputs in runs]
        if draw and not any(map(_are_coarse, zip(*seen, strict=True))):
            break


def wish(frozen: Mapping[str, int]) -> str:
    """Returns the dimensions to make dynamic as text for an error."""
    return ", ".join(f"{name!r} ({size} in the file)" for name, size in frozen.items())


def example(
    specs: Sequence[InputSpec],
    opened: Mapping[str, Sequence[int | str | None]],
    sizes: Mapping[str, int],
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Returns generated inputs with the given sizes of dynamic dimensions."""
    shapes = {name: [sizes[d] if isinstance(d, str) else int(d or 0) for d in dims] for name, dims in opened.items()}
    arrays = example_inputs(specs, shapes, seed=seed)
    return {spec.name: to_torch(arrays[spec.name], spec.dtype) for spec in specs if spec.dtype is not None}


def run(module: Callable[..., Any], inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor | None]:
    """Returns the outputs of a module, None for one that is no tensor."""
    with torch.no_grad():
        results = module(*inputs.values())
    results = results if isinstance(results, tuple) else (results,)
    return [result.detach() if isinstance(result, torch.Tensor) else None for result in results]  # may be a weight


def _attempt(module: Callable[..., Any], inputs: Mapping[str, torch.Tensor], where: str) -> list[torch.Tensor | None]:
    """Returns what `run` does.

    Raises:
        FrozenDimensionError: a call fails; the text begins with `where`.
    """
    try:
        return run(module, inputs)
    except Exception as error:  # any error of torch or of an opaque call
        raise FrozenDimensionError(f"{where} a call fails: {first_line(error)}") from None


def difference_of(wanted: Sequence[torch.Tensor | None], found: Sequence[torch.Tensor | None]) -> float:
    """Returns the largest difference of two runs, relative to each output's scale; infinity for different shapes.

    Outputs that are no tensors are not compared.
    """
    largest = 0.0
    for a, b in zip(wanted, found, strict=True):
        if a is None or b is None:
            continue
        if a.shape != b.shape:
            return float("inf")
        if a.numel():
            a, b = a.to(torch.complex128), b.to(torch.complex128)
            same = (a == b) | (a.isnan() & b.isnan())
            scale = torch.where(a.isfinite(), a.abs(), 0).max().clamp(min=1e-6)
            gaps = torch.where(same, 0, (a - b).abs()).nan_to_num(nan=float("inf"), posinf=float("inf"))
            largest = max(largest, float(gaps.max() / scale))
    return largest


def _runs(
    original: nn.Module, inputs: Mapping[str, torch.Tensor], axes: Mapping[str, int], size: int
) -> list[list[torch.Tensor | None]]:
    """Returns the outputs of the original for each input alone."""
    parts = {key: inputs[key].split(size, axis) for key, axis in axes.items()}
    return [
        _attempt(original, {k: parts[k][index] if k in parts else v for k, v in inputs.items()}, "One input alone:")
        for index in range(min(map(len, parts.values())))
    ]


def _are_coarse(outputs: Sequence[torch.Tensor]) -> bool:
    """Returns whether results of several inputs may be those of another one by chance: they have few values."""
    elements = torch.cat([output.flatten() for output in outputs])
    values = elements.unique().numel()
    return elements.numel() > 0 and (values < _FEW or 4 * values <= elements.numel())


def _parts_agree(
    original: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    results: Sequence[torch.Tensor | None],
    runs: Sequence[Sequence[torch.Tensor | None]],
    axes: Mapping[str, int],
    size: int,
    batch: bool,
) -> bool:
    """Returns whether one run of several inputs has the results of the original for each input.

    Outputs for which the original mixes the elements of the dimension (a sequence) are not compared.
    """
    parts = {key: inputs[key].split(size, axis) for key, axis in axes.items()}
    mixed: list[tuple[int, Any]] = []
    for end in (0, size - 1) if size > 1 else ():  # both, as a recurrent layer mixes in one direction
        given = {key: _but_one(part[0], part[1], axes[key], end) for key, part in parts.items()}
        mixed.append((end, _attempt(original, {**inputs, **given}, "Mixed inputs:")))
    for index, whole in enumerate(results):
        pieces: Any = [outputs[index] for outputs in runs]
        if whole is None:
            continue
        if whole.ndim != pieces[0].ndim:
            return False
        changed = [a for a in range(whole.ndim) if whole.shape[a] != pieces[0].shape[a]]
        if not changed and batch and any(difference_of([piece], [whole]) > TOLERANCE for piece in pieces):
            return False  # every input of a batch has a result of its own
        if len(changed) > 1 and size == 1:
            return False
        if len(changed) != 1:
            continue
        axis = changed[0]
        one = pieces[0].shape[axis] // size
        if any(
            difference_of([pieces[0].narrow(axis, end * one, one)], [other[index].narrow(axis, end * one, one)])
            > TOLERANCE
            for end, other in mixed
        ):
            continue
        if difference_of([torch.cat(pieces, axis)], [whole]) > TOLERANCE:
            return False
    return True


def _told_apart(value: torch.Tensor, axis: int) -> torch.Tensor:
    """Returns a mask of ones with zeros at the end of each sample but the first, more of them in each; else `value`.

    Generated masks hide nothing, so that a mask that acts on other samples would not show.
    """
    if value.is_floating_point() or value.is_complex() or axis == value.ndim - 1 or not bool((value == 1).all()):
        return value
    result = value.clone()
    for index in range(1, min(value.shape[axis], value.shape[-1] // 2)):
        result.select(axis, index)[..., -index:] = 0
    return result


def _but_one(one: torch.Tensor, others: torch.Tensor, axis: int, index: int) -> torch.Tensor:
    """Returns one slice of a tensor and the other slices of another tensor."""
    found = others.clone()
    found.select(axis, index).copy_(one.select(axis, index))
    return found
