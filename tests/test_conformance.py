"""ONNX's own suite, all of it, and the document that shows its score."""

from __future__ import annotations

import json
from collections.abc import Callable

from scripts import conformance, conformance_document, measured


def test_suite(record_property: Callable[[str, object], None]) -> None:
    """No case gives another answer, none by way of torch.export either, and the document says what came out.

    One test, as every part of it needs the results of the run, which takes minutes. Where only the document differs:
    `python scripts/conformance.py --write`.
    """
    results = conformance.run()
    record_property("score", f"ONNX's conformance suite: {conformance.score(results)}")
    wrong = [f"{r.name}: {r.reason}" for r in results if r.verdict not in ("passed", "refused")]
    wrong += [f"{r.name}: {r.export_reason}" for r in results if "exported, but" in r.export_reason]
    assert not wrong, "\n".join(wrong)
    judges = conformance_document.judges(results)
    nobody = [pair for pair, judge in judges.items() if not judge]
    assert len(nobody) < 0.05 * len(judges), nobody
    written = conformance_document.DOCUMENT.read_text(encoding="utf-8")
    assert written.splitlines() == conformance_document.document(results, judges).splitlines()
    assert json.loads(measured.PATH.read_text(encoding="utf-8"))["conformance"] == measured.conformance(results)
