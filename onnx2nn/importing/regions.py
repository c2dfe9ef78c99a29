"""Decides which containers of a program become modules that run, which calls each makes, its inputs and outputs."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

Path = tuple[str, ...]

REENTERED = "a value that leaves it comes back into it"
"""Why a container has no forward of its own: calls outside of it stand between its calls."""


class Node(Protocol):
    """A call of a program, as `torch.fx.Node` describes one; a read of a weight has the `op` `get_attr`."""

    @property
    def op(self) -> str:
        """Its kind."""
        ...

    @property
    def users(self) -> Mapping[Any, None]:
        """The nodes that use its values."""
        ...

    @property
    def all_input_nodes(self) -> Sequence[Any]:
        """The nodes whose values it uses."""
        ...


N = TypeVar("N", bound=Node)

Item = Any
"""A part of a body: a node, or a `Region` that is called."""


@dataclass(eq=False)
class Region(Generic[N]):
    """A container with a forward of its own.

    Attributes:
        path: where it is in the module tree.
        items: its calls, in order.
        inputs: values of other regions that it uses, in the order of their use.
        outputs: its values that others use, in the order in which it returns them.
        first: the first call of its container, where this is a further one.
        nodes: its calls and those of the regions in it.
    """

    path: Path
    items: list[Item] = field(default_factory=list)
    inputs: list[N] = field(default_factory=list)
    outputs: list[N] = field(default_factory=list)
    first: Any = None
    nodes: set[N] = field(default_factory=set)


R = TypeVar("R", bound=Region[Any])


@dataclass(eq=False)
class Regions(Generic[R]):
    """The regions of a program.

    Attributes:
        regions: by path; the root's is at `()`.
        children: the containers directly inside each container.
        flat: why a container is no region, by its dotted path.
    """

    regions: dict[Path, R] = field(default_factory=dict)
    children: dict[Path, list[Path]] = field(default_factory=dict)
    flat: dict[str, str] = field(default_factory=dict)


class Divider(Generic[N, R]):
    """Decides from the innermost containers outwards; a framework says what else its modules need.

    Args:
        nodes: the program, each node after its inputs.
        scope: the path of each node's container.
        containers: paths of the modules that hold modules or weights; the empty path is the root.
        found: receives the regions.
    """

    def __init__(self, nodes: Sequence[N], scope: Mapping[N, Path], containers: Iterable[Path], found: Regions[R]):
        self.checks = _checks(nodes)
        self.nodes, self.found = _early(nodes, self.checks), found
        self.scope = scope
        self.position: dict[Item, int] = {node: index for index, node in enumerate(self.nodes)}
        self.inputs: dict[Item, Sequence[N]] = {node: node.all_input_nodes for node in self.nodes}
        ends = (value for node in self.nodes if node.op == "output" for value in node.all_input_nodes)
        self.returned: dict[N, int] = {value: index for index, value in enumerate(ends)}
        self.direct: dict[Path, list[N]] = {}
        for node in self.nodes:
            if node.op not in ("placeholder", "output"):
                self.direct.setdefault(scope[node], []).append(node)
        for path in sorted(containers, key=lambda path: (len(path), path)):
            found.children.setdefault(path, [])
            if path:
                found.children[path[:-1]].append(path)

    def region(self, path: Path, items: list[Item]) -> R:
        """Returns a new region of a container, or of a further call of it."""
        raise NotImplementedError

    def callee(self, item: Item) -> Hashable:
        """Returns the module that an item of a body calls, None where it calls none."""
        return (item.first or item) if isinstance(item, Region) else None

    def complete_root(self, region: R) -> None:
        """Completes the region of the root."""

    def refusal(self, path: Path, region: R) -> str | None:
        """Returns why a container cannot be the module of `region`, `""` for no need to tell, None where it can."""
        raise NotImplementedError

    def visit(self, path: Path) -> tuple[list[N], list[R]]:
        """Makes the regions in and at `path`; returns the nodes and regions that remain for the outer container."""
        nodes: list[N] = self.direct.pop(path, [])
        regions: list[R] = []
        for child in self.found.children[path]:
            inner_nodes, inner_regions = self.visit(child)
            nodes += inner_nodes
            regions += inner_regions
        while True:
            items = sorted((*nodes, *regions), key=self.position.__getitem__)  # a region where its first call is
            before = self._before(nodes, regions)
            order = self._order(items, before, regions)
            if isinstance(order, list):
                break
            if order.first is None:
                del self.found.regions[order.path]
                self.found.flat[".".join(order.path)] = REENTERED
            # It and its neighbours need each other: dissolve it, and its further calls, into the body around.
            for region in [region for region in regions if order in (region, region.first)]:
                regions.remove(region)
                nodes += [item for item in region.items if not isinstance(item, Region)]
                regions += [item for item in region.items if isinstance(item, Region)]  # type: ignore[misc]  # R
        region = self.region(path, order)
        if not path:
            self.found.regions[path] = region
            region.inputs = [node for node in self.nodes if node.op == "placeholder"]
            self.complete_root(region)
            return [], [region]
        if not order:
            self.found.flat[".".join(path)] = "the file names no call of it"
            return [], []
        region.nodes = set(nodes).union(*(inner.nodes for inner in regions))
        self.position[region] = self.position[items[0]]
        ends, region.outputs = self._ends(order, region)
        region.items = _canonical(order, ends, self._in_turn(order, before))
        region.inputs = self.inputs[region] = self._inputs(region)
        reason = self.refusal(path, region)
        if reason is not None:
            if reason:
                self.found.flat[".".join(path)] = reason
            return nodes, regions
        if region.first is None:
            self.found.regions[path] = region
        return [], [region]

    def _before(self, nodes: Sequence[N], regions: Sequence[R]) -> dict[Item, list[Item]]:
        """Returns the items of a body whose values each of them uses."""
        producers: dict[N, Item] = dict(zip(nodes, nodes, strict=True))
        for region in regions:
            producers |= dict.fromkeys(region.outputs, region)
        return {item: [producers[arg] for arg in self.inputs[item] if arg in producers] for item in (*nodes, *regions)}

    def _in_turn(self, items: Iterable[Item], before: Mapping[Item, Sequence[Item]]) -> Mapping[Item, Sequence[Item]]:
        """Returns the items that each of a body follows: whose values it uses, and the call of a module before it.

        Hooks see the calls in this order, which structure does not tell where none needs another's result. A call is
        where it first computes: sizes that it reads may stand before all calls.
        """
        items = list(items)
        turns = {item: self._turn(item) for item in items if self.callee(item) is not None}
        if any(one > other for one, other in itertools.pairwise(turns.values())):
            items, _ = self._sorted(items, before, lambda item: turns.get(item, self.position[item]))
        calls = [item for item in items if item in turns]
        return {**before, **{item: [last, *before[item]] for last, item in itertools.pairwise(calls)}}

    def _turn(self, item: Item) -> int:
        """Returns where an item first computes with a value, or where it is."""
        inside = item.nodes if isinstance(item, Region) else ()
        return min((self.position[node] for node in inside if self._goes_on(node)), default=self.position[item])

    def _order(self, items: list[Item], before: Mapping[Item, Sequence[Item]], regions: list[R]) -> list[Item] | R:
        """Returns a body's items such that each follows those before it; if no order does, a region to dissolve."""
        first = self.position
        # A node follows what it uses, but a region may begin before something that it needs.
        if all(first[other] < first[region] for region in regions for other in before[region]):
            return items
        order, waits = self._sorted(items, before, first.__getitem__)
        if len(order) == len(items):
            return order
        followers: dict[Item, list[Item]] = {item: [] for item in items}
        for item, used in before.items():
            for other in used:
                followers[other].append(item)
        stuck = sorted((region for region in regions if waits[region]), key=lambda region: len(region.nodes))
        around = (region for region in stuck if self._encloses_others(region))
        return next(around, None) or next(region for region in stuck if _reaches_itself(region, followers))

    def _sorted(
        self, items: Iterable[Item], before: Mapping[Item, Sequence[Item]], first: Callable[[Item], int]
    ) -> tuple[list[Item], dict[Item, set[Item]]]:
        """Returns items such that each follows those before it, else in the order of `first`, and what others wait for.

        Checks of inputs come first. Items that wait for each other are left out.
        """
        waits = {item: set(used) for item, used in before.items()}
        followers: dict[Item, list[Item]] = {item: [] for item in waits}
        for item, used in waits.items():
            for other in used:
                followers[other].append(item)
        # No two positions are equal.
        queue = [(item not in self.checks, first(item), item) for item in items if not waits[item]]
        heapq.heapify(queue)
        order: list[Item] = []
        while queue:
            *_, item = heapq.heappop(queue)
            order.append(item)
            for follower in followers[item]:
                waits[follower].discard(item)
                if not waits[follower]:
                    heapq.heappush(queue, (follower not in self.checks, first(follower), follower))
        return order, waits

    def _encloses_others(self, region: R) -> bool:
        """Returns whether a call outside of a region lies between two calls in it; no other region's end changes it."""
        last, pending = max(map(self.position.__getitem__, region.nodes)), [*region.nodes]
        found = set(pending)
        while pending:
            for user in pending.pop().users:
                if user not in found and self.position[user] < last:
                    found.add(user)
                    pending.append(user)
        outside = found - region.nodes
        return any(not region.nodes.isdisjoint(node.users) for node in outside)

    def _ends(self, items: Iterable[Item], region: R) -> tuple[list[Item], list[N]]:
        """Returns the items of a region whose values others use, or none, and the values that others use.

        The values are in the order of their calls, or in the program's where it returns all of them. Before that order
        come those that calls in the nearest module go on with, in a list of modules by their first uses; behind it come
        those that no call goes on with: what a layer gives to all that follow, its author returns beside its result.
        A cell's state comes behind what the cell's gate lets out of it. Of those that are equally near, what no weight
        affects comes last, as the scale of a result does.
        """
        ends: list[Item] = []
        outputs: list[N] = []
        inside = region.nodes
        for item in items:
            if isinstance(item, Region):
                leaving = [value for value in item.outputs if not inside.issuperset(value.users)]
                is_used = any(value.users for value in item.outputs)
            else:
                leaving, is_used = [] if inside.issuperset(item.users) else [item], bool(item.users)
            if leaving or not is_used:
                ends.append(item)
                outputs += leaving
        if len(outputs) < 2 or self.returned.keys() >= set(outputs):
            return ends, sorted(outputs, key=lambda value: self.returned.get(value, 0))
        order = {
            value: (*self._use(value, region), self._is_state(value, outputs), self.position[value])
            for value in outputs
        }
        return ends, sorted(outputs, key=order.__getitem__)

    def _use(self, value: N, region: R) -> tuple[int, bool, int]:
        """Returns how far from a region calls go on with a value of it, whether the region passes it on, and in a list
        where the first of them is.
        """
        users = [user for user in value.users if user not in region.nodes and self._goes_on(user)]
        near = max((len(common((self.scope[user], region.path))) for user in users), default=-1)
        listed = region.path[-1].isdecimal() and near == len(region.path) - 1
        first = min(self.position[user] for user in users) if listed else 0
        return -near, self._is_passed_on(value, region), first

    def _is_passed_on(self, value: N, region: R) -> bool:
        """Returns whether no weight in a region affects a value of it, where the framework tells."""
        return False

    def _goes_on(self, user: N) -> bool:
        """Returns whether a node computes with a value, where others return it."""
        return user.op != "output"

    def _is_state(self, value: N, results: Collection[N]) -> bool:
        """Returns whether a result is the state of a cell, of which another result is the gated activation."""
        return False

    def _inputs(self, region: R) -> list[N]:
        """Returns the values that a region uses of others."""
        inside = region.nodes
        inputs = {arg: None for item in region.items for arg in self.inputs[item] if arg not in inside}
        kinds: dict[Hashable, list[N]] = {}
        for value in inputs:
            kinds.setdefault(self._kind(value), []).append(value)
        alike = {
            kind: iter(sorted(values, key=lambda value: self._first_use(value, region)) if kind is not None else values)
            for kind, values in kinds.items()
        }
        inputs = {next(alike[self._kind(value)]): None for value in inputs}
        placeholders = [node for node in inputs if node.op == "placeholder"]
        if len(placeholders) > 1:  # the model's own inputs come first, in their order
            inputs = {**dict.fromkeys(sorted(placeholders, key=self.position.__getitem__)), **inputs}
        return sorted(inputs, key=lambda node: node.op == "get_attr")

    def _kind(self, value: N) -> Hashable:
        """Returns what is equal for arguments that could be exchanged unnoticed: they stand as the program uses them.

        None for any other argument; these stand as the calls of the region, which its results order, use them.
        """
        return None

    def _first_use(self, value: N, region: R) -> int:
        """Returns where the program first goes on with a value in a region."""
        users = [user for user in value.users if user in region.nodes]
        return min(self.position[user] for user in [*filter(self._goes_on, users)] or users)


def _canonical(items: list[Item], ends: Iterable[Item], before: Mapping[Item, Sequence[Item]]) -> list[Item]:
    """Returns a region's items in an order that depends on its structure alone, so that equal regions are equal."""
    if len(items) == 1:
        return items
    found: dict[Item, None] = {}
    for end in ends:
        stack = [(end, iter(before[end]))]
        while stack:
            item, used = stack[-1]
            for other in used:
                if other not in found:
                    stack.append((other, iter(before[other])))
                    break
            else:
                found[item] = None
                stack.pop()
    return [*found]


def _checks(nodes: Sequence[N]) -> set[N]:
    """Returns the calls that nothing uses, and what only they use."""
    checks = set[N]()
    for node in reversed(nodes):
        if node.op not in ("placeholder", "output") and checks.issuperset(node.users):
            checks.add(node)
    return checks


def _early(nodes: Sequence[N], checks: Collection[N]) -> list[N]:
    """Returns a program in which each check follows the last of the values that it needs.

    A block that needs what is checked begins before the call that the check was recorded for.
    """
    if not checks:
        return [*nodes]
    place = {node: index for index, node in enumerate(nodes)}
    for node in nodes:
        if node in checks:
            place[node] = max((place[used] for used in node.all_input_nodes), default=place[node])
    return sorted(nodes, key=place.__getitem__)


def _reaches_itself(item: Item, followers: Mapping[Item, Sequence[Item]]) -> bool:
    """Returns whether an item needs what it computes; others wait for one that does, and have an order after it."""
    found, pending = set[Item](), [item]
    while pending:
        for follower in followers[pending.pop()]:
            if follower is item:
                return True
            if follower not in found:
                found.add(follower)
                pending.append(follower)
    return False


def around_of(paths: Iterable[Path]) -> set[Path]:
    """Returns the paths of all modules around those at `paths`, without the outermost."""
    found = set[Path]()
    for path in paths:
        around = path[:-1]
        while around and around not in found:
            found.add(around)
            around = around[:-1]
    return found


def common(paths: Iterable[Path]) -> Path:
    """Returns the longest path that all of `paths` begin with."""
    first, *others = paths
    for other in others:
        if other[: len(first)] != first:
            end = 0
            while end < min(len(first), len(other)) and first[end] == other[end]:
                end += 1
            first = first[:end]
    return first
