"""The runs of a module that a trace of it is made from and compared with."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import InputError, VerificationError
from onnx2nn.ground.quiet import quiet
from onnx2nn.importing import inputs as model_inputs
from onnx2nn.verification.module_runs import run_module

Run = tuple[Sequence[np.ndarray], Sequence[Any]]
"""Inputs, and the module's outputs for them."""

_DYNAMIC_SIZES: Sequence[Any] = (
    *(lambda k: 2 + k, lambda k: 8 + 4 * k, lambda k: 64 * (k + 1), lambda k: 224 + 32 * k),
    lambda k: 2048 + 256 * k,  # samples of a sound
    lambda k: 16 + 8 * k,  # images of which each pixel attends to all others
)
"""Sizes for the k-th dynamic dimension of a model, in the order of the attempts; the first is the cheapest."""

_MOST_SUMS = 24
"""How many sums are tried as the size of one dimension; a decoder with a cache has six."""

_BATCH = 5
"""Largest size in the first attempts for the first of several axes, which usually counts examples."""


def runs_of(
    module: Any, axes: Mapping[str, Mapping[int, str]], given: Sequence[Any] | None, least: Mapping[str, int]
) -> Iterator[Run]:
    """Yields runs of the module: on the given inputs, then on generated ones at other sizes of dynamic dimensions.

    Runs with an output of NaN alone, or without elements, come last. It is divided by what is 0 at small sizes, such as
    `width // 8 - 1`, and runtimes compute different numbers of NaN (GridSample), so that a comparison there says
    nothing. In images of a few pixels nothing is detected, and ONNX Runtime refuses images without pixels.

    Args:
        module: the module.
        axes: names of the dynamic dimensions of each input, by axis.
        given: inputs.
        least: smallest sizes of generated inputs, by the name of the dimension.

    Raises:
        InputError: no run is possible.
    """
    from onnx2nn.output import large_values

    tried: list[Any] = []
    of_nothing: list[Run] = []
    if given is not None:
        arrays = [value if isinstance(value, np.ndarray) else value.detach().cpu().numpy() for value in given]
        yield arrays, run_module(module, arrays)
        tried.append([array.shape for array in arrays])
    failure: Exception | None = None
    try:
        for attempts in _examples(module, axes, least):
            for arrays in attempts:
                shapes = [array.shape for array in arrays]
                if shapes in tried:
                    continue
                tried.append(shapes)
                if large_values.is_in_run(module, arrays):
                    failure = failure or VerificationError(
                        f"a value has more than {large_values.MOST_BYTES >> 20} MiB."
                    )
                    continue
                try:
                    run = _run_of(module, arrays)
                except VerificationError as error:
                    failure = failure or error
                    continue
                given = run[0]
                if any(map(_tells_nothing, run[1])):
                    of_nothing.append(run)
                else:
                    yield run
            if given is not None:
                break
    except InputError:
        if given is None:
            raise
    if given is None:
        raise InputError(f"The module accepts no generated inputs. Give example_inputs. Its error: {failure}")
    yield from of_nothing


def _run_of(module: Any, arrays: Sequence[np.ndarray]) -> Run:
    """Returns the run on inputs, or on integers of 1 where it fails or has an output that tells nothing.

    Integers may be a mask, which is mostly 1, whatever its name is: other numbers make infinities of the scores, or
    positions beyond a table.

    Raises:
        VerificationError: it fails in both ways; the error is the first.
    """
    ones = [np.ones_like(array) if array.dtype.kind in "iu" else array for array in arrays]
    tries = [arrays, ones] if any(array.dtype.kind in "iu" for array in arrays) else [arrays]
    runs: list[Run] = []
    failure: VerificationError | None = None
    for values in tries:
        try:
            with quiet():
                runs.append((values, run_module(module, values)))
        except VerificationError as error:
            failure = failure or error
            continue
        if not any(map(_tells_nothing, runs[-1][1])):
            return runs[-1]
    if not runs:
        assert failure is not None
        raise failure
    return runs[0]


def _tells_nothing(output: Any) -> bool:
    """Returns whether an output has no elements but NaN."""
    import torch

    if not isinstance(output, torch.Tensor):
        return False
    return not output.numel() or (output.is_floating_point() and bool(output.double().isnan().all()))


def _examples(
    module: Any, axes: Mapping[str, Mapping[int, str]], least: Mapping[str, int]
) -> Iterator[Iterator[list[np.ndarray]]]:
    """Yields attempts to generate inputs, each at several sizes, until the module takes some of one attempt.

    Dynamic dimensions differ, and none is 1, which torch takes for fixed. In the first attempt they are independent. In
    the second the first of each input are equal, and so on, as those of a mask and of what it masks are. In each other
    one of them is the sum of others, as the length of a mask is of those of a cache and of the new tokens.
    """
    specs = model_inputs.specs_of(module)
    labels = list(dict.fromkeys(label for dims in axes.values() for label in dims.values()))
    for spec in specs:
        if spec.shape is None:
            raise InputError(f"The file does not say the shape of input {spec.name!r}. Give example_inputs.")
    points = [
        (functools.partial(_known_size, labels, point), math.inf) for point in module.meta["onnx2nn"].get("sizes", ())
    ]
    plain = [*((choose, _BATCH) for choose in _DYNAMIC_SIZES), (_DYNAMIC_SIZES[2], math.inf)]
    bounds = module.meta["onnx2nn"].get("fixed", {})

    def generated(
        choices: Sequence[Any], numbers: Mapping[str, int], label: str = "", of: Sequence[str | int] = ()
    ) -> Iterator[list[np.ndarray]]:
        for choose, most in choices:
            sizes = _bounded({label: choose(at) for label, at in numbers.items()}, specs, axes, bounds, most)
            sizes = {label: max(size, least.get(label, 0)) for label, size in sizes.items()}
            if label:
                sizes[label] = sum(sizes[part] if isinstance(part, str) else part for part in of)
            shapes = _shapes(specs, axes, sizes)
            if sum(map(math.prod, shapes.values())) <= model_inputs.MOST_ELEMENTS:
                yield list(model_inputs.example_inputs(specs, shapes).values())

    independent = {label: at for at, label in enumerate(labels)}
    yield generated([*plain, *points], independent)
    yield generated(plain, {label: at for dims in axes.values() for at, label in enumerate(dims.values())})
    for label, parts in itertools.islice(_sums(specs, labels), _MOST_SUMS):
        yield generated(plain[:2], independent, label, parts)


def _sums(
    specs: Sequence[model_inputs.InputSpec], labels: Sequence[str]
) -> Iterator[tuple[str, tuple[str, str | int]]]:
    """Yields a dynamic dimension and two that it may be the sum of, one of them perhaps a fixed one of the inputs."""
    fixed = sorted({size for spec in specs for size in spec.shape or () if isinstance(size, int) and size > 0})
    for label in labels:
        others = [other for other in labels if other != label]
        yield from ((label, pair) for pair in itertools.combinations(others, 2))
        yield from ((label, pair) for pair in itertools.product(others, fixed))


def _bounded(
    sizes: dict[str, int],
    specs: Sequence[model_inputs.InputSpec],
    axes: Mapping[str, Mapping[int, str]],
    bounds: Mapping[str, Any],
    most: float,
) -> dict[str, int]:
    """Returns sizes of dynamic dimensions within bounds that are known; `most` holds for the first of several axes."""
    for spec in specs:
        shape = spec.shape or ()
        for axis, label in axes.get(spec.name, {}).items():
            allowed = bounds.get(str(shape[axis]))
            if isinstance(allowed, range):
                sizes[label] = min(max(sizes[label], allowed[0]), allowed[-1])
            elif axis == 0 and len(shape) > 1:
                sizes[label] = int(min(sizes[label], most))
    return sizes


def _shapes(
    specs: Sequence[model_inputs.InputSpec], axes: Mapping[str, Mapping[int, str]], sizes: Mapping[str, int]
) -> dict[str, list[Any]]:
    """Returns the shapes of inputs whose dynamic dimensions have these sizes.

    Raises:
        InputError: a dynamic dimension has no name.
    """
    shapes: dict[str, list[Any]] = {}
    for spec in specs:
        opened = axes.get(spec.name, {})
        shapes[spec.name] = [sizes[opened[i]] if i in opened else size for i, size in enumerate(spec.shape or ())]
        if not all(isinstance(size, int) for size in shapes[spec.name]):
            raise InputError(
                f"dynamic_axes does not name every dynamic dimension of input {spec}. Give example_inputs."
            )
    return shapes


def _known_size(labels: Sequence[str], point: Mapping[str, int], index: int) -> int:
    """Returns a size of a dimension that fulfils the module's guards."""
    return point.get(labels[index], _DYNAMIC_SIZES[0](index))
