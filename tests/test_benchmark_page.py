"""docs/benchmarks.md and docs/decoding.md are the pages of the stored results, and say why a form did not run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def _page_module(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(BENCHMARKS)
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def peers_page() -> Any:
    return _page_module("peers_page")


@pytest.fixture(scope="module")
def decoding_page() -> Any:
    return _page_module("decoding_page")


def test_the_page_is_of_the_stored_results(peers_page: Any) -> None:
    rows = json.loads(peers_page.RESULTS.read_text(encoding="utf-8"))
    assert peers_page.PAGE.read_text(encoding="utf-8") == peers_page.page(rows, peers_page.floors()), (
        "python benchmarks/peers.py --page"
    )
    assert [*rows] == [name for name in peers_page.ORDER if name in rows]
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
    floor = {"name": "net", "form": "literal", "versions": {"torch": "2"}, "date": "2026-01-02", "load": 1.5}
    floor |= {"machine": "M", "repeats": 3, "ms": {"ONNX Runtime": 2.0, "literal": 7.0, "its calls": 5.0}}
    lines = peers_page.page(rows, [floor]).splitlines()
    assert "| net | literal | 2.00 | 3.50 | its calls 2.50 | 3 | 2026-01-02 | 1.5 | M | torch 2 |" in lines
    assert "| | resnet18 | bert_base |" in lines and "| | densenet121 |" in lines
    assert "| peer | - | 4.00 |" in lines and "- peer, resnet18: `a / 'b'`" in lines
    assert "| | all (3) | above 5 ms (2) | below 5 ms (1) |" in lines
    assert "| onnx2nn, eager | 1.26 | 0.50 | 8.00 |" in lines, "the third root of 0.5 * 8 * 0.5"
    assert "| onnx2nn, compile | 2.00 of 2 | 0.50 of 1 | 8.00 |" in lines
    assert "| resnet18, bert_base, densenet121 | 2026-01-02 | M | 1 | 3 | 1.5 to 1.5 | torch 2 |" in lines


def test_the_page_of_decoding_is_of_the_stored_run(decoding_page: Any) -> None:
    run = json.loads(decoding_page.RESULTS.read_text(encoding="utf-8"))
    written = decoding_page.PAGE.read_text(encoding="utf-8")
    assert written == decoding_page.page(run), "python benchmarks/decoding.py --page"
    for precision in decoding_page.PRECISIONS:
        found = [*run["rates"][precision], *run["failed"][precision]]
        assert set(found) >= {decoding_page.GENAI, "transformers", *decoding_page.forms(precision)}
        assert all(len(rates) == run["repeats"] for rates in run["rates"][precision].values())


def test_rates_of_decoding_and_failures(decoding_page: Any) -> None:
    rates = {decoding_page.GENAI: [10.0, 20.0, 40.0], "onnx2nn": [5.0, 30.0, 15.0]}
    run = {
        **{"date": "2026-01-02", "load": 1.5, "threads": 1, "repeats": 3, "machine": "M", "prompt": 16, "tokens": 64},
        **{"versions": {"torch": "2"}, "model": {"num_hidden_layers": 8, "hidden_size": 512}},
        "rates": dict.fromkeys(decoding_page.PRECISIONS, rates),
        "failed": {"fp32": {}, "int4": {"onnx2nn, torchao": "a | `b`"}},
        "files": {"llama": {"fp32": "runs", "int4": "no | `cache`"}},
    }
    lines = decoding_page.page(run).splitlines()
    assert lines.count("| onnx2nn | 30 | 0.75 | 0.75 |") == 2, "30 of 40, and 15 of 20"
    assert "- onnx2nn, torchao: `a / 'b'`" in lines and "| llama | runs | `no / 'cache'` |" in lines
    assert "| 2026-01-02 | M | 1 | 3 | 1.5 | torch 2 |" in lines
    assert not any("Files that Optimum" in line for line in decoding_page.page({**run, "files": {}}).splitlines())
