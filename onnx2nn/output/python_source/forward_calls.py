"""The calls of the forward of a class of the source."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from torch import fx

from onnx2nn.fx.blocks.activations import ACTIVATIONS
from onnx2nn.fx.blocks.partition import Region
from onnx2nn.fx.blocks.value_hints import annotation, row_of
from onnx2nn.fx.tracing.tracer import ASSERTIONS
from onnx2nn.importing.regions import Path
from onnx2nn.output.python_source.constructors import function_name
from onnx2nn.output.python_source.expressions import (
    INFIX,
    PREFIX,
    Attribute,
    Call,
    Collection,
    Expression,
    Infix,
    Prefix,
    Subscript,
    Text,
)
from onnx2nn.output.python_source.init_statements import activation
from onnx2nn.output.python_source.layout import Layout
from onnx2nn.output.python_source.values import Values


class ForwardCalls:
    """Makes the calls of one container's `forward`.

    Args:
        layout: the program's.
        path: of the container.
        values: of the class.
    """

    def __init__(self, layout: Layout, path: Path, values: Values):
        self.layout, self.path, self.values = layout, path, values

    def call(self, item: Any) -> Iterable[tuple[tuple[int, ...], Expression]]:
        """Yields the call of an item, with the numbers of the values that it returns."""
        if isinstance(item, Region):
            inputs = tuple(self.argument(entry) for entry in item.arguments)
            expression: Expression = Call(self.layout.access(self.path, item.path), inputs)
            name = item.path[-1] if not item.path[-1].isdecimal() else None
            values = [self.values.value(node, name if len(item.outputs) == 1 else None) for node in item.outputs]
            self.values.known |= dict(zip(item.outputs, values, strict=True))
            yield tuple(value.index for value in values), expression
        elif item.op == "get_attr":
            path = tuple(str(item.target).split("."))
            self.values.known[item] = self.layout.access(self.path, self.layout.moved.get(path, path))
        else:
            expression = self.node(item)
            if item.target in ASSERTIONS:
                yield (), expression
            else:
                value = self.values.known[item] = self.values.value(item)
                yield (value.index,), expression

    def argument(self, entry: fx.Node | tuple[fx.Node, ...]) -> Expression:
        """Returns an argument of a region's call."""
        if isinstance(entry, tuple):
            return Collection("[]", tuple(self.values.known[node] for node in entry))
        return self.values.known[entry]

    def node(self, node: fx.Node) -> Expression:
        """Returns the expression of one call."""
        if node.target in ACTIVATIONS and not isinstance(node.target, str):
            call = activation(self.values, node)  # its numbers come first
            return Call(
                Text(function_name(node.target)), (self.values.expression(node.args[0]), *call.args), call.kwargs
            )
        args = [self.values.expression(arg) for arg in node.args]
        kwargs = tuple((name, self.values.expression(arg, name)) for name, arg in node.kwargs.items())
        if node.op == "call_module":
            return Call(self.layout.access(self.path, tuple(str(node.target).split("."))), tuple(args), kwargs)
        if node.target in INFIX and len(args) == 2 and not kwargs:
            return Infix(INFIX[node.target], *args)
        if node.target in PREFIX and len(args) == 1:
            return Prefix(PREFIX[node.target], *args)
        if node.target is getattr:
            return Attribute(args[0], str(node.args[1]))
        if isinstance(node.target, str):
            return Call(Attribute(args[0], node.target), tuple(args[1:]), kwargs)
        assert not isinstance(node.target, str)
        row = row_of(node)
        if row is not None:
            for position, arg in enumerate(node.args):
                if isinstance(arg, fx.Node) and row.input_name(position) in row.static:
                    args[position] = _numbers(arg, args[position])
            return Call(Text(self.layout.program.inlined.name(row)), (Text("torch"), *args), kwargs)
        if node.target is operator.getitem:
            return Subscript(args[0], args[1])
        return Call(Text(function_name(node.target)), tuple(args), kwargs)


def _numbers(node: fx.Node, value: Expression) -> Expression:
    """Returns a value as numbers; what a branch takes from around it may be a tensor or a number."""
    if annotation(node) in ("int", "float"):
        return value
    tensor = Call(Text("torch.as_tensor"), (value,)) if node.op == "placeholder" else value
    return Call(Attribute(tensor, "tolist"))
