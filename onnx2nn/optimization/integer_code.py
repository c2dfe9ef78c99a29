"""Convolutions of 8-bit integers in compiled programs: a custom op in the trace, oneDNN's kernels in the code.

A trace has no values, and which kernel sums exactly depends on the weights. So a trace records one call, which a pass
of inductor replaces when the weights are constants.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from onnx2nn.ops.integer_convolutions import Window, exact_parts, kernel_pads, spread, writes_all
from onnx2nn.optimization.graph_calls import GraphCalls

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


def call_kernels(graph: fx.Graph) -> None:
    """Replaces convolutions of integers by oneDNN's kernels with packed weights, and others by convolutions of floats.

    It is a pass of inductor behind its freezing.

    Args:
        graph: of operators, whose weights are constants.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.onnx2nn.integer_convolution.default):
        with graph.inserting_before(node):
            calls = _Calls(graph, node)
            node.replace_all_uses_with(calls.of_integers() or calls.of_floats())
        graph.erase_node(node)


class _Calls:
    """Writes the calls that replace one convolution.

    Args:
        graph: of operators.
        node: the convolution.
    """

    def __init__(self, graph: fx.Graph, node: fx.Node):
        arguments: Any = node.args
        self._calls, self._name = GraphCalls(graph), node.name
        self._x, *self._operands = arguments[:4]
        stride, self._pads, dilation, groups = arguments[4:]
        self._constants = [self._calls.constant(source) for source in self._operands]
        kernel = self._operands[1].meta["val"].shape[2:]
        self._window = Window(tuple(stride), (0, 0), spread(kernel, dilation), groups)

    def of_integers(self) -> fx.Node | None:
        """Writes calls of oneDNN's kernel; none, and None, where the sums are not known to be exact."""
        zero_point, weight, bias = self._constants
        if zero_point is None or weight is None or (bias is None and self._operands[2] is not None):
            return None
        parts, most = exact_parts(torch, weight, self._window.groups)
        if not parts:
            return None
        zero = int(zero_point)
        x, window = self._padded(zero)
        if not writes_all(x.meta["val"].shape[2:], weight.shape[2:], window, weight.shape[1]):
            return None
        offset = weight.sum([1, 2, 3], dtype=torch.int64) * -zero + (0 if bias is None else bias.to(torch.int64))
        inside = len(parts) == 1 and most + int(offset.abs().max()) < _FLOATS
        added = self._kept("bias", offset.to(torch.float32)) if inside else None
        sums = [self._sums(x, weight[:, a:b], (a, b) if len(parts) > 1 else None, window, added) for a, b in parts]
        found = sums[0]
        for other in sums[1:]:
            found = self._calls.call(torch.ops.aten.add.Tensor, found, other)
        if not inside:
            wrapped = offset.to(torch.int32).reshape(-1, 1, 1)
            found = self._calls.call(torch.ops.aten.add.Tensor, found, self._kept("offset", wrapped))
        return found

    def _padded(self, zero: int) -> tuple[fx.Node, Window]:
        """Returns the input and the window; where the kernel cannot pad by zeros, the input is padded."""
        begins, ends = tuple(self._pads[:2]), tuple(self._pads[2:])
        if not any(self._pads) or kernel_pads(zero, self._pads, self._window.dilation):
            return self._x, self._window._replace(padding=begins)
        order = [begins[1], ends[1], begins[0], ends[0]]
        return self._calls.call(torch.ops.aten.constant_pad_nd.default, self._x, order, zero), self._window

    def _sums(
        self, x: Any, weight: torch.Tensor, channels: tuple[int, int] | None, window: Window, added: Any
    ) -> fx.Node:
        """Writes one call of the kernel, whose sums are floats, and their conversion to int32."""
        suffix = "" if channels is None else f"_{channels[0]}"
        part = x if channels is None else self._calls.call(torch.ops.aten.slice.Tensor, x, 1, *channels)
        sizes = [1, *part.meta["val"].shape[1:]]  # the order of the weights does not depend on the number of images
        known = sizes if all(isinstance(size, int) for size in sizes) else None
        ones, zeros = torch.ones(weight.shape[0]), torch.zeros(weight.shape[0], dtype=torch.int64)
        small = weight.to(torch.int8).contiguous()
        packed = torch.ops.onednn.qconv_prepack(small, ones, 1.0, 0, *window, known)
        kept = self._kept(f"weight{suffix}", packed, small)
        call = self._calls.call(
            torch.ops.onednn.qconv_pointwise.default,
            part, 1.0, 0, kept, self._kept("ones", ones), self._kept("zeros", zeros), added,
            *map(list, window[:3]), window.groups, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return self._calls.call(torch.ops.prims.convert_element_type.default, call, torch.int32)

    def of_floats(self) -> fx.Node:
        """Writes the convolution in float64, which holds each sum of integers."""
        convert, pad = torch.ops.prims.convert_element_type.default, torch.ops.aten.constant_pad_nd.default
        zero_point, weight, bias = (
            None if operand is None else self._calls.call(convert, operand, torch.float64) for operand in self._operands
        )
        one = self._calls.call(torch.ops.aten.reshape.default, zero_point, [])
        data = self._calls.call(torch.ops.aten.sub.Tensor, self._calls.call(convert, self._x, torch.float64), one)
        top, left, bottom, right = self._pads
        data = self._calls.call(pad, data, [left, right, top, bottom], 0.0)
        window = [list(self._window.stride), [0, 0], list(self._window.dilation), False, [0, 0], self._window.groups]
        found = self._calls.call(torch.ops.aten.convolution.default, data, weight, bias, *window)
        return self._calls.call(convert, self._calls.call(convert, found, torch.int64), torch.int32)

    def _kept(self, title: str, value: torch.Tensor, shown: torch.Tensor | None = None) -> fx.Node:
        return self._calls.kept(f"{title}_of_{self._name}", value, shown)
