"""Shape rules of pools: maxima, means and p-norms over windows, adaptive pools, and the inverse of a maximum."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import (
    common_dtype,
    common_float,
    equal_shapes,
    known_per_axis,
    per_axis,
    positive,
    shape_of,
)
from onnx2nn.fx.shape_rules.rule import Result, Rule, Sizes, Uncovered, rule_of_ranks
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.sizes.conditions import at_most, conjunction, disjunction, equal, less
from onnx2nn.sizes.expression import Number
from onnx2nn.sizes.selection import choose

_EMPTY = "an input of a pool that is not empty"


def _outputs(sizes: Sizes, spatial: Shape, windows: list[list[int]], ceil: bool) -> list[Number]:
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


def _windows(rank: int, *settings: Any) -> list[list[int]]:
    """Returns kernel, strides, pads and dilations with one int for each axis."""
    kernel, strides, pads, spreads = settings
    if strides is None or (isinstance(strides, (list, tuple)) and not strides):
        strides = kernel
    given = zip((kernel, strides, pads, spreads), (1, 1, 0, 1), strict=True)
    result = [known_per_axis(value, rank, least) for value, least in given]
    limits = zip(result[0], result[2], result[3], strict=True)
    if any(pad > ((k - 1) * spread + 1) // 2 for k, pad, spread in limits):
        raise Uncovered
    return result


def _check_lengths(rank: int, *settings: Any) -> None:
    """Covers settings of one number for each axis, not a list of one number for all of them."""
    if any(isinstance(value, (list, tuple)) and len(value) != rank for value in settings):
        raise Uncovered


def _pooled(sizes: Sizes, input: Spec, rank: int, windows: list[list[int]], ceil: Any, mean: bool = False) -> Spec:
    x, dtype = shape_of(input, rank + 1, rank + 2), common_float(input)
    positive(sizes, x[-rank - 1 :], _EMPTY)
    if mean and rank == 3:  # torch checks the size without its pads here
        for size, kernel in zip(x[-rank:], windows[0], strict=True):
            sizes.require(at_most(kernel, size), "an input of a pool that is at least as large as its kernel")
    return Spec((*x[:-rank], *_outputs(sizes, x[-rank:], windows, bool(ceil))), dtype)


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
        values = _pooled(sizes, input, rank, _windows(rank, kernel_size, stride, padding, dilation), ceil_mode)
        return (values, Spec(values.shape, torch.int64)) if indices or return_indices else values

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
        if divisor_override == 0:
            raise Uncovered
        return _pooled(sizes, input, rank, _windows(rank, kernel_size, stride, padding, 1), ceil_mode, mean=True)

    return avg_pool


def _lp_pool(rank: int) -> Rule:
    def lp_pool(
        sizes: Sizes, input: Spec, norm_type: Any, kernel_size: Any, stride: Any = None, ceil_mode: Any = False
    ) -> Result:
        _check_lengths(rank, kernel_size, stride)
        return _pooled(sizes, input, rank, _windows(rank, kernel_size, stride, 0, 1), ceil_mode, mean=True)

    return lp_pool


def adaptive_pool(rank: int, is_max: bool) -> Rule:
    """Returns the rule of an adaptive pool over some spatial dimensions."""

    def adaptive(sizes: Sizes, input: Spec, output_size: Any, return_indices: bool = False) -> Result:
        x, dtype = shape_of(input, rank + 1, rank + 2), common_float(input)
        given = list(output_size) if isinstance(output_size, (list, tuple)) else [output_size] * rank
        if len(given) != rank:
            raise Uncovered
        outputs = per_axis([old if new is None else new for new, old in zip(given, x[-rank:], strict=True)], rank)
        # A mean over a whole input is one function of torch's, which takes an empty input.
        whole = not is_max and conjunction(equal(output, 1) for output in outputs)
        for size in x[1:] if is_max or rank == 3 else x[-rank:]:
            sizes.require(disjunction([whole, less(0, size)]), _EMPTY)
        for output in outputs:
            sizes.require(at_most(0, output), "the output size of a pool")
        spec = Spec((*x[:-rank], *outputs), dtype)
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
        x, dtype = shape_of(input, rank + 1, rank + 2), common_float(input)
        kernel, steps, pads, _ = _windows(rank, kernel_size, stride, padding, 1)
        if output_size is not None or common_dtype(indices) is not torch.int64:
            raise Uncovered
        if rank > 1:
            _check_lengths(rank, kernel_size, stride, padding)
        equal_shapes(sizes, x, shape_of(indices), "the indices of a pool")
        positive(sizes, x[1:], _EMPTY)
        outputs = []
        for size, k, step, pad in zip(x[-rank:], kernel, steps, pads, strict=True):
            outputs.append((size - 1) * step + k - 2 * pad)
            sizes.require(at_most(0, outputs[-1]), "the output size of a pool")
        return Spec((*x[:-rank], *outputs), dtype)

    return unpool


rule_of_ranks(lambda rank: _max_pool(rank, indices=False), F.max_pool1d, F.max_pool2d, F.max_pool3d)
rule_of_ranks(lambda rank: _max_pool(rank, indices=False), torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)
rule_of_ranks(
    lambda rank: _max_pool(rank, indices=True),
    F.max_pool1d_with_indices,
    F.max_pool2d_with_indices,
    F.max_pool3d_with_indices,
)
rule_of_ranks(_avg_pool, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
rule_of_ranks(_lp_pool, F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)
rule_of_ranks(_unpool, F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)
rule_of_ranks(
    lambda rank: adaptive_pool(rank, is_max=False), F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d
)
rule_of_ranks(
    lambda rank: adaptive_pool(rank, is_max=True), F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d
)
