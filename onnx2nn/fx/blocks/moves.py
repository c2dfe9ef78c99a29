"""Moves values between containers, so that a block takes few arguments, and those that its author gave it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Set
from typing import Any

import torch
from torch import fx

from onnx2nn.fx.blocks.merged_values import compute_apart
from onnx2nn.fx.blocks.owners import copy_for_users, place
from onnx2nn.fx.blocks.scopes import (
    Scoped,
    arithmetic,
    around_chain,
    dimension_of,
    is_size,
    numbers,
    plain_values,
    size_expressions,
)
from onnx2nn.fx.tracing.tracer import ASSERTIONS
from onnx2nn.importing.regions import Path, around_of, common
from onnx2nn.sizes.expression import Size
from onnx2nn.sizes.linear import slope


def assign(program: Scoped, declared: Mapping[fx.Node, Path | None]) -> None:
    """Finds the containers of `program`, and gives every call its container.

    Checks of inputs stand at the entry. Numbers are computed where they are used; a size is read from a tensor that is
    there, if its size expression is equal. What no weight affects and several regions use moves out of them, unless its
    own module has no weights either.

    Args:
        program: its containers and scopes are filled; its graph gets copies of nodes.
        declared: the scope that the file names for a call, None where it names none.
    """
    program.find_containers()
    if program.containers == {()}:
        program.scope = dict.fromkeys(program.graph.nodes, ())
        return
    place(program, declared)
    compute_apart(program, declared)
    _check_inputs_first(program)
    if any(map(is_size, program.graph.nodes)):  # numbers are computed of sizes alone
        _use_given_sizes(program)
        _compute_sizes_near_their_use(program)
        _read_devices_near_their_use(program)
        _read_sizes_near_their_use(program)
        _read_computed_sizes(program)
        _compute_sizes_of_dimensions(program)
    _move_out(program)


_MAKERS = (torch.zeros, torch.ones, torch.full)


def _use_given_sizes(program: Scoped) -> None:
    """Uses the number that a tensor was made with in place of its size, which a mask is computed of in every layer."""
    for node in list(program.graph.nodes):
        match node.target, node.args:
            case "size", (fx.Node(args=(list(sizes), *_)) as made, int(axis)) if made.target in _MAKERS:
                if isinstance(sizes[axis], fx.Node):
                    node.replace_all_uses_with(sizes[axis])
                    program.graph.erase_node(node)
                    del program.scope[node]


def _compute_sizes_near_their_use(program: Scoped) -> None:
    """Copies what is computed of sizes alone into every region that uses it, so that no number leaves a region."""
    known = numbers(program.graph)
    for node in reversed([node for node in program.graph.nodes if node in known and not is_size(node)]):
        copy_for_users(program, node, program.scope.__getitem__)


def _read_devices_near_their_use(program: Scoped) -> None:
    """Reads the device in every region from the first tensor that it takes, as the tensors of a program share one.

    A region that takes none, as one that makes positions of sizes, gets what the region around it takes.
    """
    devices = [node for node in program.graph.nodes if node.target is getattr]
    if not devices:
        return
    scope, position = program.scope, {node: index for index, node in enumerate(program.graph.nodes)}
    regions = {scope[user] for node in devices for user in node.users}
    taken = _first_taken(program, regions | around_of(regions))
    reads: dict[_Reading, fx.Node] = {}
    for node in devices:
        (tensor, _) = node.args
        for user in list(node.users):
            around = (scope[user][:end] for end in range(len(scope[user]), 0, -1))
            found = next((taken[region] for region in around if region in taken), None)
            if found is None or found is tensor or position[found] >= position[user]:
                continue
            _read_instead(program, reads, user, node, (found, "device"))
        if not node.users:
            program.graph.erase_node(node)
            del scope[node]


_Reading = tuple[Any, ...]
"""A region, a tensor, and what is read of it: the number of a dimension, or `"device"`."""


def _read_instead(
    program: Scoped, reads: dict[_Reading, fx.Node], user: fx.Node, node: fx.Node, args: tuple[fx.Node, int | str]
) -> None:
    """Gives a call what its region reads of a tensor there, once for the region, in place of a node that is equal."""
    region = program.scope[user]
    key = (region, *args)
    if key not in reads:
        op, target = ("call_function", getattr) if args[1] == "device" else ("call_method", "size")
        reads[key] = program.graph.create_node(op, target, args)
        reads[key].meta.update(node.meta)
        program.scope[reads[key]] = region
    if not reads[key] < user:
        user.prepend(reads[key])
    user.replace_input_with(node, reads[key])


def _first_taken(program: Scoped, regions: Set[Path]) -> dict[Path, fx.Node]:
    """Returns for each region the first tensor from outside that a call in it reads, where there is one."""
    found: dict[Path, fx.Node] = {}
    for node in program.graph.nodes:
        inside = program.scope[node]
        if is_size(node) or not node.op.startswith("call_"):
            continue
        for used in node.all_input_nodes:
            if used.op != "get_attr" and (spec := program.specs.get(used)) is not None and spec.shape is not None:
                shared = len(common((inside, program.scope[used])))
                for region in (inside[:end] for end in range(shared + 1, len(inside) + 1)):
                    if region in regions:
                        found.setdefault(region, used)
    return found


def _read_sizes_near_their_use(program: Scoped) -> None:
    """Reads a size in every region from the first tensor there with an equal dimension, alike in equal regions."""
    sizes = [node for node in program.graph.nodes if is_size(node)]
    if not sizes:
        return
    scope, position = program.scope, {node: index for index, node in enumerate(program.graph.nodes)}
    dimensions = {node: size for node in sizes if (size := dimension_of(program, node)) is not None}
    wanted = {(scope[user], size) for node, size in dimensions.items() for user in node.users}
    equal, fed = _equal_dimensions(program, wanted, _itself), _fed(program)
    reads: dict[_Reading, fx.Node] = {}
    for node in sizes:
        tensor = node.args[0]
        if not isinstance(tensor, fx.Node):
            continue
        present = [scope[tensor], *(scope[user] for user in tensor.users if not is_size(user))]
        present += [scope[user] for user in node.users if scope[user] not in fed]
        size = dimensions.get(node)
        for user in list(node.users):
            if size is None or user.target in ASSERTIONS or (not scope[user] and not scope[tensor]):
                continue
            before = (item for item in equal.get((scope[user], size), ()) if position[item[0]] < position.get(user, 0))
            other, axis = next(before, (None, 0))
            if other is None:
                continue
            _read_instead(program, reads, user, node, (other, axis))

        def nearest(user: fx.Node, present: list[Path] = present) -> Path:
            return max((common((scope[user], path)) for path in present), key=len)

        copy_for_users(program, node, nearest)
        if not node.users:
            program.graph.erase_node(node)
            del scope[node]


def _read_computed_sizes(program: Scoped) -> None:
    """Reads a number that a region computes of sizes outside from a tensor there that has it as a dimension.

    Behind a convolution of stride 2, `height // 2` of the image is `x.size(2)` of what a block takes.
    """
    known, sizes, computed = _computed_outside(program)
    if not computed:
        return
    scope, position = program.scope, {node: index for index, node in enumerate(program.graph.nodes)}
    wanted = {(scope[user], sizes[node]) for node in computed for user in node.users}
    equal = _equal_dimensions(program, wanted, program.settled)
    reads: dict[_Reading, fx.Node] = {(scope[node], *node.args): node for node in sizes if is_size(node)}
    for node in computed:
        for user in list(node.users):
            places = equal.get((scope[user], sizes[node]), ())
            found = next((place for place in places if position[place[0]] < position[user]), None)
            if found is None or user.target in ASSERTIONS:
                continue
            _read_instead(program, reads, user, node, found)
    _erase_unused(program, known)


def _compute_sizes_of_dimensions(program: Scoped) -> None:
    """Computes a number of a dimension of a tensor in its region, instead of sizes outside.

    The newer exporter computes `2 * x.size(2)` of what a block takes of the image's height, `(h - 1) // 2 * 2 + 2`.
    """
    known, sizes, computed = _computed_outside(program)
    if not computed:
        return
    scope, position = program.scope, {node: index for index, node in enumerate(program.graph.nodes)}
    wanted = {(scope[user], slope(sizes[node])) for node in computed for user in node.users}
    related = _equal_dimensions(program, wanted, lambda size: slope(program.settled(size)))
    made: dict[_Reading, list[fx.Node]] = {}
    for node in reversed(computed):  # what only a replaced number needs is unused then
        for user in list(node.users):
            places = related.get((scope[user], slope(sizes[node])), ())
            found = next((place for place in places if position[place[0]] < position[user]), None)
            if found is None or user.target in ASSERTIONS:
                continue
            key = (scope[user], *found, sizes[node])
            if key not in made:
                made[key] = _computed_of(program, node, sizes[node], found)
                scope.update(dict.fromkeys(made[key], scope[user]))
            for step in made[key]:
                if not step < user:
                    user.prepend(step)
            user.replace_input_with(node, made[key][-1])
        if not node.users:
            program.graph.erase_node(node)
            del scope[node]
    _erase_unused(program, known)


def _computed_outside(program: Scoped) -> tuple[set[fx.Node], dict[fx.Node, Size], list[fx.Node]]:
    """Returns all numbers, the size expressions of some, and those of these that are computed of sizes outside."""
    known = numbers(program.graph)
    sizes = size_expressions(program, known)
    return known, sizes, [node for node in sizes if not is_size(node) and _reads_outside(program, node, known)]


def _computed_of(program: Scoped, node: fx.Node, size: Size, place: tuple[fx.Node, int]) -> list[fx.Node]:
    """Returns calls that compute `size`, in place of `node`, of a dimension of a tensor; the last one gives it."""
    graph = program.graph
    steps = [graph.create_node("call_method", "size", place)]
    dimension = dimension_of(program, steps[0])
    assert dimension is not None, "its slope is that of the size"
    for function, number in arithmetic(size, program.settled(dimension)):
        steps.append(graph.create_node("call_function", function, (steps[-1], number)))
    for step in steps:
        step.meta.update(node.meta)
    return steps


def _erase_unused(program: Scoped, known: Set[fx.Node]) -> None:
    """Erases numbers that nothing uses any more."""
    for node in reversed(list(program.graph.nodes)):
        if node in known and not node.users:
            program.graph.erase_node(node)
            del program.scope[node]


def _reads_outside(program: Scoped, node: fx.Node, known: Set[fx.Node]) -> bool:
    """Returns whether a number is computed in a region of numbers outside it, which the region would take."""
    inside, pending = program.scope[node], [node]
    while pending:
        last = pending.pop()
        if program.scope[last][: len(inside)] != inside:
            return True
        pending += [used for used in last.all_input_nodes if used in known]
    return False


def _fed(program: Scoped) -> set[Path]:
    """Returns the regions that take a tensor; another takes one whose sizes or device it reads, in place of these.

    What a region inside of one takes from outside both, both take.
    """
    found: set[Path] = {()}
    plain = plain_values(program.graph)
    for node in program.graph.nodes:
        inside = program.scope[node]
        for used in () if inside in found or is_size(node) else node.all_input_nodes:
            if used.op != "get_attr" and used not in plain:
                shared = len(common((inside, program.scope[used])))
                found.update(inside[:end] for end in range(shared + 1, len(inside) + 1))
    return found


def _equal_dimensions(
    program: Scoped, wanted: Set[tuple[Path, Any]], of: Callable[[Size], Any]
) -> dict[tuple[Path, Any], list[tuple[fx.Node, int]]]:
    """Returns the tensors that are used in a region and have a size, for some of both, and where they have it.

    Sizes with the same `of` are equal here.
    """
    found: dict[tuple[Path, Any], dict[tuple[fx.Node, int], None]] = {key: {} for key in wanted}
    regions, sizes = ({key[item] for key in wanted} for item in (0, 1))
    dimensions: dict[fx.Node, list[tuple[int, Any]]] = {}
    for node in program.graph.nodes:
        region = program.scope[node]
        if region not in regions or not node.op.startswith("call_") or is_size(node):
            continue
        for tensor in node.all_input_nodes:
            if tensor not in dimensions:
                spec = program.specs.get(tensor)
                shape = () if spec is None else spec.shape or ()
                dimensions[tensor] = [
                    (axis, key)
                    for axis, size in enumerate(shape)
                    if isinstance(size, Size) and (key := of(size)) in sizes
                ]
            for axis, size in dimensions[tensor]:
                if (region, size) in found:
                    found[region, size][tensor, axis] = None
    return {key: [*places] for key, places in found.items()}


def _itself(size: Size) -> Size:
    return size


def _weighted(program: Scoped) -> tuple[dict[fx.Node, int], dict[Path, int]]:
    """Returns the containers around the layers and weights that each node depends on, as bits, and the bit of each."""
    found: dict[fx.Node, int] = {}
    bits: dict[Path, int] = {}
    around: dict[Path, int] = {}
    for node in program.graph.nodes:
        path, mask = program.scope[node], 0
        for used in node.all_input_nodes:
            mask |= found[used]
        if program.has_weights(node):
            if path not in around:
                prefixes = (path[:end] for end in range(len(path) + 1))
                around[path] = sum(bits.setdefault(prefix, 1 << len(bits)) for prefix in prefixes)
            mask |= around[path]
        found[node] = mask
    return found, bits


def _check_inputs_first(program: Scoped) -> None:
    """Places the checks that no weight affects at the entry, with what they alone use.

    Their conditions would be computed, of what is in a module, behind the call that they are to stand in front of.
    """
    checks = [node for node in program.graph.nodes if node.target in ASSERTIONS]
    weighted: set[fx.Node] = set()
    for node in program.graph.nodes if checks else ():
        if program.has_weights(node) or not weighted.isdisjoint(node.all_input_nodes):
            weighted.add(node)
    early = {node for node in checks if node not in weighted}
    for node in reversed(program.graph.nodes) if early else ():
        if node.op.startswith("call_") and node.users and early.issuperset(node.users):
            early.add(node)
    program.scope |= dict.fromkeys(early, ())


def _move_out(program: Scoped) -> None:
    """Moves values that several regions share, and that no weight affects, to the innermost region around all of them.

    An attention mask is computed in the first layer of a file and used in all layers; here it becomes their argument.
    """
    scope = program.scope
    weighted, bits, moved = dict[fx.Node, int](), dict[Path, int](), set[fx.Node]()
    for node in reversed(program.graph.nodes):
        if node.op not in ("call_function", "call_method") or not node.users:
            continue
        inside, users = scope[node], [scope[user] for user in node.users]
        if users.count(inside) == len(users):
            continue
        target = common([inside, *users])
        level = inside[: len(target) + 1]
        if target == inside or _follows_layer(program, node, level):
            continue
        if not weighted:
            weighted, bits = _weighted(program)
        if moved.isdisjoint(node.users) and _is_returned(inside, len(level), users, bits):
            continue
        # A module without weights, such as a rotary embedding, gives what it computes.
        if level in bits and _first_module(inside, len(level)) in bits and not weighted[node] & bits[level]:
            scope[node] = target
            moved.add(node)
    for node in program.graph.find_nodes(op="get_attr", sort=False):
        if node.users:
            users = [scope[user] for user in node.users]
            movable = program.is_movable(node)
            scope[node] = around_chain(program, node, common(users)) if movable else common([scope[node], *users])


def _is_returned(inside: Path, end: int, users: Iterable[Path], weighted: Container[Path]) -> bool:
    """Returns whether a module without weights gives a value to the modules around it alone, which return it, too.

    Args:
        inside: the container of the value.
        end: the least number of steps to such a module.
        users: the containers of the calls that use it.
        weighted: those around weights.
    """
    own = next((size for size in range(end, len(inside) + 1) if inside[:size] not in weighted), None)
    return own is not None and all(inside[: min(len(user), own)] == user[:own] for user in users)


def _follows_layer(program: Scoped, node: fx.Node, around: Path) -> bool:
    """Returns whether a call computes with the result of a layer inside of a container."""
    layers = (used for used in node.all_input_nodes if used.op == "call_module")
    return any(program.scope[layer][: len(around)] == around for layer in layers)


def _first_module(path: Path, end: int) -> Path:
    """Returns the outermost module on a path, of at least `end` steps, that is no list of numbered ones."""
    while end < len(path) and path[end].isdecimal():
        end += 1
    return path[:end]
