"""Elementwise functions of the OneFlow namespace against numpy: values, wrap-around and dtypes."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from oneflow_bridge import namespace as F
from onnx2nn.errors import OperatorError
from tests.oneflow.arrays import TYPES, same

INTEGERS = ["int8", "uint8", "int16", "int32", "int64", "uint16", "uint32"]
FLOATS = ["float16", "float32", "float64"]

np.seterr(all="ignore")


def shapes_and(dtype: str, elements=None):
    shapes = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4)
    return shapes.flatmap(
        lambda s: st.tuples(*(hnp.arrays(dtype, shape, elements=elements) for shape in s.input_shapes))
    )


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
@settings(max_examples=15)
@given(data=st.data())
def test_integer_arithmetic_wraps_around(dtype, name, data):
    a, b = data.draw(shapes_and(dtype))
    function = getattr(operator, name)
    if a.ndim + b.ndim == 0:
        a = a.reshape(1)
    same(function(F.from_numpy(a), F.from_numpy(b)), function(a, b))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["floordiv", "mod", "truncdiv", "fmod"])
@settings(max_examples=15)
@given(data=st.data())
def test_integer_division(dtype, name, data):
    a, b = data.draw(shapes_and(dtype))
    b = np.where(b == 0, np.ones_like(b), b)
    x, y = F.from_numpy(a), F.from_numpy(b)
    if name == "floordiv":
        same(x // y, np.asarray(a // b).astype(dtype))
    elif name == "mod":
        same(x % y, np.asarray(a % b).astype(dtype))
    elif name == "fmod":
        same(F.fmod(x, y), np.asarray(np.fmod(a, b)).astype(dtype))
    else:
        rest = np.fmod(a, b)
        with np.errstate(all="ignore"):
            same(F.div(x, y, rounding_mode="trunc"), np.asarray((a - rest) // b).astype(dtype))


def test_smallest_integer_by_minus_one_wraps():
    x = F.tensor([-(2**63), 7])
    assert (x // F.tensor([-1, -1])).tolist() == [-(2**63), -7]
    assert (x % F.tensor([-1, -1])).tolist() == [0, 0]


@pytest.mark.parametrize("function", [operator.floordiv, operator.mod, F.fmod])
@pytest.mark.parametrize("divisor", [0, F.tensor([0, 1, 2])])
def test_integer_division_by_zero_is_an_error(function, divisor):
    with pytest.raises(OperatorError, match="by zero"):
        function(F.tensor([1, 2, 3]), divisor)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=60)
@given(data=st.data())
def test_float_division(dtype, data):
    elements = st.one_of(
        st.floats(-100, 100, width=32), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 0.5, -3.0])
    )
    a, b = data.draw(shapes_and(dtype, elements))
    x, y = F.from_numpy(a), F.from_numpy(b)
    same(x / y, np.asarray(a / b))
    same(F.fmod(x, y), np.asarray(np.fmod(a, b)))
    finite = np.isfinite(a) & np.isfinite(b) & (b != 0)
    same(F.where(F.from_numpy(finite), x // y, 0), np.where(finite, a // b, 0).astype(dtype))
    same(F.where(F.from_numpy(finite), x % y, 0), np.where(finite, a % b, 0).astype(dtype))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8", "int16"])
@pytest.mark.parametrize("scalar", [3, -3, 1])
def test_integers_with_numbers(dtype, scalar):
    a = np.array([-7, -1, 0, 5, 100, 127]).astype(dtype)
    x = F.from_numpy(a)
    wide = a.astype(np.int64)
    number = int(np.array(scalar).astype(dtype))
    for function in (operator.add, operator.sub, operator.mul):
        same(function(x, scalar), function(wide, scalar).astype(dtype))
        same(function(scalar, x), function(scalar, wide).astype(dtype))
    same(x // scalar, (wide // number).astype(dtype))
    same(x % scalar, (wide % number).astype(dtype))
    same(x + 0.5, wide.astype(np.float32) + np.float32(0.5))
    same(x / scalar, (wide / np.float32(scalar)).astype(np.float32))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@settings(max_examples=10)
@given(data=st.data())
def test_bits(dtype, data):
    a, b = data.draw(shapes_and(dtype))
    if a.ndim + b.ndim == 0:
        a = a.reshape(1)
    x, y = F.from_numpy(a), F.from_numpy(b)
    same(x & y, a & b)
    same(x | y, a | b)
    same(x ^ y, a ^ b)
    same(~x, np.asarray(~a))
    bits = np.iinfo(dtype).bits
    count = (b.astype(np.uint64) % bits).astype(dtype)
    same(x << F.from_numpy(count), np.asarray(a << count).astype(dtype))
    same(x >> F.from_numpy(count), np.asarray(a >> count).astype(dtype))


def test_shift_by_the_width_and_more():
    x = F.tensor([5, -5])
    assert (x << 64).tolist() == [0, 0]
    assert (x >> 70).tolist() == [0, -1]
    assert (x << 63).tolist() == [-(2**63), -(2**63)]
    assert (F.from_numpy(np.array([2**63 + 5], np.uint64)) >> F.from_numpy(np.array([1], np.uint64))).tolist() == [
        2**62 + 2
    ]


def test_bools():
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    x, y = F.from_numpy(a), F.from_numpy(b)
    same(x & y, a & b)
    same(x | y, a | b)
    same(x ^ y, a ^ b)
    same(~x, ~a)
    same(x + y, a | b)
    same(x * y, a & b)
    same(x + 1, a.astype(np.int64) + 1)
    same(x * F.tensor([1.5, 2, 3, 4]), a * np.array([1.5, 2, 3, 4], np.float32))
    same(F.maximum(x, y), a | b)
    with pytest.raises(OperatorError):
        F.sub(x, y)
    with pytest.raises(OperatorError):
        F.neg(x)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_sign_abs_neg(dtype):
    a = np.array([-7, -1, 0, 5, 100]).astype(dtype)
    x = F.from_numpy(a)
    same(F.sign(x), np.sign(a))
    same(abs(x), np.abs(a))
    same(-x, -a)
    same(F.square(x), a * a)
    same(F.floor(x), np.floor(a).astype(dtype))
    same(F.round(x), np.round(a).astype(dtype))
    same(F.relu(x), np.maximum(a, np.zeros_like(a)))


def test_large_integers_stay_exact():
    a = np.array([2**53 + 1, -(2**62) - 3, 2**63 - 1], np.int64)
    x = F.from_numpy(a)
    same(-x, -a)
    same(x + x, a + a)
    same(F.abs(x), np.abs(a))
    same(F.sign(x), np.sign(a))
    same(F.clamp(x, -5, 2**61), np.clip(a, -5, 2**61))
    assert (x == 2**53 + 1).tolist() == [True, False, False]
    assert (x > 2**53).tolist() == [True, False, True]
    i32 = np.array([16777217, -(2**31), 2**31 - 1], np.int32)
    same(F.from_numpy(i32) + F.from_numpy(np.zeros(3, np.int32)), i32)
    same(F.from_numpy(i32) - F.from_numpy(np.ones(3, np.int32)), i32 - np.ones(3, np.int32))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integer_power(dtype):
    a, b = np.array([-3, 2, 7, 0, 1, -1, 3]).astype(dtype), np.array([3, 7, 0, 5, 100, 101, 39]).astype(dtype)
    same(F.from_numpy(a) ** F.from_numpy(b), a**b)
    same(F.from_numpy(a) ** 3, a**3)
    same(2 ** F.from_numpy(b), np.array(2, dtype) ** b)
    same(F.from_numpy(a) ** 2.0, a.astype(np.float32) ** np.float32(2))


def test_negative_exponents_truncate():
    assert (F.tensor([1, -1, -1, 2, 5]) ** F.tensor([-3, -3, -2, -1, -1])).tolist() == [1, -1, 1, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_power(dtype):
    a, b = np.array([-8, 4, 0, 2, 1e3], dtype), np.array([3, 0.5, 0, -1, 2], dtype)
    same(F.from_numpy(a) ** F.from_numpy(b), a**b, 1e-6)
    same(F.from_numpy(a) ** 2, a**2, 1e-7)
    same(2.0 ** F.from_numpy(b), np.array(2, dtype) ** b, 1e-6)


UNARY = {
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "atanh": np.arctanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "exp": np.exp,
    "expm1": np.expm1,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda a: (1 / np.sqrt(a)).astype(a.dtype),
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "round": np.round,
    "sign": np.sign,
    "abs": np.abs,
    "square": np.square,
    "frac": lambda a: a - np.trunc(a),
    "sigmoid": lambda a: (1 / (1 + np.exp(-a.astype(np.float64)))).astype(a.dtype),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
    "deg2rad": np.deg2rad,
    "rad2deg": np.rad2deg,
    "sinc": np.sinc,
    "isposinf": np.isposinf,
    "isneginf": np.isneginf,
    "acosh": np.arccosh,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
    "lgamma": np.vectorize(
        lambda v: math.lgamma(v) if math.isfinite(v) and (v > 0 or v % 1) else math.nan if math.isnan(v) else math.inf
    ),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    a = np.array([-0.9, -0.5, 0.25, 0.5, 0.99, -2.5, 2.5, 1.5, 3.7, -7.3, 12.0], dtype)
    special = np.array([0.0, -0.0, math.inf, -math.inf, math.nan], dtype)
    rtol = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-12}[dtype]
    for values in (a, special) if name not in ("sinc", "lgamma") else (a,):
        expected = np.asarray(UNARY[name](values))
        expected = expected if expected.dtype == bool else expected.astype(dtype)
        result = getattr(F, name)(F.from_numpy(values))
        if name == "sign":
            expected = np.nan_to_num(expected, nan=0.0)
        assert result.dtype.name == expected.dtype.name
        np.testing.assert_allclose(result.numpy(), expected, rtol=rtol, atol=rtol if dtype != "float64" else 1e-13)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_float_functions_of_integers(dtype):
    a = np.array([1, 0, 1, 1]).astype(dtype)
    same(F.exp(F.from_numpy(a)), np.exp(a.astype(np.float32)), 1e-6)
    same(F.sqrt(F.from_numpy(a)), np.sqrt(a.astype(np.float32)), 1e-6)


def test_erfinv():
    a = np.array([-0.9, 0.1, 0.5], np.float64)
    np.testing.assert_allclose(np.vectorize(math.erf)(F.erfinv(F.from_numpy(a)).numpy()), a, rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_no_order_with_nan(name, dtype):
    a = np.array([math.nan, 1, math.nan, 2] * 5, dtype)
    b = np.array([1, math.nan, math.nan, 1] * 5, dtype)
    expected = getattr(operator, name)(a, b)
    same(getattr(F, name)(F.from_numpy(a), F.from_numpy(b)), expected)
    same(getattr(operator, name)(F.from_numpy(a), F.from_numpy(b)), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_in_extrema(dtype):
    nan = math.nan
    a, b = np.array([nan, 1, 2, nan, math.inf], dtype), np.array([1, nan, 1, nan, 2], dtype)
    x, y = F.from_numpy(a), F.from_numpy(b)
    same(F.maximum(x, y), np.maximum(a, b))
    same(F.minimum(x, y), np.minimum(a, b))
    same(F.fmax(x, y), np.fmax(a, b))
    same(F.fmin(x, y), np.fmin(a, b))
    same(F.clamp(x, 0, 1.5), np.clip(a, 0, 1.5).astype(dtype))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_clamp(dtype):
    a = np.array([0, 1, 5, 100, 120]).astype(dtype)
    x = F.from_numpy(a)
    same(x.clamp(2, 50), np.clip(a, 2, 50).astype(dtype))
    same(x.clamp(min=2), np.maximum(a, np.array(2, dtype)))
    same(x.clamp(max=50), np.minimum(a, np.array(50, dtype)))
    same(x.clamp(50, 2), np.full(5, 2, dtype))
    low, high = np.array([1, 2, 3, 4, 5]).astype(dtype), np.array([0, 1, 4, 50, 200]).astype(dtype)
    same(F.clamp(x, F.from_numpy(low), F.from_numpy(high)), np.minimum(np.maximum(a, low), high))
    same(F.clamp(x, min=F.from_numpy(low[:1])), np.maximum(a, low[:1]))


@pytest.mark.parametrize("dtype", [*INTEGERS, "uint64", *FLOATS, "bool"])
def test_comparisons(dtype):
    a, b = np.array([0, 1, 5, 100, 7]).astype(dtype), np.array([1, 1, 4, 120, 7]).astype(dtype)
    if dtype == "uint64":
        a[3] = 2**63 + 9
    x, y = F.from_numpy(a), F.from_numpy(b)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        function = getattr(operator, name)
        same(function(x, y), function(a, b))
        same(function(x, 5), function(a, np.array(5).astype(dtype) if dtype == "uint64" else 5))


def test_comparison_with_a_number_outside_the_type():
    assert (F.from_numpy(np.array([100], np.int8)) < 300).tolist() == [True]
    assert (F.from_numpy(np.array([100], np.int8)) > 99.5).tolist() == [True]


@pytest.mark.parametrize("dtype", [*INTEGERS, "uint64", *FLOATS, "bool"])
def test_where(dtype):
    a, b = np.array([0, 1, 5]).astype(dtype), np.array([[7], [9]]).astype(dtype)
    condition = np.array([True, False, True])
    result = F.where(F.from_numpy(condition), F.from_numpy(a), F.from_numpy(b))
    same(result, np.where(condition, a, b))


def test_where_with_numbers_keeps_the_type():
    condition = F.tensor([True, False])
    same(F.where(condition, F.tensor([1.0, 2.0]), 0.0), np.array([1, 0], np.float32))
    same(F.where(condition, 1.0, F.tensor([1.0, 2.0], dtype=F.float64)), np.array([1, 2], np.float64))
    same(F.where(condition, 3, F.from_numpy(np.array([1, 2], np.int32))), np.array([3, 2], np.int32))
    same(F.where(condition, 1, 2), np.array([1, 2], np.int64))
    same(F.where(F.tensor([1, 0]), 1.0, F.tensor([5, 6])), np.array([1, 6], np.float32))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8"])
def test_logic(dtype):
    a, b = np.array([0, 1, 2, 0]).astype(dtype), np.array([0, 0, 3, 5]).astype(dtype)
    x, y = F.from_numpy(a), F.from_numpy(b)
    same(F.logical_and(x, y), np.logical_and(a, b))
    same(F.logical_or(x, y), np.logical_or(a, b))
    same(F.logical_xor(x, y), np.logical_xor(a, b))
    same(F.logical_not(x), np.logical_not(a))


def test_two_argument_floats():
    a, b = np.array([1.0, -2, 3, -0.5], np.float32), np.array([-1.0, 2, 0.5, -0.0], np.float32)
    x, y = F.from_numpy(a), F.from_numpy(b)
    same(F.copysign(x, y), np.copysign(a, b))
    same(F.copysign(x, -1.0), -np.abs(a))
    same(F.atan2(x, y), np.arctan2(a, b), 1e-6)
    same(F.hypot(x, y), np.hypot(a, b), 1e-6)
    same(F.logaddexp(x, y), np.logaddexp(a, b), 1e-6)
    same(F.lerp(x, y, 0.3), (a + np.float32(0.3) * (b - a)), 1e-6)
    same(F.lerp(x, y, F.tensor([0.0, 1.0, 0.5, 0.9])), a + np.array([0, 1, 0.5, 0.9], np.float32) * (b - a), 1e-6)
    same(F.addcmul(x, x, y, value=2), a + 2 * a * b, 1e-6)
    same(F.addcdiv(x, x, F.tensor([1.0, 2, 4, 8]), value=2), a + 2 * a / np.array([1, 2, 4, 8], np.float32), 1e-6)
    same(F.add(x, y, alpha=3), a + 3 * b)
    same(F.sub(x, y, alpha=3), a - 3 * b)
    same(F.rsub(x, y), b - a)
    same(
        F.xlogy(F.tensor([0.0, 2.0]), F.tensor([0.0, 3.0])), np.array([0, 2 * np.log(np.float32(3))], np.float32), 1e-6
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_to_num(dtype):
    a = np.array([math.nan, math.inf, -math.inf, 1], dtype)
    same(F.nan_to_num(F.from_numpy(a)), np.nan_to_num(a))
    same(F.nan_to_num(F.from_numpy(a), 2.0, 3.0, -3.0), np.nan_to_num(a, nan=2, posinf=3, neginf=-3))


@pytest.mark.parametrize("dtype", FLOATS)
def test_frexp_and_ldexp(dtype):
    info = np.finfo(dtype)
    a = np.array(
        [0.0, -0.0, 1, 0.5, -3.7, 8, 0.1, 65504, info.tiny, info.max, -info.smallest_subnormal, math.inf, math.nan],
        dtype,
    )
    mantissa, exponent = F.frexp(F.from_numpy(a))
    expected = np.frexp(a)
    same(mantissa, expected[0])
    finite = np.isfinite(a)
    np.testing.assert_array_equal(exponent.numpy()[finite], expected[1][finite])
    assert exponent.dtype is F.int32
    same(F.ldexp(mantissa, exponent), a)


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_casts(source, target):
    a = np.array([0, 1, 2, 100, 3]).astype(source)
    same(F.from_numpy(a).to(getattr(F, target)), a.astype(target))
    if source not in FLOATS and target not in FLOATS:
        a = np.array([-1, 255, 300, 2**31, -(2**33) - 5, 2**63 - 1]).astype(source)
        same(F.from_numpy(a).to(getattr(F, target)), a.astype(target))
    elif source in ("float32", "float64"):
        small = target in ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64")
        a = np.array([-1.7, 2.5, 100.9] if small else [1.7, 2.5, 100.9], source)
        same(F.from_numpy(a).to(getattr(F, target)), a.astype(target))
    else:
        limit = np.iinfo(source).max if source in INTEGERS or source == "uint64" else 1
        a = np.array([limit]).astype(source)
        same(F.from_numpy(a).to(getattr(F, target)), a.astype(target))


def test_uint64_to_and_from_float():
    a = np.array([2.0**63 + 4096, 5.0], np.float64)
    same(F.from_numpy(a).to(F.uint64), a.astype(np.uint64))


def test_bfloat16_rounds_to_nearest_even():
    x = F.tensor([1.00390625, 1.01171875, 1.005]).to(F.bfloat16)
    assert x.dtype is F.bfloat16
    assert x.tolist() == [1.0, 1.015625, 1.0078125]
    assert (x * x).dtype is F.bfloat16
    assert F.exp(x).dtype is F.bfloat16


def test_views_of_bits():
    a = np.array([0, 2**63, 2**64 - 1], np.uint64)
    x = F.from_numpy(a).view(F.int64)
    assert x.dtype is F.int64
    same(x, a.view(np.int64))
    same(x.view(F.uint64), a)
    with pytest.raises(OperatorError, match="bits"):
        F.tensor([1.0]).view(F.int32)


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ((F.ones(2, dtype=F.int64), 1.5), "float32"),
        ((F.ones(2, dtype=F.float64), 1.5), "float64"),
        ((F.ones(2, dtype=F.float16), 1), "float16"),
        ((F.ones(2, dtype=F.int32), F.tensor(5)), "int32"),
        ((F.ones(2), F.tensor(5.0, dtype=F.float64)), "float32"),
        ((F.ones(2, dtype=F.int32), F.tensor(5.0, dtype=F.float64)), "float64"),
        ((F.ones(2, dtype=F.uint8), F.ones(2, dtype=F.int8)), "int16"),
        ((F.ones(2, dtype=F.float16), F.ones(2, dtype=F.bfloat16)), "float32"),
        ((F.ones(2, dtype=F.bool), True), "bool"),
        ((F.ones(2, dtype=F.bool), 2), "int64"),
        ((F.ones(2, dtype=F.uint8), 3), "uint8"),
        ((F.ones(2, dtype=F.int64), F.ones(2, dtype=F.float16)), "float16"),
    ],
)
def test_promotion(operands, expected):
    assert F.result_type(*operands).name == expected
    assert F.add(*operands).dtype.name == expected


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "complex64", "float4_e2m1fn_x2"])
def test_types_that_oneflow_lacks(dtype):
    with pytest.raises(OperatorError, match="no data type"):
        F.ones(2).to(getattr(F, dtype))


def test_strings_and_complex_arrays_are_refused():
    for array in (np.array(["a"]), np.array([1j]), np.array([None])):
        with pytest.raises(OperatorError, match="no data type"):
            F.from_numpy(array)


def test_uint64_that_cannot_be_computed_says_so():
    with pytest.raises(OperatorError, match="uint64"):
        F.from_numpy(np.array([2**63 + 1], np.uint64)) // 3


def test_limits():
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        assert (F.iinfo(getattr(F, name)).min, F.iinfo(getattr(F, name)).max) == (
            np.iinfo(name).min,
            np.iinfo(name).max,
        )
    for name in FLOATS:
        info = F.finfo(getattr(F, name))
        assert (info.min, info.max, info.eps, info.tiny) == tuple(
            float(getattr(np.finfo(name), k)) for k in ("min", "max", "eps", "tiny")
        )
