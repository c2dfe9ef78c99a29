"""A `torch.fx.GraphModule` that has its program when somebody asks for it.

Generating Python of a graph and compiling it takes longer than building the graph. An import makes more modules than it
returns: those of sample sizes that did not work out, of subgraphs that are traced again. And a module that is only
inspected, transformed or saved as a state needs no program.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from typing import Any

from torch import fx, nn

COMPILING = threading.RLock()  # while torch writes a graph's program, the graph's nodes have other names


def _forward(module: nn.Module) -> Any:
    """Returns what stands as `forward` in the module's class, unasked; nn.utils.parametrize derives classes."""
    return inspect.getattr_static(type(module), "forward")


def compile_programs(root: nn.Module) -> None:
    """Generates the programs that are put off, of `root` and of the modules in it."""
    with COMPILING:
        for module in root.modules():
            if isinstance(module, DeferredModule) and isinstance(_forward(module), _Forward):
                module.recompile()  # which replaces the descriptor


# A module first called inside torch.compile: Dynamo is to run this, not to trace it. `torch.compiler` has a function
# that sets this, assume_constant_result, which would import all of torch's compiler.
compile_programs._dynamo_marked_constant = True  # type: ignore[attr-defined]  # mypy gives functions no attributes


class _Forward:
    """Stands for the `forward` of one module until it is looked up."""

    def __init__(self, module: DeferredModule):
        self._module = weakref.ref(module)  # which holds its class, which holds this

    def __get__(self, instance: nn.Module | None, owner: type[nn.Module]) -> Any:
        if instance is not None:
            compile_programs(instance)
            return instance.forward
        module = self._module()
        if module is None:
            raise AttributeError("forward")
        compile_programs(module)
        return owner.forward  # what stands there now


class _Result:
    """Stands for an attribute of a module that comes with its program."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: DeferredModule | None, owner: type) -> Any:
        if instance is None:
            return self
        compile_programs(instance)
        try:
            return vars(instance)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None


class DeferredModule(fx.GraphModule):
    """A GraphModule whose `forward` is generated when it is first looked up, by a call or by whatever reads it.

    The program is that of the graph as it is then; after that, as for every GraphModule, that of the last `recompile`.
    """

    _code, _lineno_map, _prologue_start = _Result(), _Result(), _Result()  # what `recompile` sets on the module

    def recompile(self) -> Any:
        """Generates the program anew; when the module is made, puts that off.

        Returns:
            What torch makes of the graph, a `torch.fx.graph.PythonCode`; None where it is put off.
        """
        if _forward(self) is nn.Module.forward:
            # On a class of its own, which torch gives each GraphModule.
            type(self).forward = _Forward(self)  # type: ignore[assignment]  # mypy takes no descriptor for a function
            return None
        with COMPILING:
            return super().recompile()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the calls of this module with `torch.compile`, as for every module."""
        compile_programs(self)  # torch.compile begins inside the call
        super().compile(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        compile_programs(self)  # torch copies the attributes before it makes sure of them
        return super().__reduce__()

    def __reduce_package__(self, exporter: Any) -> tuple[Any, ...]:
        compile_programs(self)
        return super().__reduce_package__(exporter)
