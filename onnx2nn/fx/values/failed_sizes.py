"""Names the size for which a call of torch failed: the condition that the call checks itself, and the inputs' sizes.

A guard for every such condition would put dozens of checks into each program, most of them `n >= 1`, and an exported
program would have to declare them. They are therefore noted as plain values, and looked at after a failure only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from onnx2nn.errors import Onnx2nnError
from onnx2nn.sizes.conditions import Condition
from onnx2nn.sizes.expression import Symbol
from onnx2nn.sizes.rendering import INFIX, Rendering
from onnx2nn.sizes.substitution import operation

_MISFIT = "The sizes"

Place = tuple[str, int]
"""The name of an input, and a dimension of it."""


def misfit(whose: str, text: str, found: Iterable[tuple[str, object]]) -> str:
    """Returns the message about sizes that do not fulfil a condition.

    Args:
        whose: `"of the inputs"` or `"that data decide"`.
        text: the condition, and which node needs it.
        found: the title and the size of each dimension.
    """
    listed = ", ".join(f"{title} is {size}" for title, size in found)
    return f"{_MISFIT} {whose} do not fit. {text}. Here {listed}."


def operations_of(condition: Condition, places: Mapping[Symbol, Place | None]) -> list[tuple[Any, ...]]:
    """Returns the operations that compute a condition as plain values, each after its operands.

    Args:
        condition: it.
        places: where each of its symbols is read.

    Returns:
        `("number", 5)`, `("size", ("x", 0))`, or a name and the positions of its operands in this list: `("+", 0, 1)`.
    """
    operations = _Operations(places)
    operations.of(condition)
    return operations.found


class _Operations(Rendering[int]):
    """Lists operations; a value is the position of the operation that computes it."""

    def __init__(self, places: Mapping[Symbol, Place | None]):
        self._places = places
        self.found: list[tuple[Any, ...]] = []

    def _add(self, *parts: Any) -> int:
        self.found.append(parts)
        return len(self.found) - 1

    def known(self, number: int) -> int:
        return self._add("number", number)

    def symbol(self, symbol: Symbol) -> int:
        return self._add("size", self._places[symbol])

    def infix(self, operator: str, a: int, b: int) -> int:
        return self._add(operator, a, b)

    def negative(self, a: int) -> int:
        return self._add("negative", a)

    def call(self, kind: str, operands: list[int]) -> int:
        return self._add(kind, *operands)

    def choice(self, condition: int, a: int, b: int) -> int:
        return self._add("if", condition, a, b)


def _function(kind: str) -> Callable[..., Any]:
    if kind == "if":
        return lambda condition, a, b: a if condition else b
    return operator.neg if kind == "negative" else INFIX.get(kind) or operation(kind)


def holds(operations: Sequence[tuple[Any, ...]], sizes: Mapping[Place, int]) -> bool:
    """Returns the truth of a condition for the sizes of inputs.

    Args:
        operations: from `operations_of`.
        sizes: each that these read.

    Raises:
        ZeroDivisionError: a divisor is 0, also of a quotient that is not chosen.
    """
    values: list[Any] = []
    for kind, *operands in operations:
        if kind == "number":
            values.append(operands[0])
        elif kind == "size":
            values.append(sizes[operands[0]])
        else:
            values.append(_function(kind)(*(values[position] for position in operands)))
    return bool(values[-1])


def failed_sizes(
    record: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any], error: BaseException
) -> str:
    """Returns which condition on the sizes of inputs a call of torch refused; `""` where none of them explains it.

    Args:
        record: `meta["onnx2nn"]` of an imported module.
        args: the call's inputs by position.
        kwargs: its inputs by name.
        error: what the call raised; errors of this project name what was found themselves.
    """
    if isinstance(error, Onnx2nnError) or str(error).startswith(f"{_MISFIT} "):  # one of ours, or a guard's
        return ""
    named = {**dict(zip(record.get("inputs", ()), args, strict=False)), **kwargs}
    sizes = {
        (name, axis): size
        for name, value in named.items()
        if isinstance(value, torch.Tensor)
        for axis, size in enumerate(value.shape)
    }
    for condition in record.get("relied", ()):
        try:
            fulfilled = holds(condition["operations"], sizes)
        except (KeyError, ZeroDivisionError):  # a missing input; a quotient that only another branch computes
            continue
        if not fulfilled:
            found = [(title, sizes[place]) for title, place in condition["dimensions"].items()]
            return misfit("of the inputs", condition["text"], found)
    return ""
