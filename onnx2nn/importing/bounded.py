"""Evaluates rows on constants within the limits of an import.

What a call will take is estimated before it runs, from the sizes of its arguments: exactly where they could make a
large result, and by an upper bound that costs next to nothing for the many small calls.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2nn.ground.limits import Account
from onnx2nn.importing.upper_bounds import SMALL, bound_of_steps, reach, upper_bound
from onnx2nn.optable.row import Row

_SECONDS_PER_NUMBER = 4e-6
"""What a body takes for a number that it reads itself, outside of torch's kernels."""


def run(row: Row, F: Any, arguments: Sequence[Any], attributes: dict[str, Any], account: Account) -> Any:
    """Returns the result of `row` for constants, as `Row.run` does.

    Args:
        row: the row.
        F: the framework's namespace of tensor functions.
        arguments: the constants in the form that the row's body takes.
        attributes: the node's.
        account: counts what the result takes.

    Raises:
        TooLargeError: it takes more than the limits allow.
    """
    for argument in arguments:
        if isinstance(argument, list):
            account.too_large("sequence_length", len(argument), "The length of a sequence is")
    if any(isinstance(argument, np.ndarray) for argument in arguments):
        _check_strings(arguments, account)
        return _counted(row.run(F, *arguments, **attributes), account)
    if _bound(row, arguments, attributes) <= SMALL:
        return row.run(F, *arguments, **attributes)
    if "number_by_number" in row.traits:
        read = sum(reach(getattr(argument, "shape", (0,))) for argument in arguments)
        account.take_seconds(
            read * _SECONDS_PER_NUMBER, "With the numbers that a node reads one by one, constants take"
        )
    _check_declared(row, F, arguments, attributes, account)
    if getattr(F, "__name__", "") != "torch":
        return _counted(row.run(F, *arguments, **attributes), account)
    from onnx2nn.importing.watched_calls import watched

    with watched(account):
        result = row.run(F, *arguments, **attributes)
    return _counted(result, account)


def _bound(row: Row, arguments: Sequence[Any], attributes: dict[str, Any]) -> float:
    if "step_by_step" in row.traits:
        return bound_of_steps(arguments, attributes.values())
    return upper_bound((*arguments, *attributes.values()))


def _check_declared(row: Row, F: Any, arguments: Sequence[Any], attributes: dict[str, Any], account: Account) -> None:
    """Refuses results that are too large by the sizes that the row declares: a body may use numpy before torch."""
    shapes: list[Sequence[Any]] = []
    position = row.size_position if row.sized_by in row.counts else None
    if position is not None and position < len(arguments) and isinstance(arguments[position], list):
        shapes.append(arguments[position])
    if row.results is not None:
        with contextlib.suppress(Exception):  # of any class, for inputs that do not fit: the body says why
            shapes += [dims for dims, _ in row.results(F, *arguments, **attributes)]
    for shape in shapes:
        count = math.prod(size for size in shape if isinstance(size, int))
        if count > account.free_bytes:
            account.take_bytes(count, "With the result of a node, constants have")


def _counted(result: Any, account: Account) -> Any:
    """Returns a result after counting its bytes."""
    for item in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(item, np.ndarray):
            account.take_bytes(sum(map(len, filter(_is_text, item.flat))), "With the strings of a node, constants have")
        elif (size := getattr(item, "nbytes", 0)) > SMALL:
            account.take_bytes(size, "With the result of a node, constants have")
    return result


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _check_strings(arguments: Sequence[Any], account: Account) -> None:
    """Refuses operators on strings whose result may be too large: of as many, and as long, as all inputs allow."""
    arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    count = 1
    for argument in arguments:
        count *= max(1, math.prod(getattr(argument, "shape", ())))
    with contextlib.suppress(ValueError):  # they are not broadcast
        count = math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    account.too_large("elements", count, "The number of strings in a node is")
    longest = sum(max((len(text) for text in array.flat if _is_text(text)), default=0) for array in arrays)
    if count * longest > account.free_bytes:
        account.take_bytes(count * longest, "With the strings of a node, constants have")
