"""A node's name, attributes and inputs, in the forms that an import needs; for every framework."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import ModelFileError, OperatorError
from onnx2nn.ground.float_decimals import shortest_float32
from onnx2nn.ground.limits import Account, Limits
from onnx2nn.ground.naming import is_attribute, is_generated
from onnx2nn.importing.constants import Constant
from onnx2nn.importing.plan import LAST_VERSION, Plan, TypeOf
from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.row import HINTS, NeedsValues, Row
from onnx2nn.optable.shape_values import ShapeValues

_Kind = ir.AttributeType


class Scope(dict["ir.Value", Any]):
    """The known values of one graph; values that it lacks are looked up in the enclosing graphs."""

    def __init__(self, outer: Scope | None = None):
        super().__init__()
        self._outer = outer

    def __missing__(self, value: ir.Value) -> Any:
        if self._outer is None:
            raise ModelFileError(f"Value {value.name!r} is used but nothing defines it.")
        return self._outer[value]


def node_name(node: ir.Node) -> str:
    """Returns the node's name, or its first output's where it has none."""
    return node.name or next((output.name for output in node.outputs if output.name), "?") or "?"


def inner_graphs(nodes: Iterable[ir.Node]) -> list[ir.Graph]:
    """Returns the graphs in the attributes of `nodes`, such as the branches of If, without graphs inside these."""
    attributes = [a for node in nodes for a in node.attributes.data.values() if a.type in _OF_GRAPHS and not a.is_ref()]
    graphs = [a.value for a in attributes if a.type == ir.AttributeType.GRAPH]
    return graphs + [graph for a in attributes if a.type == ir.AttributeType.GRAPHS for graph in a.value]


_OF_GRAPHS = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})


def attribute_values(
    node: ir.Node, row: Row, referred: Mapping[str, ir.Attr], tensor: Callable[[ir.TensorProtocol], Any]
) -> dict[str, Any]:
    """Returns the node's attributes in the form that the row's body takes.

    Args:
        node: the node.
        row: its row.
        referred: attributes of the surrounding function's call, to which the node's may refer.
        tensor: returns a tensor of the file as a tensor of the framework.

    Raises:
        OperatorError: an attribute that the row does not have, a missing required one, or a string that the operator
            does not define.
    """
    values: dict[str, Any] = {}
    for name, own in node.attributes.data.items():
        if name in HINTS:
            continue
        target = own if own.ref_attr_name is None else _referred(own, referred)
        if target is None:
            continue
        known = name in row.attributes or name in row.inputs  # Split-1 has an input and an attribute "split"
        if not known and not row.any_attribute:
            raise OperatorError(f"attribute {name!r} is unknown to this revision of the operator.")
        if not known and not is_attribute(name):  # a program gives it by this name
            raise OperatorError(f"attribute {name!r} has a name that no parameter can have.")
        values[name] = _attribute(target, tensor)
    if row.demanded and (missing := [name for name in row.demanded if name not in values]):
        raise OperatorError(f"attribute {missing[0]!r} is missing.")
    row.refuse_unknown(values)
    return values


def attribute(node: ir.Node, name: str, referred: Mapping[str, ir.Attr]) -> ir.Attr | None:
    """Returns an attribute of a node; None where it is absent, or refers to an absent one of the function's call.

    Args:
        node: the node.
        name: of the attribute.
        referred: the attributes of the call, by name.
    """
    found = node.attributes.get(name)
    return None if found is None else _referred(found, referred)


def _referred(attribute: ir.Attr, referred: Mapping[str, ir.Attr]) -> ir.Attr | None:
    return referred.get(attribute.ref_attr_name or "") if attribute.is_ref() else attribute


def _attribute(attribute: ir.Attr, tensor: Callable[[ir.TensorProtocol], Any]) -> Any:
    value, kind = attribute.value, attribute.type
    if kind is _Kind.INTS or kind is _Kind.STRINGS:
        return list(value)
    if kind is _Kind.FLOAT:
        return _float(value)
    if kind is _Kind.FLOATS:
        return [_float(item) for item in value] if len(value) <= _READ else list(value)
    return tensor(value) if kind is _Kind.TENSOR else value


_READ = 1 << 10
"""Up to so many numbers of a list stand in code, where someone may read them."""


def _float(value: float) -> float:
    """Returns the shortest decimal of the same float32, the number in the author's source."""
    return _shortest(value) if value else float(value)  # 0 and -0 are one key


_shortest = functools.lru_cache(256, typed=True)(shortest_float32)


def check_inputs(row: Row, inputs: list[Any], account: Account) -> None:
    """Checks the number of inputs, and of numbers that are read one by one; removes trailing absent inputs.

    Raises:
        TooLargeError: an input whose elements are read one by one has more than `Limits.elements`, or an input with a
            size for each dimension more than `Limits.rank`.
        OperatorError: there are too many, or a required one is missing.
    """
    while inputs and inputs[-1] is None and not row.variadic:
        inputs.pop()
    if len(inputs) > len(row.inputs) and not row.variadic:
        raise OperatorError(f"it has {len(inputs)} inputs, the operator takes at most {len(row.inputs)}.")
    for position, name in row.needed:
        if position >= len(inputs) or inputs[position] is None:
            raise OperatorError(f"input {name!r} is missing.")
    for position, value in enumerate(inputs) if row.static else ():
        if isinstance(value, Constant) and row.input_name(position) in row.static:
            account.too_large("elements", math.prod(value.shape), "The number of elements of an input is")
        if row.input_name(position) in row.counts:  # a size for each dimension
            with contextlib.suppress(NeedsValues):  # its rank is unknown, and so the number of sizes
                shape: Sequence[Any] = getattr(value, "shape", ())
                if len(shape) == 1 and isinstance(shape[0], int):
                    account.too_large("rank", shape[0], "The number of sizes of an input is")


def body_arguments(
    row: Row, inputs: Sequence[Any], tensor: Callable[[Any], Any], static: Callable[[str, Any], Any]
) -> list[Any]:
    """Returns a node's inputs in the form that the row's body takes.

    Args:
        row: the row.
        inputs: constants, shape values, and values of the framework.
        tensor: returns a value as a tensor argument.
        static: returns the Python value of an input in `row.static`, by its name, that is a value of the framework.
    """
    if row.buffers:
        names = map(row.input_name, range(len(inputs)))
        inputs = [_untrained(v) if name in row.buffers else v for name, v in zip(names, inputs, strict=True)]
    if not row.static and not row.numbers:
        return [tensor(value) for value in inputs]
    result: list[Any] = []
    for position, value in enumerate(inputs):
        name, known = row.input_name(position), isinstance(value, (Constant, ShapeValues))
        if name in row.static and value is not None:
            result.append(known_array(value).tolist() if known else static(name, value))
        else:
            scalar = (
                known and name in row.numbers and not (value.array if isinstance(value, ShapeValues) else value).shape
            )
            result.append(known_array(value).item() if scalar else tensor(value))
    return result


def _untrained(value: Any) -> Any:
    """Returns a weight as a buffer with the same memory, so that nodes that share it share a layer."""
    return (
        dataclasses.replace(value, weight=False, tied=value) if isinstance(value, Constant) and value.weight else value
    )


def known_array(value: Constant | ShapeValues) -> np.ndarray[Any, Any]:
    """Returns the elements of a constant or of shape values."""
    return value.array if isinstance(value, ShapeValues) else value.numpy()


def facts(plan: Plan, node: ir.Node, row: Row, types: Callable[[], Sequence[TypeOf]]) -> dict[str, Any]:
    """Returns the facts about its node that the row's body requests, see `row.FACTS`.

    Args:
        plan: the plan of the model.
        node: the node.
        row: its row.
        types: gives the types of its inputs, which a function's body does not declare.
    """
    found: dict[str, Any] = {}
    if "_outputs" in row.facts:
        found["_outputs"] = len(node.outputs)
    if "_types" in row.facts:
        found["_types"] = [None if kind is None else kind.name for kind, _ in types()]
    if "_output_types" in row.facts:
        found["_output_types"] = [plan.type_name(v) for v in node.outputs]
    if "_producer" in row.facts:
        found["_producer"] = plan.model.producer_name or ""
    if "_image_pixels" in row.facts and plan.account.limits.image_pixels != Limits.image_pixels:
        found["_image_pixels"] = plan.account.limits.image_pixels
    if "_at_run_time" in row.facts:
        weights = [value for name, value in zip(row.inputs, node.inputs, strict=False) if name != "bias"][1:]
        if not all(map(_is_constant, weights)):
            found["_at_run_time"] = True
    if "_open_rank" in row.facts and not _has_axes(node) and all(_takes_any_rank(plan, v) for v in node.outputs):
        found["_open_rank"] = True
    if "_leading_ones" in row.facts and not _has_axes(node) and all(map(_takes_leading_ones, node.outputs)):
        found["_leading_ones"] = True
    return found


def _has_axes(node: ir.Node) -> bool:
    """Returns whether a node says which axes it removes, as an attribute or an input: its result has a known rank."""
    return "axes" in node.attributes or any(value is not None for value in node.inputs[1:])


def _takes_any_rank(plan: Plan, value: ir.Value) -> bool:
    """Returns whether no node that depends on a value of the model asks how many dimensions it has.

    Elementwise operators do not where their other inputs are numbers; the caller takes the outputs as they come.
    """
    waiting, seen = [value], {value}
    while waiting:
        value = waiting.pop()
        if value.is_graph_output() and value.graph is not plan.model.graph:
            return False
        for user, _ in value.uses():
            row = TABLE.find(user.domain, user.op_type, LAST_VERSION)
            others = [other for other in user.inputs if other is not value]
            if row is None or "elementwise" not in row.traits or not all(map(_is_number, others)):
                return False
            waiting += [output for output in user.outputs if output not in seen]
            seen.update(user.outputs)
    return True


def _takes_leading_ones(value: ir.Value) -> bool:
    """Returns whether dimensions of size 1 in front of a value change nothing: all of it is reshaped at last."""
    waiting, seen = [value], {value}
    while waiting:
        value = waiting.pop()
        if value.is_graph_output():
            return False
        for user, position in value.uses():
            row = TABLE.find(user.domain, user.op_type, LAST_VERSION)
            if row is None or position or not _passes_leading_ones(row, user):
                return False
            if not _is_reshaped(row, user):
                waiting += [output for output in user.outputs if output not in seen]
                seen.update(user.outputs)
    return True


def _passes_leading_ones(row: Row, node: ir.Node) -> bool:
    if "elementwise" in row.traits:
        return all(map(_is_number, node.inputs[1:]))
    axis = node.attributes.get("axis")
    is_from_end = "axis" not in row.attributes or (axis is not None and not axis.is_ref() and axis.as_int() < 0)
    return _is_reshaped(row, node) or ("leading_ones" in row.traits and is_from_end)


def _is_reshaped(row: Row, node: ir.Node) -> bool:
    """Returns whether a node gives its elements a shape in which it keeps no dimension: a 0 would be one."""
    if "layout_only" not in row.traits or "shape" not in row.inputs:
        return False
    shape = node.inputs[1]
    constant = None if shape is None else ir.convenience.get_const_tensor(shape)
    return constant is None or 0 not in constant.numpy()


def _is_number(value: ir.Value | None) -> bool:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return value is None or (tensor is not None and len(tensor.shape) == 0)


def _is_constant(value: ir.Value | None) -> bool:
    return value is None or ir.convenience.get_const_tensor(value) is not None


def call_attributes(node: ir.Node, function: ir.Function, outer: Mapping[str, ir.Attr]) -> dict[str, ir.Attr]:
    """Returns the attributes to which the nodes of `function` may refer in the call `node`."""
    own = {name: attr for name, attr in node.attributes.items() if not attr.is_ref()}
    for name, attr in node.attributes.items():
        if attr.is_ref() and attr.ref_attr_name in outer:
            own[name] = outer[attr.ref_attr_name or ""]
    return {**{name: attr for name, attr in function.attributes.items() if attr.value is not None}, **own}


def lays_out_weight(row: Row, inputs: Sequence[Any]) -> bool:
    """Returns whether a node only changes the shape of an integer table in one of the author's modules.

    An example is Swin's relative_position_index. Such a table is read at run time and keeps its key in the state;
    folding would make another constant of it. Constants for shapes have one dimension at most, or no dotted name.

    Args:
        row: the node's row.
        inputs: its inputs.
    """
    if not inputs or "layout_only" not in row.traits or not getattr(inputs[0], "weight", False):
        return False
    weight, name = inputs[0], inputs[0].name
    if "." not in name or "/" in name or is_generated(name):
        return False
    return weight.kind in (ir.DataType.INT32, ir.DataType.INT64) and len(weight.shape) > 1
