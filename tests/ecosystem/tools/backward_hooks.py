"""Full backward hooks on every block: the same calls in the same order with the same gradients."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, by_name, outputs_and_gradient, tensors
from tests.ecosystem.subjects.subject import Subject

TITLE = "full backward hooks on blocks"


def use(make: Make, subject: Subject) -> Any:
    """Returns the gradients of each block's first argument and of its results."""
    module = make()
    seen: list[tuple[str, Any]] = []
    for path in subject.blocks:

        def hook(_: Any, of_arguments: Any, of_results: Any, path: str = path) -> None:
            seen.append((path, [tensors(of_arguments[:1]), tensors(of_results)]))

        module.get_submodule(path).register_full_backward_hook(hook)
    outputs_and_gradient(module, subject)
    return by_name(seen)
