"""ONNX's own suite, all of it, and the document that shows its score."""

from __future__ import annotations

import functools

from scripts import conformance, conformance_document


@functools.cache
def results() -> list[conformance.Result]:
    return conformance.run()


def test_no_case_gives_another_answer() -> None:
    wrong = [f"{r.name}: {r.reason}" for r in results() if r.verdict not in ("passed", "refused")]
    assert not wrong, "\n".join(wrong)


def test_torch_export_gives_no_other_answer() -> None:
    wrong = [f"{r.name}: {r.export_reason}" for r in results() if "exported, but" in r.export_reason]
    assert not wrong, "\n".join(wrong)


def test_the_document_is_current() -> None:
    """Otherwise: python scripts/conformance.py --write."""
    written = conformance_document.DOCUMENT.read_text(encoding="utf-8")
    assert written.splitlines() == conformance_document.document(results()).splitlines()


def test_few_revisions_are_unverified() -> None:
    judges = conformance_document.judges(results())
    nobody = [pair for pair, judge in judges.items() if not judge]
    assert len(nobody) < 0.05 * len(judges), nobody
