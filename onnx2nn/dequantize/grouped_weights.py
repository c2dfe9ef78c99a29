"""Weights as integers with a scale for each group of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnx2nn.ground.element_types import BY_NAME


@dataclass(frozen=True)
class GroupedWeight:
    """A weight as integers.

    Attributes:
        numbers: `(rows, columns)` int8, within the signed range of `bits`.
        scales: `(rows, groups)`, of a float type.
        zero_points: `(rows, groups)`, int8 or floats; None for 0.
        bits: of a number.
        group: the number of columns that share a scale.
    """

    numbers: Any
    scales: Any
    zero_points: Any
    bits: int
    group: int


def grouped_forms(
    F: Any,
    numbers: Any,
    scales: Any,
    zero_points: Any,
    axis: int,
    block: int,
    kind: ir.DataType | None,
) -> list[Callable[[], GroupedWeight]]:
    """Returns the forms of a matrix with scales along its rows, itself and transposed; nothing where there are none.

    Args:
        F: the namespace of tensor functions.
        numbers: the integers, as DequantizeLinear takes them.
        scales: its scales.
        zero_points: its zero points.
        axis: of the scales.
        block: the block size, 0 for none.
        kind: the integers' element type.
    """
    element = None if kind is None else BY_NAME.get(kind.name)
    if numbers is None or scales is None or numbers.ndim != 2 or element is None or element.bits > 8:
        return []
    if numbers.is_floating_point():
        return []
    shift = 1 << (element.bits - 1) if element.name.startswith("UINT") else 0

    def form(turned: bool) -> GroupedWeight:
        def rows_first(x: Any) -> Any:
            if x.numel() == 1:
                return x.reshape(1, 1).expand(numbers.shape[1 if turned else 0], 1)
            x = x.reshape(-1, 1) if not block else x.t() if turned else x
            return x

        signed = (numbers.to(F.int16) - shift).to(F.int8)
        zero = None if zero_points is None else (rows_first(zero_points).to(F.int16) - shift).to(F.int8)
        if zero is None and shift:
            zero = F.full_like(rows_first(scales), -shift, dtype=F.int8)
        signed = signed.t() if turned else signed
        return GroupedWeight(signed, rows_first(scales), zero, element.bits, block or signed.shape[1])

    along_rows = axis % 2 == (1 if block else 0)
    sides = (False, True) if scales.numel() == 1 else (not along_rows,)
    return [lambda turned=turned: form(turned) for turned in sides]  # type: ignore[misc]  # mypy knows no such lambda
