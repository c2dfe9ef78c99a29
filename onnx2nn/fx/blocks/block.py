"""Modules that share their class with all modules that have an equal program, as the blocks of an import do."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeVar, cast

from torch import fx, nn

from onnx2nn.fx.blocks.program import Notes, Program
from onnx2nn.fx.exporting.exportable import ExportableModule
from onnx2nn.fx.modules.deferred import GENERATING, DeferredModule, generate_programs, is_deferred, unwrap
from onnx2nn.fx.modules.module_tree import children_of


class SharedProgram(ExportableModule):
    """A module whose class is that of all modules of one kind and name with an equal program, in all imports.

    A `torch.fx.GraphModule` has a class of its own. After the graph of such a module was changed, `recompile` gives it
    another class.
    """

    program: Program | None = None
    """The program of the class; None for a module whose class is not shared yet."""

    kind: type[SharedProgram]
    """What the class derives from."""

    generated: Mapping[str, Any] | None = None
    """What `fx.GraphModule.recompile` set on the module for which the program of the class was generated."""

    _notes: Notes | None = None
    """What the graph has beside the program of the class, until something reads the graph."""

    @classmethod
    def program_of(cls, graph: fx.Graph) -> Program:
        """Returns the program of a graph; modules with equal ones may have one class."""
        return Program.of(graph)

    def share(self, kind: type[SharedProgram]) -> None:
        """Gives a module with a class of its own the class of all modules of a kind and name with its program."""
        self.__class__ = class_of(kind, type(self).__name__, kind.program_of(self.graph))
        self.defer()

    @property
    def graph(self) -> fx.Graph:
        """The program. It may be changed after this, so that the class gets its own first."""
        self._keep_program()
        graph: fx.Graph = ExportableModule.graph.fget(self)  # type: ignore[attr-defined]  # mypy sees the value
        return graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        self._build_graph()
        self._keep_program()
        ExportableModule.graph.fset(self, graph)  # type: ignore[attr-defined]  # mypy sees the value, not the property

    def _build_graph(self) -> None:
        """Builds the graph where nothing read it yet: modules with equal programs differ in notes alone."""
        if self._notes is None:
            return
        with GENERATING:
            notes, program = self._notes, type(self).program
            if notes is not None:
                assert program is not None, "only the program of a class is a graph later"
                ExportableModule.graph.fset(self, program.graph(notes))  # type: ignore[attr-defined]  # mypy sees the value
                del self._notes

    def _keep_program(self) -> None:
        """Generates the program of the class, which other modules share, before this one's may change."""
        if _is_complete(self) and type(self).program is not None:
            generate_programs(self)

    def generate(self) -> None:
        """Generates the program of the class, if it has none, and the attributes of this module that describe it."""
        kind = type(self)
        if is_deferred(kind):
            self._build_graph()
            before = vars(self).copy()
            fx.GraphModule.recompile(self)
            kind.generated = {name: value for name, value in vars(self).items() if before.get(name) is not value}
        elif kind.generated is not None:
            self.__dict__.update(kind.generated)

    def recompile(self) -> Any:
        """Generates the program again; a program that differs from the class's gives the module a class of its own.

        Returns:
            The `torch.fx.graph.PythonCode` of the graph; None where nothing was generated yet, or read the graph.
        """
        kind = type(self)
        if self.defer() or self._notes is not None or not _is_complete(self):
            return None
        if kind.program is None:
            return super().recompile()
        graph = fx.GraphModule.graph.fget(self)  # type: ignore[attr-defined]  # mypy sees the value
        program = kind.program_of(graph)
        if program != kind.program:
            self.__class__ = class_of(kind.kind, kind.__name__, program)
            self.defer()
            self.generate()
        return graph.python_code("self")

    def __copy__(self) -> SharedProgram:
        """Returns a module of the same class that holds the same graph, state and submodules."""
        self._build_graph()
        result = object.__new__(type(self))
        result.__dict__.update(vars(self))
        for name in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
            result.__dict__[name] = copy.copy(vars(self)[name])
        result.defer()
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedProgram:
        """Returns a copy of the same class."""
        result = object.__new__(type(self))
        memo[id(self)] = result
        result.__dict__.update(copy.deepcopy(vars(self), memo))
        if result._notes is None:
            fx.GraphModule.graph.fget(result).owning_module = result  # type: ignore[attr-defined]  # mypy sees the value
        result.defer()
        return result


SharedProgram.kind = SharedProgram


class Block(SharedProgram):
    """A module inside an imported one, with a program of its own.

    Args:
        holder: the module with its submodules and state, which the block takes over.
        notes: on the program of the class; the graph is built when something reads it.
    """

    def __new__(cls, *_: Any, **__: Any) -> Block:
        """Returns an object of the class itself, unlike `fx.GraphModule`."""
        return object.__new__(cls)

    def __init__(self, holder: nn.Module, notes: Notes):
        # Not by torch's constructor, which copies each attribute that the graph reads, and makes buffers persistent.
        self.__dict__.update(vars(holder))
        self.__dict__.update(_OF_GRAPH_MODULES, _notes=notes, **{name: kind() for name, kind in _EMPTY.items()})
        self.defer()

    def generate(self) -> None:
        """Generates the program of the class, if it has none; the wrapper of the outermost module shows errors."""
        super().generate()
        unwrap(type(self))


class NumberedBlock(Block):
    """A block that holds numbered modules, as a class of the author's that is an `nn.Sequential`: `block[0]`."""

    def __getitem__(self, number: int) -> nn.Module:
        """Returns the module of a number; below 0, counted from the end.

        Raises:
            IndexError: there is none, as where an exporter folded it into the one before it.
        """
        children = children_of(self)
        found = children.get(str(number)) if number >= 0 else list(children.values())[number]
        if found is None:
            raise IndexError(f"the block has no module {number}, only {', '.join(children)}")
        return found

    def __len__(self) -> int:
        return len(children_of(self))

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(children_of(self).values())


_OF_GRAPH_MODULES = {
    name: value
    for name, value in vars(DeferredModule(nn.Module(), {}, fx.Graph())).items()
    if name not in vars(nn.Module()) and name != "_graph"
}
"""What the constructor of a GraphModule sets beside the graph."""

_EMPTY = {name: type(value) for name, value in _OF_GRAPH_MODULES.items() if isinstance(value, (dict, list))}
"""The classes of what is the module's own among these, all of it empty."""

BLOCK_ATTRIBUTES = frozenset({*dir(Block), *dir(fx.GraphModule(nn.Module(), fx.Graph()))})
"""Names that nothing in a block may have; containers without a program of their own hold some of them."""


def _is_complete(module: SharedProgram) -> bool:
    return "meta" in vars(module)  # the constructor of GraphModule sets it last


_CLASSES: weakref.WeakValueDictionary[Hashable, type[SharedProgram]] = weakref.WeakValueDictionary()


_Kind = TypeVar("_Kind", bound=SharedProgram)


def class_of(kind: type[_Kind], name: str, program: Program) -> type[_Kind]:
    """Returns the class of the modules of a kind and name with equal programs, generated at its first use.

    Args:
        kind: the class that it derives from.
        name: of the class.
        program: of their graphs.
    """
    key = (kind, name, program)
    found = _CLASSES.get(key)
    if found is None:
        names = {"__module__": kind.__module__, "program": program, "kind": kind}
        found = _CLASSES[key] = type(name, (kind,), names)
    return cast(type[_Kind], found)
