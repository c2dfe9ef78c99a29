"""Sizes and conditions as Python code, for people and for generated programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx2nn.sizes.conditions import Condition, negation
from onnx2nn.sizes.expression import Atom, Monomial, Number, Size, Symbol, multiply, of_terms, terms_of

_SUM, _PRODUCT, _ATOM = range(3)


def code_of(value: Number | Condition | bool, name: Callable[[Symbol], str] = lambda symbol: symbol.name) -> str:
    """Returns a number or condition as Python code.

    Args:
        value: it.
        name: returns the code of a symbol.
    """
    if isinstance(value, Condition):
        return _condition(value, name)
    return _number(value, name)[0] if isinstance(value, Size) else str(value)


def _condition(condition: Condition, name: Any) -> str:
    if condition.kind in ("and", "or"):
        parts = [_condition(part, name) for part in condition.operands]
        return f" {condition.kind} ".join(f"({part})" if " or " in part else part for part in parts)
    (size,) = condition.operands
    kind = condition.kind
    left = {m: c for m, c in size.terms if m and c > 0}
    right = {m: -c for m, c in size.terms if m and c < 0}
    constant = dict(size.terms).get((), 0)
    if not left:  # `-n + 5 >= 0` is `n <= 5`
        left, right, constant = right, left, -constant
        kind = {">=": "<="}.get(kind, kind)
    if right:
        left[()], right[()] = max(constant, 0), max(-constant, 0)
        return f"{_code(of_terms(left), name)} {kind} {_code(of_terms(right), name)}"
    return f"{_code(of_terms(left), name)} {kind} {-constant}"


def _code(number: Number, name: Any, level: int = _SUM) -> str:
    if isinstance(number, int):
        return str(number) if number >= 0 or level == _SUM else f"({number})"
    text, own = _number(number, name)
    return f"({text})" if own < level else text


def _number(size: Size, name: Any) -> tuple[str, int]:
    remainder = _remainder(size)
    if remainder is not None:
        a, b = remainder
        return f"{_code(a, name, _ATOM)} % {_code(b, name, _ATOM)}", _PRODUCT
    text, level = "", _PRODUCT
    terms = sorted(size.terms, key=lambda term: term[1] < 0)  # a sum does not begin with a minus where it can
    if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
        return _atom(terms[0][0][0], name)
    for monomial, coefficient in terms:
        part = _term(monomial, abs(coefficient), name)
        if text:
            text += f" {'-' if coefficient < 0 else '+'} {part}"
            level = _SUM
        else:
            text = f"-{part}" if coefficient < 0 else part
            level = _SUM if coefficient < 0 else _PRODUCT
    return text, level


def _remainder(size: Size) -> tuple[Number, Number] | None:
    """Returns dividend and divisor of a remainder, `a - b * (a // b)`; None for other sizes."""
    for monomial, coefficient in size.terms:
        for atom in monomial:
            if atom.key[0] in ("//", "trunc") and coefficient < 0:
                _, a, b = atom.key
                whole = multiply(of_terms({(atom,): 1}), multiply(b, -1))
                rest = dict(size.terms)
                if all(rest.pop(m, 0) == c for m, c in terms_of(whole).items()) and of_terms(rest) is a:
                    return a, b
    return None


def _term(monomial: Monomial, coefficient: int, name: Any) -> str:
    parts = [str(coefficient)] if coefficient != 1 or not monomial else []
    for atom in monomial:
        text, level = _atom(atom, name)
        parts.append(f"({text})" if level < _ATOM else text)
    return " * ".join(parts)


def _atom(atom: Atom, name: Any) -> tuple[str, int]:
    if isinstance(atom, Symbol):
        return name(atom), _ATOM
    kind, *operands = atom.key
    if kind == "//":
        return f"{_code(operands[0], name, _PRODUCT)} // {_code(operands[1], name, _ATOM)}", _PRODUCT
    if kind == "where":
        condition, a, b = operands
        if isinstance(condition, Condition) and condition.kind == "!=":
            condition, a, b = negation(condition), b, a
        return f"({_code(a, name)} if {code_of(condition, name)} else {_code(b, name)})", _ATOM
    if kind == "sum":
        return f"({_code(operands[0], name)})", _ATOM
    return f"{kind}({', '.join(_code(operand, name) for operand in operands)})", _ATOM


# Here, because an expression cannot import this module, which reads expressions.
Size.__repr__ = Condition.__repr__ = code_of  # type: ignore[method-assign, assignment]  # it has one more, optional parameter
