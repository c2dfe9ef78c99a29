"""`torch.func`: gradients for each sample by `vmap` of `grad`, and a derivative along a direction by `jvp`."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.ecosystem.observing import Make, number_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "`torch.func`'s `vmap`, `grad` and `jvp`"


def use(make: Make, subject: Subject) -> Any:
    """Returns the samples' gradients of the head and the derivative of the outputs along its weights."""
    module = make()
    head = {f"{subject.head}.{name}": x.detach() for name, x in module.get_submodule(subject.head).named_parameters()}
    first, *others = subject.inputs(3)
    others = [x[1:2] for x in others]  # transformers reads the mask, which cannot be one a sample

    def call(head: Any, first: Any) -> Any:
        return torch.func.functional_call(module, head, (first, *(x.expand(len(first), -1) for x in others)))

    def loss(head: Any, sample: Any) -> Any:
        return number_of(call(head, sample.unsqueeze(0)))

    gradients = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(head, first)
    with sdpa_kernel(SDPBackend.MATH):  # the others have no derivative forwards
        outputs, derivative = torch.func.jvp(lambda head: call(head, first), (head,), (head,))
    return {"gradients": gradients, "outputs": outputs.detach(), "derivative": derivative.detach()}
