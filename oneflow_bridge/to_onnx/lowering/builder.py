"""ONNX operators whose form changed between opsets, called in their newest form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.schemas import FLOATS, NeedsOpsetError
from oneflow_bridge.to_onnx.lowering.size_writer import SizeWriter


class Builder(SizeWriter):
    """Writes ONNX at a chosen opset: the functions of `emit` call the newest operators, older forms are made here."""

    def Cast(self, x: ir.Value, to: ir.DataType | None) -> ir.Value:
        """x in another type; x itself where it has it."""
        if to is None:
            self.refuse("has an unknown result type.")
        return x if x.dtype == to else self.append("Cast", x, to=to)

    def Identity(self, x: ir.Value) -> ir.Value:
        """x itself."""
        return x

    def Reshape(self, x: ir.Value, sizes: Sequence[int | str]) -> ir.Value:
        """x in another shape. A dynamic size is written as 0 if x has the same size on this axis, one other as -1."""
        old = self.sizes_or_none(x) or []
        places = [
            0 if isinstance(size, str) and axis < len(old) and old[axis] == size else size
            for axis, size in enumerate(sizes)
        ]
        if sum(isinstance(size, str) for size in places) > 1:
            return self.append("Reshape", x, self.shape(sizes, x))
        return self.append("Reshape", x, self.ints([-1 if isinstance(size, str) else size for size in places]))

    def Transpose(self, x: ir.Value, perm: Sequence[int]) -> ir.Value:
        """x with its axes permuted; x itself where the permutation changes nothing."""
        return x if list(perm) == list(range(len(perm))) else self.append("Transpose", x, perm=list(perm))

    def Squeeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """x without axes of size 1."""
        if self.opset >= 13:
            return self.append("Squeeze", x, self.ints(axes))
        return self.append("Squeeze", x, axes=list(axes))

    def Unsqueeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """x with axes of size 1 inserted."""
        if self.opset >= 13:
            return self.append("Unsqueeze", x, self.ints(axes))
        return self.append("Unsqueeze", x, axes=list(axes))

    def reduce(self, op_type: str, x: ir.Value, axes: Sequence[int], keepdims: bool) -> ir.Value:
        """A Reduce operator; its axes became an input at opset 13 (ReduceSum) and 18 (the others)."""
        keep = int(bool(keepdims))
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.append(op_type, x, self.ints(axes), keepdims=keep)
        return self.append(op_type, x, axes=list(axes), keepdims=keep)

    def Softmax(self, x: ir.Value, axis: int, op_type: str = "Softmax") -> ir.Value:
        """Softmax over one axis; before opset 13 the operator took all axes from `axis` on together."""
        rank = len(x.shape) if x.shape is not None else None
        if self.opset >= 13 or (rank is not None and axis == rank - 1):
            return self.append(op_type, x, axis=axis)
        if rank is None:
            raise NeedsOpsetError(op_type, 13)
        perm = list(range(rank))
        perm[axis], perm[-1] = perm[-1], perm[axis]
        return self.Transpose(self.append(op_type, self.Transpose(x, perm), axis=rank - 1), perm)

    def LogSoftmax(self, x: ir.Value, axis: int) -> ir.Value:
        """Logarithm of Softmax."""
        return self.Softmax(x, axis, "LogSoftmax")

    def Slice(
        self,
        x: ir.Value,
        starts: Sequence[int] | ir.Value,
        ends: Sequence[int] | ir.Value,
        axes: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> ir.Value:
        """A part of x; its bounds became inputs at opset 10."""
        steps = None if steps is None or all(s == 1 for s in steps) else steps
        if self.opset >= 10:
            bounds = [b if isinstance(b, ir.Value) else self.ints(b) for b in (starts, ends)]
            return self.append("Slice", x, *bounds, self.ints(axes), None if steps is None else self.ints(steps))
        if steps is not None or isinstance(starts, ir.Value) or isinstance(ends, ir.Value):
            raise NeedsOpsetError("Slice with steps or computed bounds", 10)
        return self.append("Slice", x, starts=list(starts), ends=list(ends), axes=list(axes))

    def Split(self, x: ir.Value, sizes: Sequence[int], axis: int) -> tuple[ir.Value, ...]:
        """x cut into parts of the given sizes."""
        if len(sizes) == 1:
            return (x,)
        if self.opset >= 13:
            return self.append("Split", x, self.ints(sizes), axis=axis, n_outputs=len(sizes))
        return self.append("Split", x, split=list(sizes), axis=axis, n_outputs=len(sizes))

    def Clip(self, x: ir.Value, low: float | None, high: float | None) -> ir.Value:
        """x within bounds; they became inputs at opset 11, integers came at 12."""
        if self.opset >= 12 or (self.opset == 11 and x.dtype in FLOATS):
            return self.append("Clip", x, *(None if b is None else self.full(b, x) for b in (low, high)))
        if x.dtype in FLOATS:
            bounds = (None if b is None else float(b) for b in (low, high))
            return self.append("Clip", x, min=next(bounds), max=next(bounds))
        x = x if low is None else self.Max(x, self.full(low, x))
        return x if high is None else self.Min(x, self.full(high, x))

    def Max(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger of two, elementwise; integers came at opset 12."""
        if self.opset >= 12 or a.dtype in FLOATS:
            return self.append("Max", a, b)
        return self.Where(self.Greater(a, b), a, b)

    def Min(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The smaller of two, elementwise; integers came at opset 12."""
        if self.opset >= 12 or a.dtype in FLOATS:
            return self.append("Min", a, b)
        return self.Where(self.Less(a, b), a, b)

    def Equal(self, a: ir.Value, b: Any) -> ir.Value:
        """a == b; floats came at opset 11."""
        b = b if isinstance(b, ir.Value) else self.full(b, a)
        if self.opset >= 11 or a.dtype not in FLOATS:
            return self.append("Equal", a, b)
        unordered = self.Or(self.IsNaN(a), self.IsNaN(b))
        return self.Not(self.Or(self.Or(self.Less(a, b), self.Greater(a, b)), unordered))

    def GreaterOrEqual(self, a: ir.Value, b: Any) -> ir.Value:
        """a >= b; an operator since opset 12."""
        b = b if isinstance(b, ir.Value) else self.full(b, a)
        return (
            self.append("GreaterOrEqual", a, b) if self.opset >= 12 else self.Or(self.Greater(a, b), self.Equal(a, b))
        )

    def LessOrEqual(self, a: ir.Value, b: Any) -> ir.Value:
        """a <= b; an operator since opset 12."""
        b = b if isinstance(b, ir.Value) else self.full(b, a)
        return self.append("LessOrEqual", a, b) if self.opset >= 12 else self.Or(self.Less(a, b), self.Equal(a, b))

    def Round(self, x: ir.Value) -> ir.Value:
        """x rounded half to even; an operator since opset 11."""
        if self.opset >= 11:
            return self.append("Round", x)
        whole = self.Floor(x)
        part = self.Sub(x, whole)
        odd = self.Greater(self.Sub(whole, self.Mul(self.Floor(self.Mul(whole, 0.5)), 2)), 0.5)
        up = self.Or(self.Greater(part, 0.5), self.And(self.Equal(part, 0.5), odd))
        return self.Add(whole, self.Cast(up, to=x.dtype))

    def Pad(self, x: ir.Value, pads: Sequence[int], mode: str = "constant", value: float = 0) -> ir.Value:
        """x padded; the pads became an input at opset 11. Negative pads crop."""
        if not any(pads):
            return x
        if self.opset < 11 and x.dtype not in FLOATS:
            raise NeedsOpsetError(f"Pad of {x.dtype}", 11)
        if self.opset >= 11:
            fill = self.full(value, x) if mode == "constant" and value else None
            return self.append("Pad", x, self.ints(pads), fill, mode=mode)
        return self.append("Pad", x, pads=list(pads), mode=mode, value=float(value))

    def TopK(self, x: ir.Value, k: int | str, axis: int, largest: bool = True) -> tuple[ir.Value, ir.Value]:
        """The k largest or smallest along an axis and their int64 indices, sorted; no more than the axis has."""
        sizes = self.sizes_or_none(x)
        size = k if sizes is None else sizes[axis]
        if isinstance(size, str):
            self.needs("TopK along a dynamic axis", 11)
            count = self.size(size, x) if k == size else self.Min(self.shape([k]), self.size(size, x))
            return self.append("TopK", x, count, axis=axis, largest=int(largest), n_outputs=2)
        k = min(self.static(k, "the number of results of TopK"), size)
        if self.opset >= 11:
            return self.append("TopK", x, self.ints([k]), axis=axis, largest=int(largest), n_outputs=2)
        if x.dtype not in FLOATS:
            raise NeedsOpsetError(f"TopK of {x.dtype}", 11)
        operands = (x if largest else self.Neg(x),)
        if self.opset >= 10:
            values, indices = self.append("TopK", *operands, self.ints([k]), axis=axis, n_outputs=2)
        else:
            values, indices = self.append("TopK", *operands, k=k, axis=axis, n_outputs=2)
        return (values if largest else self.Neg(values)), indices

    def ArgMax(self, x: ir.Value, axis: int, keepdims: bool) -> ir.Value:
        """The index of the largest along an axis, the first of equals."""
        return self.append("ArgMax", x, axis=axis, keepdims=int(keepdims))

    def Expand(self, x: ir.Value, sizes: Sequence[int | str], *sources: ir.Value) -> ir.Value:
        """x broadcast to a shape."""
        return x if self.sizes_or_none(x) == list(sizes) else self.append("Expand", x, self.shape(sizes, x, *sources))
