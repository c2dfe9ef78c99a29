"""Dimensions that a file names by arithmetic of others: `past_sequence_length + sequence_length`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping

from onnx2nn.sizes.expression import Number, Size, add, floor_divide, multiply, subtract

_ARITHMETIC: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: add,
    ast.Sub: subtract,
    ast.Mult: multiply,
    ast.FloorDiv: floor_divide,
}
_MAX_LENGTH = 200


def named_after_others(name: str, names: Collection[str], size: Callable[[str], Number]) -> Number | None:
    """Returns the size that a name states in terms of other dimensions, None for other names.

    Args:
        name: the name of a dimension.
        names: the names of all dimensions.
        size: returns a dimension, by name.
    """
    if name.isidentifier() or len(name) > _MAX_LENGTH:
        return None
    try:
        found = _value(ast.parse(name, mode="eval").body, names, size)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return found if isinstance(found, Size) and (found.interval[1] is None or found.interval[1] > 0) else None


def _value(expression: ast.expr, names: Collection[str], size: Callable[[str], Number]) -> Number:
    match expression:
        case ast.BinOp(left, sign, right) if type(sign) in _ARITHMETIC:
            return _ARITHMETIC[type(sign)](_value(left, names, size), _value(right, names, size))
        case ast.Constant(int(number)):
            return number
        case ast.Name(name) if name in names:
            return size(name)
    raise ValueError("no arithmetic of other dimensions")
