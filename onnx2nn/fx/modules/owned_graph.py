"""Graphs that do not keep their module alive, and write no code but their nodes' calls.

A `torch.fx.Graph` and its GraphModule refer to each other. Such a cycle waits for Python's cyclic garbage collector,
which counts objects and not bytes: a loop that loads and drops models of 20 MB took gigabytes.

torch writes the names in a graph into its program as they are, where a name may end the text around it and be code.
What gives names to nodes lets none of these through; here is the second door.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import fx

from onnx2nn.errors import Onnx2nnError, shown_name
from onnx2nn.ground.naming import is_attribute, is_plain


class OwnedGraph(fx.Graph):
    """A graph whose `owning_module` is None once nothing else refers to the module, and whose names are names.

    Raises:
        Onnx2nnError: by `python_code`, for a name that a program cannot hold as it is.
    """

    def python_code(self, root_module: str, **options: Any) -> Any:
        """Returns the program, see `torch.fx.Graph.python_code`."""
        for node in self.nodes:
            _require_names(node)
        return super().python_code(root_module, **options)

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


def _require_names(node: fx.Node) -> None:
    """Refuses what torch would write into a program without an escape, and is no name."""
    unfit = [name for name in node.kwargs if not is_attribute(name)]
    match node.op, str(node.target):
        case "call_module" | "get_attr", path if not is_plain(path):
            unfit.append(path)
        case "placeholder" | "call_method", name if not is_attribute(name.lstrip("*")):
            unfit.append(name)
    if unfit:
        raise Onnx2nnError(
            f"The name {shown_name(unfit[0])!r} of a {node.op} cannot stand in a program. Rename it in the graph."
        )
