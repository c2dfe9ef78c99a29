"""Random graphs that compute sizes from sizes, on OneFlow beside ONNX Runtime: see tests/size_graphs.py."""

from __future__ import annotations

import random

from tests.size_graphs import NOT_LOADED, REFUSED, WRONG, Tally, build, import_to_oneflow, outcomes

GRAPHS = 100


def test_some_graphs() -> None:
    """No result is silently wrong, and every size that ONNX Runtime takes is taken."""
    tally = Tally()
    for seed in range(GRAPHS):
        graph = build(random.Random(seed))
        tally.add(graph, outcomes(graph, import_to_oneflow), f"seed {seed}")
    found = f"{tally.listing(2, (WRONG, REFUSED, NOT_LOADED))}\n{tally.table()}"
    assert not tally.kinds[WRONG] and not tally.refused, found
    assert tally.points > 10 * GRAPHS, found
