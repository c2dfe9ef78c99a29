"""Patterns of subgraphs, written in the notation of Python expressions.

`parse("MatMul(x, weight) + bias")` matches an Add whose inputs are a MatMul of two values and a third value. In the
notation

- `x` matches any value, and the same value at every occurrence; `_` matches any value; `+x` matches a constant;
- `Erf(x)` matches an operator; `+ - * / **` are Add, Sub, Mul, Div and Pow; `-x` is Neg; `A(x) | B(x)` matches either;
- `0.5` matches a constant of one element with this value;
- `Softmax(x, axis=-1)` requires an attribute, `ReduceMean(x, ...)` allows further inputs;
- `(norm := ReduceMean(x))` binds the node to `norm`, which matches the node's output from there on;
- `~Conv(x, weight)` matches an operator whose output has a single reader;
- `PART` stands for the pattern in `parse(text, PART=...)`. A shared part is then written and parsed once. With a string
  as the part, `CONV="conv1d conv2d"`, `CONV(x)` matches each of its operators.

The two inputs of a commutative operator match in either order. Identity nodes between two matched nodes are skipped.

A `Notation` maps the signs to operators; the default are ONNX's. OneFlow's jobs have one operator for two tensors, and
another for a tensor and a number, which is an attribute there. This number, `node.meta[NUMBER]`, matches as the last
input.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import onnx_ir as ir

from onnx2nn.optable.registry import TABLE

Match = dict[str, Any]
"""Names of a pattern → the values and nodes bound to them; `NODES` → all matched nodes."""

NODES = ""

_COMMUTATIVE_OPS = frozenset({"add_n", "broadcast_add", "broadcast_mul"})
"""Ops of OneFlow."""


class Var(NamedTuple):
    """Matches any value, and the same value wherever `name` occurs.

    Attributes:
        name: binds the value; `""` binds nothing.
        constant: whether only initializers and Constant nodes match.
    """

    name: str
    constant: bool = False


class Number(NamedTuple):
    """Matches a constant of one element whose value is `value`."""

    value: float


@dataclass(frozen=True)
class Either:
    """Matches wherever one of `patterns` matches."""

    patterns: tuple[Any, ...]

    @functools.cached_property
    def required(self) -> frozenset[str]:
        """See `required_operators`; patterns share their parts."""
        return frozenset.intersection(*map(required_operators, self.patterns))


class Notation(NamedTuple):
    """The operators of the signs in the notation.

    Attributes:
        tensors: sign → the operator of two tensors.
        numbers: sign → the operator of a tensor and a number, where it differs.
        negation: the operator of `-x`.
    """

    tensors: Mapping[str, str]
    numbers: Mapping[str, str] = types.MappingProxyType({})
    negation: str = "Neg"


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}

ONNX = Notation({"+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "**": "Pow"})

NUMBER = "number"
"""Key of `node.meta`: the number of an op that takes a tensor and a number, where the number is no input."""


@dataclass(frozen=True)
class Op:
    """Matches the first output of a node.

    Attributes:
        types: operator types, separated by spaces.
        inputs: patterns of the inputs, one for each input of the node. The two inputs of a commutative operator match
            in either order.
        name: binds the node.
        alone: whether the output must have a single reader.
        attributes: required attribute values by name.
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
        """The operator types as a set."""
        return frozenset(self.types.split())

    @functools.cached_property
    def below(self) -> tuple[frozenset[str], ...]:
        """For each input with an operator pattern: the operator types that may produce it."""
        return tuple(pattern.names for pattern in self.inputs if isinstance(pattern, Op))

    @functools.cached_property
    def required(self) -> frozenset[str]:
        """See `required_operators`; patterns share their parts."""
        return frozenset().union(self.names if len(self.names) == 1 else (), *map(required_operators, self.inputs))


def parse(text: str, notation: Notation = ONNX, /, **parts: Any) -> Any:
    """Parses a pattern.

    Args:
        text: the pattern, in the notation of this module.
        notation: the operators of its signs.
        **parts: patterns, or strings of operator types, that `text` refers to by name.

    Raises:
        ValueError: a part of `text` has no meaning in the notation.
    """
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
    raise ValueError(f"{ast.unparse(tree)!r} is not a pattern: see the notation in this module's docstring")


def _named(pattern: Any, name: str) -> Any:
    """Returns an operator's pattern that binds its node to `name`."""
    if isinstance(pattern, Either):
        return Either(tuple(_named(one, name) for one in pattern.patterns))
    return dataclasses.replace(pattern, name=name)


def roots(pattern: Any) -> frozenset[str]:
    """Returns the operator types of a pattern's last node, whose output the pattern matches."""
    return frozenset().union(*map(roots, pattern.patterns)) if isinstance(pattern, Either) else pattern.names


def required_operators(pattern: Any) -> frozenset[str]:
    """Returns operator types that a graph must contain for a pattern to match."""
    return pattern.required if isinstance(pattern, (Op, Either)) else frozenset()


def matches(value: ir.Value | None, pattern: Any, match: Match) -> Iterator[Match]:
    """Yields every match of a pattern at a value.

    Args:
        value: the output of the subgraph to match.
        pattern: see `parse`.
        match: names that are bound already; `{}` for none.
    """
    if value is None:
        return
    if isinstance(pattern, (Var, Number)):
        found = _match_of_leaf(value, pattern, match)
        if found is not None:
            yield found
        return
    if isinstance(pattern, Either):
        for one in pattern.patterns:
            yield from matches(value, one, match)
        return
    value = origin(value)
    node = value.producer()
    if node is None or node.op_type not in pattern.names or value is not node.outputs[0]:
        return
    count, wanted = len(node.inputs), len(pattern.inputs)
    holds_number = count == wanted - 1 and NUMBER in node.meta
    count += holds_number
    if (count != wanted and not (pattern.more and count > wanted)) or (pattern.alone and readers(value) > 1):
        return
    if pattern.below and not _fits_below(pattern, operators_below(node)):
        return
    if (given := node.attributes.data) and any(attribute.is_ref() for attribute in given.values()):
        return  # attribute references in a function have values only at its calls
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
    if count == 2 and (node.op_type in _COMMUTATIVE_OPS or "commutative" in TABLE.traits_of(node.op_type)):
        orders.append(tuple(reversed(node.inputs)))
    for inputs in orders:
        yield from _all_match(inputs, pattern.inputs, match)


def _match_of_leaf(value: ir.Value | None, pattern: Var | Number, match: Match) -> Match | None:
    """Returns the one match of a pattern that looks at no node before the value, None where there is none."""
    if value is None:
        return None
    value = origin(value)
    if isinstance(pattern, Number):
        return match if is_number(value, pattern.value) else None
    if pattern.constant:
        value = uncast(value)
        if tensor_of(value) is None:
            return None
    name = pattern.name
    if not name:
        return match
    known = match.get(name)
    if known is None:
        return {**match, name: value}
    return match if known is value or (isinstance(known, ir.Node) and known.outputs[0] is value) else None


def _match_of_number(number: Any, pattern: Any, match: Match) -> Match | None:
    """Returns the match of `pattern` with a number; a number from a dynamic dimension matches variables only."""

    if isinstance(pattern, Number):
        known = isinstance(number, (int, float)) and math.isclose(number, pattern.value, rel_tol=1e-6)
        return match if known else None
    return {**match, pattern.name: number} if isinstance(pattern, Var) and not pattern.constant else None


def operators_below(node: ir.Node) -> frozenset[str]:
    """Returns the operator types that produce the inputs of a node."""
    producers = [value.producer() for value in node.inputs if value is not None]
    return frozenset([producer.op_type for producer in producers if producer is not None])


def may_match(pattern: Any, below: frozenset[str]) -> bool:
    """Returns whether a pattern may match at a node, from the operators below it; a cheap test that most fail."""
    if isinstance(pattern, Either):
        return any(may_match(one, below) for one in pattern.patterns)
    return not isinstance(pattern, Op) or _fits_below(pattern, below)


def _fits_below(pattern: Op, below: frozenset[str]) -> bool:
    return "Identity" in below or not any(below.isdisjoint(names) for names in pattern.below)


def _all_match(values: Sequence[ir.Value | None], patterns: Sequence[Any], match: Match) -> Iterator[Match]:
    for place, pattern in enumerate(patterns):
        if not isinstance(pattern, (Var, Number)):
            for found in matches(values[place], pattern, match):
                yield from _all_match(values[place + 1 :], patterns[place + 1 :], found)
            return
        leaf = _match_of_leaf(values[place], pattern, match)
        if leaf is None:
            return
        match = leaf
    yield match


def _has(node: ir.Node, attributes: Mapping[str, Any]) -> bool:
    known = {name: node.attributes[name].value for name in attributes if name in node.attributes}
    return len(known) == len(attributes) and all(
        list(known[name]) == list(value) if isinstance(value, (list, tuple)) else known[name] == value
        for name, value in attributes.items()
    )


def origin(value: ir.Value) -> ir.Value:
    """Returns the value that reaches `value` through Identity nodes."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.inputs and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def uncast(value: ir.Value) -> ir.Value:
    """Returns the constant behind a CastLike node, which torch's exporter puts after it; other values unchanged."""
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
        return None  # malformed: the import reports it
    return ir.convenience.get_const_tensor(value)


def number_of(value: ir.Value | None) -> float | None:
    """Returns the value of a constant of one element, None for any other value."""
    tensor = tensor_of(value)
    if tensor is None or math.prod(tensor.shape.numpy()) != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return float(tensor.numpy().reshape(-1)[0])


def largest_constant_rank(match: Match) -> int:
    """Returns the largest rank of a constant that the matched nodes read; one above `x`'s raises that of the result."""
    tensors = [tensor_of(value) for node in match[NODES] for value in node.inputs]
    return max((len(tensor.shape) for tensor in tensors if tensor is not None), default=0)


def is_number(value: ir.Value, number: float) -> bool:
    """Returns whether a value is a constant of one element that equals `number` up to the rounding of its dtype."""
    value = uncast(value)
    found = number_of(value)
    if found is None:
        return False
    tensor = tensor_of(value)
    short = tensor is not None and tensor.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return math.isclose(found, number, rel_tol=2e-3 if short else 1e-5)


def readers(value: ir.Value) -> int:
    """Returns the number of uses of a value; being a graph output counts as one."""

    return len(value.uses()) + value.is_graph_output()


def attribute_of(node: ir.Node, name: str, default: Any) -> Any:
    """Returns the value of a node's attribute, `default` where it is absent."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def int_of(node: ir.Node, name: str, default: int) -> int:
    """Returns an integer attribute of a node, `default` where it is absent, or of another type.

    The import reports an attribute of another type, as long as the node stays: `default` is to say so.
    """
    attribute = node.attributes.get(name)
    known = attribute is not None and attribute.type == ir.AttributeType.INT and not attribute.is_ref()
    return attribute.as_int() if attribute is not None and known else default


def ints_of(node: ir.Node, name: str) -> list[int] | None:
    """Returns the integers of an attribute, None where it is absent, or of another type, which the import reports."""
    attribute = node.attributes.get(name)
    known = attribute is not None and attribute.type == ir.AttributeType.INTS and not attribute.is_ref()
    return list(attribute.as_ints()) if attribute is not None and known else None
