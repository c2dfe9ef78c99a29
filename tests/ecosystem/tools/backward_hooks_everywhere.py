"""Full backward hooks on every module: the same calls in the same order, whose gradients are among the original's."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, Named, Results, outputs_and_gradient, tensors, weights_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "full backward hooks on all modules"


def use(make: Make, subject: Subject) -> Any:
    """Returns the gradients of the results of modules."""
    module = make()
    seen: list[tuple[str, Any]] = []
    weights = weights_of(module)
    for name, inner in module.named_modules():
        inner.register_full_backward_hook(
            lambda _, __, of_results, name=name: seen.append((name, Results(tensors(of_results))))
        )
    outputs_and_gradient(module, subject)
    return Named(weights, seen)
