"""Sizes in the graph that is written: static ones as constants, dynamic ones computed from shapes that it knows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import onnx_ir as ir

from oneflow_bridge.to_onnx.job import DIMENSIONS, Dimensions, sizes_of
from oneflow_bridge.to_onnx.lowering.node_writer import NodeWriter
from oneflow_bridge.to_onnx.lowering.schemas import FLOATS


class SizeWriter(NodeWriter):
    """Writes sizes as int64 tensors.

    Attributes:
        graph_inputs: the inputs of the graph that is written, whose shapes give dynamic sizes.
    """

    def __init__(self, model: ir.Model, opset: int):
        super().__init__(model, opset)
        self._dimensions: Dimensions = model.meta.get(DIMENSIONS) or Dimensions()
        self.graph_inputs: list[ir.Value] = []

    def sizes(self, value: ir.Value) -> list[int | str]:
        """The shape of a value: sizes, and names where they are dynamic."""
        return sizes_of(value)

    def rank(self, value: ir.Value) -> int:
        """The number of axes of a value."""
        return len(sizes_of(value))

    def static(self, size: int | str, what: str) -> int:
        """The size itself; a dynamic one is refused."""
        if isinstance(size, int):
            return size
        self.refuse(f"{what} depends on the dynamic dimension {size!r}; export with that dimension fixed.")

    def sizes_or_none(self, value: ir.Value) -> list[int | str] | None:
        """`sizes`, or None for a value that is no job value and has no shape."""
        return None if value.shape is None else self.sizes(value)

    def shape(self, sizes: Sequence[int | str], *sources: ir.Value) -> ir.Value:
        """A 1-D int64 tensor of sizes; dynamic ones are computed from the shape of a source or of a graph input."""
        if all(isinstance(size, int) for size in sizes):
            return self.ints([int(size) for size in sizes])
        for source in sources:
            if self.sizes_or_none(source) == list(sizes):
                return self.append("Shape", source)
        parts = [self.ints([s]) if isinstance(s, int) else self.size(s, *sources) for s in sizes]
        return parts[0] if len(parts) == 1 else self.Concat(*parts, axis=0)

    def size(self, name: str, *sources: ir.Value) -> ir.Value:
        """A dynamic dimension as a 1-D int64 tensor of one element."""
        wanted = self._dimensions.sizes[name]
        for source in (*sources, *self.graph_inputs):
            for axes, factor in self._factors(source, wanted):
                return self._product(source, axes, factor)
        for source in (*sources, *self.graph_inputs):
            for axis, offset in self._offsets(source, wanted):
                shifted = self.Add(self._axis_size(source, axis), self.ints([offset]))
                # No size is below 0, and the last three of two elements begin at 0.
                return shifted if offset > 0 else self.Max(shifted, self.ints([0]))
        self.refuse(f"the size {name} (sizes {wanted} in the traces) cannot be computed from the inputs of the op.")

    def number(self, number: Any, dtype: ir.DataType | None) -> ir.Value:
        """A 0-D number: a constant, a dynamic size n, or the n / (n - 1) by which OneFlow corrects a variance."""
        if isinstance(number, tuple) and all(float(value).is_integer() for value in number):
            number = self._dimensions.entry([int(value) for value in number])
        if isinstance(number, tuple) and dtype in FLOATS and (counts := _corrected(number)):
            count = self.number(self._dimensions.entry(counts), dtype)
            return self.Div(count, self.Sub(count, 1))
        if not isinstance(number, str):
            return super().number(number, dtype)
        size = self.Squeeze(self.size(number), [0])
        return size if dtype is None else self.Cast(size, to=dtype)

    def _factors(self, source: ir.Value, wanted: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Fraction]]:
        """Dynamic axes of a value, and the constant with which their product is `wanted`; few axes first."""
        sizes = {axis: size for axis, size in enumerate(self.sizes(source)) if isinstance(size, str)}
        for count in range(1, len(sizes) + 1):
            for axes in itertools.combinations(sizes, count):
                columns = zip(*(self._dimensions.sizes[sizes[axis]] for axis in axes), strict=True)
                ratios = {Fraction(w, math.prod(column)) for w, column in zip(wanted, columns, strict=True)}
                if len(ratios) == 1:
                    yield axes, ratios.pop()

    def _offsets(self, source: ir.Value, wanted: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Dynamic axes of a value, and the number that added to their size is `wanted`."""
        for axis, size in enumerate(self.sizes(source)):
            if isinstance(size, str):
                offsets = {w - n for w, n in zip(wanted, self._dimensions.sizes[size], strict=True)}
                if len(offsets) == 1:
                    yield axis, offsets.pop()

    def _product(self, source: ir.Value, axes: tuple[int, ...], factor: Fraction) -> ir.Value:
        total = self._axis_size(source, axes[0])
        for axis in axes[1:]:
            total = self.Mul(total, self._axis_size(source, axis))
        total = total if factor.numerator == 1 else self.Mul(total, self.ints([factor.numerator]))
        return total if factor.denominator == 1 else self.Div(total, self.ints([factor.denominator]))

    def _axis_size(self, source: ir.Value, axis: int) -> ir.Value:
        return self.Slice(self.Shape(source), [axis], [axis + 1], [0])


def _corrected(factors: Sequence[float]) -> list[int]:
    """The n of which every factor is n / (n - 1); empty where one is not of this form."""
    counts = [round(factor / (factor - 1)) if factor > 1 else 0 for factor in factors]
    exact = all(n > 1 and factor == n / (n - 1) for factor, n in zip(factors, counts, strict=True))
    return counts if exact else []
