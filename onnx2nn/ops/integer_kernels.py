"""Exact products of 8-bit integers on the processor's own instructions, where it has them.

torch's integer matrix product (`torch._int_mm`, oneDNN) sums in int32 where the processor multiplies and adds 8-bit
integers in one instruction (VNNI, AMX, dot products of ARM). Elsewhere oneDNN adds two products in 16 bits, which
saturates. So a process tries the product on the largest numbers once, and takes it only if it is exact.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from onnx2nn.ops.kept_forms import KeptForms
from onnx2nn.ops.machine_code import machine_code
from onnx2nn.ops.quantized_numbers import Functional, arithmetic
from onnx2nn.optable.row import has_values

_MOST = (1 << 31) // 255**2 - 1
"""The inner dimension up to which no sum of products leaves int32."""


class Columns:
    """The right operand of exact products, `b - zero_point`.

    Law: with a = a' + s and b = b' + t, where a' and b' are signed, the product of a - z and b - y is
    a' b' - (z - s) sum(b') - (sum(a') - k (z - s)) (y - t), in which all sums run over the inner dimension k.

    Args:
        F: torch.
        b: `(k, n)`, int8 or uint8, see `serves`.
        zero_point: None, one number, or `(n,)`.
        reused: whether it is multiplied more than once: its columns are summed before, and copied one behind the other,
            which for a few rows is read several times as fast.
    """

    def __init__(self, F: Any, b: Any, zero_point: Any, *, reused: bool = False):
        columns, shift = _signed(arithmetic(F, b), b)
        self._columns = in_columns(F, columns) if reused else columns
        self._offset = _offset(arithmetic(F, zero_point), zero_point, shift)
        if reused and _is_zero(F, self._offset):
            self._offset = None
        self._sums = self._columns.sum(0, keepdim=True, dtype=F.int32) if reused else None

    def product(self, F: Any, a: Any, zero_point: Any) -> Any:
        """Returns `a - zero_point` times the operand, `(..., m, n)` in int32.

        Args:
            F: torch.
            a: `(..., m, k)`, int8 or uint8.
            zero_point: None, one number, or `(m, 1)` for one matrix `a`.
        """
        numbers = arithmetic(F, a, zero_point)
        rows, shift = _signed(numbers, a.reshape(-1, a.shape[-1]))
        left = _offset(numbers, zero_point, shift)
        if left is None:
            product = F._int_mm(rows, self._columns)
        elif self._sums is not None:
            product = F._int_mm(rows, self._columns).sub_(left * self._sums)
        else:  # a row of ones sums the columns
            product = F._int_mm(F.cat([rows, F.ones_like(rows[:1])]), self._columns)
            product = product[:-1] - left * product[-1:]
        if self._offset is not None:
            sums = rows.sum(-1, keepdim=True, dtype=F.int32)
            product = product - (sums if left is None else sums - left * rows.shape[-1]) * self._offset
        return product.reshape([*a.shape[:-1], product.shape[-1]])


_columns = KeptForms[Columns]()


def columns(F: Any, b: Any, zero_point: Any) -> Columns:
    """Returns a right operand; of one that comes again, as weights do, it keeps the form for several products."""
    return _columns.form(
        F, b, [zero_point], (), lambda: Columns(F, b, zero_point, reused=True), lambda: Columns(F, b, zero_point)
    )


def available(F: Any) -> bool:
    """Returns whether this process has an exact product."""
    return hasattr(F, "_int_mm") and _is_exact(F)


def serves(F: Any, a: Any, b: Any, *zero_points: Any) -> bool:
    """Returns whether `Columns` gives the exact product of `a` and `b` here: for values in a processor's memory."""
    if not hasattr(F, "_int_mm") or F.jit.is_tracing():
        return False
    known, code = has_values(F, a, b, *zero_points), machine_code(F)
    if not known and not (code is not None and code.multiplies):
        return False
    if a.device.type != "cpu" or not {a.dtype, b.dtype} <= {F.int8, F.uint8}:
        return False
    if b.ndim != 2 or a.ndim < 1 or not isinstance(a.shape[-1], int) or a.shape[-1] != b.shape[0]:
        return False
    return (
        0 < a.shape[-1] <= _MOST and bool(b.shape[1]) and bool(math.prod(a.shape[:-1])) and (not known or _is_exact(F))
    )


def _signed(numbers: Functional, x: Any) -> tuple[Any, int]:
    """Returns a matrix of 8-bit integers as int8, and what was taken from them.

    torch's product takes a matrix of one row or column for its transpose where its strides are both 1.
    """
    F = numbers.F
    x, shift = (x, 0) if x.dtype == F.int8 else ((x ^ numbers.constant(128, F.uint8)).view(F.int8), 128)
    return (_in_rows(x.contiguous()) if 1 in x.shape else x), shift


def _in_rows(x: Any) -> Any:
    return x.as_strided(x.shape, (x.shape[1], 1))


def in_columns(F: Any, x: Any) -> Any:
    """Returns a copy of a matrix, one column behind the other in memory; one of one row or column stays as it is."""
    if 1 in x.shape:
        return _in_rows(x.clone(memory_format=F.contiguous_format))
    return x.t().clone(memory_format=F.contiguous_format).t()


def _offset(numbers: Functional, zero_point: Any, shift: int) -> Any:
    """Returns a zero point minus `shift`, in int32; None for 0."""
    number = numbers.number(zero_point)
    if number is None:
        return zero_point.to(numbers.F.int32) - shift
    return numbers.constant(number - shift, numbers.F.int32) if number != shift else None


def _is_zero(F: Any, offset: Any) -> bool:
    return isinstance(offset, F.Tensor) and has_values(F, offset) and not bool(offset.any())


@functools.cache
def _is_exact(F: Any) -> bool:
    """Returns whether torch's product is exact for the largest sums, in the shapes for which it has different code."""
    for m, k, n in ((1, 64, 48), (7, 130, 33), (64, 256, 64)):
        for left, right in ((127, 127), (-128, 127), (127, -128), (-128, -128)):
            a, b = F.full((m, k), left, dtype=F.int8), F.full((k, n), right, dtype=F.int8)
            try:
                product = F._int_mm(a, b)
            except (RuntimeError, NotImplementedError):  # this build of torch has no such product
                return False
            if not bool((product == k * left * right).all()):
                return False
    return True
