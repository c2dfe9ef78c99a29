"""Traces that hold only for some sizes, as torch decided by those of the example, and how that is noticed."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from onnx2nn.control_flow import If, Loop
from onnx2nn.errors import Onnx2nnError, VerificationError
from onnx2nn.optimization.entry import inputs_of, size_range
from onnx2nn.output.checked_sizes import Shapes
from onnx2nn.output.trace_examples import Run
from onnx2nn.verification.module_runs import run_module

LARGEST_SIZE = 1 << 16
"""From this largest size on a trace is not asked whether the module takes more: such a limit is not an example's."""

_MOST_ITERATIONS = 4096
"""Of a loop that data end, in a run at another size than the example's."""

_FIXED_SIZE = re.compile(r"static shape of (?P<size>\d+) for dimension inputs(?:\['args'\])?\[(\d+)\]\.shape\[(\d+)\]")
"""Where torch.export says that a dimension is fixed in its trace."""


class NarrowTrace(VerificationError):
    """A trace holds only up to some size of dimensions, though the module takes more.

    torch.export takes a size that is computed from others for 1 where it is 1 at the example's sizes and broadcasts.

    Args:
        most: name of each such dimension → the largest size for which the trace holds.
        inputs: the example.
        is_fixed: whether the trace holds for these sizes alone.
    """

    def __init__(self, most: Mapping[str, int], inputs: Sequence[Any], is_fixed: bool = False):
        limits = " and ".join(f"{label} open up to {size}" for label, size in most.items())
        super().__init__(
            f"torch.export keeps the dimension {limits} only, as another size becomes 1 at the example's. Give "
            "example_inputs of larger sizes."
        )
        self.most, self.inputs, self.is_fixed = most, inputs, is_fixed


def check_refusal(
    module: Any, message: str, opened: Sequence[Mapping[int, str] | None], tensors: Sequence[torch.Tensor]
) -> None:
    """Raises an error that names the dimensions where torch.export refuses as it fixed some.

    It is a `NarrowTrace` where the module takes more of each.

    Args:
        module: the module.
        message: of torch.export's error.
        opened: names of the dynamic dimensions of each input, by axis.
        tensors: the example.
    """
    fixed: dict[str, int] = {}
    for size, position, axis in _FIXED_SIZE.findall(message):
        label = (opened[int(position)] or {}).get(int(axis))
        if label is None or label in fixed:
            continue
        if _larger(module, opened, tensors, label, int(size)) is None:
            raise VerificationError(
                f"torch.export takes {size} alone for the dimension {label}, and the module refuses {int(size) + 1}. "
                f"Leave {label} out of dynamic_axes, or save .pth."
            )
        fixed[label] = int(size)
    if fixed:
        raise NarrowTrace(fixed, tensors, is_fixed=True)


def check_ranges(
    module: Any,
    program: torch.export.ExportedProgram,
    opened: Sequence[Mapping[int, str] | None],
    tensors: Sequence[torch.Tensor],
) -> list[Run]:
    """Returns runs at sizes that the module takes above those that both branches of an If take.

    A program with both branches checks the limits of both, a file without checks holds above them what the runs show.

    Raises:
        NarrowTrace: the module takes sizes that are above those for which its trace holds.
    """
    branches = {limit for part in module.modules() if isinstance(part, If) for own in part.serves for *_, limit in own}
    beyond: list[Run] = []
    narrow: dict[str, int] = {}
    for tensor, named in zip(inputs_of(program), opened, strict=True):
        for axis, label in (named or {}).items():
            size = tensor.shape[axis]
            most = None if isinstance(size, int) else size_range(program, size)[1]
            if most is None or most >= LARGEST_SIZE or label in narrow:
                continue
            run = _larger(module, opened, tensors, label, most)
            if run is not None and most not in branches:
                narrow[label] = most
            elif run is not None:
                beyond.append(run)
    if narrow:
        raise NarrowTrace(narrow, tensors)
    return beyond


_EXPORTING = threading.RLock()


@contextlib.contextmanager
def captured() -> Iterator[list[torch.export.ExportedProgram]]:
    """Collects the programs that torch.onnx.export makes of a module, which alone check the sizes of their inputs.

    It gives the program with the operators that it writes, of which it has removed all checks. One thread at a time
    exports: of two, the one that ends last would leave torch with the other's function.
    """
    programs: list[torch.export.ExportedProgram] = []
    with _EXPORTING:
        export = torch.export.export

        def collected(*args: Any, **kwargs: Any) -> torch.export.ExportedProgram:
            programs.append(export(*args, **kwargs))
            return programs[-1]

        torch.export.export = collected
        try:
            yield programs
        finally:
            torch.export.export = export


def unchecked_runs(module: Any, refused: Mapping[str, Sequence[Shapes]], tensors: Sequence[torch.Tensor]) -> list[Run]:
    """Returns runs at sizes that the module takes and a check of its trace refuses.

    A file has no checks. What torch decided by the example's sizes may be what the module computes at others, such as
    whether a slice is contiguous, or not, such as the number of frames that it takes apart: only a comparison tells.

    Args:
        module: the module.
        refused: the sizes that each check of its trace refuses, see `refused_sizes`.
        tensors: the example.
    """
    found: list[Run] = []
    for *_, shapes in refused.values():
        inputs = [np.resize(tensor.cpu().numpy(), shape) for tensor, shape in zip(tensors, shapes, strict=True)]
        try:
            found.append((inputs, run_module(module, inputs)))
        except Onnx2nnError:  # the module's own limit
            continue
    return found


def runs_of_sizes(
    module: Any,
    opened: Sequence[Mapping[int, str] | None],
    tensors: Sequence[torch.Tensor],
    others: Callable[[int], Iterable[int]],
) -> dict[str, Run]:
    """Returns the runs that a module takes with another size of one dynamic dimension, by what the dimension is there.

    Args:
        module: the module.
        opened: names of the dynamic dimensions of each input, by axis.
        tensors: the example.
        others: the example's size of a dimension → the sizes that it has instead.
    """
    pairs = zip(tensors, opened, strict=True)
    known = {label: tensor.shape[axis] for tensor, named in pairs for axis, label in (named or {}).items()}
    runs: dict[str, Run] = {}
    for label, size in ((label, size) for label, own in known.items() for size in others(own)):
        inputs = _of_size(opened, tensors, label, size)
        with contextlib.suppress(Onnx2nnError), _ending(module):  # the module's own limit
            runs[f"{label} is {size}"] = inputs, run_module(module, inputs)
    return runs


@contextlib.contextmanager
def _ending(module: torch.nn.Module) -> Iterator[None]:
    """A context in which a loop that data end is an error after some iterations: at another size they may not."""
    loops = [part for part in module.modules() if isinstance(part, Loop) and part.by_data]
    try:
        for loop in loops:
            loop.most = _MOST_ITERATIONS
        yield
    finally:
        for loop in loops:
            del loop.most


def small_runs(
    module: Any, opened: Sequence[Mapping[int, str] | None], tensors: Sequence[torch.Tensor]
) -> dict[str, Run]:
    """Returns the `runs_of_sizes` of 1 and 0, which traces take for 2 or more."""
    return runs_of_sizes(module, opened, tensors, lambda _: (1, 0))


def narrow_trace(
    refused: Mapping[str, Sequence[Shapes]], opened: Sequence[Mapping[int, str] | None], tensors: Sequence[torch.Tensor]
) -> NarrowTrace | None:
    """Returns the error of a trace whose checks refuse larger sizes than the example's, None where none does.

    Args:
        refused: the sizes that each check refuses, see `refused_sizes`.
        opened: names of the dynamic dimensions of each input, by axis.
        tensors: the example.
    """
    most: dict[str, int] = {}
    for shapes in itertools.chain.from_iterable(refused.values()):
        for shape, tensor, named in zip(shapes, tensors, opened, strict=True):
            for axis, label in (named or {}).items():
                if shape[axis] > tensor.shape[axis]:
                    most[label] = min(most.get(label, shape[axis]), shape[axis] - 1)
    return NarrowTrace(most, tensors) if most else None


def _larger(
    module: Any,
    opened: Sequence[Mapping[int, str] | None],
    tensors: Sequence[torch.Tensor],
    label: str,
    most: int,
) -> Run | None:
    """Returns a run of the module with a dimension of one more than `most`; None where it does not take it."""
    larger = _of_size(opened, tensors, label, most + 1)
    with contextlib.suppress(Onnx2nnError), _ending(module):  # the module's own limit
        return larger, run_module(module, larger)
    return None


def _of_size(
    opened: Sequence[Mapping[int, str] | None], tensors: Sequence[torch.Tensor], label: str, size: int
) -> list[np.ndarray]:
    """Returns inputs whose axes of one name have another size; elements of the example are repeated."""
    inputs = []
    for tensor, names in zip(tensors, opened, strict=True):
        shape = [size if (names or {}).get(axis) == label else known for axis, known in enumerate(tensor.shape)]
        inputs.append(np.resize(tensor.cpu().numpy(), shape))
    return inputs
