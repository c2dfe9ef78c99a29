"""The order in which calls that are compared take turns: what else the machine does then disturbs all of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator


def turns(names: Iterable[str], repeats: int, warming: int = 0) -> Iterator[tuple[str, bool]]:
    """Yields every name in each round, in shuffled order, and whether the round counts.

    Args:
        names: of the calls.
        repeats: the number of rounds that count.
        warming: the number of rounds before them, which fill caches.
    """
    order, shuffle = list(names), random.Random(0).shuffle
    for round_ in range(warming + repeats):
        shuffle(order)
        for name in order:
            yield name, round_ >= warming
