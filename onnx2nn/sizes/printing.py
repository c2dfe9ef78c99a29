"""Sizes and conditions as Python code, for people."""

from __future__ import annotations

import zlib
from typing import Any

from onnx2nn.sizes.conditions import Condition
from onnx2nn.sizes.expression import Number, Size, Symbol
from onnx2nn.sizes.rendering import Rendering

_LEVELS = {"or": 0, "and": 1, "+": 3, "-": 3, "*": 4, "//": 4, "%": 4}
_COMPARISON, _PRODUCT, _NEGATIVE, _ATOM = 2, 5, 6, 7
"""A product without quotients has a level of its own: `-a * b` is `-(a * b)`, but `-a // b` is not `-(a // b)`."""

_LONGEST = 4000
"""The most characters of an expression. A longer part that others hold would be written out in each of them."""

Text = tuple[str, int]
"""Code, and how tightly its outermost operator binds."""


def code_of(value: Number | Condition) -> str:
    """Returns a number or condition as Python code; parts of thousands of characters are named by a digest instead."""
    return _Printing().of(value)[0]


class _Printing(Rendering[Text]):
    def known(self, number: int) -> Text:
        return str(number), _ATOM if number >= 0 else _NEGATIVE

    def symbol(self, symbol: Symbol) -> Text:
        return symbol.name, _ATOM

    def infix(self, operator: str, a: Text, b: Text) -> Text:
        level = _LEVELS.get(operator, _COMPARISON)
        if level != _LEVELS["*"]:
            return _named(f"{_inside(a, level)} {operator} {_inside(b, level + 1)}", level)
        whole = operator == "*" and a[1] >= _PRODUCT
        return _named(f"{_inside(a, level)} {operator} {_inside(b, _NEGATIVE)}", _PRODUCT if whole else level)

    def negative(self, a: Text) -> Text:
        return f"-{_inside(a, _PRODUCT)}", _LEVELS["+"]

    def call(self, kind: str, operands: list[Text]) -> Text:
        return _named(f"{kind}({', '.join(text for text, _ in operands)})", _ATOM)

    def choice(self, condition: Text, a: Text, b: Text) -> Text:
        return _named(f"({a[0]} if {condition[0]} else {b[0]})", _ATOM)


def _named(code: str, level: int) -> Text:
    return (code, level) if len(code) <= _LONGEST else (f"long_{zlib.crc32(code.encode()):08x}", _ATOM)


def _inside(text: Text, level: int) -> str:
    return text[0] if text[1] >= level else f"({text[0]})"


def _representation(value: Any) -> str:
    return code_of(value)


# Here, because an expression cannot import this module, which reads expressions.
Size.__repr__ = Condition.__repr__ = _representation  # type: ignore[method-assign]  # the classes have no method of their own
