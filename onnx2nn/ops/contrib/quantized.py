"""Quantised operators of ONNX Runtime: 8-bit integers with scales, and weights of 2 to 8 bits in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ground.element_types import BY_NUMBER
from onnx2nn.ops import quantize, quantized_steps
from onnx2nn.ops.activation import leaky_relu
from onnx2nn.ops.axes import from_front
from onnx2nn.ops.cast import type_number
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.kept_forms import KeptForms
from onnx2nn.ops.pool import Windows, average_pool, max_pool
from onnx2nn.ops.rnn import (
    LinearMap,
    check_shapes,
    lstm_loop,
    outputs_asked,
    recurrent_results,
    settings,
    summed,
)
from onnx2nn.ops.shape import demand
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import REQUIRED, FloatForm, Lookup, NeedsValues, has_values

_packed = partial(op, domain=MICROSOFT, call="packed", traits=["runs_packed"])
"""Registers an operator that is one call in a module, and one node in files that are written of it."""


def _dequantized(F: Any, x: Any, scale: Any, zero_point: Any) -> Any:
    return quantize.dequantize_linear(F, x, scale, zero_point)


def _quantized(F: Any, y: Any, scale: Any, zero_point: Any, like: Any) -> Any:
    """Returns floats quantised to the type of `like`: rounded, then shifted by the zero point."""
    return quantize.round_to(F, y / scale, zero_point, element_like(F, like))


def element_like(F: Any, like: Any) -> Any:
    """Returns the element type of a tensor of 8-bit integers."""
    return BY_NUMBER[type_number(F, like, None, 0)]


def _shifted_and_rounded(F: Any, y: Any, zero_point: Any, like: Any) -> Any:
    """Returns `y`, already divided by its scale, shifted by the zero point, then rounded, as ONNX Runtime's kernels do.

    Halves are thus rounded to an even result, whatever the zero point is.
    """
    y = y if quantize.is_zero(F, zero_point) else y + zero_point.to(F.float32)
    return quantize.round_to(F, y, None, element_like(F, like))


def _whole(F: Any, x: Any, zero_point: Any) -> Any:
    return quantize.shifted(F, x.to(F.float32), zero_point)


def _joined(a: Any, b: Any) -> Any:
    """Returns the size of two dimensions that are broadcast together: any but 1 is the size of both or beside a 1."""
    if (a == b) is True or (b == 1) is True:
        return a
    if (a == 1) is True:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise OperatorError(f"sizes {a} and {b} cannot be broadcast together.")
    if isinstance(a, int) or isinstance(b, int):
        return a if isinstance(a, int) else b
    raise NeedsValues("the size of dimensions that are broadcast")


def _broadcast(*tensors: Any) -> list[Any]:
    """Returns the common shape of tensors that are broadcast together."""
    rank = max(x.ndim for x in tensors)
    shapes = [[*[1] * (rank - x.ndim), *x.shape] for x in tensors]
    return [reduce(_joined, sizes) for sizes in zip(*shapes, strict=True)]


def _demand_numbers(*steps: Any) -> None:
    """Refuses scales and zero points that are no single number, as ONNX Runtime does."""
    for value in steps:
        if value is not None and (value.ndim > 1 or (value.ndim and (value.shape[0] == 1) is False)):
            raise OperatorError(
                f"a scale or zero point has the shape {list(value.shape)}; a single number is possible."
            )


def _results_of_elements(F: Any, A: Any, a_s: Any, a_z: Any, B: Any, *others: Any) -> Any:
    _demand_numbers(a_s, a_z, *others)
    return [(_broadcast(A, B), A.dtype)]


def _results_of_function(F: Any, X: Any, *steps: Any, **_: Any) -> Any:
    _demand_numbers(*steps)
    return [(X.shape, X.dtype)]


@_packed("QLinearAdd", 1, results=_results_of_elements, float_form=FloatForm("Add"))
def qlinear_add(
    F: Any,
    A: Any,
    A_scale: Any,
    A_zero_point: Any = None,
    B: Any = REQUIRED,
    B_scale: Any = REQUIRED,
    B_zero_point: Any = None,
    C_scale: Any = REQUIRED,
    C_zero_point: Any = None,
) -> Any:
    total = _whole(F, A, A_zero_point) * (A_scale / C_scale) + _whole(F, B, B_zero_point) * (B_scale / C_scale)
    return _shifted_and_rounded(F, total, C_zero_point, A)


@_packed("QLinearMul", 1, results=_results_of_elements, float_form=FloatForm("Mul"))
def qlinear_mul(
    F: Any,
    A: Any,
    A_scale: Any,
    A_zero_point: Any = None,
    B: Any = REQUIRED,
    B_scale: Any = REQUIRED,
    B_zero_point: Any = None,
    C_scale: Any = REQUIRED,
    C_zero_point: Any = None,
) -> Any:
    product = _whole(F, A, A_zero_point) * _whole(F, B, B_zero_point)
    return _shifted_and_rounded(F, product * (A_scale * B_scale / C_scale), C_zero_point, A)


def _results_of_choice(F: Any, condition: Any, X: Any, x_s: Any, x_z: Any, Y: Any, *steps: Any) -> Any:
    _demand_numbers(x_s, x_z, *steps)
    return [(_broadcast(condition, X, Y), X.dtype)]


@_packed("QLinearWhere", 1, results=_results_of_choice)
def qlinear_where(
    F: Any,
    condition: Any,
    X: Any,
    x_scale: Any,
    x_zero_point: Any,
    Y: Any,
    y_scale: Any,
    y_zero_point: Any,
    z_scale: Any,
    z_zero_point: Any,
) -> Any:
    chosen = F.where(condition, _dequantized(F, X, x_scale, x_zero_point), _dequantized(F, Y, y_scale, y_zero_point))
    return _quantized(F, chosen, z_scale, z_zero_point, X)


def _results_of_concat(F: Any, y_s: Any, y_z: Any, *inputs: Any, axis: int) -> Any:
    _demand_numbers(y_s, y_z, *inputs[1::3], *inputs[2::3])
    axis = from_front(axis, inputs[0].ndim)
    shape = [*inputs[0].shape]
    shape[axis] = sum(x.shape[axis] for x in inputs[::3])
    return [(shape, inputs[0].dtype)]


@_packed("QLinearConcat", 1, results=_results_of_concat)
def qlinear_concat(F: Any, Y_scale: Any, Y_zero_point: Any, *inputs: Any, axis: int) -> Any:
    """`inputs`: tensor, scale and zero point of each operand in turn."""
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    return _quantized(
        F, F.cat([_dequantized(F, *triple) for triple in triples], axis), Y_scale, Y_zero_point, inputs[0]
    )


@_packed("QLinearSigmoid", 1, results=_results_of_function, float_form=FloatForm("Sigmoid"))
def qlinear_sigmoid(
    F: Any,
    X: Any,
    X_scale: Any,
    X_zero_point: Any = None,
    Y_scale: Any = REQUIRED,
    Y_zero_point: Any = None,
) -> Any:
    return _quantized(F, F.sigmoid(_dequantized(F, X, X_scale, X_zero_point)), Y_scale, Y_zero_point, X)


@_packed("QLinearLeakyRelu", 1, results=_results_of_function, float_form=FloatForm("LeakyRelu"))
def qlinear_leaky_relu(
    F: Any,
    X: Any,
    X_scale: Any,
    X_zero_point: Any = None,
    Y_scale: Any = REQUIRED,
    Y_zero_point: Any = None,
    *,
    alpha: float = 0.01,
) -> Any:
    activated = leaky_relu(F, _dequantized(F, X, X_scale, X_zero_point), alpha=alpha)
    return _quantized(F, activated, Y_scale, Y_zero_point, X)


@_packed("QLinearSoftmax", 1, results=_results_of_function)
def qlinear_softmax(
    F: Any,
    X: Any,
    X_scale: Any,
    x_zero_point: Any = None,
    y_scale: Any = REQUIRED,
    y_zero_point: Any = REQUIRED,
    *,
    axis: int = -1,
    opset: int,
) -> Any:
    """With `opset` below 13, softmax runs over all dimensions from `axis` on.

    The inverse of y_scale is rounded down to a whole number, as in ONNX Runtime. A scale of inf, which masks of -inf
    have after calibration, results in NaN, which is converted to 0 whatever the zero point.
    """
    axis = from_front(axis, X.ndim)
    x = X.flatten(axis) if opset < 13 else X.movedim(axis, -1)
    below = x.to(F.int32) - x.amax(-1, keepdim=True).to(F.int32)  # scaled numbers could overflow
    y = F.softmax(below.to(F.float32) * X_scale, -1) * (1.0 / y_scale).floor()
    nothing = F.isnan(y)
    y = quantize.round_to(F, F.where(nothing, 0.0, y), y_zero_point, element_like(F, X)).masked_fill(nothing, 0)
    return y.reshape(X.shape) if opset < 13 else y.movedim(-1, axis)


def _results_of_pool(
    F: Any,
    X: Any,
    *steps: Any,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    **attributes: Any,
) -> Any:
    _demand_numbers(*steps)
    if ceil_mode:
        raise NeedsValues("the number of windows that may reach beyond the pads")
    batch, channels, *spatial = [X.shape[0], X.shape[-1], *X.shape[1:-1]] if channels_last else X.shape
    window = [channels, channels, *kernel_shape]
    shape = quantize.shape_of_convolution([batch, channels, *spatial], window, attributes)
    return [([batch, *shape[2:], channels] if channels_last else shape, X.dtype)]


@_packed("QLinearAveragePool", 1, results=_results_of_pool, float_form=FloatForm("AveragePool"))
def qlinear_average_pool(
    F: Any,
    X: Any,
    x_scale: Any,
    x_zero_point: Any = None,
    y_scale: Any = REQUIRED,
    y_zero_point: Any = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """With `count_include_pad`, what `ceil_mode` adds to the last windows counts too, unlike in AveragePool."""
    x = _dequantized(F, X, x_scale, x_zero_point)
    x = x.movedim(-1, 1) if channels_last else x
    if ceil_mode and count_include_pad:
        windows = Windows(x, kernel_shape, strides, pads, None, auto_pad, ceil_mode)
        auto_pad, ceil_mode, pads = "NOTSET", 0, [*windows.begins, *windows.reach()]
    options = {"auto_pad": auto_pad, "ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    y = average_pool(F, x, kernel_shape=kernel_shape, pads=pads, strides=strides, **options)
    y = y.movedim(1, -1) if channels_last else y
    return _shifted_and_rounded(F, y / y_scale, y_zero_point, X)


def _results_of_global_pool(F: Any, X: Any, *steps: Any, channels_last: int = 0) -> Any:
    _demand_numbers(*steps)
    spatial = range(1, X.ndim - 1) if channels_last else range(2, X.ndim)
    return [([1 if axis in spatial else size for axis, size in enumerate(X.shape)], X.dtype)]


@_packed("QLinearGlobalAveragePool", 1, results=_results_of_global_pool, float_form=FloatForm("GlobalAveragePool"))
def qlinear_global_average_pool(
    F: Any,
    X: Any,
    x_scale: Any,
    x_zero_point: Any,
    y_scale: Any,
    y_zero_point: Any,
    *,
    channels_last: int = 0,
) -> Any:
    """The sum is exact and is scaled once."""
    axes = tuple(range(1, X.ndim - 1)) if channels_last else tuple(range(2, X.ndim))
    total = _whole(F, X, x_zero_point).sum(axes, keepdim=True)
    scale = x_scale / (y_scale * math.prod(X.shape[axis] for axis in axes))
    return quantize.round_to(F, total * scale, y_zero_point, element_like(F, X))


@op("NhwcMaxPool", 1, domain=MICROSOFT)
def nhwc_max_pool(
    F: Any,
    x: Any,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """MaxPool of 8-bit integers with the channels last."""
    options = {"auto_pad": auto_pad, "ceil_mode": ceil_mode, "dilations": dilations}
    options |= {"kernel_shape": kernel_shape, "pads": pads, "strides": strides}
    return max_pool(F, x.movedim(-1, 1), **options).movedim(1, -1)


def _results_of_conv(F: Any, x: Any, *others: Any, channels_last: int = 0, **attributes: Any) -> Any:
    w, y_zero_point = others[2], others[6]
    if not channels_last:
        return [(quantize.shape_of_convolution(x.shape, w.shape, attributes), y_zero_point.dtype)]
    first = [x.shape[0], x.shape[-1], *x.shape[1:-1]]
    batch, channels, *spatial = quantize.shape_of_convolution(first, w.shape, attributes)
    return [([batch, *spatial, channels], y_zero_point.dtype)]


@_packed("QLinearConv", 1, results=_results_of_conv, float_form=FloatForm("Conv", 0))
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
    channels_last: int = 0,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """With `channels_last`, x and the result have their channels last; w has Conv's layout."""
    options = {"auto_pad": auto_pad, "dilations": dilations, "group": group, "pads": pads, "strides": strides}
    x = x.movedim(-1, 1) if channels_last else x
    parameters = (x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B)
    y = quantize.qlinear_conv(F, x, *parameters, **options)
    return y.movedim(1, -1) if channels_last else y


def _demand_both(y_scale: Any, y_zero_point: Any) -> None:
    if (y_scale is None) != (y_zero_point is None):
        raise OperatorError("y_scale and y_zero_point belong together. Give it both, or none for a float result.")


def _results_of_gemm(
    F: Any, A: Any, _as: Any, _az: Any, B: Any, *others: Any, transA: int = 0, transB: int = 0, **_: Any
) -> Any:
    y_scale, y_zero_point = (*others[3:5], None, None)[:2]
    _demand_both(y_scale, y_zero_point)
    rows, inner = A.shape[::-1] if transA else A.shape
    inner_of_b, columns = B.shape[::-1] if transB else B.shape
    demand(inner == inner_of_b, "the inner dimension of a product")
    return [([rows, columns], F.float32 if y_zero_point is None else y_zero_point.dtype)]


@_packed("QGemm", 1, results=_results_of_gemm)
def qgemm(
    F: Any,
    A: Any,
    a_scale: Any,
    a_zero_point: Any,
    B: Any,
    b_scale: Any,
    b_zero_point: Any,
    C: Any = None,
    y_scale: Any = None,
    y_zero_point: Any = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    """C holds integers in units of alpha * a_scale * b_scale. Without y_scale the result is float32."""
    _demand_both(y_scale, y_zero_point)
    A, B = A.t() if transA else A, B.t() if transB else B
    product = quantize.integer_matmul(F, A, B, a_zero_point, b_zero_point)
    if C is not None:
        product = product.to(F.float64) + C.to(F.float64)
    scale = (a_scale if alpha == 1.0 else a_scale * alpha) * b_scale  # in ONNX Runtime's order
    if y_scale is None:
        return product.to(F.float32) * scale
    return quantize.requantized(F, product, scale / y_scale, y_zero_point, element_like(F, y_zero_point))


def _results_of_float_product(F: Any, A: Any, B: Any, scale: Any, *_: Any) -> Any:
    return [(quantize.shape_of_product(A, B), scale.dtype)]


@_packed("MatMulIntegerToFloat", 1, results=_results_of_float_product)
def matmul_integer_to_float(
    F: Any,
    A: Any,
    B: Any,
    a_scale: Any,
    b_scale: Any,
    a_zero_point: Any = None,
    b_zero_point: Any = None,
    bias: Any = None,
) -> Any:
    product = quantize.integer_matmul(F, A, B, a_zero_point, b_zero_point)
    dtype = a_scale.dtype
    scale = a_scale.to(F.float32) * b_scale.to(F.float32)
    y = (product.to(F.float32) * scale).to(dtype)
    return y if bias is None else y + bias


@_packed("DynamicQuantizeMatMul", 1, results=_results_of_float_product)
def dynamic_quantize_matmul(F: Any, A: Any, B: Any, b_scale: Any, b_zero_point: Any = None, bias: Any = None) -> Any:
    """A is quantised to 8 bits over its range, as by DynamicQuantizeLinear."""
    a, a_scale, a_zero_point = quantize.dynamic_quantize_linear(F, A)
    return matmul_integer_to_float(F, a, B, a_scale, b_scale, a_zero_point, b_zero_point, bias)


_right_operands = KeptForms[quantize.RightOperand]()


def _quantized_maps(F: Any, weights: Any, scales: Any, zero_points: Any, biases: Any = None) -> list[LinearMap]:
    """Returns DynamicQuantizeMatMul with the weights of each direction, `(directions, features, 4 * hidden)`.

    The left operand is quantised as one matrix: an input with all its steps, a state with its whole batch.
    """

    def of_direction(i: int) -> LinearMap:
        weight = _right_operands.form(
            F, weights, [zero_points], i, lambda: quantize.RightOperand(F, weights[i], zero_points[i])
        )

        def linear(x: Any) -> Any:
            x, scale, zero_point = quantize.dynamic_quantize_linear(F, x)
            y = weight.product(x, zero_point).to(scale.dtype) * (scale * scales[i])
            return y if biases is None else y + biases[i]

        return linear

    return [of_direction(i) for i in range(weights.shape[0])]


_state_weights = KeptForms[quantized_steps.StateWeights]()


def _weights_of_states(F: Any, R: Any, zero_points: Any, i: int, batch: int) -> quantized_steps.StateWeights:
    return quantized_steps.StateWeights(F, R[i], zero_points[i], batch)


def _in_few_calls(
    F: Any,
    X: Any,
    W: Any,
    R: Any,
    of_input: Sequence[LinearMap],
    scales: Any,
    zero_points: Any,
    states: Sequence[Any],
    backwards: Sequence[bool],
) -> tuple[Any, ...] | None:
    """Returns Y, Y_h and Y_c of an LSTM by `quantized_steps`; None where those do not serve."""
    if not quantized_steps.serves(F, X, W, R, scales, zero_points, states):
        return None
    batch, hidden, found = X.shape[1], R.shape[1], []
    for i, turned in enumerate(backwards):
        weights = _state_weights.form(
            F, R, [zero_points], (i, batch), partial(_weights_of_states, F, R, zero_points, i, batch)
        )
        if not weights.exact:
            return None
        product = quantized_steps.StateProduct(F, weights, scales[i], batch, hidden)
        gates = of_input[i](X)
        first = [X.new_zeros([batch, hidden]) if state is None else state[i] for state in states]
        direction = quantized_steps.lstm(F, gates.flip([0]) if turned else gates, product, *first)
        if direction is None:
            return None
        found.append((direction[0].flip([0]) if turned else direction[0], *direction[1:]))
    Y, *last = zip(*found, strict=True)
    return (F.stack(Y, 1), *(F.stack(state) for state in last))


def _results_of_lstm(F: Any, X: Any, W: Any, R: Any, *others: Any, **attributes: Any) -> Any:
    return recurrent_results(X, W.shape[0], W.shape[1], R.shape[1], layout=0)


@op(
    "DynamicQuantizeLSTM",
    1,
    domain=MICROSOFT,
    results=_results_of_lstm,
    custom_op=True,
    traits=frozenset({"thread_dependent", "loops_over_time"}),
)
def dynamic_quantize_lstm(
    F: Any,
    X: Any,
    W: Any,
    R: Any,
    B: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    initial_c: Any = None,
    P: Any = None,
    W_scale: Any = REQUIRED,
    W_zero_point: Any = REQUIRED,
    R_scale: Any = REQUIRED,
    R_zero_point: Any = REQUIRED,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    _outputs: int = 3,
) -> Any:
    """LSTM with 8-bit weights, W `(directions, features, 4 * hidden)` and R `(directions, hidden, 4 * hidden)`.

    Steps behind the longest sequence's end do not count for the range over which X is quantised. The results are ONNX
    Runtime's with one thread: with several, each thread quantises its own sequences, so that results depend on the
    number of threads. Without VNNI instructions ONNX Runtime saturates sums of two products of int8 weights at 16 bits;
    here they are exact.
    """
    default = ("Sigmoid", "Tanh", "Tanh")
    s = settings(direction, activations, default, activation_alpha, activation_beta, clip, layout=0)
    if not isinstance(X, F.Tensor):
        raise NeedsValues("a loop over time")
    of_x, of_h = ((shape[0], *reversed(shape[1:])) for shape in (W.shape, R.shape))
    check_shapes(F, s, 4, X, of_x, of_h, B, [initial_h, initial_c], P)
    if sequence_lens is not None:
        step = F.arange(X.shape[0], device=X.device)
        X = F.where((step < sequence_lens.max()).reshape(-1, 1, 1), X, 0.0)
    maps = _quantized_maps(F, W, W_scale, W_zero_point, summed(B))
    if s.is_plain(default) and P is None and not input_forget and sequence_lens is None:
        found = _in_few_calls(F, X, W, R, maps, R_scale, R_zero_point, [initial_h, initial_c], s.directions)
        if found is not None:
            return outputs_asked(found, _outputs)
    products = _quantized_maps(F, R, R_scale, R_zero_point)
    of_states = [lambda x, h, product=product: x + product(h) for product in products]
    states = [initial_h, initial_c]
    cells = lstm_loop(F, X, maps, of_states, sequence_lens, states, P, R.shape[1], input_forget, s, stops=True)
    return outputs_asked(cells, _outputs)


@op("QuantizeLinear", 1, domain=MICROSOFT, traits=["quantises"])
def quantize_linear(
    F: Any, x: Any, y_scale: Any, y_zero_point: Any = None, *, axis: int | None = None, _types: Any = None
) -> Any:
    return quantize.quantize_linear_21(F, x, y_scale, y_zero_point, axis=1 if axis is None else axis, _types=_types)


@op("DequantizeLinear", 1, domain=MICROSOFT, traits=["dequantises"])
def dequantize_linear(F: Any, x: Any, x_scale: Any, x_zero_point: Any = None, *, axis: int | None = None) -> Any:
    return quantize.dequantize_linear(F, x, x_scale, x_zero_point, axis=1 if axis is None else axis)


def _in_a_byte(bits: int) -> int:
    """Returns how many numbers of so many bits a byte holds."""
    if bits not in (2, 4, 8):
        raise OperatorError(f"bits={bits} is none of 2, 4, 8.")
    return 8 // bits


def unpacked(F: Any, packed: Any, bits: int) -> Any:
    """Returns the unsigned `bits`-bit numbers in the bytes `packed`, low bits first, along the last dimension."""
    if _in_a_byte(bits) == 1:
        return packed
    mask = (1 << bits) - 1
    if has_values(F, packed) and hasattr(F, "bitwise_right_shift"):  # four times as fast as a division
        return F.stack([(packed >> shift) & mask for shift in range(0, 8, bits)], -1).flatten(-2)
    # Division, as torch.onnx.export writes a right shift as one of signed numbers.
    steps = F.tensor([1 << shift for shift in range(0, 8, bits)], dtype=F.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) // steps) & mask).flatten(-2)


def _centred(F: Any, numbers: Any, zero_points: Any, bits: int, dtype: Any) -> Any:
    """Returns blocks of numbers, (..., blocks, block), minus their zero points, (..., blocks), which may be packed."""
    if zero_points is None:
        return numbers.to(dtype) - float(1 << (bits - 1))
    if zero_points.dtype == F.uint8:
        blocks = numbers.shape[-2]
        zero_points = unpacked(F, zero_points.reshape([*numbers.shape[:-2], -1]), bits)[..., :blocks]
    return numbers.to(dtype) - zero_points.reshape(numbers.shape[:-1]).to(dtype).unsqueeze(-1)


def nbits_weight(
    F: Any,
    B: Any,
    scales: Any,
    zero_points: Any = None,
    g_idx: Any = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
) -> Any:
    """Returns the weights `(N, K)` of a MatMulNBits in float32."""
    blocks = -(-K // block_size)
    numbers = unpacked(F, B.reshape([N, blocks, -1]), bits)
    if g_idx is not None:
        return _of_groups(F, numbers.flatten(1)[:, :K], scales, zero_points, g_idx[:K].to(F.int64), bits)
    weight = _centred(F, numbers, zero_points, bits, F.float32) * scales.reshape([N, blocks, 1]).to(F.float32)
    return weight.flatten(1)[:, :K]


_INT8_BLOCKS = {2: (32, 64, 128), 4: (16, 32, 64, 128, 256), 8: (16, 32, 64, 128, 256)}
"""Block sizes by bits for which ONNX Runtime 1.31 has kernels with int8 activations, on x86-64."""


def _rounded_to_int8(F: Any, x: Any, block: int) -> Any:
    """Returns x, whose gradient passes, as multiples of a 127th of the largest magnitude in each block of a row.

    The arithmetic is MLAS's: it divides 127 by the magnitude and multiplies by the quotient. A block of numbers below
    1e-36, whose quotient is infinite, is zero.
    """
    size = x.shape[-1]
    padded = F.nn.functional.pad(x, [0, -size % block]).unflatten(-1, [-1, block])
    largest = padded.abs().amax(-1, keepdim=True)
    most = F.full_like(largest, 127.0)  # 127.0 / largest, and on a GPU largest / 127.0, would multiply by a reciprocal
    inverse = most / largest
    steps = F.round(padded * F.where(largest < 1e-36, 0.0, inverse))
    rounded = (steps * (largest / most)).flatten(-2)[..., :size]
    return x + (rounded - x).detach()  # exact, as both are within a factor of two or one is 0


def shape_of_linear(x: Any, columns: Any, rows: Any) -> list[Any]:
    """Returns the shape of `x` times the transpose of a weight `(rows, columns)`."""
    demand(x.shape[-1] == columns, "the inner dimension of a product")
    return [*x.shape[:-1], rows]


def results_of_linear(F: Any, A: Any, *_: Any, K: int, N: int, **__: Any) -> Any:
    """The results of a product of `A` with a weight `(N, K)` in any form, in A's type."""
    return [(shape_of_linear(A, K, N), A.dtype)]


def check_nbits(F: Any, zero_points: Any = None, g_idx: Any = None, *, bits: int, weight_prepacked: int = 0) -> None:
    """Refuses weights of a MatMulNBits that nothing defines."""
    if weight_prepacked:
        raise OperatorError(f"weight_prepacked={weight_prepacked} is a layout of one kind of GPU. Export it with 0.")
    _in_a_byte(bits)
    if g_idx is not None and (bits != 4 or (zero_points is not None and zero_points.dtype == F.uint8)):
        raise OperatorError("g_idx is defined for 4 bits without packed zero points only.")


def _results_of_nbits(
    F: Any,
    A: Any,
    B: Any,
    scales: Any,
    zero_points: Any = None,
    g_idx: Any = None,
    bias: Any = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    weight_prepacked: int = 0,
    **_: Any,
) -> Any:
    check_nbits(F, zero_points, g_idx, bits=bits, weight_prepacked=weight_prepacked)
    return results_of_linear(F, A, K=K, N=N)


@_packed("MatMulNBits", 1, results=_results_of_nbits)
def matmul_nbits(
    F: Any,
    A: Any,
    B: Any,
    scales: Any,
    zero_points: Any = None,
    g_idx: Any = None,
    bias: Any = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
    _at_run_time: bool = False,
) -> Any:
    """A times weights of few bits, packed in blocks along the inner dimension, B (N, blocks, bytes).

    With `accuracy_level` 4, A is rounded to int8 in blocks of a row where ONNX Runtime does so: it has kernels for
    constant weights without g_idx, with packed zero points or none. float16 and bfloat16 are computed in float32.
    `g_idx`, (K,) or longer, is the group of each inner index: the index of its scale and zero point.
    """
    check_nbits(F, zero_points, g_idx, bits=bits, weight_prepacked=weight_prepacked)
    weight = nbits_weight(F, B, scales, zero_points, g_idx, K=K, N=N, bits=bits, block_size=block_size)
    x = A.to(F.float32)
    packed = g_idx is None and (zero_points is None or zero_points.dtype == F.uint8) and not _at_run_time
    if accuracy_level == 4 and packed and block_size in _INT8_BLOCKS.get(bits, ()):
        x = _rounded_to_int8(F, x, block_size)
    return F.nn.functional.linear(x, weight, None if bias is None else bias.to(F.float32)).to(A.dtype)


def _of_groups(F: Any, numbers: Any, scales: Any, zero_points: Any, group: Any, bits: int) -> Any:
    """Returns weights (N, K), dequantised by the groups `group`, (K,), of their columns instead of their blocks."""
    check_nbits(F, zero_points, group, bits=bits)
    parameters = (None if x is None else x.reshape([numbers.shape[0], -1]).to(F.float32) for x in (scales, zero_points))
    scale, zero_point = (None if x is None else x.index_select(1, group) for x in parameters)
    return (numbers.to(F.float32) - (8.0 if zero_point is None else zero_point)) * scale


_FP4 = (0.0, 0.0052083333, 0.6666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
"""FP4 of bitsandbytes, by the low three bits of a code; the fourth bit is the sign."""
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""NF4 of bitsandbytes: quantiles of the normal distribution."""


def bnb4_weight(F: Any, B: Any, absmax: Any, *, K: int, N: int, block_size: int, quant_type: int) -> Any:
    """Returns the weights `(N, K)` of a MatMulBnb4 in float32."""
    codes = F.stack([B // 16, B & 15], -1).flatten()[: N * K].to(F.int64)
    table = F.tensor(_NF4 if quant_type else (*_FP4, *(-v for v in _FP4)), dtype=F.float32, device=B.device)
    scales = absmax.to(F.float32).repeat_interleave(block_size)[: N * K]
    return (table[codes] * scales).reshape([N, K])


def _results_of_bnb4(F: Any, A: Any, *_: Any, K: int, N: int, transB: int = 1, **__: Any) -> Any:
    return [(shape_of_linear(A, *((K, N) if transB else (N, K))), A.dtype)]


@_packed("MatMulBnb4", 1, results=_results_of_bnb4)
def matmul_bnb4(
    F: Any,
    A: Any,
    B: Any,
    absmax: Any,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Any:
    """Weights (N, K) as 4-bit codes of bitsandbytes, high bits first, in blocks of the flattened matrix."""
    weight = bnb4_weight(F, B, absmax, K=K, N=N, block_size=block_size, quant_type=quant_type)
    return F.nn.functional.linear(A.to(F.float32), weight if transB else weight.t()).to(A.dtype)


def _holds_packed(F: Any, data: Any, types: Any) -> bool:
    """Returns whether numbers of fewer than 8 bits are packed in the bytes of `data`, of `types` in the file."""
    return data.dtype == F.uint8 and not (types is not None and types[0] in ("INT4", "UINT4"))


def _results_of_block_gather(
    F: Any,
    data: Any,
    indices: Any,
    scales: Any,
    *_: Any,
    bits: int = 4,
    gather_axis: int = 0,
    _types: Any = None,
    **__: Any,
) -> Any:
    axis, shape = from_front(gather_axis, data.ndim), [*data.shape]
    if _holds_packed(F, data, _types):
        shape[-1] *= _in_a_byte(bits)
    return [([*shape[:axis], *indices.shape, *shape[axis + 1 :]], scales.dtype)]


@op(
    "GatherBlockQuantized",
    1,
    domain=MICROSOFT,
    call="packed",
    results=_results_of_block_gather,
    lookups=(Lookup("indices", "data", "gather_axis"),),
)
def gather_block_quantized(
    F: Any,
    data: Any,
    indices: Any,
    scales: Any,
    zero_points: Any = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
    _types: Any = None,
) -> Any:
    """Gathers slices of `data` and dequantises them; uint8 packs numbers of `bits` bits along the last dimension.

    An index out of range gives zeros.
    """
    gather_axis, quantize_axis = from_front(gather_axis, data.ndim), from_front(quantize_axis, data.ndim)
    packed = _holds_packed(F, data, _types)
    size = data.shape[gather_axis]
    inside = (indices >= -size) & (indices < size)
    rows = F.where(inside, indices % size, 0).flatten().to(F.int64)

    def taken(x: Any) -> Any:
        # A parameter of size 1 along the gathered axis broadcasts over the rows.
        return x if x.shape[gather_axis] == 1 != size else x.index_select(gather_axis, rows)

    x = taken(data)
    dtype = F.float32
    x = (unpacked(F, x, bits) if packed else x).to(dtype)

    def along(parameter: Any) -> Any:
        if gather_axis == quantize_axis:
            wide = parameter.repeat_interleave(block_size or size, gather_axis)
            return wide.index_select(gather_axis, rows)
        wide = taken(parameter).repeat_interleave(block_size or x.shape[quantize_axis], quantize_axis)
        return wide.narrow(quantize_axis, 0, x.shape[quantize_axis])

    if zero_points is not None:
        if packed:
            zero_points = unpacked(F, zero_points, bits).narrow(-1, 0, scales.shape[-1])
        x = x - along(zero_points).to(dtype)
    elif packed:
        x = x - float(1 << (bits - 1))
    x = x * along(scales).to(dtype)
    mask = inside.flatten().reshape([-1, *[1] * (x.ndim - gather_axis - 1)])
    x = F.where(mask, x, 0.0).to(scales.dtype)
    return x.reshape([*x.shape[:gather_axis], *indices.shape, *x.shape[gather_axis + 1 :]])
