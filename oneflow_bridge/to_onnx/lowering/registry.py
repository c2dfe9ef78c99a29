"""The correspondence of OneFlow's user ops and ONNX operators: rows where it is one to one, functions elsewhere."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx2nn.errors import OperatorError

IGNORED = frozenset({"operands", "results", "nd_sbp", "pin_memory", "device_type", "device_id"})
"""Attributes without a meaning for one device, and the two that name inputs and outputs."""


Scalar = float
"""A scalar operand of a OneFlow op, held by one of its attributes `int_operand`, `float_operand` and `bool_operand`.

`has_int_operand` and so on say which one. An op with two such operands puts `x_` and `y_` before the attributes' names.
A number that depends on a dynamic dimension is a name or a tuple of numbers, which the builder refuses.
"""

_SCALAR_KINDS = ("int", "float", "bool")


@dataclass(frozen=True)
class Row:
    """A OneFlow op and an ONNX operator that differ in names only.

    Attributes:
        oneflow: user op type name.
        onnx: ONNX operator type.
        operands: OneFlow input names, in the order of the ONNX operator's inputs; a trailing `*` marks a variadic one.
        result: OneFlow output name.
        attributes: OneFlow attribute → ONNX attribute.
        constants: ONNX attributes that the OneFlow op implies.
        absent: OneFlow attributes that must have the given value for the row to hold.
    """

    oneflow: str
    onnx: str
    operands: tuple[str, ...] = ("x",)
    result: str = "y"
    attributes: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Handler:
    """How one OneFlow op is written.

    Attributes:
        function: takes the builder, the inputs by position and the attributes by keyword; gives a value, or a dict of
            values by output name.
        operands: input names, in the function's order.
        variadic: names among them that take a list.
        attributes: the attributes that the function takes.
        ignored: attributes without influence on the result.
        scalars: parameters that take a scalar operand → the prefix of the attributes that hold it, see `Scalar`.
    """

    function: Callable[..., Any]
    operands: tuple[str, ...]
    variadic: frozenset[str]
    attributes: frozenset[str]
    ignored: frozenset[str]
    scalars: Mapping[str, str] = field(default_factory=dict)


ROWS: dict[str, Row] = {}
HANDLERS: dict[str, Handler] = {}


def row(oneflow: str, onnx: str, operands: str = "x", result: str = "y", **options: Any) -> None:
    """Adds a `Row`; operands are separated by spaces."""
    _add(ROWS, oneflow, Row(oneflow, onnx, tuple(operands.split()), result, **options))


def emit(*op_types: str, ignore: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function as the way to write OneFlow ops.

    The function's positional parameters are the op's inputs under their OneFlow names (an underscore is appended to
    Python's keywords; the annotation `list` marks a variadic one), its keyword-only parameters are attributes. A
    keyword-only parameter `operand`, `x_operand` or `y_operand` annotated `Scalar` takes a scalar operand.

    Args:
        op_types: user op type names.
        ignore: attributes that do not change the result, separated by spaces.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        operands = [p for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
        keywords = [p for p in parameters if p.kind == p.KEYWORD_ONLY]
        scalars = {p.name: p.name.removesuffix("operand") for p in keywords if p.annotation == "Scalar"}
        attributes = {p.name.removesuffix("_") for p in keywords if p.name not in scalars}
        handler = Handler(
            function,
            tuple(p.name.removesuffix("_") if p.name.endswith("_") else p.name for p in operands),
            frozenset(p.name.removesuffix("_") for p in operands if p.annotation == "list"),
            frozenset(attributes.union(*map(_scalar_attributes, scalars.values()))),
            frozenset(ignore.split()),
            scalars,
        )
        for op_type in op_types:
            _add(HANDLERS, op_type, handler)
        return function

    return register


def _add(table: dict[str, Any], op_type: str, entry: Any) -> None:
    if op_type in ROWS or op_type in HANDLERS:
        raise ValueError(f"{op_type} is registered twice")
    table[op_type] = entry


def _scalar_attributes(prefix: str) -> list[str]:
    names = [f"{prefix}{kind}_operand" for kind in _SCALAR_KINDS]
    return [*names, *(f"has_{name}" for name in names)]


def take_scalar(attributes: dict[str, Any], prefix: str) -> Any:
    """Takes the attributes of a scalar operand out of `attributes` and returns the operand.

    Raises:
        OperatorError: there is not exactly one.
    """
    found = []
    for kind in _SCALAR_KINDS:
        name = f"{prefix}{kind}_operand"
        value = attributes.pop(name, None)
        if attributes.pop(f"has_{name}", False):
            found.append(bool(value) if kind == "bool" else value)
    if len(found) != 1:
        raise OperatorError(f"has {len(found)} values for its scalar operand instead of one.")
    return found[0]


def load_families() -> None:
    """Imports every family of `oneflow_bridge.to_onnx.emit`, so that `ROWS` and `HANDLERS` are complete."""
    package = importlib.import_module("oneflow_bridge.to_onnx.emit")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
