"""If, Loop and Scan in two float types side by side, for `fx.modules.float_type`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from onnx2nn.control_flow import If, Loop, Scan


class Both(NamedTuple):
    """A value in the file's type, and in the new one."""

    old: Any
    new: Any


Run = Callable[[fx.GraphModule, Sequence[Both]], Any]
"""Returns the results of a program for arguments in both types."""

Emptied = Callable[[torch.Tensor], torch.Tensor]
"""Returns a tensor without elements."""


def run_region(called: If | Loop | Scan, given: Sequence[Both], run: Run, emptied: Emptied | None) -> Both:
    """Returns the results of control flow, whose graphs run side by side.

    Args:
        called: the module.
        given: its arguments.
        run: runs a graph.
        emptied: of a run on tensors without elements; None for a run on real ones.
    """
    if isinstance(called, If):
        return _branch(called, run, emptied, *given)
    return _loop(called, run, emptied, *given) if isinstance(called, Loop) else _scan(called, run, given)


def _branch(called: If, run: Run, emptied: Emptied | None, condition: Both, *captured: Both) -> Any:
    """Returns the results of the branch that is chosen, the first one on tensors without elements."""
    branches = [(called.then_branch, captured[: called.split]), (called.else_branch, captured[called.split :])]
    if emptied is None and not condition.old:
        branches.reverse()
    (body, values), (other, others) = branches
    with contextlib.suppress(Exception):  # any error of torch: the other branch need not take these sizes
        run(_graph(other), others)
    return run(_graph(body), values)


def _loop(called: Loop, run: Run, emptied: Emptied | None, limit: Both, running: Both, *values: Both) -> Both:
    carried, captured = list(values[: called.carried]), values[called.carried :]
    scans = []
    for number in _iterations(limit.old, emptied):
        if running.old is not None and emptied is None and not running.old:
            break
        truth = torch.tensor(True)
        flag = Both(truth, truth) if running.old is None else running
        running, *found = _parts(run(_graph(called.body), [number, flag, *carried, *captured]))
        carried = found[: called.carried]
        scans.append(found[called.carried :])
    return _results(carried, scans, [(0, 0)] * len(called.empty))


def _iterations(limit: Any, emptied: Emptied | None) -> Iterator[Both]:
    """Yields the numbers of a loop's iterations; two on tensors without elements, as types repeat then."""
    count = 2 if emptied is not None else None if limit is None else int(limit)
    for number in itertools.count() if count is None else range(count):
        tensor = torch.tensor(number)
        tensor = tensor if emptied is None else emptied(tensor)
        yield Both(tensor, tensor)


def _scan(called: Scan, run: Run, given: Sequence[Both]) -> Both:
    end = called.states + len(called.inputs)
    states, captured = list(given[: called.states]), given[end:]
    scanned = zip(given[called.states : end], called.inputs, strict=True)
    scans = []
    for step in zip(*(_slices(value, *place) for value, place in scanned), strict=True):
        found = _parts(run(_graph(called.body), [*states, *step, *captured]))
        states = found[: called.states]
        scans.append(found[called.states :])
    return _results(states, scans, called.outputs)


def _graph(body: nn.Module) -> fx.GraphModule:
    """Returns the program of a graph of control flow, which every body is."""
    assert isinstance(body, fx.GraphModule)
    return body


def _parts(value: Both) -> list[Both]:
    """Returns the items of a tuple."""
    return [Both(*pair) for pair in zip(value.old, value.new, strict=True)]


def _slices(value: Both, axis: int, backwards: int) -> list[Both]:
    found = [Both(*pair) for pair in zip(value.old.unbind(axis), value.new.unbind(axis), strict=True)]
    return found[::-1] if backwards else found


def _results(carried: Sequence[Both], scans: Sequence[Sequence[Both]], places: Sequence[Any]) -> Both:
    """Returns carried values, then the slices of each step stacked along an axis, backwards for a direction of 1.

    Raises:
        ValueError: there are no steps, so that nothing tells the types of the slices.
    """
    both = list(carried)
    for items, (axis, backwards) in zip(zip(*scans, strict=True), places, strict=True):
        ordered = items[::-1] if backwards else items
        pair = (torch.stack(list(values), axis) for values in zip(*ordered, strict=True))
        both.append(Both(*pair))
    return Both(tuple(value.old for value in both), tuple(value.new for value in both))
