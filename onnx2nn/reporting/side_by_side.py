"""Runs two models on the same inputs, and compares the results of modules that both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import first_line
from onnx2nn.importing.inputs import InputSpec, specs_of
from onnx2nn.reporting.model_comparison import ModelComparison, ModulePair
from onnx2nn.reporting.verified import output_error
from onnx2nn.verification.value_comparison import compare


class SideBySide:
    """The runs of two models.

    Args:
        result: gets the outputs and notes.
        pairs: the modules of both by their paths, which get the differences.
        memory_limit: bytes of results of the first model that are kept for the second.
    """

    def __init__(self, result: ModelComparison, pairs: Mapping[str, ModulePair], memory_limit: int):
        self._result, self._pairs, self._room = result, pairs, memory_limit
        self._kept: dict[str, list[Any]] = {}
        self._left_out = 0
        self._parted = False

    def run(self, left: Any, right: Any, feeds: Mapping[str, np.ndarray]) -> None:
        """Runs the first model, then the second, on inputs of the first by name."""
        from onnx2nn.reporting.module_runs import ModuleRun, run_program

        notes = self._result.notes
        given = _feeds_of(specs_of(right), specs_of(left), feeds)
        try:
            expected = run_program(left, list(feeds.values()), ModuleRun(), self._keep)
            if isinstance(given, str):
                notes.append(given)
                return
            found = run_program(right, given, ModuleRun(), self._meet)
        except Exception as error:  # any error of a module's own run, which the comparison then shows
            notes.append(f"A model failed on the inputs: {type(error).__name__}: {first_line(error)}")
            return
        if self._left_out:
            notes.append(f"The results of {self._left_out} modules were not compared. Raise memory_limit.")
        self._compare_outputs(left.meta["onnx2nn"]["outputs"], _as_tuple(found), _as_tuple(expected))

    def _keep(self, path: str, value: Any) -> None:
        """Takes a result of the first model."""
        from onnx2nn.reporting.module_runs import described, tensors

        pair = self._pairs[path]
        pair.left_value = pair.left_value or described(value)
        size = sum(tensor.nbytes for tensor in tensors(value))
        if size <= self._room and pair.right:
            self._room -= size
            self._kept.setdefault(path, []).append(_copied(value))
        elif pair.right:
            self._left_out += 1

    def _meet(self, path: str, value: Any) -> None:
        """Takes a result of the second model; calls of a module are compared in their order."""
        from onnx2nn.reporting.module_runs import described

        pair = self._pairs[path]
        pair.right_value = pair.right_value or described(value)
        if not self._kept.get(path):
            return
        compared = compare([path], [value], [self._kept[path].pop(0)])
        pair.difference = max([pair.difference or 0.0, *(part.max_difference for part in compared)])
        pair.agrees = pair.agrees is not False and all(part.agrees for part in compared)
        if not pair.agrees and not self._parted:
            pair.parts = self._parted = True

    def _compare_outputs(self, names: Sequence[str], found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
        if len(found) != len(expected):
            self._result.notes.append(f"The models have {len(expected)} and {len(found)} outputs.")
            return
        self._result.outputs += map(output_error, compare(names, found, expected))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _copied(value: Any) -> Any:
    """Returns a value that later calls, which may work in place, do not change."""
    if isinstance(value, (tuple, list)):
        return type(value)(_copied(item) for item in value)
    return value.clone() if hasattr(value, "clone") else value


def _feeds_of(
    wanted: Sequence[InputSpec], known: Sequence[InputSpec], feeds: Mapping[str, np.ndarray]
) -> list[np.ndarray] | str:
    """Returns the inputs in the order of the second model, or why it cannot take them."""
    if len(wanted) != len(known):
        return f"The models have {len(known)} and {len(wanted)} inputs, so that only the first ran."
    by_name = {spec.name for spec in wanted} == {spec.name for spec in known}
    names = [spec.name for spec in (wanted if by_name else known)]
    types = {spec.name: spec.dtype for spec in known}
    for spec, name in zip(wanted, names, strict=True):
        shape = np.shape(feeds[name])
        sizes = shape if spec.shape is None else spec.shape
        fits = len(sizes) == len(shape) and all(
            isinstance(size, str) or size == given for size, given in zip(sizes, shape, strict=True)
        )
        if spec.dtype != types[name] or not fits:
            return f"The second model takes {spec}, the run has {list(shape)} for it, so that only the first ran."
    return [feeds[name] for name in names]
