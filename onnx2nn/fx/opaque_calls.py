"""Nodes that are recorded as one call of their operator, and what is known of the results of such a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx2nn import functional
from onnx2nn.errors import OperatorError
from onnx2nn.fx.constants import torch_dtype
from onnx2nn.fx.spec import Spec
from onnx2nn.fx.tensor import Opaque
from onnx2nn.fx.tracer import Tracer
from onnx2nn.importing.plan import TypeOf
from onnx2nn.optable.registry import name_of
from onnx2nn.optable.row import NeedsValues, Row


def call_of_shapes(tracer: Tracer, row: Row, arguments: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """Records a node as one call of its operator; the body on meta tensors tells what comes of it."""
    function = getattr(functional, name_of(row))
    specs = tracer.infer("call_function", function, tracer.own(tuple(arguments)), attributes).specs
    return tracer.call_opaque(function, tuple(arguments), attributes, specs)


def call(
    tracer: Tracer,
    row: Row,
    arguments: Sequence[Any],
    attributes: dict[str, Any],
    outputs: Sequence[tuple[ir.Value, TypeOf]],
    strict: bool,
) -> Any:
    """Records a node as one call of its operator on run time values.

    Args:
        tracer: records it.
        row: the node's row.
        arguments: as `Arguments.of_operator` gives them.
        attributes: the node's.
        outputs: the node's outputs, and what the file says of their types.
        strict: whether inputs that do not fit are an error.

    Raises:
        OperatorError: by what the row says of its results, its inputs do not fit.
    """
    known = _results(tracer, row, arguments, attributes, strict)
    specs = [
        _declared(tracer, value, kind, known[index] if index < len(known) else None)
        for index, (value, kind) in enumerate(outputs)
    ]
    function = getattr(functional, name_of(row))
    result = specs[0] if len(specs) == 1 and not row.several else tuple(specs)
    return tracer.call_opaque(function, tuple(arguments), attributes, result, once=bool(known))


def _results(
    tracer: Tracer, row: Row, arguments: Sequence[Any], attributes: dict[str, Any], strict: bool
) -> Sequence[Spec]:
    """Returns what the operator says of its results, nothing where it cannot: an input's rank is not known."""
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
    of_data = {name: tracer.fresh_dimension() for dims, _ in results for name in dims if isinstance(name, str)}
    specs = []
    for dims, dtype in results:
        columns = [of_data[d] if isinstance(d, str) else getattr(d, "values", (d,) * tracer.points) for d in dims]
        specs.append(Spec(tuple(zip(*columns, strict=True)), dtype))
    return specs


def _declared(tracer: Tracer, value: ir.Value, type_of: TypeOf, known: Spec | None) -> Spec | None:
    """Returns what the operator or the file says of an output: its dtype, perhaps its rank; None: no tensor."""
    kind, container = type_of
    if container or kind == ir.DataType.STRING:
        return None
    if known is not None:
        return known
    dtype = None if kind is None else torch_dtype(kind)
    if value.shape is None:
        return Spec(None, dtype)
    columns = [(dim,) * tracer.points if isinstance(dim, int) else tracer.fresh_dimension() for dim in value.shape]
    return Spec(tuple(zip(*columns, strict=True)) if columns else ((),) * tracer.points, dtype)
