"""ONNX's conformance suite on OneFlow, case by case; docs/oneflow.md holds the score."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest

from scripts import conformance

VERSION, RESULTS = conformance.stored("oneflow")


@pytest.mark.slow
@pytest.mark.skipif(onnx.__version__ != VERSION, reason=f"the stored results are of onnx {VERSION}")
@pytest.mark.parametrize("stored", RESULTS, ids=lambda result: result.name)
def test_case(stored: conformance.Result) -> None:
    """No case is wrong and none ends the process; `python scripts/conformance.py --framework oneflow --write`."""
    result = conformance.run_case("oneflow", stored.name, export=False)
    assert result.verdict in ("passed", "refused", "disputed"), result.reason
    assert result.reason or result.verdict != "refused"
    assert result.verdict == stored.verdict


def test_the_stored_score() -> None:
    score = Counter(result.verdict for result in RESULTS)
    assert set(score) <= {"passed", "refused", "disputed"} and score["passed"] >= 1350 and score["disputed"] <= 14, (
        score
    )


@pytest.mark.slow
def test_the_suite_has_the_stored_cases() -> None:
    if onnx.__version__ == VERSION:
        assert sorted(conformance.suite("oneflow").cases) == [result.name for result in RESULTS]
