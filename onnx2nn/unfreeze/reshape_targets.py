"""Targets of Reshape nodes for any size, from the target at the file's size.

A reshape keeps the order of the elements. Every factor of their number therefore covers a range of strides, and a
dynamic factor belongs to the target dimension that covers this range.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onnx2nn.errors import OperatorError


class Factor(NamedTuple):
    """A factor of a tensor's number of elements.

    Attributes:
        size: its value at the frozen size.
        dim: its value at any size; None where it is always `size`.
        name: the name of the dynamic dimension; `""` for a value computed from dimensions.
        axis: where the dimension is in the graph's input.
    """

    size: int
    dim: Any = None
    name: str = ""
    axis: int = 0


def aligned(factors: Sequence[Factor], sizes: Sequence[int], places: Mapping[str, int]) -> list[Any]:
    """Returns a Reshape's target for any size; see `divided` for the arguments and errors."""
    return [product(parts) for parts in divided(factors, sizes, places)]


def product(factors: Sequence[Factor]) -> Any:
    """Returns the product of factors at any size, an int where it is always the same."""
    size = math.prod(factor.size for factor in factors if factor.dim is None)
    return math.prod((factor.dim for factor in factors if factor.dim is not None), start=size)


def divided(factors: Sequence[Factor], sizes: Sequence[int], places: Mapping[str, int]) -> list[list[Factor]]:
    """Returns the factors of every dimension of a Reshape's target, the one with the largest stride first.

    A dynamic factor of frozen size 1 covers no stride. It replaces a 1 of the target at its position, of several the
    one on the axis that it has in the graph's input. Where there is none, it multiplies a dimension beside its
    position: the one before it, such as the time in `[T, N, C]` → `[T * N, C]`, or the one behind it if the target
    splits a dimension of the input there, such as the features in `[T, N, C]` → `[T, N * heads, C / heads]`. `places`
    decides first.

    Args:
        factors: the factors of the input's dimensions, in their order.
        sizes: the target at the frozen size.
        places: name of a dynamic dimension → index of its target dimension.

    Raises:
        OperatorError: a dynamic dimension is split at a size that does not depend on it.
    """
    ends = list(itertools.accumulate(sizes, initial=1, func=lambda a, b: a * b))
    cuts = set(itertools.accumulate((factor.size for factor in factors), initial=1, func=lambda a, b: a * b))
    static = list(sizes)
    dynamic: list[list[tuple[int, Factor]]] = [[] for _ in sizes]
    before = 1
    for factor in factors:
        if factor.dim is not None:
            k, part = _place(factor, sizes, ends, before, dynamic, places, cuts)
            if static[k] % part.size:
                raise OperatorError(f"a dimension of {part.size} in the file does not divide one of {sizes[k]}.")
            static[k] //= part.size
            dynamic[k].append((min(max(before // ends[k], 1), sizes[k]), part))
        before *= factor.size
    return [_ordered(size, parts) for size, parts in zip(sizes, dynamic, strict=True)]


def _ordered(size: int, dynamic: Sequence[tuple[int, Factor]]) -> list[Factor]:
    """Returns the factors of a dimension in their order.

    Args:
        size: the dimension at the frozen size.
        dynamic: its dynamic factors, each behind the number of elements of the dimension that lie before it.
    """
    static = size // math.prod(factor.size for _, factor in dynamic)
    found: list[Factor] = []
    done = 1
    for offset, factor in dynamic:
        own = offset // done
        if own > 1 and offset % done == 0 and static % own == 0:
            found.append(Factor(own))
            static //= own
            done = offset
        found.append(factor)
        done *= factor.size
    return [*found, *([Factor(static)] if static != 1 or not found else [])]


def _place(
    factor: Factor,
    sizes: Sequence[int],
    ends: Sequence[int],
    before: int,
    dynamic: Sequence[Sequence[Any]],
    places: Mapping[str, int],
    cuts: set[int],
) -> tuple[int, Factor]:
    """Returns the target dimension of a factor, and the part of the factor in it.

    Args:
        factor: the factor.
        sizes: the target at the frozen size.
        ends: the number of elements before each dimension of the target, and all.
        before: the number of elements before the factor.
        dynamic: the dynamic factors of each dimension of the target so far.
        places: name of a dynamic dimension → index of its target dimension.
        cuts: the numbers of elements before the dimensions of the input, and all.
    """
    if factor.name in places:
        return places[factor.name], factor
    if factor.size == 1:
        ones = [k for k, size in enumerate(sizes) if size == 1 and ends[k] == before and not dynamic[k]]
        begins = [k for k, size in enumerate(sizes) if size > 1 and ends[k] == before]
        closes = [k for k, size in enumerate(sizes) if size > 1 and ends[k + 1] == before]
        around = [k for k in range(len(sizes)) if ends[k] <= before <= ends[k + 1]]
        if begins and closes and ends[begins[0] + 1] in cuts:
            begins = closes
        return factor.axis if factor.axis in ones else (ones or begins or around)[0], factor
    covered = [k for k in range(len(sizes)) if ends[k] < before * factor.size and ends[k + 1] > before]
    if len(covered) == 1:
        return covered[0], factor
    parts = [sizes[k] for k in covered]
    if math.prod(parts) != factor.size:
        raise OperatorError(f"a dimension of {factor.size} in the file is split into {parts}.")
    return covered[0], factor._replace(size=parts[0], dim=factor.dim // math.prod(parts[1:]))
