"""The fx graph of an imported module as one flat list of calls, each with the path of its module."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from onnx2nn import control_flow, searches
from onnx2nn.errors import InputError
from onnx2nn.fx.blocks.flattening import flat_graph
from onnx2nn.fx.blocks.moves import assign
from onnx2nn.fx.blocks.scopes import Scoped, path_of
from onnx2nn.fx.blocks.value_hints import row_of
from onnx2nn.importing.regions import Path
from onnx2nn.layers import LAYERS
from onnx2nn.output.python_source.inlining import ForeignError, Inlined


@dataclass(eq=False)
class Program(Scoped):
    """An imported module's calls in order, those of inner graph modules too, and the tree of their modules.

    Attributes:
        bodies: the graphs that a layer runs, a branch of an If or the body of a loop, by their paths.
        inlined: the operators that run as one function, whose source the file holds.
        foreign: calls that torch alone cannot make, by description, with the names of the nodes.
    """

    bodies: dict[Path, Program] = field(default_factory=dict)
    inlined: Inlined = field(default_factory=Inlined)
    foreign: dict[str, list[str]] = field(default_factory=dict)

    def all_class_names(self, prefix: Path = ()) -> Iterator[tuple[Path, str]]:
        """Yields the author's class names by path, also in bodies of control flow."""
        yield from (((*prefix, *path), name) for path, name in self.class_names.items())
        for path, body in self.bodies.items():
            yield from body.all_class_names((*prefix, *path))


def read_program(module: fx.GraphModule) -> Program:
    """Returns the calls of `module` with their scopes.

    Raises:
        InputError: calls that torch alone cannot make, all of them.
    """
    program = _read(module, Inlined())
    if program.foreign:
        lines = [f"{what} (nodes: {', '.join(nodes)})" for what, nodes in program.foreign.items()]
        raise InputError(f"The model cannot be written with torch alone: {'; '.join(lines)}. Save it by onnx2nn.save.")
    return program


def _read(module: fx.GraphModule, inlined: Inlined) -> Program:
    flat = flat_graph(module, lambda _, called: isinstance(called, (fx.GraphModule, nn.Sequential)))
    program = Program(module, flat.graph, inlined=inlined)
    _note_foreign(program)
    for node in flat.graph.nodes:
        if node.op == "call_module":
            _read_bodies(program, path_of(node.target))
    # The layers of an imported module have their places; `assign` would move an If or a Loop that has no name.
    layers = {node: path_of(node.target)[:-1] for node in flat.graph.nodes if node.op == "call_module"}
    assign(program, {**flat.placed, **layers})
    return program


def _read_bodies(program: Program, path: Path) -> None:
    """Reads the graphs that a module of control flow runs."""
    module = program.module(path)
    if not is_control_flow(module):
        return
    for name, inner in module.named_children():
        if isinstance(inner, fx.GraphModule):
            body = _read(inner, program.inlined)
            program.bodies[path + (name,)] = body  # noqa: RUF005 - no unpacking in a subscript before Python 3.11
            for what, nodes in body.foreign.items():
                program.foreign.setdefault(what, []).extend(nodes)
        else:
            _read_bodies(program, (*path, name))


def is_control_flow(module: nn.Module) -> bool:
    """Returns whether a module runs graphs: one of `onnx2nn.control_flow`, or a search and its parts."""
    return type(module).__module__ in (control_flow.__name__, searches.__name__)


def _note_foreign(program: Program) -> None:
    """Notes all calls that cannot be written with torch."""
    for node in program.graph.nodes:
        what = _foreign(program, node)
        if what:
            program.foreign.setdefault(what, []).append(str(node.meta.get("onnx", ("", "", node.name))[2]))


def _foreign(program: Program, node: fx.Node) -> str:
    """Returns why a call cannot be written, `""` where it can."""
    if node.op == "call_function" and not isinstance(node.target, str) and not is_torch(node.target):
        row, name = row_of(node), getattr(node.target, "__name__", "")
        if row is None:
            return f"{name} is a function of onnx2nn"
        if "texts" in node.meta and row.on_shape_values is not None and not row.reads_shape:  # see Row.run
            return f"{name} runs as a function of onnx2nn, which works on strings"
        try:
            program.inlined.add(row)
        except ForeignError as reason:
            return f"{name} runs as a function of onnx2nn, which {reason}"
    elif node.op == "call_module":
        layer = program.root.get_submodule(str(node.target))
        kind = type(layer)
        if not kind.__module__.startswith("torch.nn.") and kind not in LAYERS and not is_control_flow(layer):
            return f"{kind.__name__} is a module of {kind.__module__}"
    elif node.op == "get_attr":
        value = operator.attrgetter(str(node.target))(program.root)
        if not isinstance(value, torch.Tensor) and path_of(node.target)[-1] != "training":
            return f"{node.target} holds no tensor"
    return ""


def is_torch(function: Callable[..., Any]) -> bool:
    """Returns whether a function is one of torch's or Python's own."""
    home = str(getattr(function, "__module__", None) or "torch").split(".")[0]
    return home in ("torch", "builtins", "_operator", "operator", "math")
