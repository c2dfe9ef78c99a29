"""Convolutions of 8-bit integers in compiled programs: a custom op in the trace, oneDNN's kernels in the code.

A trace has no values, and which kernel sums exactly depends on the weights. So a trace records one call, which a pass
of inductor replaces when the weights are constants.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import fx

from onnx2nn.ops import integer_kernels
from onnx2nn.ops.integer_convolutions import Window, available, exact_parts, is_right, kernel_pads, spread
from onnx2nn.optimization.graph_calls import GraphCalls
from onnx2nn.optimization.integer_images import laid_out, padded, windows
from onnx2nn.optimization.product_code import is_small

_FLOATS = 1 << 24
"""Up to this number, floats of 32 bits hold all integers."""


@torch.library.custom_op("onnx2nn::integer_convolution", mutates_args=())
def integer_convolution(
    x: torch.Tensor,
    zero_point: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    pads: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    """Returns the convolution of `x - zero_point` with `weight`, plus the bias, in int32.

    Args:
        x: `(N, C, H, W)`, uint8.
        zero_point: one number, uint8, which the pads hold.
        weight: `(O, C / groups, kH, kW)`, int16.
        bias: None or `(O,)`, int32.
        stride: of each spatial dimension.
        pads: all begins, then all ends.
        dilation: of each spatial dimension.
        groups: how many groups the channels form.
    """
    top, left, bottom, right = pads
    data = x.to(torch.float64) - zero_point.reshape([]).to(torch.float64)
    data = torch.nn.functional.pad(data, [left, right, top, bottom])
    given = None if bias is None else bias.to(torch.float64)
    found = torch.nn.functional.conv2d(
        data, weight.to(torch.float64), given, stride=stride, dilation=dilation, groups=groups
    )
    return found.to(torch.int64).to(torch.int32)  # int32 wraps around


@integer_convolution.register_fake
def _(
    x: torch.Tensor,
    zero_point: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    pads: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    sizes = (
        (size + begin + end - (kernel - 1) * spread - 1) // step + 1
        for size, begin, end, kernel, spread, step in zip(
            x.shape[2:], pads[:2], pads[2:], weight.shape[2:], dilation, stride, strict=True
        )
    )
    return x.new_empty([x.shape[0], weight.shape[0], *sizes], dtype=torch.int32)


@torch.library.custom_op("onnx2nn::requantized_convolution", mutates_args=())
def requantized_convolution(
    x: torch.Tensor,
    zero_point: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    pads: list[int],
    dilation: list[int],
    groups: int,
    scale: torch.Tensor,
    result_zero_point: torch.Tensor,
) -> torch.Tensor:
    """Returns `integer_convolution` times a scale, rounded, plus a zero point, in uint8, which saturates.

    Args:
        x: as for `integer_convolution`.
        zero_point: likewise.
        weight: likewise.
        bias: likewise.
        stride: likewise.
        pads: likewise.
        dilation: likewise.
        groups: likewise.
        scale: `(1,)` or `(O,)`, float32.
        result_zero_point: one number, uint8.
    """
    sums = integer_convolution(x, zero_point, weight, bias, stride, pads, dilation, groups)
    steps = torch.round(sums.to(torch.float32) * scale.reshape(-1, 1, 1))
    return (steps + result_zero_point.to(torch.float32)).clamp(0, 255).to(torch.uint8)


@requantized_convolution.register_fake
def _(*arguments: Any) -> torch.Tensor:
    return torch.ops.onnx2nn.integer_convolution(*arguments[:8]).to(torch.uint8)


def call_kernels(graph: fx.Graph) -> None:
    """Replaces convolutions of integers by oneDNN's kernels with packed weights, and others by convolutions of floats.

    It is a pass of inductor behind its freezing.

    Args:
        graph: of operators, whose weights are constants.
    """
    for target in (torch.ops.onnx2nn.requantized_convolution.default, torch.ops.onnx2nn.integer_convolution.default):
        for node in graph.find_nodes(op="call_function", target=target):
            with graph.inserting_before(node):
                calls = _Calls(graph, node)
                scaled = calls.requantized if len(node.args) > _SUMMED else calls.summed
                node.replace_all_uses_with(scaled())
            graph.erase_node(node)


_SUMMED = 8
"""The number of arguments of `integer_convolution`, which `requantized_convolution` has first."""


class _Kernel(NamedTuple):
    """What oneDNN's kernel takes, whose sums are exact.

    Attributes:
        x: the input with the pads that the kernel cannot add.
        window: of the kernel.
        weight: integers that fit int8.
        parts: see `exact_parts`.
        most: likewise.
        offset: what is added to the sums, int64.
        by_data: whether data decide the zero point, of which the offset has nothing then.
    """

    x: fx.Node
    window: Window
    weight: torch.Tensor
    parts: list[tuple[int, int]]
    most: float
    offset: torch.Tensor
    by_data: bool


class _Calls:
    """Writes the calls that replace one convolution.

    Args:
        graph: of operators.
        node: the convolution.
    """

    def __init__(self, graph: fx.Graph, node: fx.Node):
        arguments: Any = node.args
        self._calls, self._name, self._shape = GraphCalls(graph), node.name, node.meta["val"].shape
        self._x, *self._operands = arguments[:4]
        stride, self._pads, dilation, groups, *self._scaling = arguments[4:]
        top, left, bottom, right = self._pads
        self._order = [left, right, top, bottom]
        self._constants = [self._calls.constant(source) for source in self._operands]
        kernel = self._operands[1].meta["val"].shape[2:]
        self._window = Window(tuple(stride), (0, 0), spread(kernel, dilation), groups)

    def summed(self) -> fx.Node:
        """Writes the convolution in int32."""
        found = self._of_windows()
        if found is not None:
            return found
        kernel = self._kernel()
        return self._of_floats() if kernel is None else self._of_integers(kernel)

    def requantized(self) -> fx.Node:
        """Writes the convolution, scaled and rounded: by the kernel where it can, which rounds sums with their bias."""
        found = self._of_windows()
        if found is not None:
            return self._rounded(found)
        kernel, (scale, zero) = self._kernel(), map(self._calls.constant, self._scaling)
        if kernel is None:
            return self._rounded(self._of_floats())
        summed = kernel.by_data or len(kernel.parts) > 1  # by more calls than the kernel's one
        if summed or scale is None or zero is None or not bool(scale.isfinite().all()):
            return self._rounded(self._of_integers(kernel))
        added = None
        if bool(kernel.offset.any()):
            added = self._kept("bias", (kernel.offset.to(torch.float64) * scale.to(torch.float64)).to(torch.float32))
        return self._call(kernel.x, kernel.weight, None, kernel.window, added, scale, int(zero), torch.uint8)

    def _of_windows(self) -> fx.Node | None:
        """Writes a small convolution as the product of its windows and weights; None for another one.

        oneDNN takes 30 us to find its convolution, and 1 us for its product of the same numbers.

        Law: as x is s + 128 in bytes, the sum of (x - z) w is that of s w, and the sum of w times 128 - z.
        """
        zero_point, weight, bias = self._constants
        if weight is None or (bias is None and self._operands[2] is not None) or self._window.groups > 1:
            return None
        if not integer_kernels.available(torch) or not self._is_small(weight):
            return None
        zero, call, aten = None if zero_point is None else int(zero_point), self._calls.call, torch.ops.aten
        signed = call(aten.view.dtype, call(aten.bitwise_xor.Scalar, self._padded(zero), 128), torch.int8)
        rows, shape = windows(self._calls, signed, weight.shape[2:], self._window)
        columns = integer_kernels.in_columns(torch, weight.flatten(1).t().to(torch.int8))
        found = call(aten._int_mm.default, rows, self._kept("columns", columns))
        offset = _offset(weight, 128 - (zero or 0), bias)
        found = call(aten.add.Tensor, found, self._kept("offset", offset.to(torch.int32)))
        if zero is None:
            found = call(aten.sub.Tensor, found, self._of_zeros(weight.sum([1, 2, 3], dtype=torch.int32)))
        return call(aten.permute.default, call(aten.reshape.default, found, [*shape, len(weight)]), [0, 3, 1, 2])

    def _is_small(self, weight: torch.Tensor) -> bool:
        """Returns whether a convolution is small at the sizes of the example, and torch's product takes its weights."""
        if weight.min() < -128 or weight.max() > 127 or min(len(weight), weight[0].numel()) < 2:
            return False
        images, _, *positions = self._shape
        return is_small([images, *positions], weight)

    def _of_zeros(self, sums: torch.Tensor) -> fx.Node:
        """Writes the product of a zero point that data decide and sums of weights, in int32."""
        zero = self._calls.call(torch.ops.prims.convert_element_type.default, self._operands[0], torch.int32)
        return self._calls.call(torch.ops.aten.mul.Tensor, self._kept("sums", sums), self._scalar(zero))

    def _rounded(self, sums: fx.Node) -> fx.Node:
        """Writes the scaling and rounding of sums."""
        convert, call = torch.ops.prims.convert_element_type.default, self._calls.call
        scale, zero = self._scaling
        steps = call(convert, sums, torch.float32)
        steps = call(torch.ops.aten.mul.Tensor, steps, call(torch.ops.aten.reshape.default, scale, [-1, 1, 1]))
        steps = call(torch.ops.aten.round.default, steps)
        steps = call(torch.ops.aten.add.Tensor, steps, call(convert, zero, torch.float32))
        low, high = (self._kept(name, torch.tensor(limit)) for name, limit in (("low", 0.0), ("high", 255.0)))
        steps = call(torch.ops.aten.minimum.default, call(torch.ops.aten.maximum.default, steps, low), high)
        return call(convert, steps, torch.uint8)

    def _kernel(self) -> _Kernel | None:
        """Returns what oneDNN's kernel takes; None where the sums are not known to be exact."""
        if not available(torch):
            return None
        zero_point, weight, bias = self._constants
        if weight is None or (bias is None and self._operands[2] is not None):
            return None
        parts, most = exact_parts(torch, weight, self._window.groups)
        if not parts:
            return None
        zero = None if zero_point is None else int(zero_point)
        x, window = self._image(zero)
        if not is_right(x.meta["val"].shape[2:], weight.shape[2:], window, weight.shape[1]):
            return None
        offset = _offset(weight, -(zero or 0), bias)
        added = x.meta["val"].shape[1] - weight.shape[1] * window.groups
        weight = torch.nn.functional.pad(weight, [0, 0, 0, 0, 0, added])  # zeros for channels that the image has not
        return _Kernel(x, window, weight, parts, most, offset, zero is None)

    def _of_integers(self, kernel: _Kernel) -> fx.Node:
        """Writes calls of oneDNN's kernel, and their sum in int32."""
        x, window, weight, parts, most, offset, by_data = kernel
        inside = len(parts) == 1 and most + int(offset.abs().max()) < _FLOATS
        added = self._kept("bias", offset.to(torch.float32)) if inside else None
        if len(parts) == 1:
            sums = [self._sums(x, weight, None, window, added)]
        else:
            sums = [self._sums(x, weight[:, a:b], (a, b), window, added) for a, b in parts]
        found = sums[0]
        for other in sums[1:]:
            found = self._calls.call(torch.ops.aten.add.Tensor, found, other)
        if not inside:
            wrapped = offset.to(torch.int32).reshape(-1, 1, 1)
            found = self._calls.call(torch.ops.aten.add.Tensor, found, self._kept("offset", wrapped))
        if by_data:
            of_zeros = self._of_zeros(weight.sum([1, 2, 3], dtype=torch.int32).reshape(-1, 1, 1))
            found = self._calls.call(torch.ops.aten.sub.Tensor, found, of_zeros)
        return found

    def _padded(self, zero: int | None) -> fx.Node:
        """Returns the input with pads that hold its zero point; None for one that data decide.

        Law: (x - z) + z is x in bytes, which wrap around, and 0 + z is z.
        """
        if not any(self._pads):
            return self._x
        if zero is not None:
            return padded(self._calls, self._x, self._order, zero)
        call, one = self._calls.call, self._scalar(self._operands[0])
        inner = padded(self._calls, call(torch.ops.aten.sub.Tensor, self._x, one), self._order, 0)
        return call(torch.ops.aten.add.Tensor, inner, one)

    def _image(self, zero: int | None) -> tuple[fx.Node, Window]:
        """Returns the input as oneDNN's kernel takes it, padded where that cannot pad by zeros, and the window."""
        begins, window, lay_out = tuple(self._pads[:2]), self._window, functools.partial(laid_out, self._calls)
        if zero is None:
            return lay_out(self._padded(None), [], 0, window.groups), window
        if not any(self._pads) or kernel_pads(zero, self._pads, window.dilation):
            return lay_out(self._x, [], zero, window.groups), window._replace(padding=begins)
        return lay_out(self._x, self._order, zero, window.groups), window

    def _scalar(self, node: Any) -> fx.Node:
        return self._calls.call(torch.ops.aten.reshape.default, node, [])

    def _sums(
        self, x: Any, weight: torch.Tensor, channels: tuple[int, int] | None, window: Window, added: Any
    ) -> fx.Node:
        """Writes one call of the kernel, whose sums are floats, and their conversion to int32."""
        call = self._call(x, weight, channels, window, added, torch.ones(weight.shape[0]), 0, torch.float32)
        return self._calls.call(torch.ops.prims.convert_element_type.default, call, torch.int32)

    def _call(
        self,
        x: Any,
        weight: torch.Tensor,
        channels: tuple[int, int] | None,
        window: Window,
        added: Any,
        scale: torch.Tensor,
        zero: int,
        dtype: torch.dtype,
    ) -> fx.Node:
        """Writes one call of the kernel, of all channels or a part."""
        suffix = "" if channels is None else f"_{channels[0]}"
        part = x if channels is None else self._calls.call(torch.ops.aten.slice.Tensor, x, 1, *channels)
        sizes = [1, *part.meta["val"].shape[1:]]  # the order of the weights does not depend on the number of images
        known = sizes if all(isinstance(size, int) for size in sizes) else None
        small = weight.to(torch.int8).contiguous()
        packed = torch.ops.onednn.qconv_prepack(small, torch.ones(weight.shape[0]), 1.0, 0, *window, known)
        kept, zeros = self._kept(f"weight{suffix}", packed, small), torch.zeros(scale.shape, dtype=torch.int64)
        return self._calls.call(
            torch.ops.onednn.qconv_pointwise.default,
            part, 1.0, 0, kept, self._kept("scale", scale), self._kept("zeros", zeros), added,
            *map(list, window[:3]), window.groups, 1.0, zero, dtype, "none", [], "",
        )  # fmt: skip

    def _of_floats(self) -> fx.Node:
        """Writes the convolution in float64, which holds each sum of integers."""
        convert, pad = torch.ops.prims.convert_element_type.default, torch.ops.aten.constant_pad_nd.default
        x, zero_point, weight, bias = (
            None if operand is None else self._calls.call(convert, operand, torch.float64)
            for operand in (self._x, *self._operands)
        )
        data = self._calls.call(torch.ops.aten.sub.Tensor, x, self._scalar(zero_point))
        data = self._calls.call(pad, data, self._order, 0.0)
        window = [list(self._window.stride), [0, 0], list(self._window.dilation), False, [0, 0], self._window.groups]
        found = self._calls.call(torch.ops.aten.convolution.default, data, weight, bias, *window)
        return self._calls.call(convert, self._calls.call(convert, found, torch.int64), torch.int32)

    def _kept(self, title: str, value: torch.Tensor, shown: torch.Tensor | None = None) -> fx.Node:
        return self._calls.kept(f"{title}_of_{self._name}", value, shown)


def _offset(weight: torch.Tensor, each: int, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns what is added to the sums of each output channel, int64: `each` times its weights, and the bias."""
    offset = weight.sum([1, 2, 3], dtype=torch.int64) * each
    return offset if bias is None else offset + bias.to(torch.int64)
