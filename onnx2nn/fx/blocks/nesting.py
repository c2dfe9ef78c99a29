"""Makes a tree of modules that run out of a flat program."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Set
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.fx.blocks.activations import module_of
from onnx2nn.fx.blocks.block import Block, NumberedBlock, class_of
from onnx2nn.fx.blocks.elsewhere import called_from_elsewhere
from onnx2nn.fx.blocks.equal_names import name_equal_parts
from onnx2nn.fx.blocks.extended_layers import calls_made, extend_layers
from onnx2nn.fx.blocks.moves import assign
from onnx2nn.fx.blocks.partition import Partition, Region, divide, member_of
from onnx2nn.fx.blocks.program import REPEAT, Call, Notes, Program, Value
from onnx2nn.fx.blocks.repeats import module_path
from onnx2nn.fx.blocks.scopes import (
    Scoped,
    complete_scopes,
    declared_classes,
    declared_scopes,
    path_of,
    scopes_of_torch,
)
from onnx2nn.fx.blocks.value_hints import annotation, argument_name, class_name_of
from onnx2nn.fx.blocks.weightless import FUNCTIONS, add_scopes, make_modules, remove_empty
from onnx2nn.fx.modules.module_tree import (
    children_of,
    holds_parameters,
    members_of,
    module_at,
    order_children,
    remove,
    set_child,
)
from onnx2nn.fx.modules.pickled_source import RESERVED_NAMES
from onnx2nn.fx.values.spec import Spec
from onnx2nn.ground.naming import is_attribute
from onnx2nn.ground.pass_times import timed
from onnx2nn.importing.plan import DICTIONARY
from onnx2nn.importing.regions import REENTERED, Path, around_of
from onnx2nn.sizes.expression import Number


@timed("nesting")
def nest(
    module: fx.GraphModule,
    specs: dict[fx.Node, Spec],
    nameless: Set[str] = frozenset(),
    made: Set[str] = frozenset(),
    own: Set[str] | None = None,
    settled: Callable[[Number], Number] = lambda size: size,
) -> dict[str, Any]:
    """Makes the containers of an imported module run: each gets the calls that belong to it, and its parent calls it.

    A container becomes a block, or an `nn.Sequential` where its calls are a chain of modules, or an `nn.ModuleList`
    where it holds numbered modules. The keys of the state_dict stay.

    Args:
        module: its graph calls its layers itself; it gets one that calls blocks.
        specs: shapes of its values.
        nameless: the paths of layers and weights that the file does not name; they move to where they are used.
        made: the paths of constants that the exporter made of the author's code.
        own: the author's keys, where equal parts of what the file does not name become blocks too.
        settled: gives a size without what the program's conditions rule out.

    Returns:
        Which containers run (`blocks`, the class by path), why others do not (`flat`, the reason by path), the number
        of `calls`, and of those `inside` of blocks. If there are blocks of which others call parts, which their hooks
        do not see, they are in `entered`, by path. With `own` also `keys`: those that moved weights have otherwise, by
        those that they have now.
    """
    program, notes = (
        Scoped(module, module.graph, specs, nameless=nameless, made=made, settled=settled),
        dict[str, Any](),
    )
    complete_scopes(program)
    declared = declared_scopes(program)
    extended = extend_layers(program, declared)
    of_torch = scopes_of_torch(program, declared)
    named = program.noted or {*of_torch.values()} | around_of(of_torch.values())  # those that are called
    elsewhere = called_from_elsewhere(program, declared)
    callers = {node: declared[node] or () for node in elsewhere}
    if elsewhere:
        declared |= elsewhere
        of_torch = scopes_of_torch(program, declared)
    make_modules(module, of_torch, program.noted, specs)
    added = add_scopes(module, of_torch, program.noted)
    program.called = program.noted | {path for node, path in of_torch.items() if node.op in FUNCTIONS}
    if own is not None:
        placed, notes["keys"] = name_equal_parts(module, module.graph, declared, own)
        declared |= placed
    assign(program, declared)
    _name_root(program)
    if program.containers == {()} and _is_numbered(module.graph):
        return {"blocks": extended, "flat": {}, **_counts(program, _calls(program)), **notes}
    partition = divide(program)
    tree = _Nesting(partition, module).run()
    tree["blocks"] |= extended
    remove_empty(module, added)
    tree["flat"] = {path: why for path, why in tree["flat"].items() if module_at(module, path.split(".")) is not None}
    _name_shared(tree["flat"], elsewhere, callers)
    for path in _list_modules(partition, program.containers - named if named else ()):
        tree["flat"][".".join(path)] = DICTIONARY
    _order_modules(partition)
    entered = _entered(partition)
    return tree | notes | ({"entered": entered} if entered else {})


def _entered(partition: Partition) -> dict[str, str]:
    """Returns the modules of which others call parts, with a part and a caller.

    Their author did so, or what else the module does differs in this call, as with another number among its arguments.
    """
    found = dict[str, str]()
    for caller, region in partition.regions.items():
        around = module_path(caller)
        for item in region.items:
            if not isinstance(item, fx.Node) or item.op != "call_module":
                continue
            target = path_of(item.target)
            for end in range(len(around) + 1, len(target)):
                if target[:end] in partition.regions:
                    by = repr(".".join(around)) if around else "the outermost module"
                    found.setdefault(".".join(target[:end]), f"{by} calls its {'.'.join(target[end:])!r} too")
    return found


def _name_shared(flat: dict[str, str], elsewhere: Mapping[fx.Node, Path], callers: Mapping[fx.Node, Path]) -> None:
    """Names the module that containers leave a value to, where the file names it by its place alone.

    Args:
        flat: the reasons by path, changed in place.
        elsewhere: the scopes of calls in modules that stand elsewhere than in the module that calls them.
        callers: their scopes as they are in the file.
    """
    for node, place in sorted(elsewhere.items(), key=lambda item: len(item[1])):  # the module before those in it
        scope = callers[node]
        for path in (".".join(scope[:end]) for end in range(1, len(scope))):
            if flat.get(path) == REENTERED:
                flat[path] = f"it calls {'.'.join(place)}, of which the file has no name in it"


def _list_modules(partition: Partition, uncalled: Container[Path]) -> list[Path]:
    """Makes lists of the containers that hold numbered modules and nothing else, and dictionaries of others.

    Args:
        partition: of the program.
        uncalled: the containers that nothing calls by the file, as it would a module of the author's.

    Returns:
        The paths of the dictionaries.
    """
    program, dictionaries = partition.program, list[Path]()
    flat = [path for path in program.containers if path and path not in partition.regions]
    for path in sorted(flat, key=len, reverse=True):  # a module before the one around it
        holder = program.find(path)
        if type(holder) is not nn.Module or not (children := children_of(holder)):
            continue
        if len(members_of(holder)) > len(children):
            continue
        numbers = [str(number) for number in range(len(children))]
        if children.keys() == set(numbers):
            program.module(path[:-1]).add_module(path[-1], nn.ModuleList(children[number] for number in numbers))
        elif path in uncalled and not any(name.isdecimal() or hasattr(nn.ModuleDict, name) for name in children):
            program.module(path[:-1]).add_module(path[-1], nn.ModuleDict(dict(children)))
            dictionaries.append(path)
    return dictionaries


def _order_modules(partition: Partition) -> None:
    """Puts the modules without weights, which were added last, in the order of first calls between the others."""
    program = partition.program
    first: dict[Path, int] = {(): 0}

    def note(region: Region) -> None:
        for item in region.items:
            if isinstance(item, fx.Node) and item.op not in ("call_module", "get_attr"):
                continue
            path = path_of(item.target) if isinstance(item, fx.Node) else module_path(item.path)
            while path not in first:  # nor are some of the paths around it
                first[path], path = len(first), path[:-1]
            if isinstance(item, Region):
                note(item)

    note(partition.regions[()])
    for path in program.containers:
        around = program.find(path)
        if around is None or isinstance(around, (nn.Sequential, nn.ModuleList)):
            continue
        latest, children = 0, children_of(around)
        if len(children) < 2:
            continue
        positions = {name: first.get((*path, name), len(first)) for name in children}
        if [*positions.values()] == sorted(positions.values()):
            continue
        for name, child in children.items():
            if holds_parameters(child):
                positions[name] = latest = max(latest, positions[name])  # the order of the state_dict stays
        ordered = sorted(children, key=positions.__getitem__)
        if ordered != list(children):
            order_children(around, ordered)


def _name_root(program: Scoped) -> None:
    """Gives the class of the module its author's name, where the exporter noted it; the class is still its own."""
    found = (declared_classes(node).get("", "").rpartition(".")[2] for node in program.graph.nodes)
    name = next(filter(None, found), "")
    if is_attribute(name) and not hasattr(nn, name):
        type(program.root).__name__ = name


class _Nesting:
    """Builds the modules of a partition, the innermost first.

    Args:
        partition: of the program of `root`.
        root: the flat module.
    """

    def __init__(self, partition: Partition, root: fx.GraphModule):
        self.partition, self.program, self.root = partition, partition.program, root
        self.blocks: dict[str, str] = {}
        self.moved: dict[str, Path] = {}
        self.annotations: dict[fx.Node, str] = {}

    def run(self) -> dict[str, Any]:
        """Replaces the containers by modules that run, and the root's graph."""
        regions = self.partition.regions
        for path in sorted(regions, key=len, reverse=True):
            if path:
                self._replace(regions[path])
        body = _Body(self, regions[()])
        graph = body.graph(self.program.graph.output_node())
        self.root.graph = graph
        outside = [item for item in regions[()].items if isinstance(item, fx.Node) and item.op.startswith("call_")]
        return {"blocks": self.blocks, "flat": dict(self.partition.flat), **_counts(self.program, outside)}

    def _replace(self, region: Region) -> None:
        """Puts the module of a region in the place of its container."""
        path = region.path
        around = self.program.module(path[:-1])
        holder = children_of(around)[path[-1]]
        if region.slots is not None:
            module: nn.Module = self._sequential(region, holder)
        else:
            block, notes = _Body(self, region).block()
            kind = NumberedBlock if any(name.isdecimal() for name in children_of(holder)) else Block
            name = class_name_of(path, self.program.class_names.get(path, ""))
            module = class_of(kind, name, block)(holder, notes)
        set_child(around, path[-1], module)
        self.blocks[".".join(path)] = type(module).__name__

    def _sequential(self, region: Region, holder: nn.Module) -> nn.Sequential:
        """Returns the `nn.Sequential` of a region; its calls' notes are `onnx_calls`, by the name of the module."""
        assert region.slots is not None
        result, held = nn.Sequential(), children_of(holder)
        calls: dict[str, dict[str, Any]] = {}
        for name, item in region.slots.items():
            if item is None:
                child: nn.Module = nn.Identity()
            elif isinstance(item, fx.Node) and item.op != "call_module":
                found = module_of(item)
                assert found is not None
                kind, options = found
                child = kind(**options)
            else:
                child = held[member_of(item, name)]
            if isinstance(item, fx.Node):
                calls[name] = dict(item.meta)
            set_child(result, name, child)
        result.onnx_calls = calls  # type: ignore[assignment]  # a plain attribute, which every way of saving keeps
        return result


_NO_META: Mapping[str, Any] = {}


def _repeat(region: Region) -> Mapping[str, Any]:
    """Returns the notes of a call of a module: `REPEAT` has those of the calls inside, where it is a further call.

    They are in the order of the graph of the module, which has those of the first call; of an `nn.Sequential`, by name.
    """
    first = region.first
    if first is None:
        return _NO_META
    if first.slots is not None:
        notes = dict(zip(first.items, map(_note, region.items), strict=True))
        return {REPEAT: {name: notes[item] for name, item in first.slots.items() if item in notes}}
    found: list[Mapping[str, Any]] = [_NO_META for _ in region.arguments]
    for item in region.items:
        found.append(_note(item))
        if isinstance(item, Region) and len(item.outputs) != 1:
            found += [_NO_META for _ in item.outputs]
    return {REPEAT: [*found, _NO_META]}


def _note(item: fx.Node | Region) -> Mapping[str, Any]:
    return _repeat(item) if isinstance(item, Region) else item.meta


_TYPES = {"int": int, "float": float, "torch.device": torch.device}
"""The types of arguments that are annotated, by name."""


class _Body:
    """Writes the program of one region.

    Args:
        nesting: of the program.
        region: a region whose inner regions are modules already.
    """

    def __init__(self, nesting: _Nesting, region: Region):
        self.nesting, self.region, self.program = nesting, region, nesting.program
        self.calls: list[Call] = []
        self.arguments: list[str] = []
        self.meta: list[Mapping[str, Any]] = []
        self.known: dict[fx.Node, Value] = {}
        self.packed: dict[tuple[fx.Node, ...], Value] = {}

    def block(self) -> tuple[Program, Notes]:
        """Returns the program of a block, and what its graph has besides."""
        self._arguments()
        self._calls()
        results = tuple(self.known[node] for node in self.region.outputs)
        self._add(Call("output", "output", (results[0] if len(results) == 1 else results,)))
        return Program(self.calls), Notes(self.arguments, self.meta)

    def graph(self, output: fx.Node) -> fx.Graph:
        """Returns the graph of the root, with the `output` of the flat graph."""
        for node in self.region.inputs:
            self.known[node] = self._argument(str(node.target), meta=node.meta)
        self._calls()
        self._add(Call("output", "output", fx.map_arg(output.args, self.known.__getitem__)), output.meta)
        return Program(self.calls).graph(Notes(self.arguments, self.meta))

    def _add(self, call: Call, meta: Mapping[str, Any] = _NO_META) -> Value:
        self.calls.append(call)
        self.meta.append(meta)
        return Value(len(self.calls) - 1)

    def _argument(self, name: str, kind: Any = None, meta: Mapping[str, Any] = _NO_META) -> Value:
        self.arguments.append(name)
        return self._add(Call("placeholder", name, type=kind), meta)

    def _arguments(self) -> None:
        """Adds the arguments: `x` for the value that passes from module to module, others by their origin."""
        arguments, known = self.region.arguments, self.nesting.annotations
        tensors = [
            a for a in arguments if isinstance(a, fx.Node) and a.op != "get_attr" and annotation(a, known) == "Tensor"
        ]
        inputs = [argument for argument in tensors if argument.op == "placeholder"]
        main = next((a for a in tensors if a.op == "call_module"), tensors[0] if tensors else None)
        if len(inputs) > 1:
            main = None
        others = (argument for argument in arguments if argument is not main)
        wanted = tuple(argument_name(other) if isinstance(other, fx.Node) else "features" for other in others)
        names = iter(_argument_names(wanted))
        for argument in arguments:
            if isinstance(argument, tuple):
                self.packed[argument] = self._argument(next(names))
            elif argument is main:
                self.known[argument] = self._argument("x")
            else:
                self.known[argument] = self._argument(next(names), _TYPES.get(annotation(argument, known)))

    def _calls(self) -> None:
        for item in self.region.items:
            if isinstance(item, Region):
                self._call_block(item)
            else:
                self.known[item] = self._add(self._call(item), item.meta)

    def _call_block(self, region: Region) -> None:
        given = tuple(
            list(map(self.known.__getitem__, argument)) if isinstance(argument, tuple) else self.known[argument]
            for argument in region.arguments
        )
        called = self._add(Call("call_module", self._inside(region.path), given), _repeat(region))
        if len(region.outputs) == 1:
            self.known[region.outputs[0]] = called
            return
        for index, node in enumerate(region.outputs):
            self.known[node] = self._add(Call("call_function", operator.getitem, (called, index)))

    def _call(self, node: fx.Node) -> Call:
        target, args, kwargs = node.target, node.args, node.kwargs
        if node.op == "call_module":
            target = self._inside(path_of(target))
        elif node.op == "get_attr":
            target = self._attribute(node)
        known = self.known
        if self.packed and target is torch.cat and isinstance(args[0], (list, tuple)):
            joined = self.packed.get(tuple(args[0]))  # type: ignore[arg-type]  # a tuple of nodes is a key
            if joined is not None:
                return Call(node.op, target, (joined, *fx.map_arg(args[1:], known.__getitem__)), kwargs)
        args = fx.map_arg(args, known.__getitem__)
        return Call(node.op, target, args, fx.map_arg(kwargs, known.__getitem__) if kwargs else kwargs)

    def _inside(self, path: Path) -> str:
        """Returns the path of a module as this region's module calls it."""
        assert path[: len(self.region.path)] == self.region.path, "a region calls modules inside of it"
        return ".".join(path[len(self.region.path) :])

    def _attribute(self, node: fx.Node) -> str:
        """Returns the name of a constant or weight in this region's module, to which a buffer elsewhere moves.

        It stays where it is, if the region there reads it too: a call of that region's container is dissolved. A layer
        holds its weights alone, and not what it is given.
        """
        path, key = path_of(node.target), str(node.target)
        given = path[:-1] in self.program.layers and not self.program.persistent[key]
        inside = path[: len(self.region.path)] == self.region.path and not given
        stays = key in self.nesting.partition.read_at_home and not given
        if not self.region.path or not self.program.is_movable(node):
            return self._inside(path)
        if inside and (stays or self.nesting.partition.holder(path) == self.region.path):
            return self._inside(path)
        holder, root = self.program.module(self.region.path), self.program.root
        if key in self.nesting.moved:  # by the first call of a container, of which this one is dissolved
            return self._inside(self.nesting.moved[key])
        if self.program.persistent[key]:
            name = self._free_name(holder, path[-1])
            tensor = getattr(root.get_submodule(".".join(path[:-1])), path[-1])
            if isinstance(tensor, nn.Parameter):
                holder.register_parameter(name, tensor)
            else:
                holder.register_buffer(name, tensor)
        else:
            name = self._free_name(holder, "constant")
            holder.register_buffer(name, root.get_buffer(key), persistent=False)
        if not stays:
            remove(root, key)
            self.nesting.moved[key] = (*self.region.path, name)
        return name

    def _free_name(self, holder: nn.Module, wanted: str) -> str:
        name, number = wanted, 1
        while hasattr(holder, name):
            number += 1
            name = f"{wanted}{number}"
        return name


def _is_numbered(graph: fx.Graph) -> bool:
    """Returns whether the names of nodes count without gaps, as they do where no call was removed."""
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        name, _, number = node.name.rpartition("_")
        if not number.isdecimal():
            name, number = node.name, "0"
        if int(number) != counts[name]:
            return False
        counts[name] += 1
    return True


def _counts(program: Scoped, outside: Collection[fx.Node]) -> dict[str, int]:
    """Returns the number of calls, and of those in blocks; `outside` has the calls that the outermost module makes."""
    made = {node: calls_made(program, node) for node in _calls(program)}
    count = sum(made.values())
    return {"calls": count, "inside": count - sum(made[node] == 1 for node in outside)}


def _calls(program: Scoped) -> list[fx.Node]:
    return [node for node in program.graph.nodes if node.op.startswith("call_")]


@functools.lru_cache(1 << 12)
def _argument_names(wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of the arguments beside `x`, from the ones that they should have; equal blocks have equal ones.

    Torch writes `input_1 = input` for an argument with the name of a builtin: none has the name of such a value.
    """
    names, taken, values = list[str](), {"x", *RESERVED_NAMES}, fx.Graph()
    for name in wanted:
        names.append(_unique(name, taken))
        taken.add(values.placeholder(names[-1]).name)
    return tuple(names)


def _unique(name: str, taken: set[str]) -> str:
    """Returns `name`, numbered where it is taken, and takes it."""
    wanted, number = name, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name
