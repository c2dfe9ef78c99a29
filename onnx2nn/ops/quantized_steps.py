"""The steps of an LSTM with 8-bit weights, in few calls that work in fixed memory.

A step of a narrow layer takes less time than a few calls of torch, so that the calls are what costs. The results are
those of DynamicQuantizeLinear, an exact product and the LSTM's cell, one after the other. NumPy and torch share the
memory: a call of NumPy on a few hundred numbers takes a quarter of the time of torch's, whose arithmetic it shares;
products, exponentials and ranges are torch's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2nn.ops import integer_kernels
from onnx2nn.optable.row import has_values

_WHOLE = 1 << 24
"""Up to this number, floats of 32 bits hold all integers."""

_SMALLEST = 1e-36
"""Scales below it may be no normal numbers of float32, and quotients infinite."""

_LARGEST = 1e38
"""Ranges from it on may be none of float32."""

_NARROW = 128
"""Up to this number of elements of a state, a product of floats takes less time than one of integers."""


class StateWeights:
    """The weights of the states of a direction, in a form in which each sum of their products is exact.

    Args:
        F: torch.
        weights: `(hidden, 4 * hidden)`, 8-bit integers.
        zero_point: of the weights: None, one number, or `(4 * hidden,)`.
        batch: the number of sequences.

    Attributes:
        exact: whether there is such a form.
        columns: int8, for products of integers; None where a product of floats takes less time.
        sums: of the columns.
        floats: the weights minus their zero point.
    """

    def __init__(self, F: Any, weights: Any, zero_point: Any, batch: int):
        hidden = weights.shape[0]
        whole = weights.to(F.int16) if zero_point is None else weights.to(F.int16) - zero_point.to(F.int16)
        small = int(whole.min()) >= -128 and int(whole.max()) <= 127
        self.columns: Any = None
        if batch * hidden > _NARROW and small:
            columns = integer_kernels.in_columns(F, whole.to(F.int8))
            if integer_kernels.serves(F, columns[:1, :1], columns[:1]) and integer_kernels.serves(
                F, columns.new_zeros([batch, hidden]), columns
            ):
                self.columns, self.sums = columns, columns.sum(0, keepdim=True, dtype=F.int32)
        most = float(whole.abs().sum(0, dtype=F.float64).max()) * 255
        self.exact = self.columns is not None or most < _WHOLE
        self.floats = whole.to(F.float32) if self.columns is None else None


class StateProduct:
    """The product of a state, which is quantised in each step, with the weights of a direction.

    Args:
        F: torch.
        weights: of the direction.
        scales: of the weights: one number, or `(4 * hidden,)`.
        batch: the number of sequences.
        hidden: the number of elements of a state.
    """

    def __init__(self, F: Any, weights: StateWeights, scales: Any, batch: int, hidden: int):
        self._weights, self._scales = weights, scales.detach().numpy()
        self._number = float(self._scales.reshape(-1)[0]) if scales.numel() == 1 else None
        self._steps, self._given_steps = _shared(F, [batch, hidden])
        if weights.columns is not None:
            self._sums = weights.sums.numpy()
            self._small, self._given_small = _shared(F, [batch, hidden], np.int8)
            self._product, self._given_product = _shared(F, [batch, 4 * hidden], np.int32)
        self._scale, self._both = np.ones([], np.float32), np.ones([], np.float32)
        self._factor = np.empty(4 * hidden, np.float32)

    def add_to(self, F: Any, x: Any, h: Any, low: float, high: float, out: Any, given: Any) -> bool:
        """Writes `x` plus the product of `h`, whose range is from `low` to `high`, into `out`.

        Args:
            F: torch.
            x: `(batch, 4 * hidden)`, an array.
            h: `(batch, hidden)`, an array.
            low: at most 0.
            high: at least 0.
            out: an array of the shape of `x`.
            given: the tensor of the same memory.

        Returns:
            Whether it did: not for a range that is not finite, or whose scale is too small for float32, of which
            DynamicQuantizeLinear makes other numbers.
        """
        if not high - low < _LARGEST:
            return False
        width = _rounded(high - low)
        scale = _rounded(width / 255) if width else 1.0
        if scale < _SMALLEST:
            return False
        zero = round(min(_rounded(-low / scale), 255.0))
        self._scale[()] = scale
        steps = self._steps
        np.divide(h, self._scale, steps)
        np.rint(steps, steps)
        if round(_rounded(high / scale)) + zero > 255:
            np.minimum(steps, 255 - zero, out=steps)
        if self._weights.columns is None:
            F.mm(self._given_steps, self._weights.floats, out=given)
        else:
            offset = zero - 128
            np.add(steps, offset, self._small, casting="unsafe")
            F._int_mm(self._given_small, self._weights.columns, out=self._given_product)
            np.subtract(self._product, self._sums * offset, out, casting="unsafe")
        if self._number is not None:
            self._both[()] = scale * self._number
            np.multiply(out, self._both, out)
        else:
            np.multiply(out, np.multiply(self._scales, self._scale, self._factor), out)
        np.add(out, x, out)
        return True


def _shared(F: Any, shape: Sequence[int], dtype: Any = np.float32) -> tuple[Any, Any]:
    """Returns an array of zeros, and a tensor of the same memory."""
    array = np.zeros(shape, dtype)
    return array, F.from_numpy(array)


_FLOAT = struct.Struct("f")


def _rounded(number: float) -> float:
    """Returns a quotient or difference of numbers of float32 as float32 has it, from that in float64.

    Rounding twice gives the same, as float64 has more than twice the bits (Figueroa 1995).
    """
    return _FLOAT.unpack(_FLOAT.pack(number))[0]  # type: ignore[no-any-return]  # a float


def serves(F: Any, X: Any, W: Any, R: Any, scales: Any, zero_points: Any, states: Sequence[Any]) -> bool:
    """Returns whether `lstm` may run here: on values in a processor's memory, without gradients."""
    given = [state for state in (X, W, R, scales, zero_points, *states) if state is not None]
    if not hasattr(F, "_int_mm") or not has_values(F, *given):
        return False
    if F.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        return False
    floats = [X, scales, *(state for state in states if state is not None)]
    return all(x.dtype == F.float32 for x in floats) and X.device.type == "cpu" and X.shape[0] > 0 < X.shape[1]


def lstm(F: Any, gates: Any, product: StateProduct, h: Any, c: Any) -> tuple[Any, Any, Any] | None:
    """Returns the hidden states `(steps, batch, hidden)` and the last states of one direction.

    None where `StateProduct.add_to` declines, and where a gradient of the input's part is asked for.

    Args:
        F: torch.
        gates: the input's part of the gates' inputs, `(steps, batch, 4 * hidden)`, with all biases.
        product: of the states.
        h: the first hidden state, `(batch, hidden)`.
        c: the first state of the cell.
    """
    if gates.requires_grad:
        return None
    steps, (batch, hidden) = gates.shape[0], h.shape
    states, given_states = _shared(F, [steps + 1, batch * hidden + 1])  # the range of a state has the 0 behind it
    states[0, :-1] = h.detach().reshape(-1).numpy()
    shown = list(states[:, :-1].reshape(steps + 1, batch, hidden))
    given_c = c.clone()
    c = given_c.numpy()
    x, given = _shared(F, [batch, 4 * hidden])
    last, given_last = _shared(F, [batch, hidden])
    _, leave, forget, _ = np.split(x, 4, 1)
    given_enter, _, _, given_new = given.chunk(4, 1)
    sigmoids = given[:, : 3 * hidden]
    ends, limits = _shared(F, [2])
    limits = limits.unbind(0)
    with np.errstate(all="ignore"):
        for t, (row, of_input) in enumerate(zip(given_states[:-1].unbind(0), gates.numpy(), strict=True)):
            F.aminmax(row, out=limits)
            low, high = ends.tolist()
            if not product.add_to(F, of_input, shown[t], low, high, x, given):
                return None
            sigmoids.sigmoid_()
            given_new.tanh_()
            np.multiply(c, forget, c)
            given_c.addcmul_(given_enter, given_new)  # which rounds once on some processors, as the loop does
            F.tanh(given_c, out=given_last)
            np.multiply(leave, last, shown[t + 1])
    return given_states[1:, :-1].reshape(steps, batch, hidden), F.from_numpy(shown[-1].copy()), given_c
