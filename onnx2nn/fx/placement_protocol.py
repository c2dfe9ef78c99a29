"""What a tracer asks about the constants and layers of the module that it builds."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from onnx2nn.fx.layers import Layer
from onnx2nn.importing.placement import ConstantName


class Placement(Protocol):
    """Says where constants and layers are held in a module tree, and which calls become layers."""

    def inline(self, tensor: torch.Tensor) -> bool:
        """Returns whether a constant of one element may be written as a number."""

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the constant to hold of which `tensor` is a view, `tensor` itself where that is it."""

    def constant(self, tensor: torch.Tensor) -> ConstantName:
        """Returns where a constant is held, and as what."""

    def fits(self, layer: Layer) -> bool:
        """Returns whether a call becomes this layer."""

    def layer(self, layer: Layer) -> tuple[list[str], bool]:
        """Returns where a layer is held, and whether that path is the author's, which nothing else may have."""

    def describe(self, module: nn.Module) -> None:
        """Notes on a layer what it is made of."""


class Anonymous:
    """The placement of a program whose constants and layers have no names."""

    def inline(self, tensor: torch.Tensor) -> bool:
        """Returns True."""
        return True

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns `tensor`."""
        return tensor

    def constant(self, tensor: torch.Tensor) -> ConstantName:
        """Returns the name of a buffer."""
        return _BUFFER

    def fits(self, layer: Layer) -> bool:
        """Returns True."""
        return True

    def layer(self, layer: Layer) -> tuple[list[str], bool]:
        """Returns the layer's kind."""
        return [layer.kind.__name__.lower()], False

    def describe(self, module: nn.Module) -> None:
        """Notes nothing."""


_BUFFER = ConstantName(["constant"], False, False)
