"""How often a Loop runs whose condition compares a counter with numbers that are known before it.

TensorFlow writes every `while` so, also the loops of its recurrent layers: the trip count is unlimited or an upper
bound, and the body computes `counter < length` of a carried counter. So does Paddle, which adds the step in float32 and
makes the condition a number in between. As a condition on data it would keep such a loop
from being exported or compiled; as a trip count it is a number, perhaps one computed from sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnx2nn.optable.registry import load_rows

Number = Callable[[ir.Value], Any]
"""Returns the number that an initializer of the body or a value around the loop is; None for all others."""

_DEPTH = 64  # operators that a condition may consist of, or a counter be computed with
_EXACT = {ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BOOL}
"""Types that hold every iteration number that is reached (float32 those to 2 ** 24); bool only truths are cast to."""


@dataclass(frozen=True)
class Linear:
    """The number `start + offset + step * iteration`; sizes may decide `start`."""

    start: Any
    step: int
    offset: int = 0


def trip_count(body: ir.Graph, limit: Any | None, initial: list[Any], number: Number) -> Any | None:
    """Returns how often a loop runs whose condition lets it start, a number; None where data decide.

    Args:
        body: takes the iteration number, the condition and the carried values.
        limit: the largest number of iterations, None where there is no limit.
        initial: the carried values at the start that are known numbers, None for the others.
        number: see `Number`.
    """
    counts = _Counting(body, initial, number).trips()
    if counts is None:
        return None
    for start, more in counts:
        if start is limit and more >= 0:
            continue  # the limit is the smaller one, also where it is 0
        count = start + more
        at_least = count.most(1) if hasattr(count, "most") else max(count, 1)  # the first ran
        limit = at_least if limit is None else _smaller(limit, at_least)
    return limit


def _smaller(a: Any, b: Any) -> Any:
    if hasattr(a, "least"):
        return a.least(b)
    return b.least(a) if hasattr(b, "least") else min(a, b)


def _is_whole(found: Any) -> bool:
    values = getattr(found, "values", (found,))  # of a number that sizes decide, its samples
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _whole(found: Any) -> int | None:
    """Returns a known whole number, also one that is a float, as an int; None for all others."""
    if isinstance(found, float):
        return int(found) if found.is_integer() else None
    return found if isinstance(found, int) else None


def _is_passed_on(node: ir.Node) -> bool:
    """Whether the node gives one number or truth as it is."""
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].as_int()) in _EXACT
    return node.op_type == "Identity" or node.op_type in load_rows().operators("layout_only")


class _Counting:
    """What the body of a loop computes of its iteration number, of counters that it carries, and of known numbers."""

    def __init__(self, body: ir.Graph, initial: list[Any], number: Number):
        self.body, self._number = body, number
        self.kept: dict[ir.Value, Any] = {}  # numbers that are carried and never change
        self.counters = {body.inputs[0]: Linear(0, 1)}
        carried = zip(body.inputs[2:], body.outputs[1:], initial, strict=False)
        whole = [(value, result, start) for value, result, start in carried if _is_whole(start)]
        for value, result, start in whole:
            if self._without_steps(result, {value}) == (value, 0):
                self.kept[value] = start
        for value, result, start in whole:
            end, step = self._without_steps(result, {value})
            if end is value:
                self.counters[value] = Linear(start, step)

    def number(self, value: ir.Value) -> Any:
        """Returns the number that a value is in every iteration, None where it is none or another in each."""
        return self.kept[value] if value in self.kept else self._number(value)

    def trips(self) -> list[tuple[Any, int]] | None:
        """Returns numbers, the smallest of which is how often the body runs if it does; None where data decide that.

        Each is a sum.
        """
        counts: dict[Any, tuple[Any, int]] = {}  # by the identity of what sizes decide
        pending = [self.body.outputs[0]]
        for _ in range(_DEPTH):
            if not pending:
                return list(counts.values())
            value = pending.pop()
            if value is self.body.inputs[1]:  # true whenever the body runs
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
        """Returns the node of the body, an operator of ONNX itself, that computes `value`."""
        node = value.producer()
        return node if node is not None and node.graph is self.body and not node.domain else None

    def _iterations(self, node: ir.Node) -> tuple[Any, int] | None:
        """Returns how many iterations run until a comparison fails, a sum; None where it may hold again later."""
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
        # It holds in the first ceil(distance / step) iterations, and that of one decides on the next.
        more = offset + 2 * step - 1
        return (distance, more) if step == 1 else ((distance + more) // step, 0)

    def _linear(self, value: ir.Value) -> Linear | None:
        """Returns what a counter or a known number is, with what is added to it."""
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
        """Returns the value of which this one is the sum with a whole number, and that; stops at `ends`."""
        steps = 0
        for _ in range(_DEPTH):
            node = None if value in ends else self._maker(value)
            found = None if node is None else self._addition(node)
            if found is None:
                break
            value, steps = found[0], steps + found[1]
        return value, steps

    def _addition(self, node: ir.Node) -> tuple[ir.Value, int] | None:
        """Returns the value to which the node adds a known whole number, and that number; None where it does not."""
        operands = [operand for operand in node.inputs if operand is not None]
        if _is_passed_on(node) and operands:
            return operands[0], 0
        if node.op_type not in {"Add", "Sub"} or len(operands) < 2:
            return None
        first, second = (_whole(self.number(operand)) for operand in operands)
        if second is not None:
            return operands[0], second if node.op_type == "Add" else -second
        return (operands[1], first) if first is not None and node.op_type == "Add" else None
