"""Classes for the regions of a program: equal regions share one, and what differs between them is an argument."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.errors import InputError
from onnx2nn.fx.tracer import ASSERTIONS
from onnx2nn.output.python_source.constructors import (
    POOLS,
    UNKNOWN,
    configured,
    function_name,
    same,
    shortest,
    signature,
)
from onnx2nn.output.python_source.expressions import (
    INFIX,
    PREFIX,
    Attribute,
    Call,
    Collection,
    Expression,
    Hole,
    Infix,
    Modules,
    New,
    Prefix,
    Slice,
    Subscript,
    Text,
    Unless,
    Value,
    literal,
)
from onnx2nn.output.python_source.hints import annotation, suggested_name
from onnx2nn.output.python_source.kinds import Body, Kind
from onnx2nn.output.python_source.partition import ACTIVATIONS, Partition, Region, divide, module_of
from onnx2nn.output.python_source.program import Path, common, is_attribute, is_control_flow, row_of


def make_classes(partition: Partition) -> tuple[list[Kind], dict[str, str]]:
    """Returns the classes of a program, each behind those that it uses; the last one is the model's.

    Returns:
        The classes, and for buffers that other classes hold than in the imported module their keys here and there.

    Raises:
        InputError: a layer or a value that cannot be written.
    """
    maker = _Maker(partition)
    maker.instance(())
    return list(maker.kinds.values()), {".".join(new): ".".join(old) for old, new in maker.all_moved()}


class _Maker:
    """Makes the classes of one program.

    Args:
        partition: the program.
        prefix: where the program is in the model.
        kinds: the classes that there are already.
    """

    def __init__(self, partition: Partition, prefix: Path = (), kinds: dict[Any, Kind] | None = None):
        self.partition, self.program, self.prefix = partition, partition.program, prefix
        self.kinds: dict[Any, Kind] = {} if kinds is None else kinds
        self.bodies = {
            path: _Maker(divide(body), (*prefix, *path), self.kinds) for path, body in self.program.bodies.items()
        }
        self.ties = [pair for pair in _ties(self.program.root) if self.body_at(common(pair)) is None]
        self.added = list(self._added())
        self.moved = self._moved()
        self.forms: dict[Path, str] = {}
        self.bare: dict[Path, bool] = {}

    def instance(self, path: Path) -> tuple[Kind, list[Any]]:
        """Returns the class of the container at `path`, and its instance's numbers."""
        builder = _Builder(self, path)
        body = builder.build()
        kind = self.kinds.get(body)
        if kind is None:
            kind = self.kinds[body] = Kind(
                body, len(self.kinds), builder.hints, builder.names, builder.types, builder.main()
            )
        kind.paths.append((*self.prefix, *path))
        kind.holes.append(builder.holes)
        return kind, builder.holes

    def body_at(self, path: Path) -> Path | None:
        """Returns the path of the body of control flow in which `path` is, None where it is in none."""
        return next((path[:end] for end in range(1, len(path) + 1) if path[:end] in self.bodies), None)

    def all_moved(self) -> Iterable[tuple[Path, Path]]:
        """Yields the old and the new path of each buffer that moved, those in bodies too."""
        yield from (((*self.prefix, *old), (*self.prefix, *new)) for old, new in self.moved.items())
        for body in self.bodies.values():
            yield from body.all_moved()

    def _moved(self) -> dict[Path, Path]:
        """Returns the new paths of buffers that are in no state_dict: in the class that uses them, equally named."""
        found: dict[Path, Path] = {}
        for path, region in self.partition.regions.items():
            taken = {*dir(self.program.module(path)), *self.program.module(path)._modules}
            for node in region.items:
                if isinstance(node, fx.Node) and self.program.is_movable(node):
                    number = 1
                    while (name := f"constant{number if number > 1 else ''}") in taken:
                        number += 1
                    taken.add(name)
                    found[tuple(str(node.target).split("."))] = (*path, name)
        return found

    def _added(self) -> Iterable[tuple[Path, nn.Parameter]]:
        """Yields the parameters in layers whose constructors do not make them: a bias called as one of an RMSNorm."""
        for path in sorted(self.program.layers):
            layer = self.program.module(path)
            if not layer._parameters or is_control_flow(layer) or self.body_at(path) is not None:
                continue
            with torch.device("meta"):
                made = type(layer)(**_arguments(path, layer))
            for name, parameter in layer._parameters.items():
                if parameter is not None and made._parameters.get(name) is None:
                    yield (*path, name), parameter

    def class_around(self, path: Path) -> Path:
        """Returns the innermost container at or around `path` that is written as a class."""
        while path and self.form(path) != "class":
            path = path[:-1]
        return path

    def is_bare(self, path: Path) -> bool:
        """Returns whether nothing is left in a container but buffers that other classes hold."""
        if path not in self.bare:
            self.bare[path] = self._is_bare(path)
        return self.bare[path]

    def _is_bare(self, path: Path) -> bool:
        if path in self.program.layers:
            return False
        module = self.program.module(path)
        if any(parameter is not None for parameter in module._parameters.values()):
            return False
        if any((*path, name) not in self.moved for name in module._buffers):
            return False
        return path not in self.partition.regions and all(self.is_bare((*path, name)) for name in module._modules)

    def children(self, path: Path) -> list[str]:
        """Returns the names of the modules in a container that are written."""
        return [name for name in self.program.module(path)._modules if not self.is_bare((*path, name))]

    def buffers(self, path: Path) -> list[tuple[str, Path]]:
        """Returns the names of the buffers that a container holds, and where they are in the imported module."""
        own = [(name, (*path, name)) for name in self.program.module(path)._buffers]
        there = [(new[-1], old) for old, new in self.moved.items() if new[:-1] == path]
        return [*(entry for entry in own if entry[1] not in self.moved), *there]

    def form(self, path: Path) -> str:
        """Returns how a container is written: as a `class`, or by one of torch's containers in the class around it."""
        inside = self.body_at(path)
        if inside is not None:
            return self.bodies[inside].form(path[len(inside) :])
        if any(path[:end] in self.program.layers for end in range(1, len(path) + 1)):
            return "class"
        if path not in self.forms:
            self.forms[path] = self._form(path)
        return self.forms[path]

    def _form(self, path: Path) -> str:
        region = self.partition.regions.get(path)
        if region is not None:
            return "Sequential" if region.slots is not None and path else "class"
        module = self.program.module(path)
        names, buffers = self.children(path), self.buffers(path)
        if not module._parameters and not buffers:
            if names == [str(number) for number in range(len(names))]:
                return "ModuleList"
            if not all(map(is_attribute, names)) and not any(hasattr(nn.ModuleDict, name) for name in names):
                return "ModuleDict"
        if not names and not buffers and not any(hasattr(nn.ParameterDict, name) for name in module._parameters):
            return "ParameterDict"
        return "class"


def _arguments(path: Path, layer: nn.Module) -> dict[str, Any]:
    """Returns what a layer's constructor was given.

    Raises:
        InputError: an argument cannot be read back from the layer.
    """
    given: dict[str, Any] = {}
    for name, parameter in signature(type(layer)).items():
        value = configured(layer, name)
        if value is not UNKNOWN:
            given[name] = value
        elif parameter.default is parameter.empty:
            where = ".".join(path)
            raise InputError(f"the layer {where} cannot be written: {type(layer).__name__} does not keep {name!r}")
    return given


def _ties(root: nn.Module) -> list[tuple[Path, Path]]:
    """Returns the paths of parameters that are one with an earlier one, with the earlier's."""
    first: dict[int, Path] = {}
    found = []
    for name, parameter in root.named_parameters(remove_duplicate=False):
        path = tuple(name.split("."))
        if id(parameter) in first:
            found.append((path, first[id(parameter)]))
        first.setdefault(id(parameter), path)
    return found


class _Builder:
    """Makes the structure of one container's class."""

    def __init__(self, maker: _Maker, path: Path):
        self.maker, self.path = maker, path
        self.program = maker.program
        self.region = maker.partition.regions.get(path)
        self.holes: list[Any] = []
        self.hints: list[str] = []
        self.names: dict[int, str] = {}
        self.types: dict[int, str] = {}
        self.known: dict[fx.Node, Expression] = {}
        self.packed: dict[tuple[fx.Node, ...], Expression] = {}
        self.count = 0

    def build(self) -> Body:
        """Returns the structure; fills the numbers and names."""
        sequential = self.region is not None and self.region.slots is not None
        if self.region is not None and sequential:
            base, init = "Sequential", [("base", "", self.sequential(self.region))]
        else:
            base, init = "Module", list(self.contents(self.path))
        init += self.added() + self.tied()
        if self.region is None:
            return Body(base, tuple(init), 0, (), None)
        for entry in self.region.arguments:
            if isinstance(entry, tuple):
                self.packed[entry] = self.value(entry[0], "features", "list[Tensor]")
            else:
                self.known[entry] = self.value(entry)
        calls = [] if sequential else [call for item in self.region.items for call in self.call(item)]
        arguments = len(self.region.arguments)
        if sequential:
            outputs: Expression = Call(Attribute(Call(Text("super")), "forward"), (Value(0),))
        elif self.path:
            results = tuple(self.known[node] for node in self.region.outputs)
            outputs = results[0] if len(results) == 1 else Collection("()", results)
        else:
            (last,) = (node for node in self.program.graph.nodes if node.op == "output")
            outputs = self.expression(last.args[0])
        return Body(base, tuple(init), arguments, tuple(calls), outputs)

    def main(self) -> int:
        """Returns which argument is what a layer gives, else the first tensor; -1 where several are the model's own."""
        inputs = self.region.inputs if self.region is not None else []
        if sum(node.op == "placeholder" for node in inputs) > 1:
            return -1
        entries = enumerate(self.region.arguments if self.region is not None else [])
        single = [(index, entry) for index, entry in entries if isinstance(entry, fx.Node)]
        tensors = [index for index, node in single if annotation(node) == "Tensor" and node.op != "get_attr"]
        layers = [index for index, node in single if index in tensors and node.op == "call_module"]
        return next(iter([*layers, *tensors]), -1)

    def packed_ids(self) -> set[tuple[int, ...]]:
        """Returns the identities of the nodes that come as one list."""
        return {tuple(map(id, nodes)) for nodes in self.packed}

    def value(self, node: fx.Node, name: str | None = None, kind: str | None = None) -> Value:
        """Returns a new value that stands for `node`."""
        value = Value(self.count)
        self.names[self.count] = name or suggested_name(node)
        self.types[self.count] = kind or annotation(node)
        self.count += 1
        return value

    def hole(self, value: Any, hint: str) -> Hole:
        """Returns the place of a number that another instance may have otherwise."""
        self.holes.append(value)
        self.hints.append(hint)
        return Hole(len(self.holes) - 1)

    # The modules.

    def contents(self, path: Path) -> Iterable[tuple[str, str, Expression]]:
        """Yields the statements that make what the container at `path` holds itself."""
        module = self.program.module(path)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield "attribute" if is_attribute(name) else "parameter", name, self.parameter(parameter)
        for name, (*holder, key) in self.maker.buffers(path):
            there = self.program.module(tuple(holder))
            buffer = there._buffers[key]
            if buffer is not None:
                yield "buffer", name, self.buffer(buffer, key not in there._non_persistent_buffers_set)
        for name in self.maker.children(path):
            yield "attribute" if is_attribute(name) else "module", name, self.module((*path, name))

    def parameter(self, parameter: nn.Parameter) -> Expression:
        """Returns the expression that makes a parameter, without its values."""
        frozen = () if parameter.requires_grad else (("requires_grad", Text("False")),)
        return Call(Text("nn.Parameter"), (self.empty(parameter),), frozen)

    def buffer(self, buffer: torch.Tensor, persistent: bool) -> Expression:
        """Returns the arguments of `register_buffer` behind the name, as those of a call."""
        extra = () if persistent else (("persistent", Text("False")),)
        return Call(Text("self.register_buffer"), (self.empty(buffer),), extra)

    def empty(self, tensor: torch.Tensor) -> Expression:
        """Returns an expression for an uninitialised tensor."""
        dtype = () if tensor.dtype is torch.float32 else (("dtype", Text(str(tensor.dtype))),)
        sizes = tuple(self.hole(size, "size") for size in tensor.shape)
        return Call(Text("torch.empty"), sizes or (Text("()"),), dtype)

    def module(self, path: Path) -> Expression:
        """Returns the expression that makes the module at `path`."""
        if path in self.program.layers:
            return self.layer(path)
        form = self.maker.form(path)
        if form == "Sequential":
            return self.sequential(self.maker.partition.regions[path])
        if form == "class":
            return self.new(*self.maker.instance(path))
        if form == "ParameterDict":
            parameters = self.program.module(path)._parameters.items()
            return Modules(form, tuple((name, self.parameter(p)) for name, p in parameters if p is not None))
        return Modules(form, tuple((name, self.module((*path, name))) for name in self.maker.children(path)))

    def new(self, kind: Kind, holes: list[Any]) -> New:
        """Returns the call of a class that is written too."""
        first = len(self.holes)
        self.holes += holes
        self.hints += kind.hints
        return New(kind.number, first, len(holes))

    def sequential(self, region: Region) -> Expression:
        """Returns the `nn.Sequential` that a region is."""
        assert region.slots is not None
        items: list[tuple[str, Expression]] = []
        for name, item in region.slots.items():
            if item is None:
                items.append((name, Call(Text("nn.Identity"))))
            elif isinstance(item, fx.Node) and item.op != "call_module":
                items.append((name, self.activation(item)))
            else:
                items.append((name, self.module((*region.path, name))))
        return Modules("Sequential", tuple(items))

    def activation(self, node: fx.Node) -> Call:
        """Returns the constructor's call of the module that a function call is."""
        found = module_of(node)
        assert found is not None
        return self.constructor(*found)

    def layer(self, path: Path) -> Expression:
        """Returns the constructor's call of a layer of torch's.

        Raises:
            InputError: an argument of its constructor cannot be read back from the layer.
        """
        layer = self.program.module(path)
        if is_control_flow(layer):
            return self.control_flow(path, layer)
        given = _arguments(path, layer)
        dtypes = {tensor.dtype for tensor in layer.parameters() if tensor.is_floating_point()} - {torch.float32}
        call = self.constructor(type(layer), given)
        return Call(call.function, call.args, (*call.kwargs, *(("dtype", Text(str(dtype))) for dtype in dtypes)))

    def control_flow(self, path: Path, layer: nn.Module) -> Expression:
        """Returns the constructor's call of a module of control flow, its graphs as classes."""
        kind = type(layer)
        given = [(name, getattr(layer, name), parameter) for name, parameter in signature(kind).items()]
        needed = [(name, value) for name, value, parameter in given if parameter.default is parameter.empty or value]
        args = tuple(self.control_argument((*path, name), value) for name, value in needed)
        return Call(Text(kind.__name__), args)

    def control_argument(self, path: Path, value: Any) -> Expression:
        """Returns an argument of that call: a graph, a number, sizes and types."""
        if path in self.maker.bodies:
            return self.new(*self.maker.bodies[path].instance(()))
        if isinstance(value, nn.Module):
            return self.control_flow(path, value)
        if isinstance(value, (list, tuple)):
            return Collection("[]", tuple(self.control_argument(path, item) for item in value))
        return self.expression(value, path[-1])

    def constructor(self, kind: type[nn.Module], given: Mapping[str, Any]) -> Call:
        """Returns the call of `kind`'s constructor with the arguments `given`."""
        args: list[Expression] = []
        kwargs: list[tuple[str, Expression]] = []
        for name, parameter in signature(kind).items():
            if name not in given:
                continue
            expression = self.number(given[name], name)
            if parameter.default is parameter.empty:
                args.append(expression)
            elif isinstance(expression, Hole):
                kwargs.append((name, Unless(expression, parameter.default)))
            elif not same(given[name], parameter.default):
                kwargs.append((name, expression))
        if kind in POOLS and kwargs and kwargs[0][0] == "stride":
            args.append(kwargs.pop(0)[1])
        return Call(Text(f"nn.{kind.__name__}"), tuple(args), tuple(kwargs))

    def number(self, value: Any, name: str) -> Expression:
        """Returns a constructor's argument: numbers are holes, other constants are part of the structure."""
        plain = shortest(value, name)
        numbers = plain if isinstance(plain, tuple) else (plain,)
        if all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in numbers):
            return self.hole(plain, name)
        if isinstance(plain, (bool, str, tuple, type(None))):
            return Text(literal(plain))
        raise InputError(f"a layer's argument {name}={value!r} cannot be written")

    def added(self) -> list[tuple[str, str, Expression]]:
        """Returns the statements that give layers the parameters of their names that their constructors do not make."""
        found: list[tuple[str, str, Expression]] = []
        for path, parameter in self.maker.added:
            if self.maker.class_around(path[:-2]) == self.path:
                found.append(("tie", "", Collection("=", (self.access(path), self.parameter(parameter)))))
        return found

    def tied(self) -> list[tuple[str, str, Expression]]:
        """Returns the statements that make one parameter of two, for those that meet in this class."""
        found: list[tuple[str, str, Expression]] = []
        for later, earlier in self.maker.ties:
            if self.maker.class_around(common((later, earlier))) == self.path:
                found.append(("tie", "", Collection("=", (self.access(later), self.access(earlier)))))
        return found

    def access(self, path: Path) -> Expression:
        """Returns how the module or tensor at `path` is reached from this class."""
        found: Expression = Text("self")
        for end in range(len(self.path), len(path)):
            step, form = path[end], self.maker.form(path[:end])
            if form == "ModuleList" or (form == "Sequential" and step.isdecimal()):
                index = step
                if form == "Sequential":
                    index = str(list(self.maker.partition.regions[path[:end]].slots or {}).index(step))
                found = Subscript(found, Text(index))
            elif form in ("ModuleDict", "ParameterDict"):
                found = Subscript(found, Text(literal(step)))
            elif is_attribute(step):
                found = Attribute(found, step)
            else:
                found = Call(Text("getattr"), (found, Text(literal(step))))
        return found

    # The forward.

    def call(self, item: Any) -> Iterable[tuple[tuple[int, ...], Expression]]:
        """Yields the call that an item is, with the values that it returns."""
        if isinstance(item, Region):
            inputs = tuple(self.argument(entry) for entry in item.arguments)
            expression: Expression = Call(self.access(item.path), inputs)
            name = item.path[-1] if not item.path[-1].isdecimal() else None
            values = [self.value(node, name if len(item.outputs) == 1 else None) for node in item.outputs]
            self.known |= dict(zip(item.outputs, values, strict=True))
            yield tuple(value.index for value in values), expression
        elif item.op == "get_attr":
            path = tuple(str(item.target).split("."))
            self.known[item] = self.access(self.maker.moved.get(path, path))
        else:
            expression = self.node(item)
            if item.target in ASSERTIONS:
                yield (), expression
            else:
                value = self.known[item] = self.value(item)
                yield (value.index,), expression

    def argument(self, entry: fx.Node | tuple[fx.Node, ...]) -> Expression:
        """Returns what a region is called with."""
        if isinstance(entry, tuple):
            return Collection("[]", tuple(self.known[node] for node in entry))
        return self.known[entry]

    def node(self, node: fx.Node) -> Expression:
        """Returns the expression of one call."""
        if node.target in ACTIVATIONS and not isinstance(node.target, str):
            call = self.activation(node)
            return Call(Text(function_name(node.target)), (self.expression(node.args[0]), *call.args), call.kwargs)
        args = [self.expression(arg) for arg in node.args]
        kwargs = tuple((name, self.expression(arg, name)) for name, arg in node.kwargs.items())
        if node.op == "call_module":
            return Call(self.access(tuple(str(node.target).split("."))), tuple(args), kwargs)
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
                    args[position] = Call(Attribute(args[position], "tolist"))
            return Call(Text(self.program.inlined.name(row)), (Text("torch"), *args), kwargs)
        if node.target is operator.getitem:
            return Subscript(args[0], args[1])
        return Call(Text(function_name(node.target)), tuple(args), kwargs)

    def expression(self, value: Any, hint: str = "value") -> Expression:
        """Returns an argument of a call.

        Raises:
            InputError: it is no value that can be written.
        """
        if isinstance(value, fx.Node):
            return self.known[value]
        if isinstance(value, bool) or value is None or isinstance(value, str):
            return Text(literal(value))
        if isinstance(value, (int, float)):
            return self.hole(value, hint)
        if isinstance(value, (tuple, list)) and self.packed and tuple(map(id, value)) in self.packed_ids():
            return self.packed[tuple(value)]
        if isinstance(value, (tuple, list)):
            return Collection("[]" if isinstance(value, list) else "()", tuple(self.expression(v, hint) for v in value))
        if isinstance(value, slice):
            bounds = (value.start, value.stop, value.step)
            return Slice(*(None if bound is None else self.expression(bound, hint) for bound in bounds))
        if value is ...:
            return Text("...")
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return Text(str(value))
        raise InputError(f"a value {value!r} ({type(value).__name__}) cannot be written as source")
