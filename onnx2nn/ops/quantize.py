"""Quantisation: small integers or floats with a scale and a zero point."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.ground.element_types import BY_NAME, BY_NUMBER
from onnx2nn.ops import integer_convolutions, integer_kernels
from onnx2nn.ops.axes import from_front
from onnx2nn.ops.cast import element_of, type_number
from onnx2nn.ops.conv import conv, window_of
from onnx2nn.ops.quantized_numbers import Functional, InPlace, arithmetic, is_zero, round_to
from onnx2nn.ops.shape import demand, fixed
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import OWN, FloatForm, NeedsValues, has_values, in_onnx_export

_UINT8 = 2


def _along(F: Any, parameter: Any, x: Any, axis: int, block_size: int) -> Any:
    """Returns a scale or zero point that broadcasts against `x`: a number, a number per index of `axis`, or blocks."""
    if block_size:
        sizes = [*x.shape]
        sizes[axis] = -(-sizes[axis] // block_size)
        pairs = zip(parameter.shape, sizes, strict=False)
        if parameter.ndim != len(sizes) or any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int)):
            raise OperatorError(
                f"a scale or zero point of shape {[*parameter.shape]} has not one number for each block of "
                f"{block_size} along axis {axis} of {[*x.shape]}, which takes {sizes}."
            )
        return parameter.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    if parameter.ndim == 0:
        return parameter
    if parameter.ndim == 1 and parameter.shape[0] == 1:
        return parameter.reshape([])
    if parameter.ndim != 1:
        raise OperatorError(f"block_size is missing, which a scale or zero point of rank {parameter.ndim} needs.")
    axis = from_front(axis, x.ndim)
    demand(
        parameter.shape[0] == x.shape[axis],
        f"a scale or zero point of shape {[*parameter.shape]} has one number for each index of axis {axis} of "
        f"{[*x.shape]}",
    )
    behind = x.ndim - axis - 1
    return parameter.reshape([-1, *[1] * behind]) if behind else parameter


def _demand_pair(scale: Any, zero_point: Any) -> None:
    """Requires a zero point for each scale.

    Raises:
        OperatorError: one of them is a number, the other is not; ONNX Runtime refuses them too.
    """
    if _is_number(scale) != _is_number(zero_point):
        raise OperatorError(
            f"a scale of shape {[*scale.shape]} has a zero point of shape {[*zero_point.shape]}. Give both one shape."
        )


def _is_number(parameter: Any) -> bool:
    return parameter.ndim == 0 or (parameter.ndim == 1 and fixed(parameter.shape[0]) and parameter.shape[0] == 1)


@op("QuantizeLinear", 23, traits=["keeps_rank", "quantises"])
def quantize_linear(
    F: Any,
    x: Any,
    y_scale: Any,
    y_zero_point: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
    _types: Any = None,
) -> Any:
    """Integers are rounded before the zero point is added, as in ONNX Runtime.

    `precision` is the type of the division, by default the scale's.
    """
    if y_zero_point is not None:
        element = BY_NUMBER[type_number(F, y_zero_point, _types, 2)]
        if output_dtype and element_of(output_dtype) is not element:
            raise OperatorError(f"output_dtype={output_dtype} is not the type of the zero point, {element.name}.")
    else:
        element = element_of(output_dtype or _UINT8)
    dtype = getattr(F, element_of(precision).dtype) if precision else y_scale.dtype
    quotient = x.to(dtype) / _along(F, y_scale, x, axis, block_size).to(dtype)
    if y_zero_point is not None:
        _demand_pair(y_scale, y_zero_point)
        y_zero_point = _along(F, y_zero_point, x, axis, block_size)
    wide = F.promote_types(dtype, F.float32)  # holds each sum of a quotient and a zero point that is in range
    return round_to(F, quotient.to(wide), y_zero_point, element, bool(saturate))


@op("QuantizeLinear", 21, traits=["keeps_rank", "quantises"])
def quantize_linear_21(
    F: Any,
    x: Any,
    y_scale: Any,
    y_zero_point: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    saturate: int = 1,
    _types: Any = None,
) -> Any:
    """See revision 23. ONNX Runtime divides in float32 in all revisions that do not name the type of the division."""
    scale = y_scale.to(F.promote_types(y_scale.dtype, F.float32))
    parameters = {"axis": axis, "block_size": block_size, "output_dtype": output_dtype, "saturate": saturate}
    return quantize_linear(F, x, scale, y_zero_point, **parameters, _types=_types)


quantize_linear_19 = revision(quantize_linear_21, 19, without=["block_size", "output_dtype"])


quantize_linear_13 = revision(quantize_linear_19, 13, without=["saturate"])
revision(quantize_linear_13, 10, without=["axis"])


@op("DequantizeLinear", 23, traits=["keeps_rank", "dequantises"])
def dequantize_linear(
    F: Any,
    x: Any,
    x_scale: Any,
    x_zero_point: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Any:
    """Computed in the output's type for 8-bit integers, whose differences every float type holds, else in float32."""
    dtype = getattr(F, element_of(output_dtype).dtype) if output_dtype else x_scale.dtype
    wide = dtype if x.dtype.itemsize == 1 and not x.is_floating_point() else F.promote_types(dtype, F.float32)
    if x_zero_point is not None:
        _demand_pair(x_scale, x_zero_point)
    if not is_zero(F, x_zero_point):
        zero_point = _along(F, x_zero_point, x, axis, block_size)
        # int32 wraps around, as in ONNX Runtime.
        x = x - zero_point if x.dtype == F.int32 else x.to(wide) - zero_point.to(wide)
    return (x.to(wide) * _along(F, x_scale, x, axis, block_size).to(wide)).to(dtype)


dequantize_linear_21 = revision(dequantize_linear, 21, without=["output_dtype"])
dequantize_linear_13 = revision(dequantize_linear_21, 13, without=["block_size"])


revision(dequantize_linear_13, 10, without=["axis"])


def _results_of_dynamic_quantisation(F: Any, x: Any) -> Any:
    return [(x.shape, F.uint8), ([], x.dtype), ([], F.uint8)]


@op(
    "DynamicQuantizeLinear",
    11,
    call="packed",
    results=_results_of_dynamic_quantisation,
    traits=["runs_packed"],
)
def dynamic_quantize_linear(F: Any, x: Any) -> tuple[Any, ...]:
    """The standard is silent about three inputs, whose results are ONNX Runtime's.

    The scale of zeros is 1, with no elements at all too. NaN is left out of the range, and becomes 0; ONNX Runtime does
    so with few elements, and loses some of the numbers before a NaN with more. A zero point of NaN, from a scale of 0
    or a range from -inf on, is 255.
    """
    if (x.numel() == 0) is True:
        return x.to(F.uint8), F.ones([], dtype=x.dtype), F.zeros([], dtype=F.uint8)
    if hasattr(F, "_int_mm") and has_values(F, x):
        found = _quantized_over_its_range(F, x)
        if found is not None:
            return found
    numbers = F.nan_to_num(x, nan=0.0, posinf=math.inf, neginf=-math.inf)
    low, high = numbers.min().clamp(max=0.0), numbers.max().clamp(min=0.0)  # not amin: torch.onnx.export needs its dim
    # On a GPU torch multiplies by the reciprocal of a Python number, which is rounded.
    scale = F.where(low == high, F.ones_like(high), (high - low) / F.full_like(high, 255.0))
    zero_point = F.nan_to_num(F.round((-low / scale).clamp(0.0, 255.0)), nan=255.0)
    # The conversion to integers gives 0 for NaN.
    return (F.round(x / scale) + zero_point).clamp(0.0, 255.0).to(F.uint8), scale, zero_point.to(F.uint8)


_SCALES = 1e-36, 1e36
"""Scales between which quotients and ranges are normal numbers of float32."""


def _quantized_over_its_range(F: Any, x: Any) -> tuple[Any, ...] | None:
    """Returns DynamicQuantizeLinear of values in a processor's memory, in few calls.

    The scale and the zero point are computed in float64 and rounded to float32 after each operation, which gives the
    numbers of float32, as float64 has more than twice the bits (Figueroa 1995). None for a range that is not finite, or
    next to a limit of float32, and where the scale has a gradient.
    """
    if x.device.type != "cpu" or x.dtype != F.float32 or (x.requires_grad and F.is_grad_enabled()):
        return None
    ends = F.aminmax(x)
    low, high = min(ends.min.item(), 0.0), max(ends.max.item(), 0.0)
    width = high - low
    if width and not _SCALES[0] < width / 255 < _SCALES[1]:
        return None
    scale = float(np.float32(float(np.float32(width)) / 255)) if width else 1.0
    zero = round(min(float(np.float32(-low / scale)), 255.0))
    step, zero_point = F.tensor(scale), F.tensor(zero, dtype=F.uint8)
    return InPlace(F).to_steps(F.div(x, step), zero_point, BY_NAME["UINT8"]), step, zero_point


def _sum_dtype(F: Any, count: Any, w: Any, w_zero_point: Any, dims: Sequence[int], bias: Any = None) -> Any:
    """Returns a float type in which sums of `count` products of 8-bit integers are exact in any order.

    float32 holds integers up to 2**24. Of constant weights, their own sums decide whether it suffices.
    """
    if bias is None and isinstance(count, int) and count * 255 * 255 < 1 << 24:
        return F.float32
    if has_values(F, w, w_zero_point, bias) and w.numel():
        weights = w.to(F.float64) if w_zero_point is None else w.to(F.float64) - w_zero_point.to(F.float64)
        bound = float(weights.abs().sum(dims).max()) * 255
        bound += 0 if bias is None else float(bias.to(F.float64).abs().max())
    else:
        bound = math.inf
    return F.float32 if bound < 1 << 24 else F.float64


class RightOperand:
    """The right operand of several products of 8-bit integers, minus its zero point.

    Args:
        F: torch, or another namespace.
        w: `(k, n)`, 8-bit integers.
        zero_point: None, one number, or `(n,)`.
    """

    def __init__(self, F: Any, w: Any, zero_point: Any):
        self._F, self._columns = F, None
        if integer_kernels.serves(F, w[:, 0], w, zero_point):
            self._columns = integer_kernels.Columns(F, w, zero_point, reused=True)
        else:
            dtype = _sum_dtype(F, w.shape[-2], w, zero_point, [-2])
            self._weight = Functional(F).centered(w, zero_point, dtype)

    def product(self, x: Any, zero_point: Any) -> Any:
        """Returns `x - zero_point`, `(..., k)`, times the operand, exact: in int32, or in floats."""
        if self._columns is not None:
            return self._columns.product(self._F, x, zero_point)
        return self._F.matmul(x.to(self._weight.dtype) - zero_point.to(self._weight.dtype), self._weight)


def _rows(parameter: Any, matrix: Any) -> Any:
    """Returns a scale or zero point, per tensor or per row, that broadcasts against `matrix`."""
    one_a_row = parameter is not None and parameter.ndim == 1 and matrix.ndim > 1 and parameter.shape[0] != 1
    return parameter.reshape([-1, 1]) if one_a_row else parameter


def integer_matmul(F: Any, a: Any, b: Any, a_zero_point: Any, b_zero_point: Any) -> Any:
    """Returns the exact product: as int32 where there is a kernel, else as floats that hold it exactly."""
    rows = _rows(a_zero_point, a)
    if integer_kernels.serves(F, a, b, a_zero_point, b_zero_point) and (a.ndim < 3 or rows is a_zero_point):
        return integer_kernels.columns(F, b, b_zero_point).product(F, a, rows)
    if (a.dtype.itemsize == 1 and a.is_floating_point()) or b.is_floating_point():
        dtype = F.float64
    else:
        dtype = _sum_dtype(F, a.shape[-1], b, b_zero_point, [-2] if b.ndim > 1 else [0])
    numbers = arithmetic(F, a, b, rows, b_zero_point)
    return F.matmul(numbers.centered(a, rows, dtype), numbers.centered(b, b_zero_point, dtype))


def _to_int32(F: Any, x: Any) -> Any:
    """Returns floats that hold integers as int32, wrapping around as a sum in int32 does."""
    return x.to(F.int64).to(F.int32) if x.dtype == F.float64 else x.to(F.int32)


def shape_of_product(A: Any, B: Any) -> list[Any]:
    """Returns the shape of the product of `A` and a matrix, a vector, or a batch of the same size, `B`.

    Raises:
        NeedsValues: `B` is a batch of matrices that may be broadcast.
    """
    batch = A.shape[:-2]
    same = B.ndim == A.ndim and all((a == b) is True for a, b in zip(batch, B.shape, strict=False))
    if (B.ndim > 2 and not same) or A.ndim < 1 or B.ndim < 1:
        raise NeedsValues("the shape of a product of batches")
    demand(A.shape[-1] == B.shape[-2 if B.ndim > 1 else 0], "the inner dimension of a product")
    return [*A.shape[:-1], *(B.shape[-1:] if B.ndim > 2 else B.shape[1:])]


def _results_of_integer_product(F: Any, A: Any, B: Any, *_: Any) -> Any:
    return [(shape_of_product(A, B), F.int32)]


@op(
    "MatMulInteger",
    10,
    call="packed",
    results=_results_of_integer_product,
    traits=["runs_packed"],
    float_form=FloatForm("MatMul", -1),
)
def matmul_integer(F: Any, A: Any, B: Any, a_zero_point: Any = None, b_zero_point: Any = None) -> Any:
    """Computed in a float type that holds every sum exactly, as torch lacks fast integer products on some devices."""
    return _to_int32(F, integer_matmul(F, A, B, a_zero_point, b_zero_point))


def _results_of_qlinear_product(F: Any, a: Any, _a: Any, _b: Any, b: Any, *parameters: Any) -> Any:
    return [(shape_of_product(a, b), parameters[-1].dtype)]


@op(
    "QLinearMatMul",
    10,
    call="packed",
    results=_results_of_qlinear_product,
    traits=["runs_packed"],
    float_form=FloatForm("MatMul", -1),
)
def qlinear_matmul(
    F: Any,
    a: Any,
    a_scale: Any,
    a_zero_point: Any,
    b: Any,
    b_scale: Any,
    b_zero_point: Any,
    y_scale: Any,
    y_zero_point: Any,
) -> Any:
    """The product is exact; it is scaled in float32 and rounded before the zero point is added, as in ONNX Runtime."""
    product = integer_matmul(F, a, b, a_zero_point, b_zero_point)
    scale = (_rows(a_scale, a) * b_scale / _rows(y_scale, a)).to(F.float32)
    element = BY_NUMBER[type_number(F, y_zero_point, None, 0)]
    numbers = arithmetic(F, product, scale, y_zero_point)
    return numbers.to_steps(numbers.scaled(product.to(F.float32), scale), _rows(y_zero_point, a), element)


def _integer_conv(F: Any, x: Any, w: Any, x_zero_point: Any, w_zero_point: Any, bias: Any, attributes: Any) -> Any:
    """Returns the convolution exactly: in int32, or as floats that hold it."""
    found = _convolved(F, x, w, x_zero_point, w_zero_point, bias, attributes)
    if found is not None:
        return found
    if w_zero_point is not None and w_zero_point.ndim == 1:
        w_zero_point = w_zero_point.reshape([-1, *[1] * (w.ndim - 1)])
    dtype = _sum_dtype(F, math.prod(w.shape[1:]), w, w_zero_point, list(range(1, w.ndim)), bias)
    numbers = arithmetic(F, x, w, x_zero_point, w_zero_point)
    data, weights = numbers.centered(x, x_zero_point, dtype), numbers.centered(w, w_zero_point, dtype)
    if dtype == F.float64 and in_onnx_export():
        return _conv_of_digits(F, data, weights, bias, attributes)
    return conv(F, data, weights, None if bias is None else bias.type_as(data), **attributes)


def _conv_of_digits(F: Any, x: Any, w: Any, bias: Any, attributes: Any) -> Any:
    """Returns the convolution of 8-bit integers minus zero points in float64, by convolutions in float32.

    ONNX Runtime has none in float64. Of the digits of the weights to a base that is small enough, each sum is exact in
    float32, up to 2**15 products; the first digit has the sign. More products need the wide convolution.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.jit.trace, to which sizes are tensors: those of weights stay
        count = int(math.prod(w.shape[1:]))
    bits = (((1 << 24) - 1) // (255 * count)).bit_length() - 1
    if bits < 1:
        return conv(F, x, w, None if bias is None else bias.type_as(x), **attributes)
    narrow, total, place = x.to(F.float32), 0, 0
    while place < 8:
        w, rest = F.floor(w / (1 << bits)), w
        digit = rest if place + bits >= 8 else rest - w * (1 << bits)
        total = total + conv(F, narrow, digit.to(F.float32), None, **attributes).to(F.float64) * (1 << place)
        place += bits
    return total if bias is None else total + bias.to(F.float64).reshape([-1, *[1] * (x.ndim - 2)])


def _convolved(F: Any, x: Any, w: Any, x_zero_point: Any, w_zero_point: Any, bias: Any, attributes: Any) -> Any:
    """Returns the convolution by a kernel for integers; None where no kernel gives it."""
    records = integer_convolutions.records(F, x, w, x_zero_point, attributes)
    convolve = integer_convolutions.recorded if records else integer_convolutions.convolved
    return convolve(F, x, w, x_zero_point, w_zero_point, bias, attributes)


def shape_of_convolution(x: Sequence[Any], w: Sequence[int], attributes: Any) -> list[Any]:
    """Returns the shape of a convolution of a tensor of shape `x` with weights of shape `w`. Source: ONNX Conv-22."""
    rank, (strides, pads, dilations) = len(w) - 2, window_of(x, w, _WINDOW | attributes)
    demand(x[1] == w[1] * attributes.get("group", 1), "the channels of a convolution")
    sizes = zip(x[2:], w[2:], pads[:rank], pads[rank:], strides, dilations, strict=True)
    spatial = [
        (size + begin + end - (kernel - 1) * dilation - 1) // stride + 1
        for size, kernel, begin, end, stride, dilation in sizes
    ]
    return [x[0], w[0], *spatial]


def _attributes(
    auto_pad: str,
    dilations: Sequence[int] | None,
    group: int,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> dict[str, Any]:
    """Returns the attributes of a convolution by name, hashable."""
    dilations, pads, strides = (None if given is None else tuple(given) for given in (dilations, pads, strides))
    return {"auto_pad": auto_pad, "dilations": dilations, "group": group, "pads": pads, "strides": strides}


_WINDOW = {"auto_pad": "NOTSET", "dilations": None, "pads": None, "strides": None}
"""Attributes of a convolution and their defaults."""


def _results_of_integer_conv(F: Any, x: Any, w: Any, *_: Any, **attributes: Any) -> Any:
    return [(shape_of_convolution(x.shape, w.shape, attributes), F.int32)]


@op(
    "ConvInteger",
    10,
    call="packed",
    results=_results_of_integer_conv,
    traits=["channels_first", "keeps_rank", "runs_packed"],
    float_form=FloatForm("Conv", 0),
)
def conv_integer(
    F: Any,
    x: Any,
    w: Any,
    x_zero_point: Any = None,
    w_zero_point: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """Pads hold the zero point. See MatMulInteger for the computation."""
    attributes = _attributes(auto_pad, dilations, group, pads, strides)
    return _to_int32(F, _integer_conv(F, x, w, x_zero_point, w_zero_point, None, attributes))


def _results_of_qlinear_conv(
    F: Any,
    x: Any,
    _xs: Any,
    _xz: Any,
    w: Any,
    _ws: Any,
    _wz: Any,
    _ys: Any,
    y_zero_point: Any,
    *_: Any,
    **attributes: Any,
) -> Any:
    return [(shape_of_convolution(x.shape, w.shape, attributes), y_zero_point.dtype)]


@op(
    "QLinearConv",
    10,
    call="packed",
    results=_results_of_qlinear_conv,
    traits=["channels_first", "keeps_rank", "runs_packed"],
    float_form=FloatForm("Conv", 0),
)
def qlinear_conv(
    F: Any,
    x: Any,
    x_scale: Any,
    x_zero_point: Any,
    w: Any,
    w_scale: Any,
    w_zero_point: Any,
    y_scale: Any,
    y_zero_point: Any,
    B: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """See ConvInteger and QLinearMatMul."""
    attributes = _attributes(auto_pad, dilations, group, pads, strides)
    result = _integer_conv(F, x, w, x_zero_point, w_zero_point, B, attributes)
    scale = x_scale * w_scale / y_scale
    if w_scale.ndim == 1:
        scale = scale.reshape([-1, *[1] * (x.ndim - 2)])
    element = BY_NUMBER[type_number(F, y_zero_point, None, 0)]
    numbers = arithmetic(F, result, scale, y_zero_point)
    return numbers.to_steps(numbers.scaled(result.to(F.float32), scale), y_zero_point, element)


@op(
    "FusedQLinearConv",
    1,
    domain=OWN,
    call="packed",
    results=_results_of_qlinear_conv,
    traits=["channels_first", "keeps_rank"],
)
def fused_qlinear_conv(
    F: Any,
    x: Any,
    x_scale: Any,
    x_zero_point: Any,
    w: Any,
    w_scale: Any,
    w_zero_point: Any,
    y_scale: Any,
    y_zero_point: Any,
    B: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """QLinearConv; one kernel also scales and rounds, to another step where a number is next to the middle of two."""
    attributes = _attributes(auto_pad, dilations, group, pads, strides)
    parameters = (x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B)
    zero_points, scales = (x_zero_point, w_zero_point, y_zero_point), (x_scale, w_scale, y_scale)
    found = None
    if y_zero_point.dtype in (F.int8, F.uint8):
        records = integer_convolutions.records(F, x, w, x_zero_point, attributes)
        convolve = integer_convolutions.recorded_requantized if records else integer_convolutions.requantized
        found = convolve(F, x, w, zero_points, scales, B, attributes)
    return qlinear_conv(F, x, *parameters, **attributes) if found is None else found
