"""Convolutions and linear layers whose weights lie in the order in which oneDNN's kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Activation:
    """A function of a layer's result, which the layer's kernel computes on the way.

    Attributes:
        layer: computes it alone.
        name: oneDNN's, as torch names it.
        scalars: its numbers.
        algorithm: which of several forms.
    """

    layer: nn.Module
    name: str
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


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


def can_be_held(weight: torch.Tensor) -> bool:
    """Returns whether a packed layer takes a weight: of these types, on the CPU."""
    return weight.dtype in (torch.float32, torch.float16, torch.bfloat16) and weight.device.type == "cpu"


@torch.compiler.assume_constant_result
def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Returns a weight in torch's order; to a program that is traced it is a constant."""
    with ThreadPoolExecutor(1) as thread:  # a trace belongs to a thread, and cannot hold a packed tensor
        return thread.submit(packed.to_dense).result()


class PackedLayer(nn.Module):
    """A layer whose weight is held as oneDNN packs it, and nowhere else.

    On other devices, in other types, where gradients are recorded, and in traces and exported programs it computes with
    the plain weight, which `weight` gives. A copy, a pickle and `state_dict()` have the plain weight.

    A layer of float16 or bfloat16 packs its weight in float32, computes in it, and rounds the result, before what is
    added and the activation: a value above the type's largest is infinite to them, as it is behind the plain layer.

    Args:
        layer: the layer, float32, float16 or bfloat16 on the CPU.

    Attributes:
        bias: as the layer's.
        activation: of the result, or None.
    """

    bias: torch.Tensor | None

    def __init__(self, layer: nn.Conv2d | nn.Linear):
        super().__init__()
        self.described, self.window = layer.extra_repr(), self._window(layer)
        self.activation: Activation | None = None
        self.bias = layer.bias
        self._fits = False
        self._dense: torch.Tensor | None = None
        self._packed: torch.Tensor | None = None
        self.hold(layer.weight.detach())
        self.register_state_dict_post_hook(_save_weight)
        self.register_load_state_dict_pre_hook(_load_weight)

    @property
    def weight(self) -> torch.Tensor:
        """The weight as the plain layer has it; a copy where it is packed."""
        dense = self._dense
        return _unpacked(self._packed).to(self._type) if dense is None else dense  # type: ignore[arg-type]  # one is held

    def hold(self, weight: torch.Tensor) -> None:
        """Takes a weight: packed if the kernels serve, else as it is."""
        self._fits, self._type = can_be_held(weight), weight.dtype
        self._dense, self._packed = (None, self._pack(weight.float().contiguous())) if self._fits else (weight, None)

    @staticmethod
    def _window(layer: Any) -> tuple[Any, ...]:
        """Returns the settings of the kernel."""
        return ()

    def _pack(self, weight: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _serves(self, x: torch.Tensor) -> bool:
        """Returns whether oneDNN's kernels compute the result."""
        return (
            self._fits
            and not (torch.compiler.is_compiling() or torch.jit.is_tracing())
            and x.dtype == self._type
            and x.device.type == "cpu"
            and x.numel() > 0
            and not (torch.is_grad_enabled() and x.requires_grad)
            and not torch.is_autocast_enabled("cpu")
        )

    @property
    def _fuses(self) -> bool:
        """Whether the kernel computes what is behind the layer too."""
        return self._type == torch.float32

    def _fused(self) -> tuple[str, tuple[float, ...], str]:
        a = self.activation
        return ("none", (), "") if a is None or not self._fuses else (a.name, a.scalars, a.algorithm)

    def _bias(self) -> torch.Tensor | None:
        """Returns the bias for the kernel."""
        return None if self.bias is None else self.bias.float()

    def _activated(self, y: torch.Tensor) -> torch.Tensor:
        return y if self.activation is None else self.activation.layer(y)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PackedLayer:
        super()._apply(fn, recurse)
        self.hold(fn(self.weight))
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes with the plain weight."""
        return {**self.__dict__, "_packed": None, "_dense": self.weight}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes attributes, and packs the weight."""
        super().__setstate__(state)
        self.hold(self.weight)

    def extra_repr(self) -> str:
        """Returns the layer's settings, and the activation."""
        return self.described + ("" if self.activation is None else f", activation={self.activation.layer}")


def _save_weight(layer: PackedLayer, state: dict[str, Any], prefix: str, _: Any) -> None:
    state[prefix + "weight"] = layer.weight


def _load_weight(layer: PackedLayer, state: dict[str, Any], prefix: str, *others: Any) -> None:
    _, _, missing, _, errors = others
    weight = state.pop(prefix + "weight", None)
    if weight is None:
        missing.append(prefix + "weight")
    elif weight.shape != layer.weight.shape:
        errors.append(f"{prefix}weight has shape {tuple(weight.shape)}, not {tuple(layer.weight.shape)}")
    else:
        layer.hold(weight.detach().to(layer.weight))


class PackedConv2d(PackedLayer):
    """An `nn.Conv2d` with a packed weight.

    The order in which a kernel reads the weight depends on the size of the image; a weight in another order is
    reordered in each call, which may take longer than the convolution. The weight is therefore packed in the first
    call, and anew for another size. After `SIZES` of them it stays plain: oneDNN packs a plain one fast in each call.
    For single pixels, as in squeeze-and-excite blocks, torch multiplies by the plain weight, which takes a few us where
    finding oneDNN's kernel takes 20.

    Attributes:
        SIZES: for how many sizes of images in a row a weight is packed.

    Args:
        layer: the convolution, padded with zeros by numbers.
    """

    SIZES = 4

    def hold(self, weight: torch.Tensor) -> None:
        """Takes a weight, which a call packs."""
        self._fits, self._type = can_be_held(weight), weight.dtype
        self._dense, self._packed = weight, None
        self.weight_shape = weight.shape
        self._of_pixels = weight.shape[2:] == (1, 1) and not any(self.window[0]) and self.window[3] == 1
        self._size: torch.Size | None = None
        self._left = self.SIZES

    @staticmethod
    def _window(layer: Any) -> tuple[Any, ...]:
        return list(layer.padding), list(layer.stride), list(layer.dilation), layer.groups

    def _weight_for(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the weight as it is held for images of a size, in float32."""
        packed, dense, size = self._packed, self._dense, x.shape[2:]
        if dense is not None and not self._left:
            return dense.float()
        if packed is not None and size == self._size:
            return packed
        plain = self.weight.contiguous()
        if not self._left:
            return self._hold_plain(plain.contiguous(memory_format=torch.channels_last)).float()
        plain = plain.float()
        packed = torch.ops.mkldnn._reorder_convolution_weight(plain, *self.window, list(x.shape))
        self._packed, self._dense, self._size, self._left = packed, None, size, self._left - 1
        return packed

    def _hold_plain(self, weight: torch.Tensor) -> torch.Tensor:
        self._dense, self._packed = weight, None
        return weight

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the result for `(N, C, H, W)`, in the memory format `channels_last`.

        Args:
            x: the images.
            added: of the result's shape; it is added before the activation.
        """
        serves = x.ndim == 4 and self._serves(x)
        if serves and self._of_pixels and self._fuses and x.shape[2:] == (1, 1):
            serves = False
            if self._dense is None:
                self._hold_plain(self.weight)
        if serves:
            weight = self._weight_for(x)
            if added is None or not self._fuses:
                y = torch.ops.mkldnn._convolution_pointwise(
                    x.float(), weight, self._bias(), *self.window, *self._fused()
                )
                return y if self._fuses else self._behind(y.to(self._type), added)
            if added.shape == self._result_shape(x) and added.dtype == x.dtype and not added.is_mkldnn:
                return self._with_sum(x, weight, added)
        padding, stride, dilation, groups = self.window
        return self._behind(F.conv2d(x, self.weight, self.bias, stride, padding, dilation, groups), added)

    def _behind(self, y: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        return self._activated(y if added is None else y + added)

    def _with_sum(self, x: torch.Tensor, weight: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        kernel = torch.ops.mkldnn._convolution_pointwise.binary
        if self.activation is not None and self.activation.name == "relu":  # it has no other one behind a sum
            return kernel(x, added, weight, self.bias, *self.window, "add", None, *self._fused())
        return self._activated(kernel(x, added, weight, self.bias, *self.window, "add", None, None, (), None))

    def _result_shape(self, x: torch.Tensor) -> tuple[int, ...]:
        padding, stride, dilation, _ = self.window
        kernel = self.weight_shape[2:]
        sizes = (
            (size + 2 * pad - spread * (window - 1) - 1) // step + 1
            for size, pad, step, spread, window in zip(x.shape[2:], padding, stride, dilation, kernel, strict=True)
        )
        return x.shape[0], self.weight_shape[0], *sizes


class PackedLinear(PackedLayer):
    """An `nn.Linear` with a packed weight."""

    def _pack(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._reorder_linear_weight(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the result for `(..., in_features)`."""
        if self._serves(x):
            y = torch.ops.mkldnn._linear_pointwise(x.float(), self._packed, self._bias(), *self._fused())
            return y if self._fuses else self._activated(y.to(self._type))
        return self._activated(F.linear(x, self.weight, self.bias))
