"""Random graphs that compute sizes from sizes equal ONNX Runtime at all sizes, or say why they refuse one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.size_graphs import REFUSED, WRONG, SizeGraph, Tally, names_its_reason, outcomes, size_graphs

FAST = 300
PARTS, IN_A_PART = 100, 200
"""The held tier's graphs; a part is a test, so that processes and shards share them."""

MOST_REFUSED = 0.01
"""Of the points at which ONNX Runtime answers."""

REASONS_ARE_NAMED = False
"""Whether each refusal must be an error of ours that names an input and a condition."""

SETTINGS = settings(
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)


def check_some(rules: settings, chosen: int | None = None) -> None:
    """Runs size graphs, shrinks the first with a wrong result, and bounds the share of refusals."""
    tally = Tally()

    def check(graph: SizeGraph) -> None:
        results = outcomes(graph)
        tally.add(graph, results)
        for result in results:
            assert result.kind != WRONG, f"silently wrong at {result.point}: {result.detail}\n{graph}"
            if REASONS_ARE_NAMED and result.kind == REFUSED:
                assert names_its_reason(graph, result), f"at {result.point}: {result.detail!r}\n{graph}"

    test = rules(given(size_graphs())(check))
    (test if chosen is None else seed(chosen)(test))()
    assert tally.graphs >= rules.max_examples * 0.9, f"only {tally.graphs} graphs were different"
    assert tally.refused <= MOST_REFUSED * tally.points, f"{tally.table()}\n{tally.listing(shown=2)}"


def test_some_graphs() -> None:
    check_some(settings(SETTINGS, max_examples=FAST, derandomize=True))


@pytest.mark.held
@pytest.mark.parametrize("part", range(PARTS))
def test_many_graphs(part: int, request: pytest.FixtureRequest) -> None:
    chosen = request.config.getoption("--seed") * PARTS + part
    check_some(settings(SETTINGS, max_examples=IN_A_PART), chosen)
