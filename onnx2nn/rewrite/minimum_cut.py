"""The minimum cut of a network, by Dinic's algorithm (E. A. Dinic 1970)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

Vertex = TypeVar("Vertex", bound=Hashable)


class FlowNetwork(Generic[Vertex]):
    """A directed graph with edge capacities."""

    def __init__(self) -> None:
        self._residual: dict[Vertex, dict[Vertex, float]] = {}

    def add_edge(self, one: Vertex, other: Vertex, capacity: float = math.inf) -> None:
        """Adds `capacity` to the edge from `one` to `other`."""
        out, back = self._residual.setdefault(one, {}), self._residual.setdefault(other, {})
        out[other] = out.get(other, 0) + capacity
        back.setdefault(one, 0)

    def source_side(self, source: Vertex, sink: Vertex) -> set[Vertex]:
        """Returns the vertices on the source's side of a minimum cut; of several minimum cuts, the smallest side."""
        while True:
            levels = self._levels(source)
            if sink not in levels:
                return set(levels)
            while (path := self._path(source, sink, levels)) is not None:
                pairs = list(itertools.pairwise(path))
                flow = min(self._residual[a][b] for a, b in pairs)
                if flow == math.inf:
                    raise ValueError("a path of infinite capacity joins source and sink: no finite cut exists")
                for a, b in pairs:
                    self._residual[a][b] -= flow
                    self._residual[b][a] += flow

    def _levels(self, source: Vertex) -> dict[Vertex, int]:
        """Returns the vertices reachable through residual capacity, with their distance from the source."""
        levels, queue = {source: 0}, [source]
        for vertex in queue:
            for other, rest in self._residual.get(vertex, {}).items():
                if rest > 0 and other not in levels:
                    levels[other] = levels[vertex] + 1
                    queue.append(other)
        return levels

    def _path(self, source: Vertex, sink: Vertex, levels: dict[Vertex, int]) -> list[Vertex] | None:
        """Returns a shortest path of residual capacity; removes vertices without a path to the sink from `levels`."""
        path = [source]
        while path:
            vertex = path[-1]
            if vertex == sink:
                return path
            step = levels.get(vertex, -1) + 1
            candidates = (o for o, rest in self._residual[vertex].items() if rest > 0 and levels.get(o) == step)
            found = next(candidates, None)
            if found is None:
                levels.pop(vertex, None)
                path.pop()
            else:
                path.append(found)
        return None
