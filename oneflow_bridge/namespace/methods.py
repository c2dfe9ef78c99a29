"""Attaches torch's methods and operators to `Tensor`: a method is the function of the same name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from oneflow_bridge.namespace import (
    arithmetic,
    bitwise,
    comparison,
    creation,
    indexing,
    linalg,
    reduction,
    shaping,
    sorting,
    transcendental,
)
from oneflow_bridge.namespace.functional import activation
from oneflow_bridge.namespace.tensor import Deferred, Tensor

METHODS = {
    arithmetic: (
        "abs absolute add addcdiv addcmul ceil clone div divide fix float_power floor floor_divide fmod frac "
        "lerp mul multiply neg negative positive pow relu remainder round sgn sign square sub subtract "
        "true_divide trunc"
    ),
    comparison: (
        "clamp clamp_max clamp_min clip eq fmax fmin ge greater greater_equal gt isfinite isinf isnan "
        "isneginf isposinf le less less_equal logical_and logical_not logical_or logical_xor lt maximum "
        "minimum nan_to_num ne not_equal signbit"
    ),
    transcendental: (
        "acos acosh arccos arcsin arctan arctan2 asin asinh atan atan2 atanh copysign cos cosh deg2rad erf "
        "erfc erfinv exp exp2 expm1 hypot lgamma log log10 log1p log2 logaddexp logit rad2deg reciprocal "
        "rsqrt sigmoid sin sinc sinh sqrt tan tanh xlogy"
    ),
    bitwise: ("bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor"),
    shaping: (
        "broadcast_to chunk contiguous cpu cuda detach diag_embed double expand expand_as flatten flip fliplr "
        "flipud half long movedim moveaxis narrow permute ravel repeat reshape reshape_as roll rot90 select "
        "short split split_with_sizes squeeze swapaxes swapdims t tensor_split tile to transpose tril triu "
        "type type_as unbind unflatten unfold unsqueeze view view_as byte char"
    ),
    indexing: (
        "argwhere diag diagonal gather index_add index_copy index_fill index_put index_select masked_fill "
        "masked_scatter masked_select nonzero repeat_interleave scatter scatter_add scatter_reduce "
        "select_scatter slice_scatter take take_along_dim"
    ),
    sorting: ("argsort bincount kthvalue msort sort topk unique unique_consecutive"),
    reduction: (
        "all allclose amax amin aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum diff "
        "equal isclose logcumsumexp logsumexp max mean median min nansum norm prod quantile std sum var"
    ),
    linalg: "addmm baddbmm bmm cross det dot inverse kron matmul mm mv outer trace",
    creation: "new_empty new_full new_ones new_tensor new_zeros",
    activation: "log_softmax softmax",
}

RENAMED = {"float": shaping.float_, "int": shaping.int_, "bool": shaping.bool_, "bfloat16": shaping.bfloat16_}


def _reversed(function: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    return lambda x, y: function(y, x)


BINARY = {
    "add": arithmetic.add,
    "sub": arithmetic.sub,
    "mul": arithmetic.mul,
    "truediv": arithmetic.div,
    "floordiv": arithmetic.floor_divide,
    "mod": arithmetic.remainder,
    "pow": arithmetic.pow,
    "and": bitwise.bitwise_and,
    "or": bitwise.bitwise_or,
    "xor": bitwise.bitwise_xor,
    "lshift": bitwise.bitwise_left_shift,
    "rshift": bitwise.bitwise_right_shift,
    "matmul": linalg.matmul,
}

COMPARISONS = {name: getattr(comparison, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


PROTOCOLS = {
    "__neg__": arithmetic.neg,
    "__pos__": arithmetic.positive,
    "__abs__": arithmetic.abs,
    "__invert__": bitwise.bitwise_not,
    "__iter__": lambda x: iter(shaping.unbind(x)),
    "T": property(lambda x: shaping.permute(x, *range(x.ndim - 1, -1, -1))),
    "mT": property(lambda x: shaping.transpose(x, -2, -1)),
}


def _leaving(kind: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` as a method, which passes calls with a `Deferred` argument to its recorder."""

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        for value in (*args[1:], *kwargs.values()):
            for item in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(item, Deferred):
                    return item.recorder.call(kind, name, function, args, kwargs)
        return function(*args, **kwargs)

    return method


def _where(x: Tensor, condition: Tensor, other: Any) -> Tensor:
    return comparison.where(condition, x, other)


def _setitem(x: Tensor, key: Any, value: Any) -> None:
    for item in (*(key if isinstance(key, tuple) else (key,)), value):
        if isinstance(item, Deferred):
            item.recorder.call_opaque(indexing.setitem, (x, key, value), {}, None)
    indexing.setitem(x, key, value)


def attach() -> None:
    """Attaches all methods to `Tensor`; called once when the namespace is imported."""
    for module, names in METHODS.items():
        for name in names.split():
            setattr(Tensor, name, _leaving("method", name, getattr(module, name)))
    for name, function in RENAMED.items():
        setattr(Tensor, name, function)
    for name, function in BINARY.items():
        setattr(Tensor, f"__{name}__", _leaving("operator", name, function))
        setattr(Tensor, f"__r{name}__", _reversed(function))
    for name, function in COMPARISONS.items():
        setattr(Tensor, f"__{name}__", _leaving("operator", name, function))
    for name, value in PROTOCOLS.items():
        setattr(Tensor, name, value)
    setattr(Tensor, "__getitem__", _leaving("operator", "getitem", indexing.getitem))  # noqa: B010 (mypy)
    setattr(Tensor, "__setitem__", _setitem)  # noqa: B010
    setattr(Tensor, "where", _leaving("method", "where", _where))  # noqa: B010
