"""Decides which containers of a program become classes, which calls each makes, and its inputs and outputs."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from onnx2nn.fx.blocks.activations import module_of
from onnx2nn.fx.blocks.repeats import module_path
from onnx2nn.fx.blocks.scopes import Path, Scoped, is_attribute, is_size, path_of
from onnx2nn.fx.held_state import GRAPH_MEMBERS
from onnx2nn.fx.module_tree import members_of
from onnx2nn.importing.plan import LIST

Item = Any
"""A part of a body: an `fx.Node`, or a `Region` that is called."""


@dataclass(eq=False)
class Region:
    """A container with a forward of its own.

    Attributes:
        path: where it is in the module tree.
        items: its calls, in order.
        inputs: values of other regions that it uses, in the order of their use.
        outputs: its values that others use.
        slots: the modules of an `nn.Sequential` by name, where it can be written as one; a node is an activation.
        first: the first call of its container, where this is a further one.
        nodes: its calls and those of the regions in it.
        position: of the first of these in the program.
    """

    path: Path
    items: list[Item] = field(default_factory=list)
    inputs: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
    slots: dict[str, Item | None] | None = None
    first: Region | None = None
    nodes: set[fx.Node] = field(default_factory=set)
    position: int = 0

    @functools.cached_property
    def arguments(self) -> list[fx.Node | tuple[fx.Node, ...]]:
        """The arguments of its forward: its inputs; inputs that it joins before anything else are one list."""
        tensors = {node for node in self.inputs if node.op != "get_attr" and not is_size(node)}
        for item in self.items if self.path and self.slots is None and len(tensors) > 1 else ():
            joined: Any = item.args[0] if isinstance(item, fx.Node) and item.target is torch.cat else ()
            alone = [node for node in joined if isinstance(node, fx.Node) and node.users.keys() & self.nodes == {item}]
            if len(alone) == len(joined) == len(tensors) and set(alone) == tensors:
                return [tuple(alone), *(node for node in self.inputs if node not in tensors)]
        return list(self.inputs)


@dataclass(eq=False)
class Partition:
    """The regions of a program.

    Attributes:
        program: the divided program.
        regions: by path; the root's is at `()`.
        children: the containers directly inside each container.
        flat: why a container is no region, by its dotted path.
    """

    program: Scoped
    regions: dict[Path, Region] = field(default_factory=dict)
    children: dict[Path, list[Path]] = field(default_factory=dict)
    flat: dict[str, str] = field(default_factory=dict)

    def holder(self, path: Path) -> Path:
        """Returns the path of the innermost region around what stands at `path`."""
        return next(path[:end] for end in reversed(range(len(path))) if path[:end] in self.regions or not end)

    @functools.cached_property
    def read_at_home(self) -> frozenset[str]:
        """The keys of weights and constants that the region around them reads."""
        return frozenset(
            str(item.target)
            for region in self.regions.values()
            for item in region.items
            if isinstance(item, fx.Node) and item.op == "get_attr" and self.holder(path_of(item.target)) == region.path
        )


def divide(program: Scoped) -> Partition:
    """Returns the regions of `program`."""
    result = Partition(program)
    for path in sorted(program.containers, key=lambda path: (len(path), path)):
        result.children.setdefault(path, [])
        if path:
            result.children[path[:-1]].append(path)
    _Divider(result).visit(())
    return result


class _Divider:
    """Decides from the innermost containers outwards."""

    def __init__(self, partition: Partition):
        self.partition, self.program = partition, partition.program
        self.position = {node: index for index, node in enumerate(self.program.graph.nodes)}
        self.inputs = {node: node.all_input_nodes for node in self.program.graph.nodes}
        self.layers: dict[Path, list[Path]] = {}
        for layer in self.program.layers:
            self.layers.setdefault(layer[:-1], []).append(layer)
        self.direct: dict[Path, list[fx.Node]] = {}
        self.reads: dict[Path, list[fx.Node]] = {}
        for node in self.program.graph.nodes:
            if node.op == "get_attr":
                self.reads.setdefault(path_of(node.target)[:-1], []).append(node)
            if node.op not in ("placeholder", "output"):
                self.direct.setdefault(self.program.scope[node], []).append(node)

    def visit(self, path: Path) -> tuple[list[fx.Node], list[Region]]:
        """Makes the regions in and at `path`; returns the nodes and regions that remain for the outer container."""
        nodes, regions = list(self.direct.get(path, [])), []
        for child in self.partition.children[path]:
            inner_nodes, inner_regions = self.visit(child)
            nodes += inner_nodes
            regions += inner_regions
        while True:
            order = self._order(nodes, regions)
            if isinstance(order, list):
                break
            if order.first is None:
                del self.partition.regions[order.path]
                self.partition.flat[".".join(order.path)] = "a value that leaves it comes back into it"
            # It and its neighbours need each other: dissolve it, and its further calls, into the body around.
            for region in [region for region in regions if order in (region, region.first)]:
                regions.remove(region)
                nodes += [item for item in region.items if isinstance(item, fx.Node)]
                regions += [item for item in region.items if isinstance(item, Region)]
        region = Region(module_path(path), order)
        if not path:
            self.partition.regions[path] = region
            placeholders = [node for node in self.program.graph.nodes if node.op == "placeholder"]
            region.inputs = placeholders
            region.slots = self._slots(region) if self._is_list(path) else None
            return [], [region]
        if not order:
            self.partition.flat[".".join(path)] = "the file names no call of it"
            return [], []
        region.nodes = set(nodes).union(*(inner.nodes for inner in regions))
        region.position = min(map(self._position, order))
        region.items = self._canonical(region)
        self._connect(region)
        if region.path != path:
            first = self.partition.regions.get(region.path)
            return ([], [region]) if first is not None and _repeats(first, region) else (nodes, regions)
        program = self.program
        hidden = GRAPH_MEMBERS.intersection(members_of(program.module(path)))
        if hidden:
            self.partition.flat[".".join(path)] = f"modules with a graph have a member {min(hidden)!r} already"
            return nodes, regions
        numbered = self._is_list(path)
        region.slots = self._slots(region) if numbered or _is_series(region) else None
        if (numbered and region.slots is None) or not region.outputs:
            reason = LIST if region.outputs else "nothing outside uses a value of it"
            self.partition.flat[".".join(path)] = reason
            return nodes, regions
        self.partition.regions[path] = region
        return [], [region]

    def _slots(self, region: Region) -> dict[str, Item | None] | None:
        """Returns the content of an `nn.Sequential` for `region`, None where the container holds more."""
        program, path = self.program, region.path
        slots = _slots(region)
        if slots is None or program.parameters(path) or any(hasattr(torch.nn.Sequential, name) for name in slots):
            return None
        kept = {name for name, item in slots.items() if isinstance(item, Region) or (item and item.op == "call_module")}
        own = any(".".join((*path, name)) in program.persistent for name in program.buffers(path))
        others = [program.module((*path, name)) for name in program.children(path) if name not in kept]
        if own or any(inner.state_dict() for inner in others):
            return None
        return None if path and self._is_read_outside(region, kept) else slots

    def _is_read_outside(self, region: Region, kept: Set[str]) -> bool:
        """Returns whether a call outside of a region reads a tensor in its container, but not in the modules `kept`."""
        end = len(region.path)
        return any(
            holder[:end] == region.path
            and kept.isdisjoint(holder[end : end + 1])
            and not region.nodes.issuperset(reads)
            for holder, reads in self.reads.items()
        )

    def _is_list(self, path: Path) -> bool:
        """Returns whether a container holds modules under numbers, which are no names of attributes."""
        return any(not is_attribute(module_path(child)[-1]) for child in self._children(path))

    def _children(self, path: Path) -> Iterable[Path]:
        yield from self.layers.get(module_path(path), ())
        yield from self.partition.children[path]

    def _order(self, nodes: list[fx.Node], regions: list[Region]) -> list[Item] | Region:
        """Returns a body's items such that each follows its inputs; if no order does, a region to dissolve."""
        if not regions:
            return sorted(nodes, key=self.position.__getitem__)
        first: dict[Item, int] = {item: self._position(item) for item in (*nodes, *regions)}
        producers = _producers(first)
        waits = {item: {producers[arg] for arg in self._inputs(item) if arg in producers} for item in first}
        if all(first[other] < first[item] for item, used in waits.items() for other in used):
            return sorted(first, key=first.__getitem__)
        followers: dict[Item, list[Item]] = {item: [] for item in first}
        for item, used in waits.items():
            for other in used:
                followers[other].append(item)
        queue = [(position, item) for item, position in first.items() if not waits[item]]  # no two positions are equal
        heapq.heapify(queue)
        order: list[Item] = []
        while queue:
            _, item = heapq.heappop(queue)
            order.append(item)
            for follower in followers[item]:
                waits[follower].discard(item)
                if not waits[follower]:
                    heapq.heappush(queue, (first[follower], follower))
        if len(order) == len(first):
            return order
        stuck = sorted((region for region in regions if waits[region]), key=lambda region: len(region.nodes))
        around = (region for region in stuck if self._encloses_others(region))
        return next(around, None) or next(region for region in stuck if _reaches_itself(region, followers))

    def _encloses_others(self, region: Region) -> bool:
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

    def _inputs(self, item: Item) -> list[fx.Node]:
        """Returns the values that an item uses."""
        return self.inputs[item] if isinstance(item, fx.Node) else item.inputs

    def _position(self, item: Item) -> int:
        return self.position[item] if isinstance(item, fx.Node) else item.position

    def _canonical(self, region: Region) -> list[Item]:
        """Returns a region's items in an order that depends on its structure alone, so that equal regions are equal."""
        producers = _producers(region.items)
        before = {item: [producers[arg] for arg in self._inputs(item) if arg in producers] for item in region.items}
        found: dict[Item, None] = {}
        for end in region.items:
            values = _values(end)
            used = any(node.users for node in values)
            if used and all(region.nodes.issuperset(node.users) for node in values):
                continue
            stack = [end]
            while stack:
                following = [item for item in before[stack[-1]] if item not in found]
                if following:
                    stack += reversed(following)
                else:
                    found[stack.pop()] = None
        return [*found]

    def _connect(self, region: Region) -> None:
        inside = region.nodes
        inputs = {arg: None for item in region.items for arg in self._inputs(item) if arg not in inside}
        placeholders = [node for node in inputs if node.op == "placeholder"]
        if len(placeholders) > 1:  # the model's own inputs come first, in their order
            inputs = {**dict.fromkeys(sorted(placeholders, key=self.position.__getitem__)), **inputs}
        region.inputs = sorted(inputs, key=lambda node: node.op == "get_attr")
        values = (node for item in region.items for node in _values(item))
        region.outputs = [node for node in values if not inside.issuperset(node.users)]
        region.outputs.sort(key=self.position.__getitem__)


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


def _repeats(first: Region, other: Region) -> bool:
    """Returns whether `other` makes the calls of `first`; it becomes a further call of its module."""
    if len(first.items) != len(other.items) or len(first.inputs) != len(other.inputs):
        return False
    same = dict(zip(first.inputs, other.inputs, strict=True))
    for one, another in zip(first.items, other.items, strict=True):
        if isinstance(one, Region) and isinstance(another, Region):
            modules = (one.first or one, another.first or another)
            if modules[0] is not modules[1] or [same[node] for node in one.inputs] != another.inputs:
                return False
            same |= zip(one.outputs, another.outputs, strict=True)
        elif isinstance(one, fx.Node) and isinstance(another, fx.Node):
            arguments = fx.map_arg((one.args, one.kwargs), same.__getitem__)
            if (one.op, one.target) != (another.op, another.target) or arguments != (another.args, another.kwargs):
                return False
            same[one] = another
        else:
            return False
    results = [same[node] for node in first.outputs]
    if not set(other.outputs) <= set(results):
        return False
    other.outputs, other.slots, other.first = results, first.slots, first
    return True


def _values(item: Item) -> Sequence[fx.Node]:
    """Returns the values of an item that others may use."""
    return (item,) if isinstance(item, fx.Node) else item.outputs


def _producers(items: Iterable[Item]) -> dict[fx.Node, Item]:
    """Returns the items by the values that others may use."""
    return {node: item for item in items for node in _values(item)}


_GAP = 16
"""Longest gap in the numbers of a Sequential that is filled with identities; a longer gap has another reason."""


def _is_series(region: Region) -> bool:
    """Returns whether a region calls other regions of numbered names alone: `block_0`, `block_1`."""
    names = [item.path[len(region.path) :] for item in region.items if isinstance(item, Region)]
    if len(names) != len(region.items) or len(names) < 2 or any(len(name) != 1 for name in names):
        return False
    stems = {name[0].rstrip("0123456789") for name in names}
    return len(stems) == 1 and all(name[0] != name[0].rstrip("0123456789") for name in names)


def _slots(region: Region) -> dict[str, Item | None] | None:
    """Returns the content of an `nn.Sequential` for `region`, None where its calls form no chain."""
    if len(region.inputs) != 1 or (region.path and len(region.outputs) != 1):
        return None
    value = region.inputs[0]
    slots: dict[str, Item | None] = {}
    pending: list[fx.Node] = []
    for item in region.items:
        produced = _link(value, item, value is region.inputs[0])
        if produced is None:
            return None
        value = produced
        if isinstance(item, fx.Node) and item.op != "call_module":
            pending.append(item)
            continue
        path = item.path if isinstance(item, Region) else tuple(str(item.target).split("."))
        if path[:-1] != region.path or path[-1] in slots or not _fill(slots, pending, path[-1]):
            return None
        slots[path[-1]], pending = item, []
    ends = region.outputs == [value] if region.path else _is_root_output(value)
    if not slots or not ends or (pending and not all(name.isdecimal() for name in slots)):
        return None
    _fill(slots, pending, None)
    return slots


def _link(value: fx.Node, item: Item, first: bool) -> fx.Node | None:
    """Returns the result of `item` where it is the next link of a chain after `value`, None otherwise.

    A link uses nothing but `value`; except for the first value, nothing but the link uses `value`.
    """
    inside = {item} if isinstance(item, fx.Node) else item.nodes
    if not first and not inside >= value.users.keys():
        return None
    if isinstance(item, Region):
        return item.outputs[0] if item.inputs == [value] and len(item.outputs) == 1 else None
    if item.all_input_nodes != [value] or item.args[:1] != (value,):
        return None
    if item.op == "call_module":
        return item if len(item.args) == 1 and not item.kwargs else None
    return item if module_of(item) is not None else None


def _is_root_output(value: fx.Node) -> bool:
    """Returns whether `value` is the only output of the model."""
    return [user.args[0] for user in value.users if user.op == "output"] == [value]


def _fill(slots: dict[str, Item | None], pending: list[fx.Node], name: str | None) -> bool:
    """Puts activations into the free numbers before `name`; returns whether they fit."""
    taken = [int(slot) for slot in slots if slot.isdecimal()]
    start = max(taken) + 1 if taken else 0
    if name is None:
        slots |= {str(start + offset): node for offset, node in enumerate(pending)}
        return True
    if not name.isdecimal():
        return not pending and not taken
    if len(taken) != len(slots) or not len(pending) <= int(name) - start <= _GAP:
        return False
    free = range(start, int(name))
    slots |= {str(number): pending[number - start] if number - start < len(pending) else None for number in free}
    return True
