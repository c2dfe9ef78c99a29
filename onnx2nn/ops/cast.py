"""Conversions between element types."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ground.element_types import BY_NAME, BY_NUMBER, STRING, Element, SmallFloat
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import NeedsValues, Typed
from onnx2nn.optable.traits import UNARY


def element_of(number: int) -> Element:
    """Returns the element type with this number in `TensorProto.DataType`.

    Raises:
        OperatorError: no tensor can have it.
    """
    if number not in BY_NUMBER:
        raise OperatorError(f"{number} is the number of no element type of tensors.")
    return BY_NUMBER[number]


def convert(F: Any, x: Any, element: Element, *, saturate: bool = True, round_mode: str = "up") -> Any:
    """Returns the tensor `x` converted as Cast does it.

    Integers of 8 bits and more: values out of range follow ONNX Runtime on x86, as torch does. Integers of fewer bits:
    fractions are rounded to nearest, halves away from zero, and the higher bits are dropped. Float8: rounded to nearest
    even; values out of range become the largest number with `saturate`, else infinity or, where the type has none, NaN.
    Float4 and float6 always saturate, and NaN becomes -0. Source: ONNX Cast-28.
    """
    dtype = getattr(F, element.dtype)
    if element.narrow:
        return _to_narrow(F, x, element)
    if element.small is not None:
        return _to_small_float(F, x if x.dtype == F.float64 else x.to(F.float32), element.small)
    if element.name == "FLOAT8E8M0":
        return _to_e8m0(F, x.to(F.float32), saturate, round_mode)
    if element.largest is not None:
        return _to_float8(F, x, dtype, element.largest, saturate)
    return x if x.dtype == dtype else x.to(dtype)


def _to_narrow(F: Any, x: Any, element: Element) -> Any:
    if x.is_floating_point():
        x = x if x.dtype in (F.float32, F.float64) else x.to(F.float32)
        whole = F.trunc(x)
        x = F.where((x - whole).abs() >= 0.5, whole + F.sign(x), whole)
    if element.dtype == "uint8":
        return x.to(F.uint8) & (1 << element.bits) - 1
    high = 1 << element.bits - 1
    return ((x.to(F.int8) & 2 * high - 1) ^ high) - high


def _to_small_float(F: Any, x: Any, small: SmallFloat) -> Any:
    size = x.abs().clamp(0.0, small.largest)
    exponent = (F.frexp(size)[1] - 1).clamp(min=small.exponent) - small.mantissa
    rounded = F.ldexp(F.round(F.ldexp(size, -exponent)), exponent).to(F.float32)
    return F.where(F.isnan(x), F.full_like(rounded, -0.0), F.copysign(rounded, x.to(F.float32)))


def _to_float8(F: Any, x: Any, dtype: Any, largest: float, saturate: bool) -> Any:
    if x.dtype == dtype:
        return x
    if not x.is_floating_point() or x.dtype.itemsize == 1:
        x = x.to(F.float32)
    if saturate:
        x = x.clamp(-largest, largest)
    elif dtype == F.float8_e4m3fn:  # torch saturates; 464 is the largest number that rounds to 448
        x = F.where(x.abs() > 464.0, F.full_like(x, math.nan), x)
    return x.to(dtype)


def _to_e8m0(F: Any, x: Any, saturate: bool, round_mode: str) -> Any:
    """Values that are not positive become the smallest number, as in ONNX Runtime; the standard leaves them open."""
    mantissa, exponent = F.frexp(x)
    if round_mode == "up":
        exponent = exponent - (mantissa <= 0.5).to(F.int32)
    elif round_mode == "nearest":
        exponent = exponent - (mantissa < 0.75).to(F.int32)
    elif round_mode == "down":
        exponent = exponent - 1
    else:
        raise OperatorError(f"round_mode={round_mode!r} is none of up, down, nearest.")
    code = F.where(x == math.inf, F.full_like(exponent, 255), exponent + 127)
    code = F.where(x <= 0, F.full_like(code, -1), code)
    inside = (code >= 0) & (code <= 254)
    code = code.clamp(0, 254) if saturate else F.where(inside, code, F.full_like(code, 255))
    return F.where(F.isnan(x), F.full_like(code, 255), code).to(F.uint8).view(F.float8_e8m0fnu)


def to_strings(x: Any) -> np.ndarray[Any, Any]:
    """Returns a real tensor as text: floats with eight significant digits, NaN, INF, bools as 0 and 1 (as ORT does)."""
    if x.is_floating_point():
        texts = [_float_text(value) for value in x.double().flatten().tolist()]
    else:
        texts = [str(int(value)) for value in x.flatten().tolist()]
    result = np.empty(len(texts), dtype=object)
    result[:] = texts
    return result.reshape(tuple(x.shape))


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return f"{value:.8g}" if math.isfinite(value) else ("INF" if value > 0 else "-INF")


_WHOLE = re.compile(r"\s*[+-]?\d+")


def from_strings(F: Any, texts: np.ndarray[Any, Any], element: Element, **options: Any) -> Any:
    """Returns numbers parsed from text; integer types read the digits before the decimal point, as ONNX Runtime does.

    The options are those of `convert`.

    Raises:
        OperatorError: a text is no number.
    """
    integer = element.narrow or not (element.small or "float" in element.dtype)
    try:
        if not integer:
            values = np.array([float(text.replace("_", "?")) for text in texts.flat], dtype=np.float64)
        else:
            matches = [int(_WHOLE.match(text)[0]) for text in texts.flat]  # type: ignore[index]
            values = np.array([(value + (1 << 63)) % (1 << 64) - (1 << 63) for value in matches], dtype=np.int64)
    except (ValueError, TypeError):
        shown = ", ".join(repr(text) for text in texts.flat[:3])
        raise OperatorError(f"a string of its input is no number (the first strings are {shown}).") from None
    return convert(F, F.from_numpy(values.reshape(texts.shape)), element, **options)


def _values_of_cast(
    input: Any, *, to: int, saturate: int = 1, round_mode: str = "up", _dtype: np.dtype[Any] | None = None
) -> Any:
    """Casts shape values; a size that is cast to float stays an int."""
    element = element_of(to) if to != STRING else None
    if element is None or _dtype is None or _dtype.kind == "O":
        raise NeedsValues("a cast of strings")
    if element.dtype not in ("float32", "float64", "int32", "int64", "bool"):
        raise NeedsValues(f"a size cast to {element.name}")
    dtype = np.dtype(element.dtype)
    number = {"b": _values_of_bool, "i": _values_of_integer, "f": _values_of_float}[dtype.kind]
    return Typed(np.asarray(np.frompyfunc(lambda value: number(value, dtype), 1, 1)(input), dtype=object), dtype)


def _values_of_bool(value: Any, dtype: np.dtype[Any]) -> Any:
    return value != 0


def _values_of_float(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, (bool, int, float)):
        value = dtype.type(value).item()
        return int(value) if value.is_integer() else value
    return value.to_integer() if getattr(value, "is_truth", False) else value


def _values_of_integer(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, (bool, int, float)):
        if isinstance(value, float) and not abs(value) < 2 ** (8 * dtype.itemsize - 1):
            return int(np.iinfo(dtype).min)  # the result of x86 for a float out of range
        return int(np.array(int(value)).astype(dtype))
    return value.to_integer()


@op("Cast", 24, choices={"round_mode": ("up", "down", "nearest")}, on_shape_values=_values_of_cast, traits=UNARY)
def cast(F: Any, input: Any, *, round_mode: str = "up", saturate: int = 1, to: int) -> Any:
    """See `convert`, `to_strings` and `from_strings`."""
    if to == STRING:
        return input if isinstance(input, np.ndarray) else to_strings(input)
    read = from_strings if isinstance(input, np.ndarray) else convert
    return read(F, input, element_of(to), saturate=bool(saturate), round_mode=round_mode)


cast_19 = revision(cast, 19, without=["round_mode"])
revision(cast_19, 6, without=["saturate"])


def _number_of(name: str) -> int:
    if name == "STRING":
        return STRING
    if name not in BY_NAME:
        raise OperatorError(f"to={name!r} is the name of no element type of tensors.")
    return BY_NAME[name].number


@op(
    "Cast",
    1,
    on_shape_values=lambda input, *, to, _dtype=None: _values_of_cast(input, to=_number_of(to), _dtype=_dtype),
    traits=UNARY,
)
def cast_1(F: Any, input: Any, *, to: str) -> Any:
    """The type is given by name."""
    return cast(F, input, to=_number_of(to.upper()))


@op("CastLike", 24, choices={"round_mode": ("up", "down", "nearest")}, traits=["keeps_rank"])
def cast_like(
    F: Any, input: Any, target_type: Any, *, round_mode: str = "up", saturate: int = 1, _types: Any = None
) -> Any:
    """Casts to the file's element type of `target_type` (int4 is held as int8), else to the type of its dtype."""
    return cast(F, input, round_mode=round_mode, saturate=saturate, to=type_number(F, target_type, _types, 1))


def type_number(F: Any, value: Any, types: Any, position: int) -> int:
    """Returns the number of an input's element type; `types` are the node's `_types`, None where the body has none."""
    if isinstance(value, np.ndarray):
        return STRING
    name = types[position] if types is not None else None
    if name is not None:
        return BY_NAME[name].number
    return _BY_DTYPE[str(value.dtype).rpartition(".")[2]]


_BY_DTYPE = {e.dtype: e.number for e in reversed(BY_NUMBER.values()) if not e.travels_wider}
"""Names of types in a framework → numbers of element types."""


cast_like_19 = revision(cast_like, 19, without=["round_mode"])
revision(cast_like_19, 15, without=["saturate"])


@op("BitCast", 26)
def bit_cast(F: Any, input: Any, *, to: int, _types: Any = None) -> Any:
    """The same bits as another type of the same width."""
    target, source = element_of(to), element_of(type_number(F, input, _types, 0))
    if source.bits != target.bits:
        raise OperatorError(f"{source.name} has {source.bits} bits and {target.name} has {target.bits}.")
    if not target.travels_wider:
        return input if source == target else input.view(getattr(F, target.dtype))
    codes = _codes(F, input, source)
    if target.small is not None:
        table = F.tensor([*_FLOAT4, *(-value for value in _FLOAT4)])
        return table[codes.to(F.int64)]
    return convert(F, codes, target)


_FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _codes(F: Any, x: Any, source: Element) -> Any:
    """Returns the bits of values of less than eight bits as uint8."""
    if source.small is None:
        return x.to(F.uint8) & (1 << source.bits) - 1
    negative = F.signbit(x).to(F.uint8) * 8
    return F.searchsorted(F.tensor(_FLOAT4), x.abs().contiguous()).to(F.uint8) + negative
