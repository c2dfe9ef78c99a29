"""Forward hooks on every block: the same calls in the same order with the same results."""

from __future__ import annotations

from typing import Any

from tests.ecosystem.observing import Make, by_name, outputs_of, results
from tests.ecosystem.subjects.subject import Subject

TITLE = "forward hooks on blocks"


def use(make: Make, subject: Subject) -> Any:
    """Returns the calls that the hooks see."""
    module = make()
    seen: list[tuple[str, Any]] = []
    for path in subject.blocks:
        block = module.get_submodule(path)
        block.register_forward_hook(lambda _, __, result, path=path: seen.append((path, results(result))))
    outputs_of(module, subject)
    return by_name(seen)
