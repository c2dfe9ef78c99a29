"""Trip counts of Loops whose condition compares a counter with numbers that are known before the loop.

TensorFlow exports every `while` in this form, also the loops of its recurrent layers: the trip count is unlimited or an
upper bound, and the body computes `counter < length` from a carried counter. Paddle's loops are similar: the counter is
times 1 plus the step, in float32, and the condition passes through a number. A data-dependent condition would prevent
such a loop from being exported or compiled; a trip count is a number, perhaps computed from sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.shape_values import kind_of

Number = Callable[[ir.Value], Any]
"""Returns the number in an initializer of the body or in a value from outside the loop; None for all others."""

_DEPTH = 64  # the most operators in a condition, or between two values of a counter
_EXACT = {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BOOL}
"""Types that hold every reachable iteration number (float32 up to 2 ** 24); only truth values are cast to bool."""


@dataclass(frozen=True)
class Linear:
    """The number `start + offset + step * iteration`; `start` may be a symbolic number."""

    start: Any
    step: int
    offset: int = 0


def trip_count(body: ir.Graph, limit: Any | None, initial: list[Any], number: Number) -> Any | None:
    """Returns the trip count of a loop whose condition is true at the start; None where it is data-dependent.

    Args:
        body: takes the iteration number, the condition and the carried values.
        limit: the maximum number of iterations, None without a limit.
        initial: the initial carried values that are known numbers, None for the others.
        number: see `Number`.
    """
    counts = _Counting(body, initial, number).trips()
    if counts is None:
        return None
    for start, more in counts:
        if start is limit and more >= 0:
            continue  # the limit is the smaller number, also if it is 0
        count = start + more
        at_least = count.most(1) if hasattr(count, "most") else max(count, 1)  # the first iteration runs
        limit = at_least if limit is None else _smaller(limit, at_least)
    return limit


def _smaller(a: Any, b: Any) -> Any:
    if hasattr(a, "least"):
        return a.least(b)
    return b.least(a) if hasattr(b, "least") else min(a, b)


def _is_whole(found: Any) -> bool:
    return found is not None and kind_of(found) == "i"


def _whole(found: Any) -> int | None:
    """Returns a known whole number, int or float, as an int; None for all others."""
    if isinstance(found, float):
        return int(found) if found.is_integer() else None
    return found if isinstance(found, int) else None


def _is_passed_on(node: ir.Node) -> bool:
    """Returns whether the node returns a single number or truth value unchanged."""
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].as_int()) in _EXACT
    return node.op_type == "Identity" or "layout_only" in TABLE.traits_of(node.op_type)


class _Counting:
    """The counters and constants in the body of a loop, and the trip count that follows from them.

    Attributes:
        body: the body.
        invariants: carried values that never change, and their numbers.
        counters: the iteration number and carried values that grow by a constant step.
    """

    def __init__(self, body: ir.Graph, initial: list[Any], number: Number):
        self.body, self._number = body, number
        self.invariants: dict[ir.Value, Any] = {}
        self.counters = {body.inputs[0]: Linear(0, 1)}
        carried = zip(body.inputs[2:], body.outputs[1:], initial, strict=False)
        whole = [(value, result, start) for value, result, start in carried if _is_whole(start)]
        for value, result, start in whole:
            if self._without_steps(result, {value}) == (value, 0):
                self.invariants[value] = start
        for value, result, start in whole:
            end, step = self._without_steps(result, {value})
            if end is value:
                self.counters[value] = Linear(start, step)

    def number(self, value: ir.Value) -> Any:
        """Returns the number that a value has in every iteration, None where it is unknown or changes."""
        return self.invariants[value] if value in self.invariants else self._number(value)

    def trips(self) -> list[tuple[Any, int]] | None:
        """Returns upper bounds of the trip count, of which the smallest is exact once the loop has started.

        Each comparison in the condition gives one bound, the sum of a number and an int. None where the condition is
        data-dependent.
        """
        counts: dict[Any, tuple[Any, int]] = {}  # by the identity of the symbolic number
        pending = [self.body.outputs[0]]
        for _ in range(_DEPTH):
            if not pending:
                return list(counts.values())
            value = pending.pop()
            if value is self.body.inputs[1]:  # it is true whenever the body runs
                continue
            node = self._maker(value)
            if node is not None and node.op_type == "And":
                pending += [operand for operand in node.inputs if operand is not None]
            elif node is not None and (found := self._addition(node)) is not None and found[1] == 0:
                pending.append(found[0])
            elif node is not None and (count := self._iterations(node)) is not None:
                key = id(count[0])
                counts[key] = min(counts.get(key, count), count, key=operator.itemgetter(1))
            elif self.number(value) is not True:
                return None
        return None

    def _maker(self, value: ir.Value) -> ir.Node | None:
        """Returns the node of the body that computes `value`, None unless its operator is of ai.onnx."""
        node = value.producer()
        return node if node is not None and node.graph is self.body and not node.domain else None

    def _iterations(self, node: ir.Node) -> tuple[Any, int] | None:
        """Returns the number of iterations until a comparison fails, as a sum; None where it may hold again later."""
        if node.op_type not in {"Less", "LessOrEqual", "Greater", "GreaterOrEqual"}:
            return None
        small, large = (None if value is None else self._linear(value) for value in node.inputs)
        if small is None or large is None:
            return None
        if node.op_type.startswith("Greater"):
            small, large = large, small
        step, distance = small.step - large.step, large.start - small.start
        offset = large.offset - small.offset
        if step <= 0:
            return None
        if node.op_type.endswith("OrEqual"):
            distance, offset = math.floor(distance) if isinstance(distance, float) else distance, offset + 1
        elif isinstance(distance, float):  # whole numbers below 4.5 are those below 5
            distance = math.ceil(distance)
        # The comparison holds in the first ceil(distance / step) iterations, and each decides on the next iteration.
        more = offset + 2 * step - 1
        return (distance, more) if step == 1 else ((distance + more) // step, 0)

    def _linear(self, value: ir.Value) -> Linear | None:
        """Returns a counter or a known number, plus constants, as a `Linear`; None for all others."""
        known = self.number(value)
        if isinstance(known, float):
            return Linear(known, 0) if math.isfinite(known) else None
        end, steps = self._without_steps(value, self.counters)
        if end in self.counters:
            counter = self.counters[end]
            return Linear(counter.start, counter.step, steps)
        known = self.number(end)
        return Linear(known, 0, steps) if _is_whole(known) else None

    def _without_steps(self, value: ir.Value, ends: Container[ir.Value]) -> tuple[ir.Value, int]:
        """Returns the value and the whole number whose sum `value` is; stops at `ends`."""
        steps = 0
        for _ in range(_DEPTH):
            node = None if value in ends else self._maker(value)
            found = None if node is None else self._addition(node)
            if found is None:
                break
            value, steps = found[0], steps + found[1]
        return value, steps

    def _addition(self, node: ir.Node) -> tuple[ir.Value, int] | None:
        """Returns the value to which the node adds a known whole number, and the number; None for other nodes."""
        operands = [operand for operand in node.inputs if operand is not None]
        if _is_passed_on(node) and operands:
            return operands[0], 0
        if node.op_type not in {"Add", "Sub", "Mul"} or len(operands) < 2:
            return None
        first, second = (_whole(self.number(operand)) for operand in operands)
        if node.op_type == "Mul":
            return (operands[0], 0) if second == 1 else (operands[1], 0) if first == 1 else None
        if second is not None:
            return operands[0], second if node.op_type == "Add" else -second
        return (operands[1], first) if first is not None and node.op_type == "Add" else None
