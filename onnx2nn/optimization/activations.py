"""Activations that oneDNN's kernels compute on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

Fused = tuple[str, tuple[float, ...], str]
"""An activation's name, numbers and algorithm, as torch's operators take them."""


@dataclass(frozen=True)
class Activation:
    """A function of a layer's result, which the layer's kernel computes on the way.

    Attributes:
        layer: computes it alone; activations of equal names, numbers and algorithms are equal.
        name: oneDNN's, as torch names it.
        scalars: its numbers.
        algorithm: which of several forms.
    """

    layer: nn.Module = field(compare=False)
    name: str
    scalars: tuple[float, ...] = ()
    algorithm: str = ""

    @property
    def of_kernel(self) -> Fused:
        """What torch's operators take."""
        return self.name, self.scalars, self.algorithm


NO_ACTIVATION: Fused = ("none", (), "")
"""What torch's operators take for none."""


def activation_of(layer: nn.Module) -> Activation | None:
    """Returns an activation as oneDNN computes it, None for one that it does not have."""
    kind = type(layer)
    if kind in _PLAIN:
        return Activation(layer, _PLAIN[kind])
    if isinstance(layer, nn.Hardtanh):  # ReLU6 is one
        return Activation(layer, "hardtanh", (layer.min_val, layer.max_val))
    if isinstance(layer, nn.LeakyReLU):
        return Activation(layer, "leaky_relu", (layer.negative_slope,))
    if isinstance(layer, nn.GELU):
        return Activation(layer, "gelu", (), layer.approximate)
    return None


_PLAIN: dict[type, str] = {
    nn.ReLU: "relu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.Hardswish: "hardswish",
    nn.Hardsigmoid: "hardsigmoid",
    nn.SiLU: "swish",
}
