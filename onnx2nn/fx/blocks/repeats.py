"""Containers that are called more than once: which calls of the program are which call of theirs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence, Set

from torch import fx

from onnx2nn.fx.blocks.scopes import Scoped, names_argument, older_scope, path_of, plain_values
from onnx2nn.fx.shape_rules.operands import RANDOM
from onnx2nn.fx.tracing.tracer import ASSERTIONS
from onnx2nn.ground.naming import without_call_number
from onnx2nn.importing.regions import Path, around_of

MARK = "."
"""Before the number of a call in a step of a path; no name of a module can have it."""


def module_path(path: Path) -> Path:
    """Returns the path of the module that is called at `path`, in which steps may have numbers of calls."""
    for step in path:
        if MARK in step:
            return tuple(step.partition(MARK)[0] for step in path)
    return path


def separate(program: Scoped) -> None:
    """Gives the second and later calls of a container paths of their own: `encoder.1` beside `encoder`, as one step.

    An exporter writes the calls of a module one after the other, so the calls in a container that is called `n` times
    are `n` times the same sequence. Its layers, or its weights, are then used `n` times too; between two calls of a
    container without any are calls of others.

    Args:
        program: its `scope` is changed, and its `containers` get the paths of the further calls.
    """
    used: Counter[Path] = Counter()
    weights = list[fx.Node]()
    for node in program.graph.nodes:
        if node.op == "call_module":
            used[path_of(node.target)] += 1
        elif node.op == "get_attr" and not program.is_movable(node):
            weights.append(node)
    computed = _computed(weights)
    for node in weights:
        used[path_of(node.target)] += len(_uses(node, computed) - computed)
    shared = around_of(path for path, count in used.items() if count > 1)
    containers = set(map(module_path, program.containers))
    weightless = containers - {(), *around_of(used)}
    repeated = shared | weightless | around_of(weightless)
    if not repeated:
        return
    left = plain_values(program.graph)
    left.update(node for node in program.graph.nodes if not node.op.startswith("call_") or node.target in ASSERTIONS)
    nodes = [node for node in program.graph.nodes if node not in left]
    pending: list[tuple[Path, Sequence[fx.Node]]] = [((), nodes)]
    while pending:
        around, inside = pending.pop()
        inside = _compute_in_each(program, inside, len(around) + 1)
        for path, group in _groups(program, inside, len(around) + 1).items():
            calls, module = [[inside[position] for position in group]], module_path(path)
            if module not in repeated:
                continue
            if module in shared:
                calls = _repetitions(program, calls[0], len(path))
                calls = calls if len(calls) > 1 else _with_merged(program, calls[0], len(path), computed)
            elif module in weightless:
                size = _run(group, _signatures(program, calls[0], len(path)))
                calls = _parts(calls[0], size)
            given = _given(program, calls[0], len(path)) if len(calls) < 2 else set()
            if given and (module in shared or _takes_only(calls[0], given)):
                calls = _with_merged(program, calls[0], len(path), computed | given)
            for number, call in enumerate(calls):
                alias = path if not number else (*around, f"{path[-1]}{MARK}{number}")
                if number:
                    _move(program, call, alias)
                pending.append((alias, call))


def _repetitions(program: Scoped, nodes: Sequence[fx.Node], depth: int) -> list[list[fx.Node]]:
    """Returns the calls in a module as the shortest sequences that are alike, one for each call of the module.

    Torch's older exporter numbers the calls of a module that calls functions itself: those of one number are in one
    call, which may do the same several times.
    """
    parts = _parts(nodes, _period(_signatures(program, nodes, depth)))
    each = _most(program, parts)
    if each == 1:
        return parts
    size = each * len(parts[0])
    calls = _parts(nodes, size)
    return calls if len(nodes) % size == 0 and _most(program, calls) == 1 else [[*nodes]]


def _most(program: Scoped, parts: Sequence[Iterable[fx.Node]]) -> int:
    """Returns the most parts that functions with one scope, a number of a call in it, are in; 1 for no such scopes."""
    if len(parts) < 2:
        return 1
    return max(Counter(itertools.chain.from_iterable(_numbered(program, nodes) for nodes in parts)).values(), default=1)


def _numbered(program: Scoped, nodes: Iterable[fx.Node]) -> set[Path]:
    """Returns the scopes, with numbers of calls, in which torch's older exporter names functions of modules."""
    found = set[Path]()
    for node in nodes:
        inside, scope = module_path(program.scope[node]), older_scope(node)
        if node.op != "call_module" and inside and scope and inside[-1] in (scope[-1], without_call_number(scope[-1])):
            found.add(scope)
    return found


def _computed(weights: Iterable[fx.Node]) -> set[fx.Node]:
    """Returns the calls that compute with nothing but weights and constants, such as the rounding of a weight."""
    found, pending = set[fx.Node](), [user for weight in weights for user in weight.users]
    while pending:
        node = pending.pop()
        used = () if node.op == "output" or node in found or node.target in RANDOM else node.all_input_nodes
        if used and all(other.op == "get_attr" or other in found for other in used):
            found.add(node)
            pending += node.users
    return found


def _groups(program: Scoped, nodes: Iterable[fx.Node], depth: int) -> dict[Path, list[int]]:
    """Returns the positions of the calls in each of the modules at a depth."""
    groups: dict[Path, list[int]] = {}
    for position, node in enumerate(nodes):
        path = program.scope[node][:depth]
        if len(path) == depth:
            groups.setdefault(path, []).append(position)
    return groups


def _compute_in_each(program: Scoped, nodes: Sequence[fx.Node], depth: int) -> Sequence[fx.Node]:
    """Copies what the first call of a module computes for a further one too, which torch's older exporter numbers.

    Args:
        program: gets the copies.
        nodes: the calls in the modules beside each other.
        depth: of these modules.

    Returns:
        The calls with the copies.
    """
    groups, copied = _groups(program, nodes, depth), dict[fx.Node, list[fx.Node]]()
    for path in groups:
        base = (*path[:-1], without_call_number(path[-1]))
        if base == path or base not in groups:
            continue
        first, further = ([nodes[position] for position in groups[one]] for one in (base, path))
        copies: dict[fx.Node, fx.Node] = {}
        given = _given(program, [*first, *further], depth).intersection(first)
        for node in first:
            uses = _uses(node, given) - given if node in given else set()
            users = uses.intersection(further)
            if users and not uses.isdisjoint(first):
                with program.graph.inserting_before(min(users)):
                    copies[node] = program.copied(node, _place_of(program, path, node), copies)
                copied.setdefault(min(users), []).append(copies[node])
        for node in further:
            for used in node.all_input_nodes:
                if used in copies:
                    node.replace_input_with(used, copies[used])
    return [one for node in nodes for one in (*copied.get(node, ()), node)] if copied else nodes


def _place_of(program: Scoped, path: Path, node: fx.Node) -> Path:
    """Returns the module in which a further call, at `path`, computes a call of the first: as deep as there is one."""
    place = (*path, *program.scope[node][len(path) :])
    while len(place) > len(path) and place not in program.containers:
        place = place[:-1]
    return place


def _given(program: Scoped, nodes: Sequence[fx.Node], depth: int) -> set[fx.Node]:
    """Returns the calls that compute with values from outside of a module alone, and that calls alike of it use.

    Each call computes such a value where all are given the same, as the float mask of a mask.
    """
    inside, found = set(nodes), set[fx.Node]()
    for node in nodes:
        if (
            node.op != "call_module"
            and node.target not in RANDOM
            and all(
                program.is_movable(used) if used.op == "get_attr" else used in found or used not in inside
                for used in node.all_input_nodes
            )
        ):
            found.add(node)
    dropped = found
    while dropped:
        uses = {node: Counter(_signatures(program, [*(_uses(node, found) - found)], depth)) for node in found}
        dropped = {node for node, alike in uses.items() if min(alike.values(), default=1) < 2}
        found -= dropped
    return found


def _takes_only(nodes: Iterable[fx.Node], given: Set[fx.Node]) -> bool:
    """Returns whether calls compute with some of them, what they hold and each other alone, but for these some."""
    others = {node for node in nodes if node not in given}
    used = {used for node in others for used in node.all_input_nodes if used.op != "get_attr"}
    return used <= others | given


def _with_merged(program: Scoped, nodes: list[fx.Node], depth: int, once: Set[fx.Node]) -> list[list[fx.Node]]:
    """Returns the calls in a module as those of each call of it where some are in the file once, as a rounded weight.

    An exporter computes once what all calls compute. As a module, each call does so.

    Args:
        program: gets the copies of what further calls compute.
        nodes: the calls in the module and in those inside of it.
        depth: of the module.
        once: the calls that all calls of a module may have in common.
    """
    computed = [node for node in nodes if node in once]
    others = [node for node in nodes if node not in once]
    calls = _repetitions(program, others, depth) if computed and others else []
    uses = [_uses(node, once) for node in computed]
    if len(calls) < 2 or any(users.isdisjoint(call) for users in uses for call in calls):
        return [nodes]
    if not all(_numbered(program, call) or _computes(call, once) for call in calls[1:]):
        return [nodes]  # one call, that uses a value several times
    first = [*itertools.takewhile(lambda node: node is not calls[1][0], nodes)]
    for number, call in enumerate(calls[1:], 1):  # copies stand where the first call has them, for equal programs
        copies: dict[fx.Node, fx.Node] = {}
        following, calls[number] = iter(call), []
        for node in first:
            if node not in once:
                calls[number].append(next(following))
                continue
            with program.graph.inserting_before(call[len(calls[number]) - len(copies)]):
                copies[node] = program.copied(node, program.scope[node], copies)
            calls[number].append(copies[node])
        for node in call:
            for used in node.all_input_nodes:
                if used in copies:
                    node.replace_input_with(used, copies[used])
    calls[0] = first
    return calls


def _computes(call: Iterable[fx.Node], once: Set[fx.Node]) -> bool:
    """Returns whether the newer exporter notes other values of a call than those that they were merged with."""
    noted = list[bool | None]()
    for node in call:
        pending = [used for used in node.all_input_nodes if used in once]
        while pending:
            value = pending.pop()
            if value.meta.get("onnx") == node.meta.get("onnx"):  # of the same node of the file
                pending += [used for used in value.all_input_nodes if used in once]
            else:
                noted.append(names_argument(node, value))
    return bool(noted) and not any(found is not False for found in noted)


def _uses(value: fx.Node, computed: Set[fx.Node]) -> set[fx.Node]:
    """Returns the calls that use a value, or what is computed of it."""
    found, pending = set[fx.Node](), [*value.users]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.users if node in computed else ()
    return found


def _parts(nodes: Sequence[fx.Node], size: int) -> list[list[fx.Node]]:
    return [[*nodes[start : start + size]] for start in range(0, len(nodes), size)]


def _signatures(program: Scoped, nodes: Sequence[fx.Node], depth: int) -> list[Hashable]:
    return [(node.op, node.target, program.scope[node][depth:]) for node in nodes]


def _period(items: Sequence[Hashable]) -> int:
    """Returns the length of the shortest sequence whose repetition `items` is (by Knuth, Morris and Pratt)."""
    borders = [0]
    for item in items[1:]:
        border = borders[-1]
        while border and items[border] != item:
            border = borders[border - 1]
        borders.append(border + (items[border] == item))
    size = len(items) - borders[-1]
    return size if len(items) % size == 0 else len(items)


def _run(positions: Sequence[int], items: Sequence[Hashable]) -> int:
    """Returns the length of the sequence that `items` repeat with gaps between their `positions`; all where none do."""
    starts = [i for i in range(1, len(items)) if positions[i] != positions[i - 1] + 1]
    size = starts[0] if starts else len(items)
    equal = starts == [*range(size, len(items), size)] and len(items) % size == 0
    return size if equal and all(item == items[i % size] for i, item in enumerate(items)) else len(items)


def _move(program: Scoped, nodes: Sequence[fx.Node], path: Path) -> None:
    """Moves calls from the container whose further call `path` is to that call."""
    for node in nodes:
        program.scope[node] = (*path, *program.scope[node][len(path) :])
        program.containers |= {program.scope[node][:end] for end in range(len(path), len(program.scope[node]) + 1)}
