"""Shape rules of functions of elements, reductions and matrix products."""

from __future__ import annotations

from typing import Any

from oneflow_bridge.from_onnx.shape_rules.rule import (
    Shape,
    Uncovered,
    axes_of,
    axis_of,
    broadcast,
    put,
    rule,
    shape_of,
    size_of,
)
from oneflow_bridge.namespace.linalg import einsum_terms
from onnx2nn.sizes import selection
from onnx2nn.sizes.expression import Number

_SAME = (
    "abs absolute acos acosh asin asinh atan atanh bitwise_not celu ceil clone contiguous cos cosh cummax cummin "
    "cumprod cumsum detach double dropout elu erf erfc erfinv exp exp2 expm1 fix flip float float_ floor frac gelu "
    "group_norm half hardshrink hardsigmoid hardswish hardtanh int instance_norm invert isfinite isinf isnan "
    "isneginf isposinf layer_norm leaky_relu lgamma local_response_norm log log10 log1p log2 log_softmax "
    "logical_not logit logsigmoid long mish nan_to_num neg negative normalize ones_like positive prelu rand_like "
    "randn_like reciprocal relu relu6 rms_norm roll round rsqrt selu sgn sigmoid sign signbit silu sin sinc sinh "
    "softmax softmin softplus softshrink softsign sqrt square tan tanh tanhshrink threshold to tril triu trunc type "
    "type_as zeros_like batch_norm channel_shuffle bool bfloat16 full_like bernoulli argsort scatter scatter_add "
    "scatter_reduce index_fill index_copy index_put index_add alpha_dropout cpu cuda"
)
"""Functions whose result has the shape of their first operand."""


@rule(*_SAME.split())
def _same(x: Any, *_: Any, **__: Any) -> Shape:
    return shape_of(x)


_BINARY = (
    "add sub subtract mul multiply div divide truediv floordiv floor_divide true_divide mod remainder fmod pow "
    "maximum minimum fmax fmin eq ne lt le gt ge greater greater_equal less less_equal not_equal atan2 and or xor "
    "lshift rshift bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift logical_and logical_or "
    "logical_xor copysign hypot logaddexp xlogy"
)
"""Functions of two operands that are broadcast together."""


@rule(*_BINARY.split())
def _elementwise(x: Any, y: Any, **_: Any) -> Shape:
    return broadcast(shape_of(x), shape_of(y))


@rule("where")
def _where(condition: Any, x: Any, y: Any) -> Shape:
    return broadcast(shape_of(condition), shape_of(x), shape_of(y))


@rule("masked_fill")
def _masked_fill(x: Any, mask: Any, value: Any) -> Shape:
    return broadcast(shape_of(x), shape_of(mask))


@rule("clamp", "clip", "clamp_min", "clamp_max")
def _clamp(x: Any, min: Any = None, max: Any = None) -> Shape:
    return broadcast(*(shape_of(value) for value in (x, min, max) if value is not None))


def _reduced(x: Any, dim: Any, keepdim: Any) -> Shape:
    shape = shape_of(x)
    every = dim is None or (isinstance(dim, (list, tuple)) and not dim)
    axes = range(len(shape)) if every else axes_of(dim, len(shape))
    if keepdim:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


@rule("sum", "nansum", "mean", "prod", "amax", "amin", "all", "any", "logsumexp", "argmax", "argmin", "count_nonzero")
def _reduction(x: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> Shape:
    return _reduced(x, dim, keepdim)


@rule("var", "std")
def _variance(x: Any, dim: Any = None, unbiased: Any = True, keepdim: Any = False, *, correction: Any = None) -> Shape:
    return _reduced(x, None if isinstance(dim, bool) else dim, keepdim)


@rule("norm", "vector_norm")
def _norm(x: Any, p: Any = 2, dim: Any = None, keepdim: Any = False, *, ord: Any = 2, dtype: Any = None) -> Shape:
    return _reduced(x, dim, keepdim)


@rule("max", "min")
def _extreme(x: Any, dim: Any = None, keepdim: Any = False) -> Any:
    if dim is None:
        return ()
    if not isinstance(dim, int):
        return broadcast(shape_of(x), shape_of(dim))
    return [_reduced(x, dim, keepdim)] * 2


@rule("sort")
def _sort(x: Any, *_: Any, **__: Any) -> Any:
    return [shape_of(x)] * 2


@rule("topk")
def _topk(x: Any, k: Any, dim: Any = -1, *_: Any, **__: Any) -> Any:
    shape = shape_of(x)
    return [put(shape, axis_of(dim, len(shape)), size_of(k))] * 2


@rule("matmul", "mm", "bmm")
def _matmul(x: Any, y: Any) -> Shape:
    a, b = shape_of(x), shape_of(y)
    if not a or not b:
        raise Uncovered
    return (*broadcast(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


@rule("linear")
def _linear(x: Any, weight: Any, bias: Any = None) -> Shape:
    return (*shape_of(x)[:-1], *shape_of(weight)[:-1])


@rule("addmm", "baddbmm")
def _addmm(x: Any, a: Any, b: Any, **_: Any) -> Shape:
    return _matmul(a, b)


@rule("einsum")
def _einsum(equation: str, *operands: Any) -> Shape:
    """Law: an index has one size in all operands, but for those of size 1, which are repeated."""
    values = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    shapes = [shape_of(value) for value in values]
    terms, output = einsum_terms(equation, [len(shape) for shape in shapes])
    sizes: dict[str, list[Number]] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for name, size in zip(term, shape, strict=True):
            sizes.setdefault(name, []).append(size)
    return tuple(selection.broadcast(*sizes[name]) for name in output)
