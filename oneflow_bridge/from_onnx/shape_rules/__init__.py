"""Shape rules: the symbolic shapes of the results of the namespace's functions, by name.

The dynamic dimensions of the result of a call without a rule are unknown.
"""

from __future__ import annotations

from oneflow_bridge.from_onnx.shape_rules import arithmetic, layout, networks  # noqa: F401  # modules register their rules
from oneflow_bridge.from_onnx.shape_rules.rule import COUNTS_RESULTS, RULES, Uncovered

__all__ = ["COUNTS_RESULTS", "RULES", "Uncovered"]
