"""Shape rules of pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import common_float, equal_shapes, known_per_axis, per_axis, positive
from onnx2nn.fx.shape_rules.rule import Result, Rule, Sizes, rule
from onnx2nn.fx.spec import Shape, Spec
from onnx2nn.sizes.conditions import at_most, conjunction, disjunction, equal, less
from onnx2nn.sizes.expression import Number
from onnx2nn.sizes.selection import choose

_EMPTY = "an input of a pool that is not empty"


def _outputs(sizes: Sizes, spatial: Shape, windows: list[tuple[int, ...]], ceil: bool) -> list[Number]:
    """Returns the numbers of windows; with `ceil` a last window counts that starts inside of the input or its pads."""
    results = []
    for size, k, step, pad, spread in zip(spatial, *windows, strict=True):
        room = size + 2 * pad - spread * (k - 1) - 1
        count = (room + (step - 1 if ceil else 0)) // step + 1
        if ceil:
            outside = at_most(size + pad, (count - 1) * step)
            decided = sizes.decide(outside)
            count = choose(outside if decided is None else decided, count - 1, count)
        sizes.require(less(0, count), "an output of a pool that is not empty")
        results.append(count)
    return results


def _windows(rank: int, *settings: Any) -> list[tuple[int, ...]] | None:
    """Returns kernel, strides, pads and dilations with one int for each axis; None where torch refuses them."""
    kernel, strides, pads, spreads = settings
    if strides is None or (isinstance(strides, (list, tuple)) and not strides):
        strides = kernel
    found = [known_per_axis(value, rank) for value in (kernel, strides, pads, spreads)]
    result = [setting for setting in found if setting is not None]
    if len(result) < 4 or min(*result[0], *result[1], *result[3]) < 1 or min(result[2]) < 0:
        return None
    limits = zip(result[0], result[2], result[3], strict=True)
    return None if any(pad > ((k - 1) * spread + 1) // 2 for k, pad, spread in limits) else result


def _pooled(
    sizes: Sizes, x: Spec, rank: int, windows: list[tuple[int, ...]] | None, ceil: Any, mean: bool = False
) -> Shape | None:
    if windows is None or x.shape is None or len(x.shape) not in (rank + 1, rank + 2) or common_float(x) is None:
        return None
    positive(sizes, x.shape[-rank - 1 :], _EMPTY)
    if mean and rank == 3:  # torch checks the size without its pads here
        for size, kernel in zip(x.shape[-rank:], windows[0], strict=True):
            sizes.require(at_most(kernel, size), "an input of a pool that is at least as large as its kernel")
    return (*x.shape[:-rank], *_outputs(sizes, x.shape[-rank:], windows, bool(ceil)))


def _max_pool(rank: int, indices: bool) -> Rule:
    def max_pool(
        sizes: Sizes,
        input: Spec,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: Any = False,
        return_indices: bool = False,
    ) -> Result:
        shape = _pooled(sizes, input, rank, _windows(rank, kernel_size, stride, padding, dilation), ceil_mode)
        if shape is None:
            return None
        values = Spec(shape, input.dtype)
        return (values, Spec(shape, torch.int64)) if indices or return_indices else values

    return max_pool


def _avg_pool(rank: int) -> Rule:
    def avg_pool(
        sizes: Sizes,
        input: Spec,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: Any = False,
        count_include_pad: Any = True,
        divisor_override: Any = None,
    ) -> Result:
        if divisor_override == 0 and divisor_override is not None:
            return None
        shape = _pooled(sizes, input, rank, _windows(rank, kernel_size, stride, padding, 1), ceil_mode, mean=True)
        return None if shape is None else Spec(shape, input.dtype)

    return avg_pool


def _lp_pool(rank: int) -> Rule:
    def lp_pool(
        sizes: Sizes, input: Spec, norm_type: Any, kernel_size: Any, stride: Any = None, ceil_mode: Any = False
    ) -> Result:
        windows = _windows(rank, kernel_size, stride, 0, 1)
        if any(isinstance(value, (list, tuple)) and len(value) != rank for value in (kernel_size, stride)):
            return None
        shape = _pooled(sizes, input, rank, windows, ceil_mode, mean=True)
        return None if shape is None else Spec(shape, input.dtype)

    return lp_pool


def adaptive_pool(rank: int, is_max: bool) -> Rule:
    """Returns the rule of an adaptive pool over some spatial dimensions."""

    def adaptive(sizes: Sizes, input: Spec, output_size: Any, return_indices: bool = False) -> Result:
        x = input.shape
        if x is None or len(x) not in (rank + 1, rank + 2) or common_float(input) is None:
            return None
        given = list(output_size) if isinstance(output_size, (list, tuple)) else [output_size] * rank
        if len(given) != rank:
            return None
        outputs = per_axis([old if new is None else new for new, old in zip(given, x[-rank:], strict=True)], rank)
        if outputs is None:
            return None
        # A mean over a whole input is one function of torch's, which takes an empty input.
        whole = not is_max and conjunction(equal(output, 1) for output in outputs)
        for size in x[1:] if is_max or rank == 3 else x[-rank:]:
            sizes.require(disjunction([whole, less(0, size)]), _EMPTY)
        for output in outputs:
            sizes.require(at_most(0, output), "the output size of a pool")
        spec = Spec((*x[:-rank], *outputs), input.dtype)
        return (spec, Spec(spec.shape, torch.int64)) if return_indices else spec

    return adaptive


def _unpool(rank: int) -> Rule:
    def unpool(
        sizes: Sizes,
        input: Spec,
        indices: Spec,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        output_size: Any = None,
    ) -> Result:
        x, windows = input.shape, _windows(rank, kernel_size, stride, padding, 1)
        if x is None or windows is None or output_size is not None or common_float(input) is None:
            return None
        if len(x) not in (rank + 1, rank + 2) or indices.dtype != torch.int64:
            return None
        if indices.shape is None or len(indices.shape) != len(x):
            return None
        given = (kernel_size, stride, padding)
        if rank > 1 and any(isinstance(value, (list, tuple)) and len(value) != rank for value in given):
            return None
        equal_shapes(sizes, x, indices.shape, "the indices of a pool")
        positive(sizes, x[1:], _EMPTY)
        kernel, steps, pads, _ = windows
        outputs = []
        for size, k, step, pad in zip(x[-rank:], kernel, steps, pads, strict=True):
            outputs.append((size - 1) * step + k - 2 * pad)
            sizes.require(at_most(0, outputs[-1]), "the output size of a pool")
        return Spec((*x[:-rank], *outputs), input.dtype)

    return unpool


def _register(make: Callable[[int], Rule], *functions: Any) -> None:
    for rank, function in enumerate(functions, 1):
        rule(function)(make(rank))


_register(lambda rank: _max_pool(rank, indices=False), F.max_pool1d, F.max_pool2d, F.max_pool3d)
_register(lambda rank: _max_pool(rank, indices=False), torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)
_register(
    lambda rank: _max_pool(rank, indices=True),
    F.max_pool1d_with_indices,
    F.max_pool2d_with_indices,
    F.max_pool3d_with_indices,
)
_register(_avg_pool, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_register(_lp_pool, F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)
_register(_unpool, F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)
_register(
    lambda rank: adaptive_pool(rank, is_max=False), F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d
)
_register(
    lambda rank: adaptive_pool(rank, is_max=True), F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d
)
