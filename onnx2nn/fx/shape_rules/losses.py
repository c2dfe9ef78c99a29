"""Shape rules of losses over class indices and of distances: `nll_loss`, `cross_entropy`, `cdist` and more."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import (
    axis_of,
    broadcast,
    common_dtype,
    common_float,
    equal_shapes,
    put,
    reduced,
    shape_of,
)
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import at_most


@rule(F.nll_loss, F.cross_entropy)
def _loss(
    sizes: Sizes,
    input: Spec,
    target: Spec,
    weight: Spec | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Result:
    """The rule of losses of class indices: `(N, classes, ...)` and `(N, ...)`, or `(classes,)` and a scalar."""
    x, dtype = shape_of(input), common_float(input, weight)
    if not x or common_dtype(target) is not torch.int64:
        raise Uncovered
    if size_average is not None or reduce is not None or reduction not in ("none", "sum", "mean"):
        raise Uncovered
    axis = min(1, len(x) - 1)
    shape = equal_shapes(sizes, shape_of(target), put(x, axis), "the targets of a loss")
    if weight is not None:
        equal_shapes(sizes, shape_of(weight), (x[axis],), "the weights of the classes of a loss")
    return Spec(shape if reduction == "none" else (), dtype)


@rule(torch.cosine_similarity)
def _cosine_similarity(sizes: Sizes, x1: Spec, x2: Spec, dim: Any = 1, eps: float = 1e-8) -> Result:
    dtype = common_float(x1, x2)
    shape = broadcast(sizes, [shape_of(x1), shape_of(x2)], "the operands of a cosine similarity")
    return Spec(reduced(shape, [axis_of(dim, max(len(shape), 1))], False), dtype)


@rule(torch.cdist)
def _cdist(
    sizes: Sizes,
    x1: Spec,
    x2: Spec,
    p: float = 2.0,
    compute_mode: Any = "use_mm_for_euclid_dist_if_necessary",
) -> Result:
    x, y, dtype = shape_of(x1), shape_of(x2), common_float(x1, x2)
    if min(len(x), len(y)) < 2:
        raise Uncovered
    sizes.equal(x[-1], y[-1], "the features of points that have distances")
    sizes.require(at_most(0, x[-1]), "the features of points that have distances")
    lead = broadcast(sizes, [x[:-2], y[:-2]], "the batch dimensions of points that have distances")
    return Spec((*lead, x[-2], y[-2]), dtype)
