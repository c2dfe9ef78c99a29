"""ONNX's conformance suite on OneFlow; docs/oneflow.md holds the score."""

from __future__ import annotations

import json
from collections import Counter

from scripts import conformance, measured


def test_no_case_is_wrong_and_no_process_ends():
    results = conformance.run(export=False, framework="oneflow")
    bad = [(r.name, r.verdict, r.reason) for r in results if r.verdict not in ("passed", "refused", "disputed")]
    assert not bad
    assert all(result.reason for result in results if result.verdict == "refused")
    score = Counter(result.verdict for result in results)
    known = json.loads(measured.PATH.read_text(encoding="utf-8"))["oneflow_import"]
    assert measured.conformance(results) == known, "python scripts/conformance.py --framework oneflow --write"
    assert score["passed"] >= 1350 and score["disputed"] <= 14, score
