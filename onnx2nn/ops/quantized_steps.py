"""The steps of an LSTM with 8-bit weights, in few calls that work in fixed memory.

A step of a narrow layer takes less time than a few calls of torch, so that the calls are what costs. The results are
those of DynamicQuantizeLinear, an exact product and the LSTM's cell, one after the other. The range of a state, its
scale and its zero point are numbers of float32 in memory that torch and NumPy share.
"""

from __future__ import annotations

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


class StateProduct:
    """The product of a state, which is quantised in each step, with the weights of a direction.

    Args:
        F: torch.
        weights: `(hidden, 4 * hidden)`, 8-bit integers.
        zero_point: of the weights: None, one number, or `(4 * hidden,)`.
        scales: of the weights: one number, or `(4 * hidden,)`.
        batch: the number of sequences.

    Attributes:
        exact: whether there is a form in which each sum is exact.
    """

    def __init__(self, F: Any, weights: Any, zero_point: Any, scales: Any, batch: int):
        hidden, gates = weights.shape
        whole = weights.to(F.int16) if zero_point is None else weights.to(F.int16) - zero_point.to(F.int16)
        small = int(whole.min()) >= -128 and int(whole.max()) <= 127
        self._columns: Any = None
        if batch * hidden > _NARROW and small:
            columns = integer_kernels.in_columns(F, whole.to(F.int8))
            if integer_kernels.serves(F, columns[:1, :1], columns[:1]) and integer_kernels.serves(
                F, columns.new_zeros([batch, hidden]), columns
            ):
                self._columns, self._sums = columns, columns.sum(0, keepdim=True, dtype=F.int32)
        most = float(whole.abs().sum(0, dtype=F.float64).max()) * 255
        self.exact = self._columns is not None or most < _WHOLE
        self._weight = whole.to(F.float32)
        self._numbers = np.ones(4, np.float32)  # the scale of the state, that of the product, an offset, any number
        self._scale, self._both, self._offset, _ = F.from_numpy(self._numbers).unbind(0)
        self._scales, self._one = scales.detach(), scales.numel() == 1
        self._number = float(scales.reshape(-1)[0])
        self._steps = F.empty([batch, hidden])
        self._small = F.empty([batch, hidden], dtype=F.int8)
        self._factor = F.empty([gates])

    def add_to(self, F: Any, x: Any, h: Any, low: float, high: float, out: Any) -> bool:
        """Writes `x` plus the product of `h`, whose range is from `low` to `high`, into `out`.

        Returns:
            Whether it did: not for a range that is not finite, or whose scale is too small for float32, of which
            DynamicQuantizeLinear makes other numbers.
        """
        if not high - low < _LARGEST:
            return False
        width = self._rounded(high - low)
        scale = self._rounded(width / 255) if width else 1.0
        if scale < _SMALLEST:
            return False
        zero = round(min(self._rounded(-low / scale), 255.0))
        self._numbers[0] = scale
        steps = F.div(h, self._scale, out=self._steps).round_()
        if round(self._rounded(high / scale)) + zero > 255:
            steps.clamp_(max=255 - zero)
        if self._columns is None:
            F.mm(steps, self._weight, out=out)
        else:
            self._numbers[2] = offset = zero - 128
            product = F._int_mm(self._small.copy_(steps.add_(self._offset)), self._columns)
            out.copy_(product.sub_(self._sums, alpha=offset))
        if self._one:
            self._numbers[1] = scale * self._number
            out.mul_(self._both)
        else:
            out.mul_(F.mul(self._scales, self._scale, out=self._factor))
        out.add_(x)
        return True

    def _rounded(self, number: float) -> float:
        """Returns a quotient or difference of numbers of float32 as float32 has it, from that in float64.

        Rounding twice gives the same, as float64 has more than twice the bits (Figueroa 1995).
        """
        self._numbers[3] = number
        return self._numbers.item(3)  # type: ignore[no-any-return]  # a float


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

    None where `StateProduct.add_to` declines.

    Args:
        F: torch.
        gates: the input's part of the gates' inputs, `(steps, batch, 4 * hidden)`, with all biases.
        product: of the states.
        h: the first hidden state, `(batch, hidden)`.
        c: the first state of the cell.
    """
    steps, (batch, hidden) = gates.shape[0], h.shape
    states = F.zeros([steps + 1, batch * hidden + 1])  # the range of a state has the 0 behind it
    states[0, :-1] = h.reshape(-1)
    shown = states[:, :-1].unflatten(1, (batch, hidden)).unbind(0)
    rows, c = states.unbind(0), c.clone()
    x, last = F.empty([batch, 4 * hidden]), F.empty_like(c)
    enter, leave, forget, new = x.chunk(4, 1)
    sigmoids = x[:, : 3 * hidden]
    ends = np.empty(2, np.float32)
    limits = F.from_numpy(ends).unbind(0)
    for t, given in enumerate(gates.unbind(0)):
        F.aminmax(rows[t], out=limits)
        low, high = ends.tolist()
        if not product.add_to(F, given, shown[t], low, high, x):
            return None
        sigmoids.sigmoid_()
        new.tanh_()
        c.mul_(forget).addcmul_(enter, new)
        F.mul(leave, F.tanh(c, out=last), out=shown[t + 1])
    return states[1:, :-1].reshape(steps, batch, hidden), shown[-1].clone(), c
