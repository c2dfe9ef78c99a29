"""The interface by which a tracer queries the paths of constants and layers."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from onnx2nn.fx.tracing.layers import Layer
from onnx2nn.importing.placement import ConstantName, LayerName


class Placement(Protocol):
    """Decides the paths of constants and layers in a module tree, and which calls become layers."""

    def inline(self, tensor: torch.Tensor) -> bool:
        """Returns whether a constant of one element may be written as a number."""

    def base(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the constant that the module holds for `tensor`: one of which it is a view, or `tensor` itself."""

    def constant(self, tensor: torch.Tensor) -> ConstantName:
        """Returns the path and kind of a constant."""

    def beside(self, tensor: torch.Tensor, slot: str) -> torch.Tensor | None:
        """Returns the author's weight of a name in the module of another one, None where there is none."""

    def fits(self, layer: Layer) -> bool:
        """Returns whether a call becomes this layer."""

    def holds(self, layer: Layer) -> bool:
        """Returns whether a layer would hold the author's weights unchanged, under their keys."""

    def layer(self, layer: Layer) -> LayerName:
        """Returns the path of a layer."""

    def caller(self) -> str | None:
        """Returns the author's module that computes what is being recorded, None where the file does not say."""

    def is_read_once(self) -> bool:
        """Returns whether one node alone reads the first output of the one that is recorded; False where unknown."""

    def describe(self, module: nn.Module) -> None:
        """Notes the origin of a layer on the layer."""


class Anonymous:
    """The placement of a program whose constants and layers have no names."""

    def inline(self, tensor: torch.Tensor) -> bool:
        """Returns True."""
        return True

    def base(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns `tensor`."""
        return tensor

    def constant(self, tensor: torch.Tensor) -> ConstantName:
        """Returns the name of a buffer."""
        return _BUFFER

    def beside(self, tensor: torch.Tensor, slot: str) -> torch.Tensor | None:
        """Returns None."""
        return None

    def fits(self, layer: Layer) -> bool:
        """Returns True."""
        return True

    def holds(self, layer: Layer) -> bool:
        """Returns True."""
        return True

    def layer(self, layer: Layer) -> LayerName:
        """Returns the layer's kind."""
        return LayerName([layer.kind.__name__.lower()])

    def caller(self) -> str | None:
        """Returns None."""
        return None

    def is_read_once(self) -> bool:
        """Returns False."""
        return False

    def describe(self, module: nn.Module) -> None:
        """Notes nothing."""


_BUFFER = ConstantName(["constant"], False, False)
