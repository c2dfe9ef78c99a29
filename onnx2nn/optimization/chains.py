"""Pairs of calls of which the second alone reads the first: in a graph, and in an `nn.Sequential`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx, nn

from onnx2nn.fx.modules.module_tree import children_of


@dataclass(frozen=True)
class Link:
    """A call of a layer whose input nothing else reads.

    Attributes:
        before: the layer that gives the input; None where a function does.
        layer: the layer.
        part: the module that calls both.
        name: of the layer in it.
        node: the call in the graph; None in an `nn.Sequential`.
    """

    before: nn.Module | None
    layer: nn.Module
    part: nn.Module
    name: str
    node: fx.Node | None


class Calls:
    """Counts how often each module is called in a tree.

    Args:
        root: the tree.
    """

    def __init__(self, root: nn.Module):
        self._counts: Counter[nn.Module] = Counter()
        for part in parts(root):
            if isinstance(part, nn.Sequential):
                self._counts.update(part)
            else:
                calls = [node for node in part.graph.nodes if node.op == "call_module"]
                self._counts.update(part.get_submodule(str(node.target)) for node in calls)

    def __getitem__(self, module: nn.Module) -> int:
        """The number of places at which a module is called."""
        return self._counts[module]


def parts(root: nn.Module) -> list[fx.GraphModule | nn.Sequential]:
    """Returns the modules of a tree whose calls are known."""
    return [module for module in root.modules() if isinstance(module, (fx.GraphModule, nn.Sequential))]


def links(part: fx.GraphModule | nn.Sequential) -> Iterator[Link]:
    """Yields the calls of layers in a module whose input is a result that nothing else reads."""
    if isinstance(part, nn.Sequential):
        layers = [(name, layer) for name, layer in children_of(part).items() if type(layer) is not nn.Identity]
        for (_, previous), (name, layer) in itertools.pairwise(layers):
            yield Link(previous, layer, part, name, None)
        return
    for node in list(part.graph.nodes):
        source = node.args[0] if node.args else None
        if node.op != "call_module" or not isinstance(source, fx.Node) or len(source.users) != 1:
            continue
        before = part.get_submodule(str(source.target)) if source.op == "call_module" else None
        yield Link(before, part.get_submodule(str(node.target)), part, str(node.target), node)
