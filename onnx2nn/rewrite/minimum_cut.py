"""The minimum cut of a network, by Dinic's algorithm (E. A. Dinic 1970)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

Place = TypeVar("Place", bound=Hashable)


class Network(Generic[Place]):
    """Places and the capacities between them."""

    def __init__(self) -> None:
        self._left: dict[Place, dict[Place, float]] = {}

    def connect(self, one: Place, other: Place, capacity: float = math.inf) -> None:
        """Adds to the capacity from one place to another."""
        out, back = self._left.setdefault(one, {}), self._left.setdefault(other, {})
        out[other] = out.get(other, 0) + capacity
        back.setdefault(one, 0)

    def side_of(self, source: Place, sink: Place) -> set[Place]:
        """Returns the places on the source's side of a minimum cut, as few as can be."""
        while True:
            levels = self._levels(source)
            if sink not in levels:
                return set(levels)
            while (path := self._path(source, sink, levels)) is not None:
                pairs = list(itertools.pairwise(path))
                flow = min(self._left[a][b] for a, b in pairs)
                if flow == math.inf:
                    raise ValueError("source and sink are joined by infinite capacities: there is no finite cut")
                for a, b in pairs:
                    self._left[a][b] -= flow
                    self._left[b][a] += flow

    def _levels(self, source: Place) -> dict[Place, int]:
        """Returns the places that the source still reaches, and in how many steps."""
        levels, row = {source: 0}, [source]
        for place in row:
            for other, left in self._left.get(place, {}).items():
                if left > 0 and other not in levels:
                    levels[other] = levels[place] + 1
                    row.append(other)
        return levels

    def _path(self, source: Place, sink: Place, levels: dict[Place, int]) -> list[Place] | None:
        """Returns a shortest path with capacity left; places that lead nowhere are taken out of `levels`."""
        path = [source]
        while path:
            place = path[-1]
            if place == sink:
                return path
            step = levels.get(place, -1) + 1
            following = (o for o, left in self._left[place].items() if left > 0 and levels.get(o) == step)
            found = next(following, None)
            if found is None:
                levels.pop(place, None)
                path.pop()
            else:
                path.append(found)
        return None
