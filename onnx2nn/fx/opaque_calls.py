"""Opaque calls: nodes that are recorded as one call of their operator, and the specs of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx2nn import functional
from onnx2nn.errors import OperatorError
from onnx2nn.fx.constants import torch_dtype
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Opaque
from onnx2nn.importing.plan import TypeOf
from onnx2nn.optable.registry import name_of
from onnx2nn.optable.row import Counted, NeedsValues, Row
from onnx2nn.sizes.conditions import at_most


def call_of_shapes(tracer: Tracer, row: Row, arguments: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Records a node as one call of its operator.

    The specs of its results come from `row.results`, where these need no values, else from the body on meta tensors.
    """
    function = getattr(functional, name_of(row))
    specs: Any = specs_of(tracer, row, arguments, attributes, strict=True)
    if not specs:
        specs = tracer.infer("call_function", function, tracer.own(tuple(arguments)), attributes).specs
    elif not row.several:
        (specs,) = specs
    return tracer.call_opaque(function, tuple(arguments), attributes, specs)


def call(
    tracer: Tracer,
    row: Row,
    arguments: Sequence[Any],
    attributes: dict[str, Any],
    node: ir.Node,
    type_of: Callable[[ir.Value], TypeOf],
    strict: bool,
) -> Any:
    """Records a node as one call of its operator on run-time values.

    Args:
        tracer: records it.
        row: the node's row.
        arguments: from `Arguments.of_operator`.
        attributes: the node's.
        node: the node.
        type_of: gives the type of a value in the file.
        strict: whether a shape conflict is an error.

    Raises:
        OperatorError: `row.results` found a shape conflict.
    """
    if "passes_on" in row.traits and isinstance(arguments[0], Opaque):
        return arguments[0]
    known = specs_of(tracer, row, arguments, attributes, strict)
    specs = [
        _declared(tracer, value, type_of(value), known[index] if index < len(known) else None)
        for index, value in enumerate(node.outputs)
    ]
    function = getattr(functional, name_of(row))
    result = specs[0] if len(specs) == 1 and not row.several else tuple(specs)
    texts = any(value is not None and type_of(value)[0] == ir.DataType.STRING for value in node.inputs)
    return tracer.call_opaque(function, tuple(arguments), attributes, result, once=bool(known), texts=texts)


def specs_of(
    tracer: Tracer, row: Row, arguments: Sequence[Any], attributes: dict[str, Any], strict: bool
) -> Sequence[Spec]:
    """Returns the specs of `row.results`; nothing where the row has none, or the rank of an input is unknown.

    Args:
        tracer: has the symbols of sizes that data decide.
        row: the node's row.
        arguments: from `Arguments.of_operator`.
        attributes: the node's.
        strict: whether a shape conflict is an error.

    Raises:
        OperatorError: `row.results` found a shape conflict.
    """
    if row.results is None or any(isinstance(value, Opaque) for value in arguments):
        return ()
    try:
        results = row.results(torch, *arguments, **attributes)
    except NeedsValues:
        return ()
    except OperatorError:
        if strict:
            raise
        return ()
    dependent = {name: tracer.symbols.fresh() for dims, _ in results for name in dims if isinstance(name, str)}
    for name, size in dependent.items():
        if isinstance(name, Counted):
            tracer.guards.facts.assume(at_most(size, tracer.expr_of(name.most)))
    return [
        Spec(tuple(dependent[d] if isinstance(d, str) else tracer.expr_of(d) for d in dims), t) for dims, t in results
    ]


def _declared(tracer: Tracer, value: ir.Value, type_of: TypeOf, known: Spec | None) -> Spec | None:
    """Returns an output's spec from the operator or the file: its dtype, perhaps its rank; None for no tensor."""
    kind, container = type_of
    if container or kind == ir.DataType.STRING:
        return None
    if known is not None:
        return known
    dtype = None if kind is None else torch_dtype(kind)
    if value.shape is None:
        return Spec(None, dtype)
    return Spec(tuple(dim if isinstance(dim, int) else tracer.symbols.fresh() for dim in value.shape), dtype)
