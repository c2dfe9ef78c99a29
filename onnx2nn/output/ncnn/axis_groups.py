"""Arithmetic of axes: how a tensor of many axes is computed with in views of at most four.

A view has the same elements in the same order, with neighbouring axes merged. Sizes are numbers here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

Sizes = tuple[int, ...]


def around(sizes: Sequence[int], first: int, last: int) -> Sizes:
    """Returns the view (before, axes `first` to `last` as one, behind)."""
    return math.prod(sizes[:first]), math.prod(sizes[first : last + 1]), math.prod(sizes[last + 1 :])


def swaps(sizes: Sequence[int], order: Sequence[int]) -> Iterator[tuple[Sizes, Sizes]]:
    """Splits a permutation into ones of at most four axes.

    Args:
        sizes: of the axes.
        order: for each axis of the result the axis that it was.

    Yields:
        A view and the permutation of its axes, to be applied one after the other; nothing where the order of the
        elements stays.
    """
    groups = _runs([axis for axis in order if sizes[axis] != 1], sizes)
    merged = {group: math.prod(sizes[axis] for axis in group) for group in groups}
    now = sorted(groups)
    if now == groups:
        return
    if len(groups) <= 4:
        yield tuple(merged[group] for group in now), tuple(now.index(group) for group in groups)
        return
    for position, group in enumerate(groups):
        found = now.index(group)
        if found == position:
            continue
        end = found + 1
        while end < len(now) and now[end] == groups[position + end - found]:
            end += 1
        parts = now[:position], now[position:found], now[found:end], now[end:]
        view = [math.prod(merged[inner] for inner in part) for part in parts]
        kept = [index for index in range(4) if view[index] != 1]
        yield tuple(view[index] for index in kept), tuple(kept.index(index) for index in (0, 2, 1, 3) if index in kept)
        now = [*parts[0], *parts[2], *parts[1], *parts[3]]


def _runs(order: Sequence[int], sizes: Sequence[int]) -> list[Sizes]:
    """Returns the axes of `order` with those together that follow each other before and after."""
    follower = dict(itertools.pairwise(axis for axis, size in enumerate(sizes) if size != 1))
    runs: list[list[int]] = []
    for axis in order:
        if runs and follower.get(runs[-1][-1]) == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return [tuple(run) for run in runs]


def joint_views(shapes: Sequence[Sequence[int]], result: Sequence[int]) -> list[Sizes]:
    """Returns a view of each operand in which they broadcast as before, with as few axes as possible.

    Args:
        shapes: of the operands.
        result: the shape that they broadcast to.

    Returns:
        For each operand its sizes, all of the same number of axes.
    """
    full = [(1,) * (len(result) - len(shape)) + tuple(shape) for shape in shapes]
    views: list[list[int]] = [[] for _ in shapes]
    before = None
    for axis, size in enumerate(result):
        present = tuple(shape[axis] == size for shape in full)
        if size == 1:
            continue
        for view, shape in zip(views, full, strict=True):
            if present == before:
                view[-1] *= shape[axis]
            else:
                view.append(shape[axis])
        before = present
    return [tuple(view) or (1,) for view in views]
