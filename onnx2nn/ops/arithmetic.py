"""Elementwise arithmetic, with ONNX's rules for integers."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ops.axes import from_front
from onnx2nn.optable.registry import TABLE, op
from onnx2nn.optable.row import NeedsValues
from onnx2nn.optable.traits import BINARY, UNARY

Body = Callable[..., Any]


def widened(body: Body) -> Body:
    """Returns a body that computes uint16, uint32 and uint64 in int64 and casts its results back.

    torch has few kernels for these types. uint64 wraps around in two's complement, so that addition, subtraction,
    multiplication and bit operations are exact; operators that compare numbers use `ordered`. The inputs are converted,
    not viewed as int64: torch.jit.trace and torch.onnx.export do not take such a view.
    """

    @functools.wraps(body)
    def wide(F: Any, *inputs: Any, **attributes: Any) -> Any:
        narrow = (F.uint16, F.uint32, F.uint64)
        for x in inputs:
            dtype = getattr(x, "dtype", None)
            if dtype in narrow:
                break
        else:
            return body(F, *inputs, **attributes)
        result = body(F, *(_to_int64(F, x) for x in inputs), **attributes)
        if isinstance(result, tuple):
            return tuple(_from_int64(F, item, dtype) for item in result)
        return _from_int64(F, result, dtype)

    return wide


def _to_int64(F: Any, x: Any) -> Any:
    return x.to(F.int64) if getattr(x, "dtype", None) in (F.uint16, F.uint32, F.uint64) else x


def _from_int64(F: Any, x: Any, dtype: Any) -> Any:
    return x.to(dtype) if x.dtype == F.int64 else x


def ordered(body: Body) -> Body:
    """Like `widened`, for operators that compare numbers: uint64 is shifted to int64's range and back."""

    @functools.wraps(body)
    def shifted(F: Any, *inputs: Any, **attributes: Any) -> Any:
        if not any(getattr(x, "dtype", None) == F.uint64 for x in inputs):
            return widened(body)(F, *inputs, **attributes)
        low = F.iinfo(F.int64).min
        uints = [getattr(x, "dtype", None) == F.uint64 for x in inputs]
        result = body(F, *(x.to(F.int64) ^ low if u else x for x, u in zip(inputs, uints, strict=True)), **attributes)
        return (result ^ low).to(F.uint64) if result.dtype == F.int64 else result

    return shifted


def sortable(F: Any, x: Any) -> Any:
    """Returns `x` in a type that torch can compare, in the same order: uint16, uint32 and uint64 become int64."""
    if x.dtype == F.uint64:
        return x.to(F.int64) ^ F.iinfo(F.int64).min
    return x.to(F.int64) if x.dtype in (F.uint16, F.uint32) else x


def halves_in_float32(body: Body) -> Body:
    """Returns a body that computes float16 and bfloat16 in float32, as torch has no kernels, and casts the result."""

    @functools.wraps(body)
    def single(F: Any, *inputs: Any, **attributes: Any) -> Any:
        dtype = inputs[0].dtype
        if dtype not in (F.float16, F.bfloat16):
            return body(F, *inputs, **attributes)
        return body(F, *(x.to(F.float32) if x.dtype == dtype else x for x in inputs), **attributes).to(dtype)

    return single


def _divide_uint64(F: Any, A: Any, B: Any) -> tuple[Any, Any]:
    """Returns quotient and remainder of uint64 values held as int64 (Warren, Hacker's Delight, 9-3)."""
    low = F.iinfo(F.int64).min
    half = F.bitwise_right_shift(A, 1) & ~low
    quotient = F.div(half, B, rounding_mode="trunc") * 2
    rest = A - quotient * B
    more = (rest ^ low) >= (B ^ low)
    quotient = F.where(B < 0, ((A ^ low) >= (B ^ low)).to(F.int64), quotient + more.to(F.int64))
    return quotient, A - quotient * B


def legacy_broadcast(body: Body) -> Body:
    """Returns a binary operator's form of opsets 1 to 6: `B` is aligned with the dimensions of `A` from `axis` on."""

    def legacy(F: Any, A: Any, B: Any, *, axis: int | None = None, broadcast: int = 0) -> Any:
        if broadcast and axis is not None and B.ndim:
            behind = A.ndim - from_front(axis, A.ndim) - B.ndim
            B = B.reshape([*B.shape, *[1] * behind]) if behind > 0 else B
        return body(F, A, B)

    return legacy


def binary(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Returns a binary operator on shape values, from the function of two numbers."""
    ufunc = np.frompyfunc(function, 2, 1)
    return lambda A, B: np.asarray(ufunc(A, B), dtype=object)


def unary(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns a unary operator on shape values, from the function of one number."""
    ufunc = np.frompyfunc(function, 1, 1)
    return lambda X: np.asarray(ufunc(X), dtype=object)


def _plain(value: Any) -> Any:
    """Returns a float that is a whole number as an int, so that shape values stay ints where they can."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def smaller(a: Any, b: Any) -> Any:
    """Returns the smaller of two shape values, or of torch's numbers, whose comparison would be a guard."""
    if isinstance(a, int) and isinstance(b, int):  # Dynamo's numbers are, and have no attributes to ask for
        return builtins.min(a, b)  # `min` is an operator here
    if hasattr(a, "__sym_min__") or hasattr(b, "__sym_min__"):
        return a.__sym_min__(b) if hasattr(a, "__sym_min__") else b.__sym_min__(a)
    if hasattr(a, "least") or hasattr(b, "least"):
        return a.least(b) if hasattr(a, "least") else b.least(a)
    if a <= b:
        return a
    return b


def larger(a: Any, b: Any) -> Any:
    """Returns the larger of two shape values, or of torch's numbers."""
    if isinstance(a, int) and isinstance(b, int):
        return builtins.max(a, b)
    if hasattr(a, "__sym_max__") or hasattr(b, "__sym_max__"):
        return a.__sym_max__(b) if hasattr(a, "__sym_max__") else b.__sym_max__(a)
    if hasattr(a, "most") or hasattr(b, "most"):
        return a.most(b) if hasattr(a, "most") else b.most(a)
    if a <= b:
        return b
    return a


def truncated_quotient(a: Any, b: Any) -> Any:
    """Returns the quotient of two shape values, rounded towards zero."""
    if isinstance(a, (int, np.integer)) and isinstance(b, (int, np.integer)):
        a, b = int(a), int(b)
        if not b:
            raise NeedsValues("a division by 0")
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    b = _divisor(b)
    if isinstance(b, int) and b < 0:
        return -truncated_quotient(a, -b)
    return a.truncated(b) if hasattr(a, "truncated") else b.truncating(a)


def _in_float32(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a function of two shape values that are floats in the file; what is known is rounded as there."""

    def rounded(a: Any, b: Any) -> Any:
        a, b = _plain(a), _plain(b)
        if not all(isinstance(number, (int, float)) for number in (a, b)):
            return function(a, b)
        try:
            return _plain(float(np.float32(function(np.float32(a), np.float32(b)))))
        except ZeroDivisionError:
            raise NeedsValues("a division by 0") from None

    return rounded


def _by_type(function: Callable[[Any, Any], Any], of_integers: Callable[[Any, Any], Any] | None = None) -> Any:
    """Returns a binary operator on shape values, of integers or of float32."""

    def evaluate(A: Any, B: Any, *, _dtype: np.dtype[Any]) -> Any:
        if _dtype == np.float64:
            raise NeedsValues("a float64 computed of sizes")
        return binary(_in_float32(function) if _dtype.kind == "f" else of_integers or function)(A, B)

    return evaluate


def _values_of_mod(A: Any, B: Any, *, fmod: int = 0, _dtype: np.dtype[Any]) -> Any:
    if _dtype.kind == "f":
        raise NeedsValues("a remainder of floats")
    remainder = (lambda a, b: a - b * truncated_quotient(a, b)) if fmod else _remainder
    return binary(remainder)(A, B)


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(b, int) and not b:
        raise NeedsValues("a division by 0")
    return a % _divisor(b)


def _divisor(number: Any) -> Any:
    """Returns a number by which integers are divided; a size is guarded to be no 0."""
    return number.as_divisor() if hasattr(number, "as_divisor") else number


def _values_of_pow(X: Any, Y: Any) -> Any:
    return binary(lambda x, y: _plain(x) ** _plain(y))(X, Y)


@op("Add", 7, on_shape_values=_by_type(operator.add), traits=BINARY | {"commutative"})
@widened
def add(F: Any, A: Any, B: Any) -> Any:
    return A + B


@op("Sub", 7, on_shape_values=_by_type(operator.sub), traits=BINARY)
@widened
def sub(F: Any, A: Any, B: Any) -> Any:
    return A - B


@op("Mul", 7, on_shape_values=_by_type(operator.mul), traits=BINARY | {"commutative"})
@widened
def mul(F: Any, A: Any, B: Any) -> Any:
    return A * B


@op("Div", 7, on_shape_values=_by_type(operator.truediv, truncated_quotient), traits=BINARY | {"magnitude"})
def div(F: Any, A: Any, B: Any) -> Any:
    """A quotient of integers is rounded towards zero."""
    if A.dtype == F.uint64:
        return _divide_uint64(F, A.to(F.int64), B.to(F.int64))[0].to(F.uint64)
    if A.is_floating_point() or A.is_complex():
        return A / B
    return widened(lambda F, A, B: F.div(A, B, rounding_mode="trunc"))(F, A, B)


@op("Mod", 10, on_shape_values=_values_of_mod, traits=BINARY | {"magnitude"})
def mod(F: Any, A: Any, B: Any, *, fmod: int = 0) -> Any:
    """The result has the sign of the divisor with `fmod=0`, the sign of the dividend with `fmod=1`."""
    if A.dtype == F.uint64:
        return _divide_uint64(F, A.to(F.int64), B.to(F.int64))[1].to(F.uint64)
    function = F.fmod if fmod else F.remainder
    return widened(lambda F, A, B: function(A, B))(F, A, B)


for _name, _body in (("Add", add), ("Sub", sub), ("Mul", mul), ("Div", div)):
    op(_name, 1, traits=TABLE.row_of(_body).traits)(legacy_broadcast(_body))


@op("Pow", 7, on_shape_values=_values_of_pow, traits=BINARY | {"magnitude"})
def pow(F: Any, X: Any, Y: Any) -> Any:
    """The result has the base's type: an integer base to a float exponent is computed in float64 and truncated."""
    if X.dtype == Y.dtype:
        return widened(lambda F, X, Y: X**Y)(F, X, Y) if X.is_floating_point() else _integer_power(F, X, Y)
    if X.is_floating_point():
        return X ** Y.to(X.dtype) if Y.is_floating_point() or not Y.numel() else F.pow(X, Y.to(X.dtype))
    if Y.is_floating_point():
        return (X.to(F.float64) ** Y.to(F.float64)).to(X.dtype)
    return _integer_power(F, X, Y)


def _integer_power(F: Any, X: Any, Y: Any) -> Any:
    return F.pow(X.to(F.int64), Y.to(F.int64)).to(X.dtype)


@op("Pow", 1, traits=BINARY | {"magnitude"})
def pow_1(F: Any, X: Any, Y: Any, *, axis: int | None = None, broadcast: int = 0) -> Any:
    """The exponent is aligned with the base's dimensions from `axis` on."""
    return legacy_broadcast(pow)(F, X, Y, axis=axis, broadcast=broadcast)


@op("Neg", 1, on_shape_values=unary(lambda x: -x), traits=UNARY)
@widened
def neg(F: Any, X: Any) -> Any:
    return -X


@op("Abs", 1, on_shape_values=unary(abs), traits=UNARY | {"magnitude"})
def abs_(F: Any, X: Any) -> Any:
    return X if X.dtype in (F.uint8, F.uint16, F.uint32, F.uint64) else F.abs(X)


@op("Sign", 9, traits=UNARY)
def sign(F: Any, input: Any) -> Any:
    if input.dtype in (F.uint16, F.uint32, F.uint64):
        return (input != 0).to(input.dtype)
    if (
        input.is_floating_point()
    ):  # torch's sign of NaN is 0; by the standard NaN is none of above, below and equal to 0
        return F.where(F.isnan(input), input, F.sign(input))
    return F.sign(input)


@op("Reciprocal", 1, traits=UNARY)
def reciprocal(F: Any, X: Any) -> Any:
    return F.reciprocal(X)


@op("Floor", 1, on_shape_values=unary(math.floor), traits=UNARY)
def floor(F: Any, X: Any) -> Any:
    return F.floor(X)


@op("Ceil", 1, on_shape_values=unary(math.ceil), traits=UNARY)
def ceil(F: Any, X: Any) -> Any:
    return F.ceil(X)


@op("Round", 11, on_shape_values=unary(round), traits=UNARY)
def round_(F: Any, X: Any) -> Any:
    """Halves are rounded to even, in torch too."""
    return F.round(X)


@op("Sqrt", 1, traits=UNARY)
def sqrt(F: Any, X: Any) -> Any:
    return F.sqrt(X)


@op("Exp", 1, traits=UNARY)
def exp(F: Any, input: Any) -> Any:
    return F.exp(input)


@op("Log", 1, traits=UNARY)
def log(F: Any, input: Any) -> Any:
    return F.log(input)


@op("Erf", 9, traits=UNARY)
def erf(F: Any, input: Any) -> Any:
    """An integer result is truncated."""
    return F.erf(input) if input.is_floating_point() else F.erf(input.to(F.float32)).to(input.dtype)


def _trigonometry(name: str, since: int, function: str) -> None:
    @op(name, since, traits=UNARY)
    def body(F: Any, input: Any) -> Any:
        return getattr(F, function)(input)

    body.__name__ = function


for _name in ("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"):
    _trigonometry(_name, 7, _name.lower())
for _name in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"):
    _trigonometry(_name, 9, _name.lower())


def _fold(pair: Body) -> Body:
    """Returns a variadic operator from its form on two inputs."""
    return lambda F, *items: functools.reduce(lambda a, b: pair(F, a, b), items)


def _extreme(F: Any, function: Any, data_0: tuple[Any, ...]) -> Any:
    return ordered(_fold(lambda F, a, b: function(a, b)))(F, *data_0)


@op(
    "Max",
    1,
    on_shape_values=lambda *data_0: functools.reduce(binary(larger), data_0),
    traits=BINARY | {"commutative", "magnitude"},
)
def max(F: Any, *data_0: Any) -> Any:
    """NaN propagates."""
    return _extreme(F, F.maximum, data_0)


@op(
    "Min",
    1,
    on_shape_values=lambda *data_0: functools.reduce(binary(smaller), data_0),
    traits=BINARY | {"commutative", "magnitude"},
)
def min(F: Any, *data_0: Any) -> Any:
    """NaN propagates."""
    return _extreme(F, F.minimum, data_0)


@op("Sum", 1, traits=BINARY | {"commutative"})
def sum(F: Any, *data_0: Any) -> Any:
    return _fold(add)(F, *data_0)


@op("Mean", 1, traits=BINARY | {"commutative"})
def mean(F: Any, *data_0: Any) -> Any:
    return sum(F, *data_0) / len(data_0)


@op("CumSum", 11, static=["axis"], traits=["keeps_rank", "along_axis"])
@widened
def cumsum(F: Any, x: Any, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Any:
    return _cumulative(F, F.cumsum, x, axis, exclusive, reverse, neutral=0)


@op("CumProd", 26, static=["axis"], traits=["keeps_rank"])
@widened
def cumprod(F: Any, x: Any, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Any:
    return _cumulative(F, F.cumprod, x, axis, exclusive, reverse, neutral=1)


def _cumulative(F: Any, function: Any, x: Any, axis: Any, exclusive: int, reverse: int, neutral: int) -> Any:
    axis = axis[0] if isinstance(axis, list) else axis
    if reverse:
        x = F.flip(x, [axis])
    if exclusive:
        before = (slice(None),) * from_front(axis, x.ndim)
        head, rest = (*before, slice(None, 1)), (*before, slice(None, -1))  # slices, as the axis may be empty
        x = F.cat([F.full_like(x[head], neutral), x[rest]], axis)
    result = function(x, axis, dtype=x.dtype)
    return F.flip(result, [axis]) if reverse else result


@op("BitwiseAnd", 18, traits=BINARY | {"commutative"})
@widened
def bitwise_and(F: Any, A: Any, B: Any) -> Any:
    return A & B


@op("BitwiseOr", 18, traits=BINARY | {"commutative"})
@widened
def bitwise_or(F: Any, A: Any, B: Any) -> Any:
    return A | B


@op("BitwiseXor", 18, traits=BINARY | {"commutative"})
@widened
def bitwise_xor(F: Any, A: Any, B: Any) -> Any:
    return A ^ B


@op("BitwiseNot", 18, traits=UNARY)
@widened
def bitwise_not(F: Any, X: Any) -> Any:
    return ~X


@op("BitShift", 11, traits=BINARY)
def bit_shift(F: Any, X: Any, Y: Any, *, direction: str) -> Any:
    """A shift by less than 0 bits, or by the type's width or more, gives 0; of a negative number to the right -1."""
    if direction not in ("LEFT", "RIGHT"):
        raise OperatorError(f"direction={direction!r} is none of LEFT, RIGHT.")
    bits = X.dtype.itemsize * 8
    if direction == "LEFT":
        shifted = widened(lambda F, x, y: F.bitwise_left_shift(x, y))(F, X, Y)
    elif X.dtype == F.uint64:
        shifted = _shift_right_uint64(F, X.to(F.int64), Y.to(F.int64)).to(F.uint64)
    else:
        shifted = widened(lambda F, x, y: F.bitwise_right_shift(x, y))(F, X, Y)
    if direction == "RIGHT" and X.dtype in (F.int8, F.int16, F.int32, F.int64):
        return F.bitwise_right_shift(X, F.where((Y < 0) | (bits <= Y), bits - 1, Y))
    inside = widened(lambda F, y: (y >= 0) & (y < bits))(F, Y)
    return widened(lambda F, s: F.where(inside, s, F.zeros_like(s)))(F, shifted)


def _shift_right_uint64(F: Any, X: Any, Y: Any) -> Any:
    shifted = F.bitwise_right_shift(F.bitwise_right_shift(X, 1) & F.iinfo(F.int64).max, (Y - 1).clamp(0))
    return F.where(Y == 0, X, shifted)
