"""fvcore's count of multiply-adds by module and operator."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, Named, weights_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "counts by module (fvcore)"
PACKAGES = ("fvcore",)

_OPERATORS = ("conv", "linear", "addmm", "lstm")
"""What layers with weights are; norms are folded by exporters, and attention is written in several ways."""


def use(make: Make, subject: Subject) -> Any:
    """Returns the counts of the operators of layers, by module."""
    from fvcore.nn import FlopCountAnalysis

    module = make()
    analysis = FlopCountAnalysis(module, subject.inputs(1))
    counts = analysis.by_module_and_operator()
    seen = [(name, {key: count for key, count in by.items() if key in _OPERATORS}) for name, by in counts.items()]
    total = {key: count for key, count in analysis.by_operator().items() if key in _OPERATORS}
    return {"total": total, "modules": Named({name: [] for name in weights_of(module)}, sorted(seen))}
