"""The inputs of the runs that are compared: generated ones, or the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from onnx2nn.errors import InputError
from onnx2nn.importing import inputs as model_inputs


def fixed_lists(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, list[int]] | None:
    """Returns shapes as `onnx2nn.load` takes them."""
    return None if shapes is None else {name: list(sizes) for name, sizes in shapes.items()}


def example_feeds(
    specs: Sequence[model_inputs.InputSpec],
    input_shapes: Mapping[str, Sequence[int]] | None,
    inputs: Mapping[str, np.ndarray] | None,
    runs: int,
    seed: int,
) -> Iterator[tuple[dict[str, np.ndarray], bool]]:
    """Yields the inputs of every run, and whether the oracle may refuse them: a batch size that the file promises."""
    if inputs is not None:
        if not isinstance(inputs, Mapping):
            raise InputError(f"inputs is a {type(inputs).__name__}. Give a mapping of input names to arrays.")
        missing = [spec.name for spec in specs if spec.name not in inputs]
        if missing:
            raise InputError(f"No array was given for input {missing[0]!r}. Give arrays for all inputs.")
        model_inputs.check_shapes(specs, {name: np.shape(array) for name, array in inputs.items()})
        yield {spec.name: np.asarray(inputs[spec.name]) for spec in specs}, False
        return
    if runs < 1:
        raise InputError(f"runs={runs!r} is no number of comparisons. Give 1 or more.")
    shapes = model_inputs.resolve_shapes(specs, input_shapes, batch=1)
    for run in range(runs):
        yield model_inputs.example_inputs(specs, shapes, seed=seed + run), False
    larger = model_inputs.resolve_shapes(specs, input_shapes, batch=2)
    if larger != shapes:
        yield model_inputs.example_inputs(specs, larger, seed=seed), True
