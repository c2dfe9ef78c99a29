"""A `torch.fx.GraphModule` whose program is generated at its first use.

Generating Python from a graph and compiling it takes up to four times as long as the import. A module that is only
inspected, transformed or saved as a state_dict needs no program.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from onnx2nn.fx.modules.module_tree import is_persistent
from onnx2nn.fx.modules.owned_graph import owned
from onnx2nn.fx.modules.pickled_source import pickled_source
from onnx2nn.fx.modules.readable_code import readable
from onnx2nn.ground.pass_times import timed

_KEPT_IN_COPIES = "_user_preserved_attributes"
"""The item of `meta` whose attributes torch gives to a copy of a GraphModule."""

GENERATING = threading.RLock()  # while torch writes a graph's program, the graph's nodes have other names


@timed("code generation")
def generate_programs(root: nn.Module) -> None:
    """Generates the missing programs of `root` and the modules in it."""
    with GENERATING:
        for module in root.modules():
            if isinstance(module, DeferredModule):
                module.generate()


def is_deferred(kind: type[nn.Module]) -> bool:
    """Returns whether the program of a class is not generated yet."""
    return isinstance(_forward(kind), _Forward)


def unwrap(kind: type[nn.Module]) -> None:
    """Removes torch's wrapper for errors from the calls of a class's modules."""
    if "__call__" in vars(kind):
        del kind.__call__


def _forward(kind: type[nn.Module]) -> Any:
    """Returns the attribute `forward` of a class without evaluating it; subclasses may inherit it."""
    for base in kind.__mro__:
        if "forward" in base.__dict__:
            break
    return base.__dict__["forward"]


class _Forward:
    """A descriptor in place of a class's `forward`: at its first look-up the program is generated and replaces it.

    Attributes:
        modules: of the class; any of them gives the program where the class is asked. Strong references would be
            cycles: module, its class, this object.
    """

    def __init__(self) -> None:
        self.modules = weakref.WeakSet[nn.Module]()

    def __get__(self, instance: nn.Module | None, owner: type[nn.Module]) -> Any:
        module = next(iter(self.modules), None) if instance is None else instance
        if module is None:
            raise AttributeError("forward")
        try:
            generate_programs(module)
        except AttributeError as error:  # with which `hasattr` would say that there is no `forward`
            raise RuntimeError(f"the program of {owner.__name__} cannot be generated: {error}") from error
        return owner.forward if instance is None else instance.forward


class DeferredModule(fx.GraphModule):
    """A GraphModule whose program is generated from the graph at its first use, and later at each `recompile`.

    Args:
        holder: a module with the submodules to which the graph refers; they move to this module.
        own: the parameters, buffers and attributes of this module itself, by name, and whether state_dict holds them.
        graph: the graph; this module takes it over.
        name: the name of the module's class.
    """

    __jit_unused_properties__ = [*fx.GraphModule.__jit_unused_properties__, "code"]  # noqa: RUF012, it is torch's

    def __init__(
        self, holder: nn.Module, own: Mapping[str, tuple[Any, bool]], graph: fx.Graph, name: str = "GraphModule"
    ):
        # Not from `holder`: torch copies non-persistent buffers as persistent ones.
        super().__init__(nn.Module(), fx.Graph(), name)
        for path, child in holder.named_children():
            self.add_module(path, child)
        for path, (value, persistent) in own.items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(path, value)
            elif _is_buffer(value):
                self.register_buffer(path, value, persistent=persistent)
            else:
                setattr(self, path, value)  # an array of strings
        self.graph = graph

    @property
    def graph(self) -> fx.Graph:
        """The program."""
        self._build_graph()
        graph: fx.Graph = fx.GraphModule.graph.fget(self)  # type: ignore[attr-defined]  # mypy sees the value, not the property
        return graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        fx.GraphModule.graph.fset(self, owned(graph))  # type: ignore[attr-defined]  # mypy sees the value, not the property

    def _build_graph(self) -> None:
        """Builds the graph of a module that has none yet."""

    def recompile(self) -> Any:
        """Generates the program again; before its first use this is deferred.

        Returns:
            The `torch.fx.graph.PythonCode` of the graph; None where it is deferred.
        """
        if self.defer():
            return None
        with GENERATING:
            return super().recompile()

    def defer(self) -> bool:
        """Defers the program of a class without one; returns whether the program of this module's class is deferred."""
        kind = type(self)
        forward = _forward(kind)
        if forward is nn.Module.forward:
            forward = kind.forward = _Forward()  # type: ignore[assignment]  # mypy takes no descriptor for a function
        if isinstance(forward, _Forward):
            forward.modules.add(self)
        return isinstance(forward, _Forward)

    def generate(self) -> None:
        """Generates the program, if it is deferred.

        A module inside of another one is called without torch's wrapper for errors, which takes twice the time of the
        call itself, and takes from an error the traceback that names its node.
        """
        if is_deferred(type(self)):
            fx.GraphModule.recompile(self)
            unwrap(type(self))

    @property
    def code(self) -> str:
        """The program as Python, as an author could have written it."""
        generate_programs(self)
        return readable(super().code, self)

    def __str__(self) -> str:
        generate_programs(self)
        return super().__str__().replace(super().code, self.code)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the calls of this module with `torch.compile`, see `nn.Module.compile`."""
        generate_programs(self)  # torch.compile would trace the generation
        super().compile(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> fx.GraphModule:
        """Returns a copy, whose class is its own, with the same name; torch's own makes all buffers persistent."""
        result = super().__deepcopy__(memo)
        for key, buffer in [*result.named_buffers(remove_duplicate=False)]:
            path, _, name = key.rpartition(".")
            if not is_persistent(self.get_submodule(path), name):
                result.get_submodule(path).register_buffer(name, buffer, persistent=False)
        type(result).__name__ = type(self).__name__
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns a `torch.fx.GraphModule`; torch's own pickle makes all buffers persistent, as does its deepcopy."""
        generate_programs(self)  # torch copies the attributes before it generates the code
        source = self._pickled_source()
        rebuild, (body, imports) = super().__reduce__()
        outside = {"_non_persistent_buffers_set": body["_non_persistent_buffers_set"]}
        meta = {_KEPT_IN_COPIES: outside} if outside["_non_persistent_buffers_set"] else {}
        named = {"_code": source, "_graphmodule_cls_name": type(self).__name__}
        return rebuild, ({**body, **named}, imports), {**outside, "meta": meta}

    def __reduce_package__(self, exporter: Any) -> tuple[Any, ...]:
        generate_programs(self)
        given: Any = _PackageExporter(exporter, self.code, self._pickled_source())
        return super().__reduce_package__(given)

    def _pickled_source(self) -> str:
        graph = self.graph
        values = {name for name, _ in self.named_buffers(remove_duplicate=False)}
        reads = {str(node.target) for node in graph.find_nodes(op="get_attr")}
        others = {name for name in reads if isinstance(operator.attrgetter(name)(self), (np.ndarray, bool))}
        return pickled_source(graph, frozenset(values | others))


class _PackageExporter:
    """Gives a `torch.package.PackageExporter` the source for unpickling in place of a program.

    Args:
        exporter: to which all else is passed on.
        code: the program.
        source: its source for unpickling.
    """

    def __init__(self, exporter: Any, code: str, source: str):
        self._exporter, self._code, self._source = exporter, code, source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)

    def save_source_string(self, module_name: str, src: str, *args: Any, **kwargs: Any) -> None:
        """Saves the source of a module, see torch."""
        self._exporter.save_source_string(module_name, src.replace(self._code, self._source), *args, **kwargs)


def _is_buffer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
