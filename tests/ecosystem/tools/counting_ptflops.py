"""ptflops' count of multiply-adds, of layers that are modules."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.ecosystem.observing import Make
from tests.ecosystem.subjects.subject import Subject

TITLE = "counts of layers (ptflops)"
PACKAGES = ("ptflops",)

_LEFT_OUT = [nn.BatchNorm2d, nn.GELU]
"""Exporters fold the norms into convolutions; transformers has classes of its own for GELU, which ptflops does not know
and which come back as torch's."""


class _Called(nn.Module):
    """Gives ptflops the one argument that it has for a model.

    Args:
        module: takes several.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Any) -> Any:
        """Takes a tuple."""
        return self.module(*inputs)


def use(make: Make, subject: Subject) -> Any:
    """Returns the count for the convolutions, linear, recurrent and activation layers."""
    import ptflops

    module = make()
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.bias = None  # the bias of a folded norm would count
    count, _ = ptflops.get_model_complexity_info(
        _Called(module),
        (1,),
        input_constructor=lambda _: {"inputs": subject.inputs(1)},
        as_strings=False,
        print_per_layer_stat=False,
        ignore_modules=_LEFT_OUT,
        backend="pytorch",
        backend_specific_config={"count_functional": False},
    )
    if count is None:
        raise ValueError("ptflops counts nothing")
    return count
