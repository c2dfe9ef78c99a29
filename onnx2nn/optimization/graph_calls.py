"""Calls and constants in the graphs that passes of inductor change."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


class GraphCalls:
    """Writes calls and constants into a graph, at its insertion point, with the values that inductor reads.

    Args:
        graph: of operators.
    """

    def __init__(self, graph: fx.Graph):
        self._graph = graph
        self._module: Any = graph.owning_module
        values: Any = (node.meta.get("val") for node in graph.nodes)
        shown: Any = next(value for value in values if isinstance(value, torch.Tensor))
        self._mode = shown.fake_mode

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Returns a call."""
        node = self._graph.call_function(target, args, kwargs)
        with self._mode:
            node.meta["val"] = target(*fx.map_arg(args, lambda arg: arg.meta["val"]), **kwargs)
        return node

    def sizes(self, x: fx.Node, *axes: int) -> list[Any]:
        """Returns sizes of a tensor: integers, and calls for dynamic ones."""
        pairs = [(axis, x.meta["val"].shape[axis]) for axis in axes]
        return [n if isinstance(n, int) else self.call(torch.ops.aten.sym_size.int, x, axis) for axis, n in pairs]

    def constant(self, source: Any) -> torch.Tensor | None:
        """Returns the constant that a node reads, or fills with one number, as inductor writes it; else None."""
        if not isinstance(source, fx.Node):
            return None
        arguments: Any = source.args
        if source.target is torch.ops.aten.full.default:
            sizes, value = arguments
            fixed = all(isinstance(size, int) for size in sizes)
            return torch.full(sizes, value, dtype=source.meta["val"].dtype) if fixed else None
        if source.op != "get_attr":
            return None
        path, _, name = str(source.target).rpartition(".")
        return getattr(self._module.get_submodule(path), name)  # type: ignore[no-any-return]  # a constant

    def kept(self, name: str, value: torch.Tensor, shown: torch.Tensor | None = None) -> fx.Node:
        """Returns a constant of the program; `shown` is one of its shape and type that has strides."""
        if not hasattr(self._module, name):
            self._module.register_buffer(name, value)
        node = self._graph.get_attr(name)
        node.meta["val"] = self._mode.from_tensor(value if shown is None else shown, static_shapes=True)
        return node
