"""Shape rules of functions that compute each element from the elements at the same place of the operands.

The shape is that of the operands, broadcast together. The dtype comes from torch itself: see `operands.dtypes`.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import axis_of, broadcast, common_dtype, dtypes, shape_of, with_dtypes
from onnx2nn.fx.shape_rules.rule import Result, Rule, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import disjunction, equal
from onnx2nn.sizes.expression import Size

_OPERATORS: tuple[Any, ...] = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.and_,
    operator.or_, operator.xor, operator.lshift, operator.rshift, operator.eq, operator.ne, operator.lt, operator.le,
    operator.gt, operator.ge,
)  # fmt: skip
"""Operators, whose dtypes depend on the kind of a Python number, not on its value."""

_FUNCTIONS: tuple[Any, ...] = (
    operator.neg, operator.pos, operator.invert, operator.abs, torch.real, torch.imag, torch.complex, torch.zeros_like,
    torch.ones_like, torch.empty_like, torch.rand_like, torch.randn_like, torch.bernoulli, torch.dropout,
    torch.threshold, torch.celu, torch.selu, F.relu, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu,
    F.mish, F.hardswish, F.hardsigmoid, F.hardtanh, F.hardshrink, F.softshrink, F.tanhshrink, F.softplus, F.softsign,
    F.logsigmoid, F.sigmoid, F.tanh, F.threshold, F.dropout, F.alpha_dropout,
)  # fmt: skip
"""Functions of one tensor, and of others or of numbers of which torch may refuse some values."""

_TORCH_AND_METHOD = (
    "abs", "absolute", "acos", "acosh", "add", "addcdiv", "addcmul", "angle", "arccos", "arccosh", "arcsin", "arcsinh",
    "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clamp", "clip", "clone", "conj",
    "copysign", "cos", "cosh", "deg2rad", "detach", "digamma", "div", "divide", "eq", "erf", "erfc", "erfinv", "exp",
    "exp2", "expm1", "fix", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "frexp", "ge",
    "greater", "greater_equal", "gt", "heaviside", "hypot", "isfinite", "isinf", "isnan", "isneginf", "isposinf",
    "isreal", "ldexp", "le", "lerp", "less", "less_equal", "lgamma", "log", "log10", "log1p", "log2", "logaddexp",
    "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "lt", "masked_fill", "maximum",
    "minimum", "mul", "multiply", "nan_to_num", "ne", "neg", "negative", "nextafter", "not_equal", "positive",
    "rad2deg", "reciprocal", "relu", "remainder", "round", "rsqrt", "rsub", "sgn", "sigmoid", "sign", "signbit", "sin",
    "sinc", "sinh", "sqrt", "square", "sub", "subtract", "tan", "tanh", "true_divide", "trunc", "xlogy",
)  # fmt: skip

_METHODS = (
    "bool", "byte", "char", "short", "int", "long", "half", "bfloat16", "float", "double", "contiguous", "type",
    "__and__", "__or__", "__xor__",
)  # fmt: skip

_SPECIAL = ("erf", "erfc", "expit", "gammaln", "log_ndtr", "ndtr", "ndtri", "xlog1py", "i0")

ELEMENTWISE: frozenset[Any] = (
    frozenset(
        (*_OPERATORS, *_FUNCTIONS, *_TORCH_AND_METHOD, *_METHODS, *(getattr(torch, name) for name in _TORCH_AND_METHOD))
    )
    | {getattr(torch.special, name) for name in _SPECIAL}
    | {torch.where, "where", operator.pow, torch.pow, "pow"}
)
"""Functions and names of methods that compute each element from the operands' elements at the same place."""


def _pointwise(function: Any, *, by_kind: bool = False, symbolic: bool = True) -> Rule:
    """Returns the rule of an elementwise function.

    Args:
        function: the function, or the name of a tensor method.
        by_kind: whether the values of Python numbers have no influence on the result's dtype nor on errors.
        symbolic: whether the rule covers symbolic numbers; it does not where torch refuses some values.
    """

    def pointwise(sizes: Sizes, *args: Any, device: Any = None, **kwargs: Any) -> Result:
        values = (*args, *kwargs.values()) if kwargs else args
        shapes = [shape_of(value) for value in values if isinstance(value, Spec)]
        if not shapes or (not symbolic and any(isinstance(value, Size) for value in values)):
            raise Uncovered
        kinds = tuple([_one_of(arg) for arg in args]) if by_kind else args
        found = dtypes(function, kinds, kwargs)
        return with_dtypes(shapes[0] if len(shapes) == 1 else broadcast(sizes, shapes), found)

    return pointwise


def _one_of(value: Any) -> Any:
    """Returns 1 of the type of a Python number."""
    return type(value)(1) if type(value) in (bool, int, float, complex) else value


for _function in _OPERATORS:
    rule(_function)(_pointwise(_function, by_kind=True))
for _function in _FUNCTIONS:
    rule(_function)(_pointwise(_function, symbolic=False))
rule(torch.full_like)(_pointwise(torch.full_like))
for _name in _TORCH_AND_METHOD:
    _names = [_name] if hasattr(torch.Tensor, _name) else []
    rule(getattr(torch, _name), *_names)(_pointwise(getattr(torch, _name)))
for _name in _METHODS:
    rule(_name)(_pointwise(_name))
for _name in _SPECIAL:
    _function = getattr(torch.special, _name)
    rule(_function)(_pointwise(_function))


@rule(torch.where)
def _where(sizes: Sizes, condition: Spec, input: Any, other: Any) -> Result:
    """Its dtype is that of `input + other`; on meta tensors torch.where imports torch's compiler."""
    if common_dtype(condition) is not torch.bool:  # torch takes bytes on some devices only
        raise Uncovered
    specs = [value for value in (condition, input, other) if isinstance(value, Spec)]
    chosen = _one_of(input), _one_of(other)
    of_numbers = len(specs) == 1
    found = dtypes(torch.where, (condition, *chosen), {}) if of_numbers else dtypes(operator.add, chosen, {})
    booleans = all(isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool for value in (input, other))
    return with_dtypes(broadcast(sizes, [shape_of(spec) for spec in specs]), torch.bool if booleans else found)


@rule("where")
def _where_method(sizes: Sizes, input: Spec, condition: Spec, other: Any) -> Result:
    shape_of(input)
    return _where(sizes, condition, input, other)


@rule(operator.pow, torch.pow, "pow")
def _pow(sizes: Sizes, input: Any, exponent: Any) -> Result:
    whole = isinstance(input, Spec) and input.dtype is not None and not (input.dtype.is_floating_point)
    if whole and isinstance(exponent, Size):  # torch refuses a negative power of integers
        raise Uncovered
    if isinstance(input, Spec) and input.dtype is torch.bool:  # of which devices have their own ideas
        raise Uncovered
    found = dtypes(torch.pow, (input, exponent), {})
    return with_dtypes(broadcast(sizes, [shape_of(x) for x in (input, exponent) if isinstance(x, Spec)]), found)


@rule(torch.softmax, torch.log_softmax, F.softmax, F.log_softmax, F.softmin, "softmax", "log_softmax")
def _softmax(sizes: Sizes, input: Spec, dim: Any, _stacklevel: Any = 3, dtype: Any = None) -> Result:
    if isinstance(_stacklevel, torch.dtype):  # of torch.softmax, which has no other parameter
        dtype = _stacklevel
    shape = shape_of(input)
    axis_of(dim, max(len(shape), 1))
    return Spec(shape, input.dtype if dtype is None else dtype)


@rule(torch.prelu, "prelu")
def _prelu(sizes: Sizes, input: Spec, weight: Spec) -> Result:
    shape, slopes = shape_of(input), shape_of(weight)
    if len(slopes) > 1 or not shape or input.dtype != weight.dtype:
        raise Uncovered
    for slope in slopes:
        channels = shape[1] if len(shape) > 1 else 1
        sizes.require(disjunction([equal(slope, 1), equal(slope, channels)]), "the channels and slopes of prelu")
    return Spec(shape, input.dtype)


@rule("to")
def _to(sizes: Sizes, input: Spec, *args: Any, dtype: Any = None, other: Any = None, **options: Any) -> Result:
    for value in (*args, other):
        if isinstance(value, Spec):
            dtype = value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
    return Spec(shape_of(input), dtype or input.dtype)


@rule("type_as")
def _type_as(sizes: Sizes, input: Spec, other: Spec) -> Result:
    return Spec(shape_of(input), other.dtype)


@rule("cpu")
def _moved(sizes: Sizes, input: Spec) -> Result:
    return Spec(shape_of(input), input.dtype)


@rule(torch.view_as_real)
def _view_as_real(sizes: Sizes, input: Spec) -> Result:
    if not _is_complex(input):
        raise Uncovered
    return Spec((*shape_of(input), 2), dtypes(torch.real, (input,), {}))


@rule(torch.view_as_complex)
def _view_as_complex(sizes: Sizes, input: Spec) -> Result:
    shape = shape_of(input)
    if not shape or _is_complex(input):
        raise Uncovered
    sizes.equal(shape[-1], 2, "the last dimension of view_as_complex")
    real = Spec((), input.dtype)
    return Spec(shape[:-1], dtypes(torch.complex, (real, real), {}))


def _is_complex(tensor: Spec) -> bool:
    if tensor.dtype is None:
        raise Uncovered
    return tensor.dtype.is_complex
