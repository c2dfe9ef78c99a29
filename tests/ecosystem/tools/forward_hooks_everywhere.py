"""Forward hooks on every module: the same calls in the same order, whose results are among the original's."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, Named, Results, outputs_of, tensors, weights_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "forward hooks on all modules"


def use(make: Make, subject: Subject) -> Any:
    """Returns the calls that the hooks see."""
    module = make()
    seen: list[tuple[str, Any]] = []
    weights = weights_of(module)
    for name, inner in module.named_modules():
        inner.register_forward_hook(lambda _, __, result, name=name: seen.append((name, Results(tensors(result)))))
    outputs_of(module, subject)
    return Named(weights, seen)
