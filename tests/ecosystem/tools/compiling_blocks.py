"""`block.compile()` of every block: compiled graphs are what runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from tests.ecosystem.observing import Make, outputs_and_gradient
from tests.ecosystem.subjects.subject import Subject

TITLE = "`block.compile()`"


def use(make: Make, subject: Subject) -> Any:
    """Returns how many compiled graphs a forward pass runs, whole blocks, and the outputs and gradient."""
    module = make()
    runs = 0

    def backend(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal runs
            runs += 1
            return graph.forward(*args)

        return run

    with torch._dynamo.config.patch(recompile_limit=64, allow_rnn=True):  # one code, blocks of many sizes
        for path in subject.blocks:
            module.get_submodule(path).compile(backend=backend, fullgraph=True)
        seen = outputs_and_gradient(module, subject)
    return {"runs": runs, **seen}
