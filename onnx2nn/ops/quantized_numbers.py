"""Integers of quantised values: minus their zero point as floats, and floats rounded to them.

A call of torch with a number makes a tensor of it first, which takes longer than a sum of a few thousand numbers. So
numbers of 8 bits are kept as tensors where there are values to compute with.
"""

from __future__ import annotations

import functools
from typing import Any

from onnx2nn.ground.element_types import Element
from onnx2nn.ops.cast import convert
from onnx2nn.optable.row import has_values


def is_zero(F: Any, zero_point: Any) -> bool:
    """Returns whether a zero point is known to be 0 or absent."""
    if zero_point is None:
        return True
    if not has_values(F, zero_point):
        return False
    if zero_point.is_floating_point():
        zero_point = zero_point.to(F.float32)
    return not bool(zero_point if zero_point.numel() == 1 else zero_point.any())


def limits(element: Element) -> tuple[int, int]:
    """Returns the smallest and the largest number of an integer type."""
    if element.name.startswith("UINT"):
        return 0, (1 << element.bits) - 1
    return -(1 << element.bits - 1), (1 << element.bits - 1) - 1


def round_to(F: Any, y: Any, zero_point: Any, element: Element, saturate: bool = True) -> Any:
    """Returns `y`, already divided by its scale, as `element`: rounded half to even, shifted, saturated.

    NaN gives an integer type's smallest number, as in ONNX Runtime. It occurs with scales of inf, which masks of -inf
    have after calibration.
    """
    integer = element.small is None and element.largest is None
    if integer:
        y = F.round(y)
    if not is_zero(F, zero_point):
        y = y + zero_point.to(y.dtype)
    if not integer:
        return convert(F, y, element, saturate=saturate)
    smallest, largest = limits(element)
    y = y.clamp(smallest, largest)
    if smallest:  # the conversion to integers below gives 0 for NaN
        y = F.nan_to_num(y, nan=smallest)
    return y.to(getattr(F, element.dtype))


class Functional:
    """Arithmetic of quantised values that are traced, or of another framework.

    What its methods compute with is in memory that nothing else reads.

    Args:
        F: torch, or another namespace.
    """

    def __init__(self, F: Any):
        self.F = F

    def number(self, zero_point: Any) -> Any:
        """Returns the number that a zero point is known to be, 0 for an absent one; None for others."""
        return 0 if zero_point is None else None

    def constant(self, number: int, dtype: Any) -> Any:
        """Returns an integer that operands of a type are computed with."""
        return number

    def centered(self, x: Any, zero_point: Any, dtype: Any) -> Any:
        """Returns integers minus their zero point as floats of new memory, which hold the differences exactly.

        Args:
            x: integers of at most 16 bits, or small floats.
            zero_point: None or one that broadcasts against `x`.
            dtype: of the result.
        """
        return x.to(dtype) if is_zero(self.F, zero_point) else x.to(dtype) - zero_point.to(dtype)

    def scaled(self, y: Any, scale: Any) -> Any:
        """Returns floats times a scale that broadcasts against them."""
        return y * scale

    def sum(self, a: Any, b: Any) -> Any:
        """Returns the sum of floats."""
        return a + b

    def product(self, a: Any, b: Any) -> Any:
        """Returns the product of floats."""
        return a * b

    def to_steps(self, y: Any, zero_point: Any, element: Element, *, shift_first: bool = False) -> Any:
        """Returns float32, already divided by its scale, as `round_to` does.

        Args:
            y: the quotients.
            zero_point: None or one that broadcasts against `y`.
            element: an integer type.
            shift_first: whether the zero point is added before the sum is rounded, so that halves are rounded to an
                even result whatever it is.
        """
        if shift_first:
            y, zero_point = y if is_zero(self.F, zero_point) else y + zero_point.to(y.dtype), None
        return round_to(self.F, y, zero_point, element)


class InPlace(Functional):
    """Arithmetic of quantised values that torch's tensors have: the same numbers, in the memory of what is given."""

    def number(self, zero_point: Any) -> Any:
        """Returns the number that a zero point of 8 bits in a processor's memory is, 0 for an absent one.

        None for several, for wider ones, and for one in the memory of another device.
        """
        if zero_point is None:
            return 0
        narrow = zero_point.dtype in (self.F.uint8, self.F.int8)
        return zero_point.item() if narrow and zero_point.is_cpu and zero_point.numel() == 1 else None

    def constant(self, number: int, dtype: Any) -> Any:
        """Returns an integer of 8 bits, or the difference of two, as a tensor of a type, which is made once."""
        found = _constants.get((number, dtype))
        if found is None:
            with self.F.inference_mode(False):
                found = _constants[number, dtype] = self.F.tensor(number, dtype=dtype, device="cpu")
        return found

    def centered(self, x: Any, zero_point: Any, dtype: Any) -> Any:
        """See `Functional`."""
        number = self.number(zero_point)
        if number is None or dtype != self.F.float32:
            return super().centered(x, zero_point, dtype)
        return x.to(dtype).sub_(self.constant(number, dtype)) if number else x.to(dtype)

    def scaled(self, y: Any, scale: Any) -> Any:
        """See `Functional`."""
        scale = scale.detach() if scale.requires_grad else scale
        return y.mul_(scale) if scale.ndim == y.ndim or not scale.ndim else y * scale

    def sum(self, a: Any, b: Any) -> Any:
        """See `Functional`."""
        return a.add_(b) if a.shape == b.shape else a + b

    def product(self, a: Any, b: Any) -> Any:
        """See `Functional`."""
        return a.mul_(b) if a.shape == b.shape else a * b

    def to_steps(self, y: Any, zero_point: Any, element: Element, *, shift_first: bool = False) -> Any:
        """See `Functional`."""
        number = self.number(zero_point)
        if number is None or element.name not in ("INT8", "UINT8"):
            return super().to_steps(y, zero_point, element, shift_first=shift_first)
        if not shift_first:
            y.round_()
        if number:
            y.add_(self.constant(number, self.F.float32))
        if shift_first:
            y.round_()
        smallest, largest = limits(element)
        y.clamp_(smallest, largest)
        if smallest:  # the conversion to integers gives 0 for NaN
            return self.F.nan_to_num_(y, nan=smallest).to(self.F.int8)
        return y.to(self.F.int16).to(self.F.uint8)  # torch converts floats to uint8 one by one


def arithmetic(F: Any, *tensors: Any) -> Functional:
    """Returns the arithmetic for the inputs of an operator, some of which may be None."""
    return _in_place(F) if hasattr(F, "_int_mm") and has_values(F, *tensors) else Functional(F)


_in_place = functools.cache(InPlace)
_constants: dict[tuple[int, Any], Any] = {}
