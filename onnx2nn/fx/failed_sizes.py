"""Names the size for which a call of torch failed: the condition that the call checks itself, and the inputs' sizes.

A guard for every such condition would put dozens of checks into each program, most of them `n >= 1`, and an exported
program would have to declare them. They are therefore noted as plain values, and looked at after a failure only.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from onnx2nn.errors import Onnx2nnError
from onnx2nn.sizes.conditions import Condition
from onnx2nn.sizes.expression import Symbol
from onnx2nn.sizes.rendering import Rendering

_MISFIT = "The sizes"

Place = tuple[str, int]
"""The name of an input, and a dimension of it."""


def operations_of(condition: Condition, places: Mapping[Symbol, Place | None]) -> Any:
    """Returns a condition as nested lists of plain values: an operation's name and its operands, or a number.

    Args:
        condition: it.
        places: where each of its symbols is read.
    """
    return _Operations(places).of(condition)


class _Operations(Rendering[Any]):
    def __init__(self, places: Mapping[Symbol, Place | None]):
        self._places = places

    def known(self, number: int) -> Any:
        return number

    def symbol(self, symbol: Symbol) -> Any:
        return ["size", self._places[symbol]]

    def infix(self, operator: str, a: Any, b: Any) -> Any:
        return [operator, a, b]

    def negative(self, a: Any) -> Any:
        return ["-", 0, a]

    def call(self, kind: str, operands: list[Any]) -> Any:
        return [kind, *operands]

    def choice(self, condition: Any, a: Any, b: Any) -> Any:
        return ["if", condition, a, b]


def _broadcast(*sizes: int) -> int:
    return next((size for size in sizes if size != 1), 1)


def _truncated(a: int, b: int) -> int:
    return a // b if a * b >= 0 else -(-a // b)


_FUNCTIONS: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
    "and": operator.and_, "or": operator.or_, "min": min, "max": max, "trunc": _truncated, "broadcast": _broadcast,
    "if": lambda condition, a, b: a if condition else b,
}  # fmt: skip


def _evaluated(operations: Any, sizes: Mapping[Place, int]) -> Any:
    if not isinstance(operations, list):
        return operations
    kind, *operands = operations
    if kind == "size":
        return sizes[operands[0]]
    return _FUNCTIONS[kind](*(_evaluated(operand, sizes) for operand in operands))


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
            holds = _evaluated(condition["operations"], sizes)
        except (KeyError, ZeroDivisionError):  # a missing input; a quotient that only another branch computes
            continue
        if not holds:
            listed = ", ".join(f"{title} is {sizes[place]}" for title, place in condition["dimensions"].items())
            return f"{_MISFIT} of the inputs do not fit. {condition['text']}. Here {listed}."
    return ""
