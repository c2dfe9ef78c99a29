"""Shape rules of losses and distances."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import axis_of, broadcast_dimensions, common_float, equal_shapes, reduced
from onnx2nn.fx.shape_rules.rule import Result, Sizes, rule
from onnx2nn.fx.spec import Spec
from onnx2nn.sizes.conditions import at_most


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
    x, dtype = input.shape, common_float(input, weight)
    if not x or dtype is None or target.shape is None or target.dtype != torch.int64:
        return None
    if size_average is not None or reduce is not None or reduction not in ("none", "sum", "mean"):
        return None
    axis = min(1, len(x) - 1)
    targets = (*x[:axis], *x[axis + 1 :])
    if len(target.shape) != len(targets):
        return None
    shape = equal_shapes(sizes, target.shape, targets, "the targets of a loss")
    if weight is not None:
        if weight.shape is None or len(weight.shape) != 1:
            return None
        sizes.equal(weight.shape[0], x[axis], "the weights of the classes of a loss")
    return Spec(shape if reduction == "none" else (), dtype)


rule(F.nll_loss, F.cross_entropy)(_loss)


@rule(F.cosine_similarity, torch.cosine_similarity)
def _cosine_similarity(sizes: Sizes, x1: Spec, x2: Spec, dim: Any = 1, eps: float = 1e-8) -> Result:
    dtype = common_float(x1, x2)
    if dtype is None or x1.shape is None or x2.shape is None:
        return None
    shape = broadcast_dimensions(sizes, x1.shape, x2.shape, "the operands of a cosine similarity")
    axis = axis_of(dim, len(shape))
    return None if axis is None else Spec(reduced(shape, [axis], False), dtype)


@rule(torch.cdist)
def _cdist(
    sizes: Sizes,
    x1: Spec,
    x2: Spec,
    p: float = 2.0,
    compute_mode: Any = "use_mm_for_euclid_dist_if_necessary",
) -> Result:
    x, y, dtype = x1.shape, x2.shape, common_float(x1, x2)
    if x is None or y is None or dtype is None or min(len(x), len(y)) < 2:
        return None
    sizes.equal(x[-1], y[-1], "the features of points that have distances")
    sizes.require(at_most(0, x[-1]), "the features of points that have distances")
    lead = broadcast_dimensions(sizes, x[:-2], y[:-2], "the batch dimensions of points that have distances")
    return Spec((*lead, x[-2], y[-2]), dtype)
