"""The proof that freed dimensions are free: the module is run at the file's sizes and at others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from onnx2nn.errors import FrozenDimensionError, first_line
from onnx2nn.fx.constants import to_torch
from onnx2nn.importing.inputs import InputSpec, example_inputs

_TOLERANCE = 1e-4  # relative to an output's scale: a batch of three may be computed in another order than three of one


def verify(
    original: fx.GraphModule,
    module: fx.GraphModule,
    specs: Sequence[InputSpec],
    opened: Mapping[str, Sequence[int | str | None]],
    frozen: Mapping[str, int],
) -> None:
    """Runs at the frozen sizes, where both modules must agree, and each dimension at a second size.

    A second size that is a multiple of the frozen one is a run of several inputs at once: the results must be those of
    the inputs one by one, unless the model as it is mixes what the dimension holds.
    """
    others = {d: 4 for dims in opened.values() for d in dims if isinstance(d, str) and d not in frozen}
    sizes = {**others, **frozen}
    inputs = _example(specs, opened, sizes)
    difference = _difference(_run(original, inputs), _run(module, inputs))
    if difference > _TOLERANCE:
        raise FrozenDimensionError(
            f"{wish(frozen)} cannot be dynamic: at the size in the file the outputs differ by {difference:.3g} of "
            "their scale from those of the model as it is."
        )
    for name, size in frozen.items():
        axes = {key: list(dims).index(name) for key, dims in opened.items() if name in dims}
        batch = size == 1 or set(axes.values()) == {0}
        more = 3 * size if batch else size // 2 if size > 8 and size % 2 == 0 else 2 * size
        larger = _example(specs, opened, {**sizes, name: more})
        try:
            results = _run(module, larger)
        except Exception as error:  # whatever torch, or a row that runs as one call, says of the size
            reason = first_line(error)
            raise FrozenDimensionError(f"{name!r} cannot be dynamic: at size {more} a call fails: {reason}") from None
        if more > size and not _parts_agree(original, larger, results, axes, size, batch):
            raise FrozenDimensionError(
                f"{name!r} ({size} in the file) cannot be dynamic: the results of {more} differ from those of "
                f"{more // size} calls of {size}: some constant of the file mixes what this dimension keeps apart."
            )


def wish(frozen: Mapping[str, int]) -> str:
    """Returns the dimensions to free as an error names them."""
    return ", ".join(f"{name!r} ({size} in the file)" for name, size in frozen.items())


def _example(
    specs: Sequence[InputSpec], opened: Mapping[str, Sequence[int | str | None]], sizes: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    shapes = {name: [sizes[d] if isinstance(d, str) else int(d or 0) for d in dims] for name, dims in opened.items()}
    arrays = example_inputs(specs, shapes)
    return {spec.name: to_torch(arrays[spec.name], spec.dtype) for spec in specs if spec.dtype is not None}


def _run(module: fx.GraphModule, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        results = module(*inputs.values())
    return [r for r in (results if isinstance(results, tuple) else (results,)) if isinstance(r, torch.Tensor)]


def _difference(wanted: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> float:
    """Returns the largest difference of two runs, relative to each output's scale; infinity for other shapes."""
    largest = 0.0
    for a, b in zip(wanted, found, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if a.numel():
            a, b = a.to(torch.complex128), b.to(torch.complex128)
            same = (a == b) | (a.isnan() & b.isnan())
            difference = torch.where(same, 0, (a - b).abs()).max() / a[~a.isnan()].abs().max().clamp(min=1e-6)
            largest = max(largest, float(difference))
    return largest


def _parts_agree(
    original: fx.GraphModule,
    inputs: Mapping[str, torch.Tensor],
    results: Sequence[torch.Tensor],
    axes: Mapping[str, int],
    size: int,
    batch: bool,
) -> bool:
    """Returns whether one run of several inputs gives what the model as it is gives for each of them.

    Where that model itself mixes what the dimension holds (a sequence), there is nothing to compare.
    """
    parts = {key: inputs[key].split(size, axis) for key, axis in axes.items()}
    runs = [
        _run(original, {key: parts[key][index] if key in parts else value for key, value in inputs.items()})
        for index in range(min(map(len, parts.values())))
    ]
    mixed = None
    if size > 1:
        other = {key: _but_first(part[0], part[1], axes[key]) for key, part in parts.items()}
        mixed = _run(original, {key: other.get(key, value) for key, value in inputs.items()})
    for index, whole in enumerate(results):
        pieces = [run[index] for run in runs]
        changed = [a for a in range(whole.ndim) if whole.shape[a] != pieces[0].shape[a]]
        if not changed and batch and any(_difference([piece], [whole]) > _TOLERANCE for piece in pieces):
            return False  # every input of a batch has a result of its own
        if len(changed) != 1:
            continue
        axis = changed[0]
        if mixed is not None:
            one = pieces[0].shape[axis] // size
            if _difference([pieces[0].narrow(axis, 0, one)], [mixed[index].narrow(axis, 0, one)]) > _TOLERANCE:
                continue
        if _difference([torch.cat(pieces, axis)], [whole]) > _TOLERANCE:
            return False
    return True


def _but_first(first: torch.Tensor, rest: torch.Tensor, axis: int) -> torch.Tensor:
    """Returns the first slice of one tensor and the others of another one."""
    return torch.cat([first.narrow(axis, 0, 1), rest.narrow(axis, 1, rest.shape[axis] - 1)], axis)
