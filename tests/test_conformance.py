"""ONNX's own suite, case by case: what becomes of each is what `python scripts/conformance.py --write` stored."""

from __future__ import annotations

import onnx
import pytest

from scripts import conformance

VERSION, RESULTS = conformance.stored("torch")


@pytest.mark.slow
@pytest.mark.skipif(onnx.__version__ != VERSION, reason=f"the stored results are of onnx {VERSION}")
def test_the_suite_has_the_stored_cases() -> None:
    assert sorted(conformance.suite("torch").cases) == [result.name for result in RESULTS]


@pytest.mark.slow
@pytest.mark.parametrize("stored", RESULTS, ids=lambda result: result.name)
def test_case(stored: conformance.Result) -> None:
    """No case gives another answer, none by way of torch.export either."""
    if onnx.__version__ != VERSION and stored.name not in conformance.suite("torch").cases:
        pytest.skip(f"onnx {onnx.__version__} has no such case")
    result = conformance.run_case("torch", stored.name, export=True)
    assert result.verdict in ("passed", "refused"), result.reason
    assert "exported, but" not in result.export_reason
    if onnx.__version__ == VERSION:
        assert result == stored


def test_no_stored_result_is_wrong() -> None:
    assert len(RESULTS) > 2000
    assert {result.verdict for result in RESULTS} <= {"passed", "refused"}
    assert not [result for result in RESULTS if "exported, but" in result.export_reason]
