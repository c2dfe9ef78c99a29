"""Convolutions and linear layers whose weights lie in the order in which oneDNN's kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from onnx2nn.optimization.activations import NO_ACTIVATION, Activation, Fused
from onnx2nn.optimization.small_products import (
    blas_multiplies_pixels,
    blas_multiplies_rows,
    in_place,
    multiply_pixels,
    multiply_pixels_packed,
    multiply_rows,
)


def can_be_held(weight: torch.Tensor) -> bool:
    """Returns whether a packed layer takes a weight: of these types, on the CPU."""
    return weight.dtype in (torch.float32, torch.float16, torch.bfloat16) and weight.device.type == "cpu"


@torch.compiler.assume_constant_result
def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Returns a weight in torch's order; to a program that is traced it is a constant."""
    with ThreadPoolExecutor(1) as thread:  # a trace belongs to a thread, and cannot hold a packed tensor
        return thread.submit(packed.to_dense).result()


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The call that computes the results for inputs of one shape, in float32.

    Attributes:
        shape: of the inputs.
        call: takes an input, the weight, the bias and the settings.
        weight: as it is held.
        settings: what follows.
        result: the shape of the result; of images alone.
        adds: whether a tensor is added to the results.
    """

    shape: torch.Size
    call: Callable[..., torch.Tensor]
    weight: torch.Tensor
    settings: tuple[Any, ...]
    result: tuple[int, ...] = ()
    adds: bool = False


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
    weight_shape: torch.Size

    def __init__(self, layer: nn.Conv2d | nn.Linear):
        super().__init__()
        self.described, self.window = layer.extra_repr(), self._window(layer)
        self.activation: Activation | None = None
        self.register_parameter("bias", cast("nn.Parameter | None", layer.bias))
        self._fits = False
        self._dense: torch.Tensor | None = None
        self._packed: torch.Tensor | None = None
        self._prepared: _Prepared | None = None
        self.hold(layer.weight.detach())
        self.register_state_dict_post_hook(_save_weight)
        self.register_load_state_dict_pre_hook(_load_weight)

    @property
    def weight(self) -> torch.Tensor:
        """The weight as the plain layer has it; a copy where it is packed."""
        dense = self._dense
        if dense is not None:
            return dense
        unpacked = _unpacked(self._packed)  # type: ignore[arg-type]  # one is held
        return unpacked.to(self._type).view(self.weight_shape)

    def hold(self, weight: torch.Tensor) -> None:
        """Takes a weight."""
        raise NotImplementedError

    @staticmethod
    def _window(layer: Any) -> tuple[Any, ...]:
        """Returns the settings of the kernel."""
        return ()

    def _serves(self, x: torch.Tensor) -> bool:
        """Returns whether oneDNN's kernels compute the result."""
        return (
            self._fits
            and x.dtype is self._type
            and x.is_cpu
            and not (torch.compiler.is_compiling() or torch.jit.is_tracing())
            and not (torch.is_grad_enabled() and x.requires_grad)
            and not torch.is_autocast_enabled("cpu")
            and x.numel() > 0
        )

    @property
    def _fuses(self) -> bool:
        """Whether the kernel computes what is behind the layer too."""
        return self._type == torch.float32

    def _fused(self) -> Fused:
        return NO_ACTIVATION if self.activation is None or not self._fuses else self.activation.of_kernel

    def _bias(self) -> torch.Tensor | None:
        """Returns the bias for the kernel."""
        bias = self.bias
        return bias if bias is None or self._fuses else bias.float()

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; what was prepared for another activation is dropped."""
        super().__setattr__(name, value)
        if name == "activation":
            self._prepared = None

    def _activated(self, y: torch.Tensor) -> torch.Tensor:
        return y if self.activation is None else self.activation.layer(y)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PackedLayer:
        super()._apply(fn, recurse)
        self.hold(fn(self.weight))
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes with the plain weight."""
        return {**self.__dict__, "_packed": None, "_prepared": None, "_dense": self.weight}

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
        layer.hold(weight.detach().to(layer.weight, copy=True))


_NO_SIZE = torch.Size([])
"""Stands for the size of the images of a weight that is packed as a matrix."""


class PackedConv2d(PackedLayer):
    """An `nn.Conv2d` with a packed weight.

    The order in which a kernel reads the weight depends on the size of the image; a weight in another order is
    reordered in each call, which may take longer than the convolution. The weight is therefore packed in the first
    call, and anew for another size. After `SIZES` of them it stays plain: oneDNN packs a plain one fast in each call.
    Where the kernel has one element, oneDNN's product of pixels takes less time than its convolution, and the order of
    its weight does not depend on the size; torch multiplies few pixels by the plain weight, as in squeeze-and-excite
    blocks, if that takes less time here.

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
        self._prepared = None
        self.weight_shape = weight.shape
        padding, stride, _, groups = self.window
        self._of_pixels = weight.shape[2:] == (1, 1) and not any(padding) and max(stride) == 1 == groups
        self._size: torch.Size | None = None
        self._left = self.SIZES

    @staticmethod
    def _window(layer: Any) -> tuple[Any, ...]:
        return list(layer.padding), list(layer.stride), list(layer.dilation), layer.groups

    def _weight_for(self, x: torch.Tensor, *, as_matrix: bool = False) -> torch.Tensor:
        """Returns the weight as it is held for images of a size, or as a matrix for pixels, in float32."""
        packed, dense, size = self._packed, self._dense, _NO_SIZE if as_matrix else x.shape[2:]
        if dense is not None and not self._left:
            return dense.float().flatten(1) if as_matrix else dense.float()
        if packed is not None and size == self._size:
            return packed
        plain = self.weight.contiguous()
        if not self._left:
            self._hold_plain(plain.contiguous(memory_format=torch.channels_last))
            return self._weight_for(x, as_matrix=as_matrix)
        if as_matrix:
            packed = torch.ops.mkldnn._reorder_linear_weight(plain.float().flatten(1))
        else:
            packed = torch.ops.mkldnn._reorder_convolution_weight(plain.float(), *self.window, list(x.shape))
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
        if x.ndim != 4 or not self._serves(x):
            return self._plain(x, added)
        if not self._fuses:
            kernel = torch.ops.mkldnn._convolution_pointwise.default
            y = kernel(x.float(), self._weight_for(x), self._bias(), *self.window, *NO_ACTIVATION)
            return self._behind(y.to(self._type), added)
        prepared = self._prepared
        if prepared is None or prepared.shape != x.shape or prepared.adds != (added is not None):
            prepared = self._prepare(x, adds=added is not None)
        if added is None:
            return prepared.call(x, prepared.weight, self.bias, *prepared.settings)
        return self._sum(prepared, x, added) if self._can_add(added, prepared.result) else self._plain(x, added)

    def _plain(self, x: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        padding, stride, dilation, groups = self.window
        return self._behind(F.conv2d(x, self.weight, self.bias, stride, padding, dilation, groups), added)

    def _behind(self, y: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        return self._activated(y if added is None else y + added)

    @staticmethod
    def _can_add(added: torch.Tensor, shape: tuple[int, ...]) -> bool:
        return (
            added.shape == shape
            and added.dtype is torch.float32
            and added.is_cpu
            and not added.is_mkldnn
            and not (torch.is_grad_enabled() and added.requires_grad)
        )

    def _sum(self, prepared: _Prepared, x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        bias = self.bias
        if prepared.call is multiply_pixels:
            (activate,) = prepared.settings
            return multiply_pixels(x, prepared.weight, bias, activate, added)
        operands = (x, added, prepared.weight, bias, *self.window, "add", None)
        kernel = torch.ops.mkldnn._convolution_pointwise.binary
        if self.activation is not None and self.activation.name == "relu":  # it has no other one behind a sum
            return kernel(*operands, *self.activation.of_kernel)  # type: ignore[no-any-return]  # a tensor
        return self._activated(kernel(*operands, None, (), None))

    def _prepare(self, x: torch.Tensor, *, adds: bool) -> _Prepared:
        """Returns, and keeps, the call that computes the result for images of the shape of `x`."""
        result = self._result_shape(x)
        pixels = result[0] * result[2] * result[3]
        if self._of_pixels and blas_multiplies_pixels(pixels, self.weight_shape, self.activation):
            dense = self._hold_plain(self.weight) if self._dense is None else self._dense
            columns, activate = dense.flatten(1).t(), in_place(self.activation)
            prepared = _Prepared(x.shape, multiply_pixels, columns, (activate,), result, adds)
        elif self._of_pixels and not adds:  # the product has no activation behind a sum
            weight = self._weight_for(x, as_matrix=True)
            prepared = _Prepared(x.shape, multiply_pixels_packed, weight, self._fused(), result)
        else:
            kernel, settings = torch.ops.mkldnn._convolution_pointwise.default, (*self.window, *self._fused())
            prepared = _Prepared(x.shape, kernel, self._weight_for(x), settings, result, adds)
        self._prepared = prepared
        return prepared

    def _result_shape(self, x: torch.Tensor) -> tuple[int, ...]:
        padding, stride, dilation, _ = self.window
        kernel = self.weight_shape[2:]
        sizes = (
            (size + 2 * pad - spread * (window - 1) - 1) // step + 1
            for size, pad, step, spread, window in zip(x.shape[2:], padding, stride, dilation, kernel, strict=True)
        )
        return x.shape[0], self.weight_shape[0], *sizes


class PackedLinear(PackedLayer):
    """An `nn.Linear` with a packed weight.

    It is packed in the first call in which oneDNN takes less time here than torch does with the plain weight, which
    multiplies few rows faster.
    """

    def hold(self, weight: torch.Tensor) -> None:
        """Takes a weight, which a call packs."""
        self._fits, self._type = can_be_held(weight), weight.dtype
        self._dense, self._packed = weight, None
        self.weight_shape = weight.shape
        self._prepared = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the result for `(..., in_features)`."""
        if not self._serves(x):
            return self._activated(F.linear(x, self.weight, self.bias))
        if not self._fuses:
            kernel = torch.ops.mkldnn._linear_pointwise.default
            y = kernel(x.float(), self._packed_weight(), self._bias(), *NO_ACTIVATION)
            return self._activated(y.to(self._type))
        prepared = self._prepared
        if prepared is None or prepared.shape != x.shape:
            prepared = self._prepare(x)
        return prepared.call(x, prepared.weight, self.bias, *prepared.settings)

    def _prepare(self, x: torch.Tensor) -> _Prepared:
        """Returns, and keeps, the call that computes the result for inputs of the shape of `x`."""
        dense, rows = self._dense, x.numel() // x.shape[-1]
        if dense is not None and blas_multiplies_rows(rows, self.weight_shape, self.activation):
            prepared = _Prepared(x.shape, multiply_rows, dense, (in_place(self.activation),))
        else:
            kernel = torch.ops.mkldnn._linear_pointwise.default
            prepared = _Prepared(x.shape, kernel, self._packed_weight(), self._fused())
        self._prepared = prepared
        return prepared

    def _packed_weight(self) -> torch.Tensor:
        dense, packed = self._dense, self._packed
        if dense is None:
            return packed  # type: ignore[return-value]  # one is held
        packed = torch.ops.mkldnn._reorder_linear_weight(dense.float().contiguous())
        self._packed, self._dense = packed, None
        return packed
