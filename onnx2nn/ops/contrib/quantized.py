"""Quantised operators of ONNX Runtime: 8-bit integers with scales."""

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
from onnx2nn.ops.quantized_numbers import Functional, arithmetic, round_to
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
from onnx2nn.optable.row import REQUIRED, FloatForm, NeedsValues

packed_op = partial(op, domain=MICROSOFT, call="packed", traits=["runs_packed"])
"""Registers an operator that is one call in a module, and one node in files that are written of it."""


def _dequantized(F: Any, x: Any, scale: Any, zero_point: Any) -> Any:
    return quantize.dequantize_linear(F, x, scale, zero_point)


def _quantized(F: Any, y: Any, scale: Any, zero_point: Any, like: Any) -> Any:
    """Returns floats quantised to the type of `like`: rounded, then shifted by the zero point."""
    return arithmetic(F, y, zero_point).to_steps(y / scale, zero_point, element_like(F, like))


def element_like(F: Any, like: Any) -> Any:
    """Returns the element type of a tensor of 8-bit integers."""
    return BY_NUMBER[type_number(F, like, None, 0)]


def _shifted_and_rounded(numbers: Functional, y: Any, zero_point: Any, like: Any) -> Any:
    """Returns `y` of new memory, divided by its scale, shifted, then rounded, as ONNX Runtime's kernels do."""
    return numbers.to_steps(y, zero_point, element_like(numbers.F, like), shift_first=True)


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
    if hasattr(a, "joined") or hasattr(b, "joined"):
        return a.joined(b) if hasattr(a, "joined") else b.joined(a)
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


@packed_op("QLinearAdd", 1, results=_results_of_elements, float_form=FloatForm("Add"))
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
    numbers = arithmetic(F, A, A_zero_point, B, B_zero_point, C_zero_point)
    a = numbers.scaled(numbers.centered(A, A_zero_point, F.float32), A_scale / C_scale)
    b = numbers.scaled(numbers.centered(B, B_zero_point, F.float32), B_scale / C_scale)
    return _shifted_and_rounded(numbers, numbers.sum(a, b), C_zero_point, A)


@packed_op("QLinearMul", 1, results=_results_of_elements, float_form=FloatForm("Mul"))
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
    numbers = arithmetic(F, A, A_zero_point, B, B_zero_point, C_zero_point)
    a, b = numbers.centered(A, A_zero_point, F.float32), numbers.centered(B, B_zero_point, F.float32)
    product = numbers.scaled(numbers.product(a, b), A_scale * B_scale / C_scale)
    return _shifted_and_rounded(numbers, product, C_zero_point, A)


def _results_of_choice(F: Any, condition: Any, X: Any, x_s: Any, x_z: Any, Y: Any, *steps: Any) -> Any:
    _demand_numbers(x_s, x_z, *steps)
    return [(_broadcast(condition, X, Y), X.dtype)]


@packed_op("QLinearWhere", 1, results=_results_of_choice)
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


@packed_op("QLinearConcat", 1, results=_results_of_concat)
def qlinear_concat(F: Any, Y_scale: Any, Y_zero_point: Any, *inputs: Any, axis: int) -> Any:
    """`inputs`: tensor, scale and zero point of each operand in turn."""
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    return _quantized(
        F, F.cat([_dequantized(F, *triple) for triple in triples], axis), Y_scale, Y_zero_point, inputs[0]
    )


@packed_op("QLinearSigmoid", 1, results=_results_of_function, float_form=FloatForm("Sigmoid"))
def qlinear_sigmoid(
    F: Any,
    X: Any,
    X_scale: Any,
    X_zero_point: Any = None,
    Y_scale: Any = REQUIRED,
    Y_zero_point: Any = None,
) -> Any:
    return _quantized(F, F.sigmoid(_dequantized(F, X, X_scale, X_zero_point)), Y_scale, Y_zero_point, X)


@packed_op("QLinearLeakyRelu", 1, results=_results_of_function, float_form=FloatForm("LeakyRelu"))
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


@packed_op("QLinearSoftmax", 1, results=_results_of_function)
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
    y = round_to(F, F.where(nothing, 0.0, y), y_zero_point, element_like(F, X)).masked_fill(nothing, 0)
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


@packed_op("QLinearAveragePool", 1, results=_results_of_pool, float_form=FloatForm("AveragePool"))
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
    return _shifted_and_rounded(arithmetic(F, y, y_zero_point), y / y_scale, y_zero_point, X)


def _results_of_global_pool(F: Any, X: Any, *steps: Any, channels_last: int = 0) -> Any:
    _demand_numbers(*steps)
    spatial = range(1, X.ndim - 1) if channels_last else range(2, X.ndim)
    return [([1 if axis in spatial else size for axis, size in enumerate(X.shape)], X.dtype)]


@packed_op("QLinearGlobalAveragePool", 1, results=_results_of_global_pool, float_form=FloatForm("GlobalAveragePool"))
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
    numbers = arithmetic(F, X, x_zero_point, y_zero_point)
    total = numbers.centered(X, x_zero_point, F.float32).sum(axes, keepdim=True)
    scale = x_scale / (y_scale * math.prod(X.shape[axis] for axis in axes))
    return numbers.to_steps(numbers.scaled(total, scale), y_zero_point, element_like(F, X))


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


@packed_op("QLinearConv", 1, results=_results_of_conv, float_form=FloatForm("Conv", 0))
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


@packed_op("QGemm", 1, results=_results_of_gemm)
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
    numbers = arithmetic(F, product, y_zero_point)
    y = numbers.scaled(product.to(F.float32), scale / y_scale)
    return numbers.to_steps(y, y_zero_point, element_like(F, y_zero_point))


def _results_of_float_product(F: Any, A: Any, B: Any, scale: Any, *_: Any) -> Any:
    return [(quantize.shape_of_product(A, B), scale.dtype)]


@packed_op("MatMulIntegerToFloat", 1, results=_results_of_float_product)
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


@packed_op("DynamicQuantizeMatMul", 1, results=_results_of_float_product)
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
