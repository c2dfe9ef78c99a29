"""Graphs that do not keep their module alive.

A `torch.fx.Graph` and its GraphModule refer to each other. Such a cycle waits for Python's cyclic garbage collector,
which counts objects and not bytes: a loop that loads and drops models of 20 MB took gigabytes.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import fx


class OwnedGraph(fx.Graph):
    """A graph whose `owning_module` is None once nothing else refers to the module."""

    @property
    def _owning_module(self) -> fx.GraphModule | None:  # type: ignore[override]  # torch's is an attribute
        owner: weakref.ref[fx.GraphModule] | None = vars(self).get("_owner")
        return None if owner is None else owner()

    @_owning_module.setter
    def _owning_module(self, module: fx.GraphModule | None) -> None:
        vars(self)["_owner"] = None if module is None else weakref.ref(module)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> fx.Graph:
        """Returns a copy without an owner."""
        return owned(super().__deepcopy__(memo))

    def __reduce__(self) -> tuple[Any, ...]:
        """Gives a pickle of torch's own class."""
        state = {name: value for name, value in vars(self).items() if name != "_owner"}
        return fx.Graph.__new__, (fx.Graph,), state | {"_owning_module": self._owning_module}


def owned(graph: fx.Graph) -> fx.Graph:
    """Makes `graph` one that does not keep its module alive, unless its class is the caller's own; returns it."""
    if type(graph) is fx.Graph:
        owner = vars(graph).pop("_owning_module")
        graph.__class__ = OwnedGraph
        graph.owning_module = owner
    return graph
