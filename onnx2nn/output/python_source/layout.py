"""Where each module, parameter and buffer of a program is written: as a class, or by one of torch's containers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx, nn

from onnx2nn.fx.blocks.partition import Partition, divide
from onnx2nn.importing.regions import Path, common
from onnx2nn.output.python_source.constructors import arguments_of
from onnx2nn.output.python_source.expressions import Attribute, Call, Expression, Subscript, Text, is_writable, literal
from onnx2nn.output.python_source.program import Program, is_control_flow


class Layout:
    """The tree of modules of one program as the source holds it.

    Args:
        partition: the program.
        prefix: where the program is in the model.

    Attributes:
        bodies: the layouts of the bodies of control flow, by path.
        ties: the paths of parameters that are tied to an earlier one, with the earlier one's.
        added: parameters and modules in layers whose constructors do not make them, with their paths.
        moved: buffers that another class holds than in the imported module: old path → new path.
    """

    def __init__(self, partition: Partition, prefix: Path = ()):
        program = partition.program
        assert isinstance(program, Program)
        self.partition, self.program, self.prefix = partition, program, prefix
        self.bodies = {path: Layout(divide(body), (*prefix, *path)) for path, body in self.program.bodies.items()}
        self.ties = [pair for pair in _ties(self.program.root) if self.body_at(common(pair)) is None]
        self.added = list(self._added())
        self.moved = self._moved()
        self._forms: dict[Path, str] = {}
        self._bare: dict[Path, bool] = {}

    def body_at(self, path: Path) -> Path | None:
        """Returns the path of the body of control flow that contains `path`, None outside of bodies."""
        return next((path[:end] for end in range(1, len(path) + 1) if path[:end] in self.bodies), None)

    def all_moved(self) -> Iterable[tuple[Path, Path]]:
        """Yields the old and the new path of each buffer that moved, also in bodies of control flow."""
        yield from (((*self.prefix, *old), (*self.prefix, *new)) for old, new in self.moved.items())
        for body in self.bodies.values():
            yield from body.all_moved()

    def _moved(self) -> dict[Path, Path]:
        """Returns the new paths of buffers in no state_dict: in their region, with equal names in equal regions."""
        found: dict[Path, Path] = {}
        for path, region in self.partition.regions.items():
            taken = set(dir(self.program.module(path)))
            for node in region.items:
                if isinstance(node, fx.Node) and self.program.is_movable(node):
                    number = 1
                    while (name := f"constant{number if number > 1 else ''}") in taken:
                        number += 1
                    taken.add(name)
                    found[tuple(str(node.target).split("."))] = (*path, name)
        return found

    def _added(self) -> Iterable[tuple[Path, nn.Parameter | nn.Module]]:
        """Yields what is in layers whose constructors do not make it: the bias of an RMSNorm, a quantiser inside."""
        for path in sorted(self.program.layers):
            layer = self.program.module(path)
            own: dict[str, nn.Parameter | nn.Module] = {**self.program.parameters(path), **dict(layer.named_children())}
            if not own or is_control_flow(layer) or self.body_at(path) is not None:
                continue
            with torch.device("meta"):
                made = type(layer)(**arguments_of(path, layer))
            for name, value in own.items():
                if not hasattr(made, name):
                    yield (*path, name), value

    def class_around(self, path: Path) -> Path:
        """Returns the innermost container at or around `path` that is written as a class."""
        while path and self.form(path) != "class":
            path = path[:-1]
        return path

    def is_bare(self, path: Path) -> bool:
        """Returns whether a container holds only buffers that other classes take over."""
        if path not in self._bare:
            self._bare[path] = self._is_bare(path)
        return self._bare[path]

    def _is_bare(self, path: Path) -> bool:
        if path in self.program.layers:
            return False
        program = self.program
        if program.parameters(path) or any((*path, name) not in self.moved for name in program.buffers(path)):
            return False
        inner = program.children(path)
        return path not in self.partition.regions and all(self.is_bare((*path, name)) for name in inner)

    def children(self, path: Path) -> list[str]:
        """Returns the names of the modules in a container that the source holds."""
        return [name for name in self.program.children(path) if not self.is_bare((*path, name))]

    def buffers(self, path: Path) -> list[tuple[str, Path]]:
        """Returns the names of a container's buffers, with their paths in the imported module."""
        own = [(name, (*path, name)) for name in self.program.buffers(path)]
        there = [(new[-1], old) for old, new in self.moved.items() if new[:-1] == path]
        return [*(entry for entry in own if entry[1] not in self.moved), *there]

    def form(self, path: Path) -> str:
        """Returns how a container is written: as a `class`, or by one of torch's containers in the class around it."""
        inside = self.body_at(path)
        if inside is not None:
            return self.bodies[inside].form(path[len(inside) :])
        if any(path[:end] in self.program.layers for end in range(1, len(path) + 1)):
            return "class"
        if path not in self._forms:
            self._forms[path] = self._form(path)
        return self._forms[path]

    def _form(self, path: Path) -> str:
        region = self.partition.regions.get(path)
        if region is not None:
            return "Sequential" if region.slots is not None and path else "class"
        parameters = self.program.parameters(path)
        names, buffers = self.children(path), self.buffers(path)
        if not parameters and not buffers:
            if names == [str(number) for number in range(len(names))]:
                return "ModuleList"
            keyed = isinstance(self.program.find(path), nn.ModuleDict) or not all(map(is_writable, names))
            if keyed and not any(hasattr(nn.ModuleDict, name) for name in names):
                return "ModuleDict"
        if not names and not buffers and not any(hasattr(nn.ParameterDict, name) for name in parameters):
            return "ParameterDict"
        return "class"

    def access(self, here: Path, path: Path) -> Expression:
        """Returns the expression for the module or tensor at `path` in the class at `here`."""
        found: Expression = Text("self")
        for end in range(len(here), len(path)):
            step, form = path[end], self.form(path[:end])
            if form == "ModuleList" or (form == "Sequential" and step.isdecimal()):
                index = step
                if form == "Sequential":
                    index = str(list(self.partition.regions[path[:end]].slots or {}).index(step))
                found = Subscript(found, Text(index))
            elif form in ("ModuleDict", "ParameterDict"):
                found = Subscript(found, Text(literal(step)))
            elif is_writable(step):
                found = Attribute(found, step)
            else:
                found = Call(Text("getattr"), (found, Text(literal(step))))
        return found


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
