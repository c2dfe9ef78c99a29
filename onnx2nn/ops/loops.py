"""Loops over time in programs of machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_BLOCK = 16
"""The most steps in an iteration: each one copies the outputs of all steps, as a loop writes into no tensor."""


def looped(
    F: Any, given: Any, states: Sequence[Any], step: Callable[..., Sequence[Any]]
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the first states after each step, `(steps, *shape)`, and the last states.

    Args:
        F: torch.
        given: of each step, `(steps, ...)`; at least one step.
        states: the first ones.
        step: takes what is given in a step and the states, and returns the next states.
    """
    steps = given.shape[0]
    if isinstance(steps, int) and steps <= _BLOCK:
        return _repeated(F, given.unbind(0), states, step)
    outputs = given.new_zeros([steps, *states[0].shape])
    start = F.zeros([], dtype=F.int64)
    states = [state.clone() for state in states]
    block = _block(steps)
    rest = [] if isinstance(steps, int) and steps % block == 0 else [(steps, 1)]
    for stop, count in ((steps // block * block, block), *rest):

        def inside(t: Any, outputs: Any, *_: Any, stop: Any = stop) -> Any:
            return t < stop

        def steps_from(t: Any, outputs: Any, *current: Any, count: int = count) -> tuple[Any, ...]:
            rows = [given.index_select(0, (t + i).reshape(1)).squeeze(0) for i in range(count)]
            found, current = _repeated(F, rows, current, step)
            places = t + F.arange(count)
            return t + count, outputs.index_copy(0, places, found), *(state.clone() for state in current)

        start, outputs, *states = F.while_loop(inside, steps_from, (start, outputs, *states))
    return outputs, tuple(states)


def _repeated(
    F: Any, rows: Sequence[Any], states: Sequence[Any], step: Callable[..., Sequence[Any]]
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the first states after each of a few steps, and the last states."""
    found = []
    for row in rows:
        states = step(row, *states)
        found.append(states[0])
    return F.stack(found), tuple(states)


def _block(steps: Any) -> int:
    """Returns the number of steps in an iteration: one that divides a known number, if it is not much smaller."""
    if isinstance(steps, int):
        for count in range(_BLOCK, _BLOCK // 2 - 1, -1):
            if steps % count == 0:
                return count
    return _BLOCK
