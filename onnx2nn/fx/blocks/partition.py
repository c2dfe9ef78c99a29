"""The partition of a program of torch.fx: blocks, and containers that are an `nn.Sequential`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Hashable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.fx.blocks.activations import module_of
from onnx2nn.fx.blocks.repeats import module_path
from onnx2nn.fx.blocks.scopes import Scoped, is_size, numbers, path_of
from onnx2nn.fx.modules.module_tree import children_of, is_persistent, members_of, own_buffers, own_parameters
from onnx2nn.fx.tracing.held_state import GRAPH_MEMBERS
from onnx2nn.ground.naming import without_call_number
from onnx2nn.importing import regions
from onnx2nn.importing.plan import DICTIONARY, LIST
from onnx2nn.importing.regions import Item, Path


@dataclass(eq=False)
class Region(regions.Region[fx.Node]):
    """A container with a forward of its own.

    Attributes:
        slots: the modules of an `nn.Sequential` by name, where it can be written as one; a node is an activation.
    """

    slots: dict[str, Item | None] | None = None

    @functools.cached_property
    def arguments(self) -> list[fx.Node | tuple[fx.Node, ...]]:
        """The arguments of its forward: its inputs; inputs that it joins before anything else are one list."""
        if len(self.inputs) < 2 or not self.path or self.slots is not None:
            return list(self.inputs)
        tensors = {node for node in self.inputs if node.op != "get_attr" and not is_size(node)}
        for item in self.items if len(tensors) > 1 else ():
            if not isinstance(item, fx.Node) or item.target is not torch.cat:
                continue
            joined: Any = item.args[0]
            alone = [node for node in joined if isinstance(node, fx.Node) and node.users.keys() & self.nodes == {item}]
            if len(alone) == len(joined) == len(tensors) and set(alone) == tensors:
                return [tuple(alone), *(node for node in self.inputs if node not in tensors)]
        return list(self.inputs)


@dataclass(eq=False, kw_only=True)
class Partition(regions.Regions[Region]):
    """The regions of a program.

    Attributes:
        program: the divided program.
    """

    program: Scoped

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
    result = Partition(program=program)
    _Divider(result).visit(())
    return result


class _Divider(regions.Divider[fx.Node, Region]):
    """Chooses what can be a module of torch's: a block, an `nn.Sequential`, a further call of a module."""

    def __init__(self, partition: Partition):
        program = self.program = partition.program
        super().__init__([*program.graph.nodes], program.scope, program.containers, partition)
        self.partition = partition
        self.further: dict[Path, list[Region]] = {}
        self.reads: dict[Path, list[fx.Node]] = {}
        for node in program.graph.find_nodes(op="get_attr"):
            self.reads.setdefault(path_of(node.target)[:-1], []).append(node)
        self.numbers = numbers(program.graph)
        self.called = {path_of(node.target) for node in program.graph.find_nodes(op="call_module")}

    def region(self, path: Path, items: list[Item]) -> Region:
        """Returns the region of the module that is called at `path`."""
        return Region(module_path(path), items)

    def callee(self, item: Item) -> Hashable:
        """Returns the module that an item of a body calls, None where it calls none."""
        if isinstance(item, fx.Node):
            return str(item.target) if item.op == "call_module" else None
        return super().callee(item)

    def _goes_on(self, user: fx.Node) -> bool:
        """Returns whether a node computes with a value, where others return it or read its sizes."""
        return super()._goes_on(user) and not is_size(user)

    def _kind(self, value: fx.Node) -> Hashable:
        """Returns the type and shape of a tensor, None for a number or a weight."""
        spec = self.program.specs.get(value)
        if value in self.numbers or value.op == "get_attr" or spec is None or spec.shape is None:
            return None
        return (spec.dtype, *spec.shape)

    def _is_state(self, value: fx.Node, results: Collection[fx.Node]) -> bool:
        """Returns whether a result is the state of a cell, of which another result is the gated activation."""
        gated = (user for active in value.users if active.target is torch.tanh for user in active.users)
        return any(user.target is operator.mul and user in results for user in gated)

    def _is_passed_on(self, value: fx.Node, region: Region) -> bool:
        """Returns whether no weight in a region affects a value of it."""
        found, pending = {value}, [value]
        while pending:
            node = pending.pop()
            if self.program.has_weights(node):
                return False
            inner = [used for used in node.all_input_nodes if used in region.nodes and used not in found]
            found.update(inner)
            pending += inner
        return True

    def complete_root(self, region: Region) -> None:
        """Makes the root an `nn.Sequential` where its modules have numbers, and forgets the paths of further calls."""
        for path in [path for path in self.partition.regions if path != module_path(path)]:
            del self.partition.regions[path]
        region.slots = self._slots(region) if () in self.program.numbered else None

    def refusal(self, path: Path, region: Region) -> str | None:
        """Returns why no module of torch's can run `region`, None where one can."""
        if region.path != path:
            return None if self._is_one_call(region) else ""
        if self._is_further_call(path, region):
            return None
        hidden = GRAPH_MEMBERS.intersection(members_of(self.program.module(path)))
        if hidden:
            return f"modules with a graph have a member {min(hidden)!r} already"
        numbered, called = path in self.program.numbered, path in self.program.called
        region.slots = self._slots(region) if numbered or _is_series(region) else None
        if region.slots and None in region.slots.values() and self.program.noted and not called:
            region.slots = None  # of a list, its author may call what the file lacks with another value
        if not region.outputs:
            return "nothing outside uses a value of it"
        if isinstance(self.program.module(path), nn.ModuleDict):
            return DICTIONARY
        if not called and self.program.noted and len(region.outputs) > 1 and self._holds_modules(path, region):
            return DICTIONARY  # its author's module gives no results: each of the modules in it is called on its own
        return LIST if numbered and region.slots is None and not called else None

    def _holds_modules(self, path: Path, region: Region) -> bool:
        """Returns whether a container has modules alone, and a region of it calls of these."""
        holder = self.program.module(path)
        alone = len(members_of(holder)) == len(children_of(holder))
        return alone and all(isinstance(item, Region) or item.op == "call_module" for item in region.items)

    def _is_one_call(self, region: Region) -> bool:
        """Makes a region a further call of the container at its path, or that container's other calls further ones.

        A call that gives one value for two arguments is a call of a module with both: `cell(x, zeros, zeros)`.
        """
        path = region.path
        first, further = self.partition.regions.get(path), self.further.setdefault(path, [])
        if first is None:
            return False
        self._align(first, region)
        if not _repeats(first, region):
            if any(_same_values(region, other) is None for other in (first, *further)):
                return False
            for other in (first, *further):
                _repeats(region, other)
            self.partition.regions[path], region = region, first
        further.append(region)
        return True

    def _align(self, first: Region, other: Region) -> None:
        """Puts the calls of `other` in the order of `first` where they are the same in the order of the program.

        The order of a region follows from its results, of which the last call of a cell may have one less.
        """
        if len(first.items) != len(other.items) or _same_values(first, other) is not None:
            return
        order = (sorted(region.items, key=self.position.__getitem__) for region in (first, other))
        same, given = dict(zip(*order, strict=True)), other.items
        other.items = [same[item] for item in first.items]
        if _same_values(first, other) is None and _same_values(other, first) is None:
            other.items = given

    def _is_further_call(self, path: Path, region: Region) -> bool:
        """Makes a container without weights a further call of the one whose name it has with a number behind it.

        Torch's older exporter numbers the calls of a module, `gate` and `gate_1`; weights tell of which module one is.
        """
        if path in self.program.noted:
            return False
        first = self.partition.regions.get((*path[:-1], without_call_number(path[-1])))
        if first is None or members_of(self.program.module(path)) or not _repeats(first, region):
            return False
        region.path = first.path
        return True

    def _slots(self, region: Region) -> dict[str, Item | None] | None:
        """Returns the content of an `nn.Sequential` for `region`, None where the container holds more."""
        holder, path = self.program.module(region.path), region.path
        slots = _slots(region)
        if slots is None or own_parameters(holder):
            return None
        if any(hasattr(torch.nn.Sequential, name) for name in slots if not name.isdecimal()):
            return None
        kept = {name for name, item in slots.items() if isinstance(item, Region) or (item and item.op == "call_module")}
        if any((*path, name) in self.called for name in slots.keys() - kept):
            return None  # the module there is called outside, and its value is merged with that of a call here
        again = (inner for name, item in slots.items() if item and (inner := member_of(item, name)) != name)
        if any(children_of(holder)[inner].state_dict() for inner in again):
            return None  # keys of the second number, which the file lacks
        own = any(is_persistent(holder, name) for name in own_buffers(holder))
        if own or any(inner.state_dict() for name, inner in children_of(holder).items() if name not in kept):
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


def _repeats(first: Region, other: Region) -> bool:
    """Returns whether `other` makes the calls of `first`; it becomes a further call of its module."""
    same = _same_values(first, other)
    if same is None:
        return False
    # In place: the division into regions holds the list of inputs too.
    other.inputs[:], other.outputs = ([same[node] for node in nodes] for nodes in (first.inputs, first.outputs))
    other.arguments = [tuple(map(same.__getitem__, a)) if isinstance(a, tuple) else same[a] for a in first.arguments]
    other.slots, other.first = first.slots, first
    return True


def _same_values(first: Region, other: Region) -> dict[fx.Node, fx.Node] | None:
    """Returns the values of a region by those of another that makes the same calls, None where they differ.

    Two inputs of `first` may be one value of `other`, but none may be one that `other` computes.
    """
    if len(first.items) != len(other.items):
        return None
    same: dict[fx.Node, fx.Node] = {}
    inputs, outside = set(first.inputs), set(other.inputs)
    for one, another in zip(first.items, other.items, strict=True):
        given, others = _given(one), _given(another)
        if len(given) != len(others):
            return None
        for node, value in zip(given, others, strict=True):
            if node in inputs:
                if value not in outside:  # what the other computes itself is no argument
                    return None
                same.setdefault(node, value)
        if [same.get(node) for node in given] != others:  # an order that is tried may have one too early
            return None
        if isinstance(one, Region) and isinstance(another, Region):
            modules = (one.first or one, another.first or another)
            if modules[0] is not modules[1]:
                return None
            same |= zip(one.outputs, another.outputs, strict=True)
        elif isinstance(one, fx.Node) and isinstance(another, fx.Node):
            arguments = fx.map_arg((one.args, one.kwargs), same.__getitem__)
            if (one.op, one.target) != (another.op, another.target) or arguments != (another.args, another.kwargs):
                return None
            same[one] = another
        else:
            return None
    return same if set(other.outputs) <= {same[node] for node in first.outputs} else None


def _given(item: Item) -> list[fx.Node]:
    """Returns the values among the arguments of a call, in order; a value that is given twice is there twice."""
    if isinstance(item, Region):
        return item.inputs
    found: list[fx.Node] = []
    fx.map_arg((item.args, item.kwargs), found.append)
    return found


def member_of(item: Item, slot: str) -> str:
    """Returns the name of the module of a slot in its container; an activation of a slot has the slot's name."""
    if isinstance(item, Region):
        return item.path[-1]
    return path_of(item.target)[-1] if item.op == "call_module" else slot


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
    pending: list[Item] = []
    for item in region.items:
        produced = _link(value, item, value is region.inputs[0])
        if produced is None:
            return None
        value = produced
        if isinstance(item, fx.Node) and item.op != "call_module":
            pending.append(item)
            continue
        path = item.path if isinstance(item, Region) else path_of(item.target)
        if path[:-1] != region.path:
            return None
        if path[-1] in slots:  # the module is there under two numbers
            pending.append(item)
            continue
        if not _fill(slots, pending, path[-1]):
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
    if not first and not inside.issuperset(value.users):
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


def _fill(slots: dict[str, Item | None], pending: list[Item], name: str | None) -> bool:
    """Puts activations, and modules that are called again, into the free numbers before `name`.

    Returns whether they fit. The names are numbers that ascend, or none of them is a number.
    """
    last = next(reversed(slots), "")
    start = int(last) + 1 if last.isdecimal() else 0
    if name is None:
        slots |= {str(start + offset): node for offset, node in enumerate(pending)}
        return True
    if not name.isdecimal():
        return not pending and not start
    if (last and not start) or not len(pending) <= int(name) - start <= _GAP:
        return False
    for number in range(start, int(name)):
        slots[str(number)] = pending[number - start] if number - start < len(pending) else None
    return True
