"""Equal parts of a program: calls that do the same with different weights, one part after the other.

A part gives one value to the calls around it. Two parts are equal if, from their results backwards, the same functions
and layers have the same arguments up to their numbers; what both read (a mask, a table of angles) stays outside. A sum
may go around a part of itself by a branch of its own in one of them, as the residual connections of a ResNet do, or be
missing. A part may continue the result of the one before it joined with earlier results, as those of a DenseNet do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.fx.blocks.owners import SUMS
from onnx2nn.fx.blocks.scopes import plain_values
from onnx2nn.fx.tracing.tracer import ASSERTIONS

_NEAREST = 24
"""The most earlier calls of its kind that a call is compared with."""

_WEIGHTED = 2
"""The fewest calls of a part that use weights; one layer with an activation is none."""


def _is_several(kinds: Sequence[Any], of: Sequence[Any]) -> bool:
    """Returns whether calls are those of a smaller part several times."""
    times, one = len(kinds) // len(of), Counter(of)
    return Counter(kinds) == Counter({kind: count * times for kind, count in one.items()})


@dataclass(eq=False)
class Part:
    """A part of a program.

    Attributes:
        result: its last call.
        entry: the value that it continues.
        nodes: its calls and reads of weights, with the node that does the same in the part that all are compared with;
            None for those of a branch that this one lacks.
    """

    result: fx.Node
    entry: fx.Node
    nodes: dict[fx.Node, fx.Node | None] = field(default_factory=dict)


def find_equal_parts(root: nn.Module, graph: fx.Graph, outside: Set[fx.Node]) -> list[list[Part]]:
    """Returns groups of equal parts, each in the order of its results; no call is in two parts.

    Args:
        root: the module of the program.
        graph: the program.
        outside: the calls and reads of weights that are in no part.
    """
    search, found = _Search(root, graph, outside), list[list[Part]]()
    while True:
        groups = [group for group in map(search.occurrences, search.templates()) if len(group) > 1]
        if not groups:
            return found
        # The group that covers most; of the same calls divided at different places, that into most parts, the last.
        best = max(groups, key=lambda g: (sum(len(part.nodes) for part in g), len(g), search.index[g[-1].result]))
        found.append(best)
        search.taken |= {node for part in best for node in part.nodes}


class _Search:
    """The state of `find_equal_parts`.

    Attributes:
        index: the position of each node.
        taken: what is in a part already, or may be in none.
    """

    def __init__(self, root: nn.Module, graph: fx.Graph, outside: Set[fx.Node]):
        self.root, self.graph = root, graph
        self.index = {node: index for index, node in enumerate(graph.nodes)}
        self.taken = set(outside)
        self.numbers = plain_values(graph)
        self.fed: set[fx.Node] = set()
        self.kinds: dict[fx.Node, Any] = {}
        for node in graph.nodes:
            self.kinds[node] = self._kind(node)
            if node.op == "placeholder" or not self.fed.isdisjoint(node.all_input_nodes):
                self.fed.add(node)

    def _kind(self, node: fx.Node) -> Any:
        """Returns what equal calls have in common; None for what is in no part."""
        if node.op not in ("call_module", "call_function", "call_method", "get_attr"):
            return None
        if node in self.numbers or node.target in ASSERTIONS:
            return None
        if node.op == "get_attr":
            return "get_attr"
        if node.op == "call_module":
            return type(self.root.get_submodule(str(node.target)))
        item = node.args[1] if getattr(node.target, "__name__", "") == "getitem" else None
        return node.target, item if isinstance(item, int) else None

    def templates(self) -> Iterator[Part]:
        """Yields a part of each kind, which continues the result of an equal part."""
        earlier: dict[Any, list[fx.Node]] = {}
        known: set[tuple[Any, ...]] = set()
        for node, kind in self.kinds.items():
            if kind is None or kind == "get_attr" or node in self.taken:
                continue
            others, small = earlier.setdefault(kind, []), list[tuple[Any, ...]]()
            for other in reversed(others[-_NEAREST:]):
                found = self._continuing(node, other)
                if found is None:
                    continue
                signature = tuple(self.kinds[inner] for inner in found.nodes)
                if not self._is_large(found):
                    small.append(signature)
                    continue
                if signature not in known and not any(_is_several(signature, part) for part in small):
                    known.add(signature)
                    yield Part(node, found.entry, {inner: inner for inner in found.nodes})
                break  # what is equal to parts farther away is several of them
            others.append(node)

    def _continuing(self, node: fx.Node, other: fx.Node) -> Part | None:
        """Returns the part with the result `node` that continues the equal one with the result `other`.

        It continues the value itself, or one that joins it with earlier ones, as the layers of a DenseNet do.
        """
        joined = next((user for user in other.users if user.target is torch.cat), other)
        for last in dict.fromkeys((other, joined)):
            found = _Walk(self, last=last).run(node, other)
            if found is not None and self._is_closed(found):
                return found
        return None

    def occurrences(self, template: Part) -> list[Part]:
        """Returns the parts that are equal to `template`, itself among them."""
        found: list[Part] = []
        taken = set(self.taken)
        main = self.main_argument(template.result, template.entry)
        for result in (template.result, main):
            for node in self.graph.nodes:
                if result is None or self.kinds[node] != self.kinds[result] or node in taken:
                    continue
                part = _Walk(self, entry=template.entry, inside=template.nodes).run(node, template.result)
                if part is None or not taken.isdisjoint(part.nodes):
                    continue
                if not self._is_closed(part) or not self._is_large(part):
                    continue
                found.append(part)
                taken |= part.nodes.keys()
        return sorted(found, key=lambda part: self.index[part.result])

    def main_argument(self, node: fx.Node, entry: fx.Node | None) -> fx.Node | None:
        """Returns the value that a sum adds to the value `entry`, None for another call and for a bias."""
        if node.target not in SUMS or len(node.all_input_nodes) != 2 or entry not in node.all_input_nodes:
            return None
        main = next(arg for arg in node.all_input_nodes if arg is not entry)
        return None if main.op == "get_attr" else main

    def _is_closed(self, part: Part) -> bool:
        """Returns whether nothing but the result of a part is used by calls outside."""
        for node in part.nodes:
            if node is part.result or node.op == "get_attr":
                continue
            for user in node.users:
                if user not in part.nodes and user not in self.numbers and user.op != "output":
                    return False
        return True

    def _is_large(self, part: Part) -> bool:
        """Returns whether several calls in a part use weights."""
        count = 0
        for node in part.nodes:
            if node.op == "call_module":
                count += next(self.root.get_submodule(str(node.target)).parameters(), None) is not None
            else:
                count += any(used.op == "get_attr" and used in part.nodes for used in node.all_input_nodes)
        return count >= _WEIGHTED

    def arguments(self, node: fx.Node) -> list[fx.Node]:
        """Returns the values that a call takes, in order, without numbers."""
        found: list[fx.Node] = []
        fx.map_arg((node.args, node.kwargs), found.append)
        return [arg for arg in found if arg not in self.numbers]

    def branch(self, end: fx.Node, start: fx.Node) -> list[fx.Node] | None:
        """Returns the calls and weights after `start` up to `end`; None if they depend on other values."""
        found: dict[fx.Node, None] = {}
        pending, reached = [end], False
        while pending:
            node = pending.pop()
            if node is start:
                reached = True
            elif node not in found:
                if self.kinds[node] is None or (node in self.fed and self.index[node] < self.index[start]):
                    return None
                found[node] = None
                pending += self.arguments(node)
        return list(found) if reached else None


class _Walk:
    """Compares two results, and what they are computed of, backwards.

    Args:
        search: the state of the search.
        last: the value that the first part continues, where it is known.
        entry: the value that the second part continues, where it is known.
        inside: the nodes of the second part, where they are known.
    """

    def __init__(
        self,
        search: _Search,
        *,
        last: fx.Node | None = None,
        entry: fx.Node | None = None,
        inside: Mapping[fx.Node, Any] | None = None,
    ):
        self.search, self.last, self.entry, self.inside = search, last, entry, inside
        self.first = 0 if last is None else search.index[last]
        self.pairs: dict[fx.Node, fx.Node] = {}
        self.back: dict[fx.Node, fx.Node] = {}
        self.pending: list[tuple[fx.Node, fx.Node]] = []
        self.around: list[tuple[fx.Node, fx.Node]] = []

    def run(self, one: fx.Node, other: fx.Node) -> Part | None:
        """Returns the first part, whose result is `one`; None where it is not equal to that with the result `other`."""
        self.pending.append((one, other))
        while self.pending:
            if not self._compare(*self.pending.pop()):
                return None
        nodes: dict[fx.Node, fx.Node | None] = dict(self.pairs)
        for pair in self.around:
            branch = self._go_around(*pair)
            if branch is None:
                return None
            nodes |= {node: None for node in branch if node not in nodes}
        if self.last is None or self.last in nodes or self.entry is None:
            return None
        return Part(one, self.last, nodes)

    def _compare(self, one: fx.Node, other: fx.Node) -> bool:
        """Compares two calls, and notes their arguments."""
        kinds = self.search.kinds
        if one is self.last or other is self.entry:
            return self._meet(one, other)
        if one in self.pairs or other in self.back:
            return self.pairs.get(one) is other and self.back.get(other) is one
        if one is other if self.inside is None else other not in self.inside:
            return True  # what both read
        if kinds[one] is None or kinds[one] != kinds[other]:
            main = self.search.main_argument(other, self.entry)
            if main is None:
                return False
            self.pending.append((one, main))  # the first has no residual connection here
            return True
        if self.search.index[one] < self.first and one in self.search.fed:
            return False
        self.pairs[one], self.back[other] = other, one
        mine, others = self.search.arguments(one), self.search.arguments(other)
        if len(mine) != len(others):
            return False
        pairs = list(zip(mine, others, strict=True))
        if one.target in SUMS and len(pairs) == 2:
            around = [pair for pair in pairs if self._is_around(*pair)]
            if len(around) == len(pairs):
                return False  # what they add to the value is not equal
            self.around += around
            pairs = [pair for pair in pairs if pair not in around]
        self.pending += reversed(pairs)
        return True

    def _is_around(self, one: fx.Node, other: fx.Node) -> bool:
        """Returns whether two summands may be what was given: the value itself or a branch of it."""
        if one is self.last or other is self.entry:
            return True
        kinds = self.search.kinds
        read = one is other if self.inside is None else other not in self.inside
        return not read and kinds[one] != kinds[other]

    def _meet(self, one: fx.Node, other: fx.Node) -> bool:
        """Notes the values that the two parts continue; returns whether they do so everywhere alike."""
        self.last = self.last or one
        self.entry = self.entry or other
        return one is self.last and other is self.entry

    def _go_around(self, one: fx.Node, other: fx.Node) -> Sequence[fx.Node] | None:
        """Returns the calls of the first part's branch around other calls; None if there is no such branch in both."""
        last, entry = self.last or one, self.entry or other
        mine, others = self.search.branch(one, last), self.search.branch(other, entry)
        self.last, self.entry = last, entry
        return None if mine is None or others is None else mine
