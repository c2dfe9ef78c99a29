"""docs/benchmarks.md is the page of the stored results, and says of each form that did not run why."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def peers_page() -> Any:
    spec = importlib.util.spec_from_file_location("peers_page", BENCHMARKS / "peers_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_of_the_stored_results(peers_page: Any) -> None:
    rows = json.loads(peers_page.RESULTS.read_text(encoding="utf-8"))
    assert peers_page.PAGE.read_text(encoding="utf-8") == peers_page.page(rows), "python benchmarks/peers.py --page"
    assert [*rows] == [name for name in (*peers_page.SHOWN, *peers_page.ZOO) if name in rows]
    assert all(set(peers_page.TITLES) <= {*row["ms"], *row["failed"]} for row in rows.values())


def test_ratios_means_and_failures(peers_page: Any) -> None:
    condition = {"date": "2026-01-02", "load": 1.5, "threads": 1, "repeats": 3, "versions": {"torch": "2"}}
    forms = dict.fromkeys(peers_page.TITLES, 8.0)
    rows = {
        "resnet18": {**condition, "machine": "M", "ms": {"ONNX Runtime": 16.0, **forms}, "failed": {"peer": "a | `b`"}},
        "bert_base": {**condition, "machine": "M", "ms": {"ONNX Runtime": 1.0, **forms, "peer": 4.0}, "failed": {}},
        "densenet121": {**condition, "machine": "M", "ms": {"ONNX Runtime": 16.0, **forms}, "failed": {}},
    }
    del rows["densenet121"]["ms"]["compile"]
    lines = peers_page.page(rows).splitlines()
    assert "| | resnet18 | bert_base |" in lines and "| | densenet121 |" in lines
    assert "| peer | - | 4.00 |" in lines and "- peer, resnet18: `a / 'b'`" in lines
    assert "| | all (3) | above 5 ms (2) | below 5 ms (1) |" in lines
    assert "| onnx2nn, eager | 1.26 | 0.50 | 8.00 |" in lines, "the third root of 0.5 * 8 * 0.5"
    assert "| onnx2nn, compile | 2.00 of 2 | 0.50 of 1 | 8.00 |" in lines
    assert "| resnet18, bert_base, densenet121 | 2026-01-02 | M | 1 | 3 | 1.5 to 1.5 | torch 2 |" in lines
