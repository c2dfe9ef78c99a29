"""The values of a graph in views of few axes: the same elements in the same order, neighbouring axes merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from onnx2nn.output.ncnn.axis_groups import Sizes

RESHAPES = frozenset({
    "reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone",
    torch.reshape, torch.flatten, torch.squeeze, torch.unsqueeze,
})  # fmt: skip
"""Calls that keep all elements in their order."""


class Views:
    """Writes calls on views into a graph whose nodes have `tensor_meta` of a run (`ShapeProp`).

    Attributes:
        stored: node with more than four axes → the node that has its elements, in the same order.
        sizes: of the nodes whose value is a tensor.
        origin: the node in whose place calls are written; they get its name in the file.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.origin: fx.Node | None = None
        self.stored: dict[fx.Node, fx.Node] = {}
        self._written: dict[tuple[fx.Node, Sizes], fx.Node] = {}
        shapes = {node: getattr(node.meta.get("tensor_meta"), "shape", None) for node in graph.nodes}
        self.sizes: dict[fx.Node, Sizes] = {node: tuple(shape) for node, shape in shapes.items() if shape is not None}

    def base(self, node: fx.Node) -> fx.Node:
        """Returns the node that has the elements of `node` before they were reshaped."""
        while True:
            if node in self.stored:
                node = self.stored[node]
            elif node.target in RESHAPES and isinstance(node.args[0], fx.Node):
                node = node.args[0]
            else:
                return node

    def of(self, node: fx.Node, sizes: Sequence[int]) -> fx.Node:
        """Returns the elements of `node` in a view of the given sizes; axes of one element may be among them."""
        found, wanted = self.base(node), tuple(sizes)
        if self.sizes[found] == wanted:
            return found
        if (found, wanted) not in self._written:
            self._written[found, wanted] = self.call("reshape", found, wanted, sizes=wanted)
        return self._written[found, wanted]

    def call(self, target: Any, *args: Any, sizes: Sequence[int], **kwargs: Any) -> fx.Node:
        """Writes a call of a function, or of a method where the target is a name; `sizes` are the result's."""
        write = self.graph.call_method if isinstance(target, str) else self.graph.call_function
        return self._noted(write(target, args, kwargs), tuple(sizes))

    def layer(self, target: Any, value: fx.Node, sizes: Sequence[int] | None = None) -> fx.Node:
        """Writes a call of a layer; its result has the sizes of `value` where none are given."""
        return self._noted(self.graph.call_module(str(target), (value,)), tuple(sizes or self.sizes[value]))

    def _noted(self, node: fx.Node, sizes: Sizes) -> fx.Node:
        self.sizes[node] = sizes
        if self.origin is not None and "onnx" in self.origin.meta:
            node.meta["onnx"] = self.origin.meta["onnx"]
        return node
