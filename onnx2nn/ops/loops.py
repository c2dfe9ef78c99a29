"""Loops over time in programs of machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_BLOCK = 4
"""The number of steps in an iteration: each one copies the outputs of all steps, as a loop writes into no tensor."""


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
    outputs = given.new_zeros([steps, *states[0].shape])
    start = F.zeros([], dtype=F.int64)
    whole = steps // _BLOCK * _BLOCK
    states = [state.clone() for state in states]
    for stop, count in ((whole, _BLOCK), (steps, 1)):

        def inside(t: Any, outputs: Any, *_: Any, stop: Any = stop) -> Any:
            return t < stop

        def block(t: Any, outputs: Any, *current: Any, count: int = count) -> tuple[Any, ...]:
            found = []
            for i in range(count):
                current = tuple(step(given.index_select(0, (t + i).reshape(1)).squeeze(0), *current))
                found.append(current[0])
            places = t + F.arange(count)
            return t + count, outputs.index_copy(0, places, F.stack(found)), *(state.clone() for state in current)

        start, outputs, *states = F.while_loop(inside, block, (start, outputs, *states))
    return outputs, tuple(states)
