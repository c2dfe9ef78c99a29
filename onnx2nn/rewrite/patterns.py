"""Patterns of a graph: an operator over operators, written in the notation of Python expressions.

`parse("MatMul(x, weight) + bias")` is an Add of a MatMul of two values and of a third value. In the notation

- `x` is any value, the same one wherever the name stands; `_` is any value; `+x` is a constant;
- `Erf(x)` is an operator; `+ - * / **` are Add, Sub, Mul, Div and Pow; `-x` is Neg; `A(x) | B(x)` is either;
- `0.5` is a constant of one element and this value;
- `Softmax(x, axis=-1)` demands an attribute, `ReduceMean(x, ...)` takes further inputs;
- `(norm := ReduceMean(x))` binds the node, whose output `norm` stands for further on;
- `~Conv(x, weight)` is an operator whose output has no other reader;
- `PART` is the pattern that `parse(text, PART=...)` is given, which saves writing, and reading, it at every place;
  `CONV(x)` is any operator of a part that is a string, `CONV="conv1d conv2d"`.

Two inputs of a commutative operator match in either order. Identity nodes are looked through.

A `Notation` says which operators the signs stand for: ONNX's by default. OneFlow's jobs have one operator for two
tensors and another for a tensor and a number, which is an attribute there: `node.meta[NUMBER]` matches as the last
input.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnx2nn.optable.registry import load_rows

Match = dict[str, Any]
"""Names of a pattern → the values and nodes that they stand for; `NODES` → all nodes that matched."""

NODES = ""

_COMMUTATIVE_OPS = frozenset({"add_n", "broadcast_add", "broadcast_mul"})
"""Ops of OneFlow."""


@dataclass(frozen=True)
class Var:
    """Matches any value, the same one wherever the name stands; only an initializer or a constant if `constant`."""

    name: str
    constant: bool = False


@dataclass(frozen=True)
class Number:
    """Matches a constant of one element."""

    value: float


@dataclass(frozen=True)
class Either:
    """Matches what one of its patterns matches."""

    patterns: tuple[Any, ...]


@dataclass(frozen=True)
class Notation:
    """The operators that the signs of the notation stand for.

    Attributes:
        tensors: sign → the operator of two tensors.
        numbers: sign → the operator of a tensor and a number, where that is another one.
        negation: the operator of `-x`.
    """

    tensors: Mapping[str, str]
    numbers: Mapping[str, str] = field(default_factory=dict)
    negation: str = "Neg"


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}

ONNX = Notation({"+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "**": "Pow"})

NUMBER = "number"
"""Key of `node.meta`: the number of an op that takes a tensor and a number, where the number is no input."""


@dataclass(frozen=True)
class Op:
    """Matches an operator's first output.

    Attributes:
        types: operators, separated by spaces.
        inputs: patterns of the inputs, as many as the node has; two inputs of a commutative operator match in either
            order.
        name: binds the node.
        alone: the output has no other reader.
        attributes: values that attributes must have.
        more: whether the node may have further inputs.
    """

    types: str
    inputs: tuple[Any, ...]
    name: str = ""
    alone: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    more: bool = False

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The operators."""
        return frozenset(self.types.split())

    @functools.cached_property
    def below(self) -> tuple[frozenset[str], ...]:
        """The operators that one of the inputs has to come from, for each input of which the pattern says that."""
        return tuple(pattern.names for pattern in self.inputs if isinstance(pattern, Op))


def parse(text: str, notation: Notation = ONNX, /, **parts: Any) -> Any:
    """Returns the pattern that `text` writes in the notation above; `parts` are patterns that it names."""
    return _pattern(ast.parse(text.strip(), mode="eval").body, notation, parts)


def _pattern(tree: ast.expr, notation: Notation, parts: Mapping[str, Any], name: str = "") -> Any:
    match tree:
        case ast.Name(id="_"):
            return Var("")
        case ast.Name(id=part) if part in parts:
            return _named(parts[part], name) if name else parts[part]
        case ast.Name(id=variable):
            return Var(variable)
        case ast.Constant(value=int() | float() as number):
            return Number(float(number))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return Number(-float(number))
        case ast.UnaryOp(op=ast.UAdd(), operand=ast.Name(id=variable)):
            return Var(variable, constant=True)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Op(notation.negation, (_pattern(operand, notation, parts),), name)
        case ast.UnaryOp(op=ast.Invert(), operand=ast.Call() as operand):
            return dataclasses.replace(_pattern(operand, notation, parts, name), alone=True)
        case ast.NamedExpr(target=target, value=value):
            return _pattern(value, notation, parts, target.id)
        case ast.BinOp(op=ast.BitOr()):
            return Either(tuple(_pattern(side, notation, parts, name) for side in (tree.left, tree.right)))
        case ast.BinOp(op=sign):
            left, right = (_pattern(side, notation, parts) for side in (tree.left, tree.right))
            known = notation.numbers if notation.numbers and isinstance(right, Number) else notation.tensors
            return Op(known[_SIGNS[type(sign)]], (left, right), name)
        case ast.Call(func=ast.Name(id=operator)):
            more = any(isinstance(arg, ast.Constant) and arg.value is Ellipsis for arg in tree.args)
            inputs = tuple(_pattern(arg, notation, parts) for arg in (tree.args[:-1] if more else tree.args))
            attributes = {k.arg or "": ast.literal_eval(k.value) for k in tree.keywords}
            return Op(parts.get(operator, operator), inputs, name, attributes=attributes, more=more)
    raise ValueError(f"{ast.unparse(tree)} is no pattern")


def _named(pattern: Any, name: str) -> Any:
    """Returns an operator's pattern that binds its node to `name`."""
    if isinstance(pattern, Either):
        return Either(tuple(_named(one, name) for one in pattern.patterns))
    return dataclasses.replace(pattern, name=name)


def roots(pattern: Any) -> frozenset[str]:
    """Returns the operators of the node at which a pattern ends."""
    return frozenset().union(*map(roots, pattern.patterns)) if isinstance(pattern, Either) else pattern.names


def needed(pattern: Any) -> frozenset[str]:
    """Returns operators without which nothing matches a pattern."""
    if isinstance(pattern, Either):
        return frozenset.intersection(*map(needed, pattern.patterns))
    if not isinstance(pattern, Op):
        return frozenset()
    return frozenset().union(pattern.names if len(pattern.names) == 1 else (), *map(needed, pattern.inputs))


def matches(value: ir.Value | None, pattern: Any, match: Match) -> Iterator[Match]:
    """Every way in which a value fits a pattern."""
    if value is None:
        return
    value = origin(value)
    if isinstance(pattern, Var):
        known = match.get(pattern.name)
        value = uncast(value) if pattern.constant else value
        if pattern.constant and tensor_of(value) is None:
            return
        if not pattern.name or known is value or (isinstance(known, ir.Node) and known.outputs[0] is value):
            yield match
        elif known is None:
            yield {**match, pattern.name: value}
        return
    if isinstance(pattern, Number):
        if is_number(value, pattern.value):
            yield match
        return
    if isinstance(pattern, Either):
        for one in pattern.patterns:
            yield from matches(value, one, match)
        return
    node = value.producer()
    if node is None or node.op_type not in pattern.names or value is not node.outputs[0]:
        return
    count, wanted = len(node.inputs), len(pattern.inputs)
    holds_number = count == wanted - 1 and NUMBER in node.meta
    count += holds_number
    if (count != wanted and not (pattern.more and count > wanted)) or (pattern.alone and readers(value) > 1):
        return
    if not _may_match(node, pattern):
        return
    if node.attributes and any(attribute.is_ref() for attribute in node.attributes.values()):
        return  # in a function, they are known at its call
    if pattern.attributes and not _has(node, pattern.attributes):
        return
    match = {**match, NODES: (*match.get(NODES, ()), node)}
    if pattern.name:
        match[pattern.name] = node
    if holds_number:
        with_number = _match_of_number(node.meta[NUMBER], pattern.inputs[-1], match)
        if with_number is not None:
            yield from _all_match(node.inputs, pattern.inputs[:-1], with_number)
        return
    orders = [node.inputs]
    if count == 2 and (node.op_type in _COMMUTATIVE_OPS or node.op_type in load_rows().operators("commutative")):
        orders.append(tuple(reversed(node.inputs)))
    for inputs in orders:
        yield from _all_match(inputs, pattern.inputs, match)


def _match_of_number(number: Any, pattern: Any, match: Match) -> Match | None:
    """A match in which `pattern` is `number`; a number that depends on a dynamic dimension matches variables only."""
    if isinstance(pattern, Number):
        known = isinstance(number, (int, float)) and math.isclose(number, pattern.value, rel_tol=1e-6)
        return match if known else None
    return {**match, pattern.name: number} if isinstance(pattern, Var) and not pattern.constant else None


def _may_match(node: ir.Node, pattern: Op) -> bool:
    """Returns whether the operators that a pattern wants below a node are there; most nodes end no pattern."""
    if not pattern.below:
        return True
    producers = [value.producer() for value in node.inputs if value is not None]
    below = {producer.op_type for producer in producers if producer is not None}
    return "Identity" in below or not any(below.isdisjoint(names) for names in pattern.below)


def _all_match(values: Sequence[ir.Value | None], patterns: Sequence[Any], match: Match) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    for found in matches(values[0], patterns[0], match):
        yield from _all_match(values[1:], patterns[1:], found)


def _has(node: ir.Node, attributes: Mapping[str, Any]) -> bool:
    known = {name: node.attributes[name].value for name in attributes if name in node.attributes}
    return len(known) == len(attributes) and all(
        list(known[name]) == list(value) if isinstance(value, (list, tuple)) else known[name] == value
        for name, value in attributes.items()
    )


def origin(value: ir.Value) -> ir.Value:
    """Returns the value that Identity nodes give on as `value`."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.inputs and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def uncast(value: ir.Value) -> ir.Value:
    """Returns the constant that torch's exporter casts to the type of another value; other values as they are."""
    node = value.producer()
    source = node.inputs[0] if node is not None and node.op_type == "CastLike" else None
    return value if source is None or tensor_of(source) is None else source


def tensor_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Returns the tensor of an initializer or of a Constant node, None for any other value."""
    if value is None or value.const_value is not None:
        return None if value is None else value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain:
        return None
    attribute = node.attributes.get("value")
    if attribute is not None:
        return None if attribute.is_ref() else attribute.value
    if len(node.attributes) != 1:
        return None  # the import says what is wrong with it
    return ir.convenience.get_const_tensor(value)


def number_of(value: ir.Value | None) -> float | None:
    """Returns the value of a constant of one element, None for any other value."""
    tensor = tensor_of(value)
    if tensor is None or math.prod(tensor.shape.numpy()) != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return float(tensor.numpy().reshape(-1)[0])


def is_number(value: ir.Value, number: float) -> bool:
    """Returns whether a value is a constant of one element that is `number` up to the rounding of its type."""
    value = uncast(value)
    found = number_of(value)
    if found is None:
        return False
    tensor = tensor_of(value)
    short = tensor is not None and tensor.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return math.isclose(found, number, rel_tol=2e-3 if short else 1e-5)


def readers(value: ir.Value) -> int:
    """How often a value is read; being a graph output counts."""
    return len(value.uses()) + value.is_graph_output()
