"""The statements of a class of the source that make its modules, parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.fx.blocks.activations import module_of
from onnx2nn.fx.blocks.partition import Region
from onnx2nn.fx.modules.module_tree import is_persistent, own_buffers
from onnx2nn.importing.regions import Path, common
from onnx2nn.output.python_source.class_bodies import Kind
from onnx2nn.output.python_source.constructors import arguments_of, constructor, signature
from onnx2nn.output.python_source.expressions import (
    Call,
    Collection,
    Expression,
    Modules,
    New,
    Text,
    is_writable,
    literal,
)
from onnx2nn.output.python_source.layout import Layout
from onnx2nn.output.python_source.program import is_control_flow
from onnx2nn.output.python_source.values import Values

Instance = Callable[[Layout, Path], tuple[Kind, list[Any]]]
"""Gives the class of a container, and the numbers of its instance."""


class InitStatements:
    """Makes the statements of one container's `__init__`.

    Args:
        layout: the program's.
        path: of the container.
        values: of the class.
        instance: gives the classes of containers inside.
    """

    def __init__(self, layout: Layout, path: Path, values: Values, instance: Instance):
        self.layout, self.path, self.values, self.instance = layout, path, values, instance
        self.program = layout.program

    def contents(self, path: Path) -> Iterable[tuple[str, str, Expression]]:
        """Yields the statements that make the parameters, buffers and modules of the container at `path`."""
        for name, parameter in self.program.parameters(path).items():
            yield "attribute" if is_writable(name) else "parameter", name, self.parameter(parameter)
        for name, there in self.layout.buffers(path):
            holder, own = self.program.module(there[:-1]), there[-1]
            yield "buffer", name, self.buffer(own_buffers(holder)[own], is_persistent(holder, own))
        for name in self.layout.children(path):
            yield "attribute" if is_writable(name) else "module", name, self.module((*path, name))

    def parameter(self, parameter: nn.Parameter) -> Expression:
        """Returns the expression that makes a parameter, without its values."""
        frozen = () if parameter.requires_grad else (("requires_grad", Text("False")),)
        return Call(Text("nn.Parameter"), (self.empty(parameter),), frozen)

    def buffer(self, buffer: torch.Tensor, persistent: bool) -> Expression:
        """Returns a call of `register_buffer` without the name."""
        extra = () if persistent else (("persistent", Text("False")),)
        return Call(Text("self.register_buffer"), (self.empty(buffer),), extra)

    def empty(self, tensor: torch.Tensor) -> Expression:
        """Returns an expression for an uninitialised tensor."""
        dtype = () if tensor.dtype is torch.float32 else (("dtype", Text(str(tensor.dtype))),)
        sizes = tuple(self.values.hole(size, "size") for size in tensor.shape)
        return Call(Text("torch.empty"), sizes or (Text("()"),), dtype)

    def module(self, path: Path) -> Expression:
        """Returns the expression that makes the module at `path`."""
        if path in self.program.layers:
            return self.layer(path)
        form = self.layout.form(path)
        if form == "Sequential":
            return self.sequential(self.layout.partition.regions[path])
        if form == "class":
            return self.new(self.layout, path)
        if form == "ParameterDict":
            parameters = self.program.parameters(path).items()
            return Modules(form, tuple((name, self.parameter(parameter)) for name, parameter in parameters))
        return Modules(form, tuple((name, self.module((*path, name))) for name in self.layout.children(path)))

    def new(self, layout: Layout, path: Path) -> New:
        """Returns the call of the class of a container."""
        kind, holes = self.instance(layout, path)
        first = len(self.values.holes)
        self.values.holes += holes
        self.values.hints += kind.hints
        return New(kind.number, first, len(holes))

    def sequential(self, region: Region) -> Expression:
        """Returns the `nn.Sequential` of a region."""
        assert region.slots is not None
        items: list[tuple[str, Expression]] = []
        for name, item in region.slots.items():
            if item is None:
                items.append((name, Call(Text("nn.Identity"))))
            elif isinstance(item, fx.Node) and item.op != "call_module":
                items.append((name, activation(self.values, item)))
            else:
                items.append((name, self.module((*region.path, name))))
        return Modules("Sequential", tuple(items))

    def layer(self, path: Path) -> Expression:
        """Returns the constructor's call of a layer of torch's.

        Raises:
            InputError: an argument of its constructor cannot be read back from the layer.
        """
        layer = self.program.module(path)
        if is_control_flow(layer):
            return self.control_flow(path, layer)
        given = arguments_of(path, layer)
        dtypes = {tensor.dtype for tensor in layer.parameters() if tensor.is_floating_point()} - {torch.float32}
        call = constructor(self.values, type(layer), given)
        return Call(call.function, call.args, (*call.kwargs, *(("dtype", Text(str(dtype))) for dtype in dtypes)))

    def control_flow(self, path: Path, layer: nn.Module) -> Expression:
        """Returns the constructor's call of a module that runs graphs, these as classes."""
        kind = type(layer)
        args: list[Expression] = []
        kwargs: list[tuple[str, Expression]] = []
        for name, parameter in signature(kind).items():
            value = getattr(layer, name)
            if parameter.default is parameter.empty:
                args.append(self.control_argument((*path, name), value))
            elif isinstance(value, nn.Module) or value != parameter.default:
                kwargs.append((name, self.control_argument((*path, name), value)))
        return Call(Text(kind.__name__), tuple(args), tuple(kwargs))

    def control_argument(self, path: Path, value: Any) -> Expression:
        """Returns an argument of a control-flow module: a graph, a number, sizes or types."""
        if path in self.layout.bodies:
            return self.new(self.layout.bodies[path], ())
        if isinstance(value, nn.Module):
            return self.control_flow(path, value)
        if isinstance(value, (list, tuple)):
            return Collection("[]", tuple(self.control_argument(path, item) for item in value))
        return self.values.expression(value, path[-1])

    def added(self) -> list[tuple[str, str, Expression]]:
        """Returns the statements that add parameters and modules to layers whose constructors do not make them."""
        found: list[tuple[str, str, Expression]] = []
        for path, value in self.layout.added:
            if self.layout.class_around(path[:-2]) == self.path:
                made = self.module(path) if isinstance(value, nn.Module) else self.parameter(value)
                found.append(("tie", "", self._assignment(path, made)))
        return found

    def tied(self) -> list[tuple[str, str, Expression]]:
        """Returns the statements that tie parameters, for pairs whose innermost common class is this one."""
        found: list[tuple[str, str, Expression]] = []
        for later, earlier in self.layout.ties:
            if self.layout.class_around(common((later, earlier))) == self.path:
                found.append(("tie", "", self._assignment(later, self._access(earlier))))
        return found

    def _assignment(self, path: Path, value: Expression) -> Expression:
        """Returns the statement that puts a parameter or a module at `path`."""
        target = self._access(path)
        if isinstance(target, Call):  # of getattr: the name of the parameter is no identifier
            return Call(Text("setattr"), (self._access(path[:-1]), Text(literal(path[-1])), value))
        return Collection("=", (target, value))

    def _access(self, path: Path) -> Expression:
        return self.layout.access(self.path, path)


def activation(values: Values, node: fx.Node) -> Call:
    """Returns the constructor's call of the module that does the same as a function call."""
    found = module_of(node)
    assert found is not None
    return constructor(values, *found)
