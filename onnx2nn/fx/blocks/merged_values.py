"""Values that torch's exporters have once, though several modules have each their own.

The newer one merges equal calls, such as the causal masks of all layers, into the first one, and both merge equal
constants, and activations of one value, such as of a step's embedding in all blocks of a diffusion model. Then a layer
would take the mask of another one as an argument.
"""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Set

from torch import fx, nn
from torch.nn import functional as F

from onnx2nn.fx.blocks.activations import activated
from onnx2nn.fx.blocks.cancelled_transposes import transpose_again
from onnx2nn.fx.blocks.repeats import module_path
from onnx2nn.fx.blocks.scopes import Scoped, is_size, numbers, path_of, plain_values, size_expressions
from onnx2nn.fx.modules.module_tree import remove, set_child
from onnx2nn.fx.shape_rules.operands import RANDOM
from onnx2nn.fx.tracing.tracer import ASSERTIONS
from onnx2nn.ground.naming import is_generated
from onnx2nn.importing.regions import Path, around_of, common
from onnx2nn.sizes.expression import Size

_MOST = 1 << 16
"""The most elements of a constant that several regions hold: it has one memory until the module is moved."""


def compute_apart(program: Scoped, declared: Mapping[fx.Node, Path | None]) -> None:
    """Copies what is computed of sizes and constants alone into the regions whose calls name a value of their own.

    What an author computes once and gives to several modules has one name in all of their calls, and stays. So does
    what is computed of sizes that nothing has which a region takes. Each of the regions that read a constant holds it.
    The program of a module that has blocks, of which source is written, stays too: its blocks compute apart already.

    Args:
        program: its scopes are filled; its graph gets copies of nodes.
        declared: the scope that the file names for a call, None where it names none.
    """
    if getattr(program.root, "graph", None) is not program.graph:
        return
    for node in [node for node in program.graph.nodes if len(node.users) > 1]:
        _call_apart(program, node)
    noted = any(node.meta.get("call") for node in program.graph.nodes)
    if not noted:
        transpose_again(program, declared)
        _place_nameless(program, declared)
    copies = _copy_computed(program, noted)
    _hold_apart(program, copies if noted else None)


def _call_apart(program: Scoped, node: fx.Node) -> None:
    """Lets several modules activate a value from outside each, where one of them does it for all.

    The exporter notes that the others had a value of their own, or one of them has an equal module in the same place,
    or the same layer takes the value there: `time_emb` in both.

    Args:
        program: its graph gets copies of the call.
        node: a call; those of modules without state and of activations are copied, what rearranges a tensor, and sums.
            What a copy takes comes from outside of the module of `node`, or the other module takes it there anyway.
    """
    home = program.scope[node]
    others = [user for user in node.users if program.scope[user][: len(home)] != home]
    if not others:
        return
    module = _stateless(program, node) if node.op == "call_module" else None
    computes = node.target in _SUMS or (node.target in _REARRANGING and len(node.all_input_nodes) == 1)
    if module is None and not computes and activated(node) is None:
        return
    name, name_noted = path_of(node.target)[-1] if module is not None else "", _noted_name(node)
    is_first = module is not None and _changes_input(program, node, module)
    twins, lacking, changed = (dict[Path, list[fx.Node]]() for _ in range(3))
    for user in others:
        around = program.scope[user]
        if is_first and home[: len(around)] == around and user.op != "output":
            changed.setdefault(around, []).append(user)
            continue
        shared = next(end for end in range(len(home)) if around[: end + 1] != home[: end + 1])
        own = home[: shared + 1]  # the module around the call that is beside the one around the user
        within = {value for value in (*node.users, *node.all_input_nodes) if program.scope[value][: shared + 1] == own}
        place = around[: len(home)] if computes else around
        if node.target in _SUMS and (given := within.intersection(node.all_input_nodes)):
            taking = _taking(program, given, around, shared)
            if taking is None:
                continue
            place, within = taking, within - given
        if within.isdisjoint(node.users) or not within.isdisjoint(node.all_input_nodes):
            continue
        if _names(user, name_noted) or (computes and not _names_another(user, name_noted)):
            continue
        places = (around[:end] for end in range(len(around), shared, -1))
        twin = next((place for place in places if _holds_equal(program, (*place, name), module)), None)
        if twin is not None:
            twins.setdefault(twin, []).append(user)
        else:
            lacking.setdefault(place, []).append(user)
    readers = _layers_at(node.users, home)
    for place, users in [*twins.items(), *lacking.items()]:
        if place not in twins:
            another = any(_names_another(user, name_noted) for user in users)
            alike = twins or another or _layers_at(users, place) & readers
            holder = program.module(module_path(place))
            if not alike or (module is not None and hasattr(holder, name)):
                continue
            if module is not None:
                set_child(holder, name, copy.deepcopy(module))
        copied = _copied(program, node, place, min(users), {})
        if module is not None:
            copied.target = ".".join((*place, name))
        for user in users:
            user.replace_input_with(node, copied)
    for place, users in changed.items():
        assert module is not None
        holder, name = program.module(module_path(place)), type(module).__name__.lower()
        while hasattr(holder, name):
            name += "_"
        set_child(holder, name, copy.deepcopy(module))
        copied = _copied(program, node, place, min(users), {})
        copied.target = ".".join((*place, name))
        for user in users:
            user.replace_input_with(node, copied)


def _changes_input(program: Scoped, node: fx.Node, module: nn.Module) -> bool:
    """Returns whether a module may change in place what a Sequential is given, which begins with it.

    Its caller computes with the changed value then, of which the Sequential returns nothing.
    """
    home = program.scope[node]
    begins = all(program.scope[value][: len(home)] != home for value in node.all_input_nodes)
    return begins and home in program.numbered and hasattr(module, "inplace")


def _taking(program: Scoped, given: Collection[fx.Node], around: Path, least: int) -> Path | None:
    """Returns the innermost of the modules around a call, of at least some steps, that takes all of some values."""
    places = (around[:end] for end in range(len(around), least - 1, -1))
    taken = [{program.scope[user] for user in value.users} for value in given]
    return next((place for place in places if all(place in found for found in taken)), None)


_REARRANGING = {"unsqueeze", "squeeze", "transpose", "permute", "flatten", F.interpolate}
"""Calls of one tensor that modules share only where the exporter's notes say that each had its own."""

_SUMS = {operator.add}
"""Likewise calls of two tensors, as queries with their positions in all layers of SAM's decoder."""


def _stateless(program: Scoped, node: fx.Node) -> nn.Module | None:
    """Returns the module of torch without state that a call in its container is of, None for another call."""
    target = path_of(node.target)
    module = program.find(target) if target[:-1] == program.scope[node] else None
    if module is None or getattr(nn, type(module).__name__, None) is not type(module) or module.state_dict():
        return None
    return module


def _holds_equal(program: Scoped, path: Path, module: nn.Module | None) -> bool:
    """Returns whether a module equal to another one, if there is one, stands at a path."""
    return module is not None and repr(program.find(path)) == repr(module)


def _layers_at(users: Iterable[fx.Node], place: Path) -> set[Path]:
    """Returns the layers in a module that are among some calls, by their paths in it."""
    paths = (path_of(user.target) for user in users if user.op == "call_module")
    return {path[len(place) :] for path in paths if path[: len(place)] == place}


def _place_nameless(program: Scoped, declared: Mapping[fx.Node, Path | None]) -> None:
    """Places calls that the file names no module for, and that compute of sizes alone, where all their users are."""
    scope = program.scope
    for node in reversed(_numbers_of_computed(program)):
        users = common([scope[user] for user in node.users]) if node.users and declared.get(node) is None else ()
        if users[: len(scope[node])] == scope[node]:
            scope[node] = users


def _copy_computed(program: Scoped, noted: bool) -> Set[fx.Node]:
    """Copies what regions are to compute themselves into them; returns the copies."""
    planned, first = _planned(program, noted), dict[Path, fx.Node]()
    for node in program.graph.nodes if planned else ():
        first.setdefault(program.scope[node], node)
    made = set[fx.Node]()
    for region in sorted(planned, key=len, reverse=True):
        users = {node: [user for user in inside if user in program.scope] for node, inside in planned[region].items()}
        if not any(users.values()):
            continue  # what an inner region computes itself
        begin = min(user for inside in users.values() for user in inside)
        begin = min(begin, first.get(region, begin))
        copies: dict[fx.Node, fx.Node] = {}
        for node in sorted(users):
            copies[node] = _copied(program, node, region, begin, copies)
            for user in users[node]:
                user.replace_input_with(node, copies[node])
        made.update(copies.values())
        for node in sorted(users, reverse=True):
            if not node.users:
                program.graph.erase_node(node)
                del program.scope[node]
    return made


def _planned(program: Scoped, noted: bool) -> dict[Path, dict[fx.Node, list[fx.Node]]]:
    """Returns for each region what it is to compute itself, with the calls that take each.

    Where an exporter notes no calls, what a module with weights makes of sizes is its own: it gives none to others.
    """
    scope, found = program.scope, dict[Path, dict[fx.Node, list[fx.Node]]]()
    read = _numbers_of_computed(program)
    own = set() if noted else _made_by_weighted(program, read)
    for node in read:
        for user in node.users:
            region = _twin(scope[node], scope[user])
            if region != scope[node] and (node in own or _names_another(user, _noted_name(node))):
                found.setdefault(region, {}).setdefault(node, []).append(user)
    known = size_expressions(program, numbers(program.graph)) if found else {}
    taken = _sizes_taken(program, found)
    for region in list(found):
        planned = {
            node: users
            for node, users in found[region].items()
            if all(_is_at_hand(number, known, taken[region]) for number in read[node])
        }
        pending = list(planned)
        while pending:
            for used in pending.pop().all_input_nodes:
                if used in read and used not in planned and scope[used][: len(region)] != region:
                    planned[used] = []
                    pending.append(used)
        found[region] = planned
    return {region: planned for region, planned in found.items() if planned}


def _made_by_weighted(program: Scoped, computed: Collection[fx.Node]) -> set[fx.Node]:
    """Returns those of some calls that modules with weights make of nothing that is computed outside of each."""
    scope, found = program.scope, set[fx.Node]()
    weighted = {scope[node] for node in program.graph.nodes if program.has_weights(node)}
    weighted |= around_of(weighted)
    for node in computed:
        home = scope[node]
        given = [used for used in node.all_input_nodes if used in computed]
        if home and home in weighted and all(used in found and scope[used][: len(home)] == home for used in given):
            found.add(node)
    return found


def _is_at_hand(number: fx.Node, known: Mapping[fx.Node, Size], taken: Set[Size]) -> bool:
    """Returns whether a number is a size of what a region takes, or is computed of such sizes; a device is at hand."""
    pending, seen = [number], set[fx.Node]()
    while pending:
        last = pending.pop()
        if last in seen or last.target is getattr or known.get(last) in taken:
            continue
        if is_size(last):
            return False
        seen.add(last)
        pending += last.all_input_nodes
    return True


def _numbers_of_computed(program: Scoped) -> dict[fx.Node, Set[fx.Node]]:
    """Returns the calls that compute tensors of numbers, devices and the exporter's constants, with those of each."""
    found, read = dict[fx.Node, Set[fx.Node]](), dict[fx.Node, Set[fx.Node]]()
    plain = plain_values(program.graph)
    for node in program.graph.nodes:
        if node in plain:
            read[node] = {node}
        elif node.op == "get_attr":
            if _is_made(program, node):
                read[node] = frozenset()
        elif _is_computed(node) and all(used in read for used in node.all_input_nodes):
            read[node] = frozenset[fx.Node]().union(*(read[used] for used in node.all_input_nodes))
            found[node] = read[node]
    return found


def _computed_of_weights(program: Scoped) -> set[fx.Node]:
    """Returns the calls that compute with weights and constants alone."""
    found, reads = set[fx.Node](), set[fx.Node]()
    for node in program.graph.nodes:
        given = node.all_input_nodes if node.op == "call_module" or _is_computed(node) else []
        if node.op == "get_attr":
            reads.add(node)
        elif given and all(used in reads or used in found for used in given):
            found.add(node)
    return found


def _is_computed(node: fx.Node) -> bool:
    """Returns whether a node is a call that gives the same for the same arguments."""
    return node.op in ("call_function", "call_method") and node.target not in RANDOM and node.target not in ASSERTIONS


def _regions_of(program: Scoped, node: fx.Node, regions: Collection[Path]) -> list[Path]:
    """Returns those of some regions that a node is in."""
    path = program.scope[node]
    return [region for end in range(len(path) + 1) if (region := path[:end]) in regions]


def _sizes_taken(program: Scoped, regions: Collection[Path]) -> dict[Path, set[Size]]:
    """Returns for each region the sizes of the tensors from outside that calls in it read."""
    found: dict[Path, set[Size]] = {region: set() for region in regions}
    for node in program.graph.nodes if regions else ():
        inside = () if is_size(node) else _regions_of(program, node, regions)
        for used in node.all_input_nodes if inside else ():
            spec = program.specs.get(used) if used.op != "get_attr" else None
            known = [] if spec is None else [size for size in spec.shape or () if isinstance(size, Size)]
            for region in inside if known else ():
                if program.scope[used][: len(region)] != region:
                    found[region].update(known)
    return found


def _is_made(program: Scoped, node: fx.Node) -> bool:
    """Returns whether a node reads what the exporter made of the author's code, no weight and no buffer."""
    return program.is_movable(node) and str(node.target) in program.made and not program.persistent[str(node.target)]


def _twin(home: Path, region: Path) -> Path:
    """Returns the region around a user that is to it what `home` is to a value: the layer beside that of the value."""
    if region[: len(home)] == home or len(region) < len(home):
        return region
    return region[: len(home)]


_NUMBER = re.compile(r"_\d+$")
_NAMED = re.compile(r"%(\w+)")


def _noted_name(value: fx.Node) -> str:
    """Returns the name that the exporter notes for the value of a call, `""` where it notes none."""
    return str(value.meta.get("call") or "").partition(" ")[0].removeprefix("%")


def _names(user: fx.Node, name: str) -> bool:
    """Returns whether the exporter notes that a call took the value of this name."""
    return bool(name) and name in _NAMED.findall(str(user.meta.get("call") or "").partition("(args")[2])


def _names_another(user: fx.Node, name: str) -> bool:
    """Returns whether the exporter notes that a call took another value that the same call of torch computed.

    Values of one operator differ by a number in their names (`cos`, `cos_1`).
    """
    text = user.meta.get("call")
    if not text or not name:
        return False
    named = set(_NAMED.findall(text.partition("(args")[2]))
    return name not in named and _NUMBER.sub("", name) in {_NUMBER.sub("", other) for other in named}


def _copied(program: Scoped, node: fx.Node, region: Path, first: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Returns a copy of a node in a region, of what is copied there already, where both the node and the region are."""
    graph = program.graph
    with graph.inserting_before(first) if node < first else graph.inserting_after(node):
        return program.copied(node, region, copies)


def _hold_apart(program: Scoped, copies: Set[fx.Node] | None) -> None:
    """Gives each of several regions that read a constant of the exporter's one of its own, in one memory.

    A number outside of the state_dict is not worth an argument. Of a table, such as the frequencies of positions, the
    regions compute the rest themselves, or their calls name one of their own, or they compute with their weights alone,
    such as Swin's biases of relative positions.

    Args:
        program: its scopes are filled.
        copies: what was copied into regions; None where the exporter does not note its calls. Of one that does, a
            constant that stands for a value of the author's code has the value's name; others are parts of calls,
            merged with equal ones.
    """
    computed: Collection[fx.Node] | None = copies
    kept = set[str]()
    for node in program.graph.find_nodes(op="get_attr"):
        groups: dict[Path, list[fx.Node]] = {}
        for user in node.users:
            groups.setdefault(program.scope[user], []).append(user)
        key, name = str(node.target), str(node.target).rpartition(".")[2]
        if len(groups) < 2 or not program.is_movable(node) or program.persistent[key]:
            continue
        count = program.root.get_buffer(key).numel()
        if count > _MOST:
            continue
        if computed is None:
            computed = {*_numbers_of_computed(program), *_computed_of_weights(program)}
        part_of_calls = copies is not None and is_generated(name)
        apart = part_of_calls or any(user in computed or _names_another(user, name) for user in node.users)
        if count > 1 and not (apart and _is_made(program, node)):
            continue
        for region, users in groups.items():
            copied = _copied(program, node, region, min(users), {})
            copied.target = _held_again(program, key)
            for user in users:
                user.replace_input_with(node, copied)
        program.graph.erase_node(node)
        del program.scope[node]
        kept = kept or {".".join(path) for path in {*program.scope.values()} | around_of(program.scope.values())}
        remove(program.root, key, kept)
    if kept:
        program.containers = {path for path in program.containers if program.find(module_path(path)) is not None}


def _held_again(program: Scoped, key: str) -> str:
    """Returns the name of a further buffer of the outermost module, with the memory of another one."""
    number, last = 1, key.rpartition(".")[2]
    while hasattr(program.root, f"{last}_{number}"):
        number += 1
    name = f"{last}_{number}"
    again = program.root.get_buffer(key).detach()  # torch.jit.trace takes no tensor in two modules
    program.root.register_buffer(name, again, persistent=False)
    program.persistent[name] = False
    return name
