"""Comparisons and boolean operators: functions for the latter, as `&` is one of integers too, which tools refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnx2nn.ops.arithmetic import binary, legacy_broadcast, ordered, unary
from onnx2nn.optable.registry import TABLE, op
from onnx2nn.optable.row import Typed
from onnx2nn.optable.traits import BINARY, UNARY


def _truths(values: Callable[..., Any]) -> Callable[..., Typed]:
    """Returns an operator on shape values (or strings) whose results are bool, also where there are none to tell."""
    return lambda *inputs: Typed(values(*inputs), np.dtype(bool))


@op("And", 7, on_shape_values=_truths(binary(lambda a, b: a & b)), traits=BINARY | {"commutative", "logical"})
def and_(F: Any, A: Any, B: Any) -> Any:
    return F.logical_and(A, B)


@op("Or", 7, on_shape_values=_truths(binary(lambda a, b: a | b)), traits=BINARY | {"commutative", "logical"})
def or_(F: Any, A: Any, B: Any) -> Any:
    return F.logical_or(A, B)


@op("Xor", 7, traits=BINARY | {"commutative", "logical"})
def xor(F: Any, A: Any, B: Any) -> Any:
    return F.logical_xor(A, B)


@op(
    "Not",
    1,
    # `not` asks whether a comparison of sizes holds, which may be open; `== False` is its opposite
    on_shape_values=_truths(unary(lambda x: (not x) if isinstance(x, bool) else x == False)),  # noqa: E712
    traits=UNARY | {"logical", "magnitude"},
)
def not_(F: Any, X: Any) -> Any:
    return F.logical_not(X)


@op("Equal", 7, on_shape_values=_truths(binary(lambda a, b: a == b)), traits=BINARY | {"commutative", "magnitude"})
@ordered
def equal(F: Any, A: Any, B: Any) -> Any:
    return A == B


@op("Less", 7, on_shape_values=_truths(binary(lambda a, b: a < b)), traits=BINARY | {"magnitude"})
@ordered
def less(F: Any, A: Any, B: Any) -> Any:
    return A < B


@op("Greater", 7, on_shape_values=_truths(binary(lambda a, b: a > b)), traits=BINARY | {"magnitude"})
@ordered
def greater(F: Any, A: Any, B: Any) -> Any:
    return A > B


@op("LessOrEqual", 12, on_shape_values=_truths(binary(lambda a, b: a <= b)), traits=BINARY | {"magnitude"})
@ordered
def less_or_equal(F: Any, A: Any, B: Any) -> Any:
    return A <= B


@op("GreaterOrEqual", 12, on_shape_values=_truths(binary(lambda a, b: a >= b)), traits=BINARY | {"magnitude"})
@ordered
def greater_or_equal(F: Any, A: Any, B: Any) -> Any:
    return A >= B


for _name, _body in (("And", and_), ("Or", or_), ("Xor", xor), ("Equal", equal), ("Less", less), ("Greater", greater)):
    op(_name, 1, traits=TABLE.row_of(_body).traits)(legacy_broadcast(_body))


@op("IsNaN", 9, traits=UNARY)
def isnan(F: Any, X: Any) -> Any:
    return F.isnan(X)


@op("IsInf", 10, traits=UNARY)
def isinf(F: Any, X: Any, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    if detect_negative and detect_positive:
        return F.isinf(X)
    if detect_positive:
        return F.isposinf(X)
    return F.isneginf(X) if detect_negative else F.zeros_like(X, dtype=F.bool)
