"""`torch.func.stack_module_state` of two of them, called as an ensemble by `vmap`."""

from __future__ import annotations

import copy
from typing import Any

import torch

from tests.ecosystem.observing import Make, tensors
from tests.ecosystem.subjects.subject import Subject

TITLE = "`torch.func.stack_module_state`"


def use(make: Make, subject: Subject) -> Any:
    """Returns the outputs of both."""
    modules = [make(), make()]
    parameters, buffers = torch.func.stack_module_state(modules)
    inputs = subject.inputs(2)
    # Not moved to "meta", as torch's tutorial does: that unties GPT-2's matrices, and the original then gives what
    # happens to be in memory in place of the second one.
    base = copy.deepcopy(modules[0])

    def call(parameters: Any, buffers: Any) -> Any:
        return torch.func.functional_call(base, (parameters, buffers), inputs)

    return tensors(torch.vmap(call, randomness="error")(parameters, buffers))
