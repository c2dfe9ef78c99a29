"""Element types of ONNX that the installed PyTorch lacks: nodes with such a type are refused before the import.

New releases of PyTorch bring new types, 2.7 for example float8_e8m0fnu.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx_ir as ir
import torch

from onnx2nn.errors import OperatorError, Problem, UnsupportedModelError
from onnx2nn.ground.element_types import BY_NUMBER, Element
from onnx2nn.importing.node_facts import node_name

MISSING = {number: element for number, element in BY_NUMBER.items() if not hasattr(torch, element.dtype)}
"""The element types that this PyTorch lacks, by their numbers in `TensorProto.DataType`."""


def missing_type(element: Element) -> OperatorError:
    """Returns the error for an element type that this PyTorch lacks."""
    return OperatorError(_reason(element))


def refuse_missing_types(model: ir.Model) -> None:
    """Refuses a model with nodes that read, write or hold values of an element type that this PyTorch lacks.

    Raises:
        UnsupportedModelError: lists all such nodes, a problem for each operator and type.
    """
    if not MISSING:
        return
    problems: dict[tuple[Any, ...], Problem] = {}
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node in graph.all_nodes():
            for number in sorted(set(_types(node)) & set(MISSING)):
                version = graph.opset_imports.get(node.domain, 0)
                problem = Problem(node.op_type, node.domain, version, _reason(MISSING[number]), "Use a newer PyTorch.")
                problems.setdefault((node.domain, node.op_type, version, number), problem).nodes.append(node_name(node))
    if problems:
        raise UnsupportedModelError(list(problems.values()))


def _reason(element: Element) -> str:
    return f"PyTorch {torch.__version__} has no {element.dtype}, the element type {element.name}."


def _types(node: ir.Node) -> Iterator[int]:
    """Yields the numbers of the element types of a node's values and attributes, as far as the file declares them."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not None:
            yield int(value.dtype)
    for name, attribute in node.attributes.items():
        if not attribute.is_ref():
            yield from _named_types(name, attribute)


def _named_types(name: str, attribute: ir.Attr) -> Iterable[int]:
    """Returns the element types that an attribute names (Cast's `to`, QuantizeLinear's `output_dtype`) or holds."""
    if attribute.type == ir.AttributeType.INT and (name == "to" or name.endswith("dtype")):
        return (int(attribute.value),)
    if attribute.type == ir.AttributeType.TENSOR:
        return (int(attribute.value.dtype),)
    return ()
