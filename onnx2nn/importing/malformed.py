"""Finds nodes that do not fit their operator's schema, before any pass reads them: attributes and inputs.

Passes over the model (the author's names, dequantising, raising) may then rely on the types of attributes, and on the
presence of inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from onnx2nn.importing.plan import nodes_of, schema_of
from onnx2nn.optable.registry import Table
from onnx2nn.optable.row import HINTS, Row

_Kind = ir.AttributeType

_AS_DENSE = {_Kind.SPARSE_TENSOR: _Kind.TENSOR, _Kind.SPARSE_TENSORS: _Kind.TENSORS}
"""Types of a schema, and the types that the reader gives their attributes."""

_OF_ANNOTATIONS = {"float": _Kind.FLOAT, "int": _Kind.INT, "str": _Kind.STRING}
"""The types of attributes of operators without a schema, by the annotations in their rows."""

_CHECKED_BY_ANNOTATIONS = _OF_ANNOTATIONS | {
    "Sequence[float]": _Kind.FLOATS,
    "Sequence[int]": _Kind.INTS,
    "Sequence[str]": _Kind.STRINGS,
    "TensorAttribute": _Kind.TENSOR,
}
"""The types of attributes by their annotations, which are those of the schema where there is one."""


def malformed_nodes(model: ir.Model, table: Table) -> Iterator[tuple[ir.Node, int, str]]:
    """Yields the nodes that contradict their operator, with the opset version and the reason.

    Args:
        model: as `reader.read` gives it.
        table: the op table.
    """
    functions = model.functions
    for node, version in nodes_of(model):
        if functions and (node.domain, node.op_type, node.overload) in functions:
            continue
        row = table.find(node.domain, node.op_type, version)
        reason = _attribute_problem(node, row, version) or (row and _absence(node, row))
        if reason:
            yield node, version, reason


def _attribute_problem(node: ir.Node, row: Row | None, version: int) -> str:
    if not node.attributes.data:
        return ""
    if row is not None and _fits(node, row):
        return ""
    types = _types(node.domain, node.op_type, version)
    if types is None:
        if row is None:
            return ""
        types = _annotated(row)
    for name, attribute in node.attributes.items():
        if row is None:
            known = name in types
        else:
            known = row.any_attribute or name in row.attributes or name in row.inputs or name in HINTS
        if not known:
            return f"attribute {name!r} is unknown to this revision of the operator."
        wanted = types.get(name)
        if wanted is not None and attribute.type is not wanted:
            return f"attribute {name!r} is of type {attribute.type.name}, the operator takes {wanted.name}."
    return ""


def _fits(node: ir.Node, row: Row) -> bool:
    """Returns whether each attribute has the type of its annotation.

    That spares most imports the schemas: onnx makes all of them when one is requested, in a tenth of a first load.
    """
    kinds = row.annotations
    for name, attribute in node.attributes.data.items():  # a generator takes longer than the test
        if attribute.type is not _CHECKED_BY_ANNOTATIONS.get(kinds.get(name, "")):
            return False
    return True


def _absence(node: ir.Node, row: Row) -> str:
    for position, name in row.needed:
        if position >= len(node.inputs) or node.inputs[position] is None:
            return f"input {name!r} is missing."
    if row.variadic and row.call != "subgraph" and not node.inputs and next(reversed(row.inputs.values())) is not None:
        return f"input {row.input_name(0)!r} is missing."
    missing = [name for name in row.demanded if name not in node.attributes.data]
    return f"attribute {missing[0]!r} is missing." if missing else ""


@functools.cache
def _types(domain: str, operator: str, version: int) -> Mapping[str, ir.AttributeType] | None:
    """Returns the types of an operator's attributes by its schema, None where onnx has none."""
    schema = schema_of(domain, operator, version)
    if schema is None:
        return None
    found = {name: _Kind(int(attribute.type.value)) for name, attribute in schema.attributes.items()}
    return {name: _AS_DENSE.get(kind, kind) for name, kind in found.items()}


@functools.cache
def _of_body(body: Callable[..., object]) -> Mapping[str, ir.AttributeType]:
    annotations = {name: str(kind).removesuffix(" | None") for name, kind in body.__annotations__.items()}
    return {name: _OF_ANNOTATIONS[kind] for name, kind in annotations.items() if kind in _OF_ANNOTATIONS}


def _annotated(row: Row) -> Mapping[str, ir.AttributeType]:
    """Returns the types of an operator's attributes by its row."""
    return {name: kind for name, kind in _of_body(row.body).items() if name in row.attributes}
