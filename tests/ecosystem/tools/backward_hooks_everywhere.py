"""Full backward hooks on every module: the same calls in the same order, whose gradients are among the original's."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, Named, Results, outputs_and_gradient, tensors, weights_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "full backward hooks on all modules"


def use(make: Make, subject: Subject) -> Any:
    """Returns the gradients of the results of modules, and the order in which those with positional arguments are seen.

    Llama's author gives `self_attn` its arguments by keyword. Torch sees no gradient of these, and calls the hook
    before those of the modules inside.
    """
    module = make()
    seen: list[tuple[str, Any]] = []
    order: list[tuple[str, Any]] = []
    weights = weights_of(module)
    for name, inner in module.named_modules():

        def note(_: Any, of_arguments: Any, of_results: Any, name: str = name) -> None:
            seen.append((name, Results(tensors(of_results))))
            if of_arguments:
                order.append((name, None))

        inner.register_full_backward_hook(note)
    outputs_and_gradient(module, subject)
    return {"gradients": Named(weights, sorted(seen, key=lambda call: call[0])), "order": Named(weights, order)}
