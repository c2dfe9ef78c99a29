"""Containers that are called more than once: which calls of the program are which call of theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from torch import fx

from onnx2nn.fx.blocks.scopes import Scoped, path_of, plain_values
from onnx2nn.fx.tracing.tracer import ASSERTIONS
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
    for node in program.graph.nodes:
        if node.op == "call_module":
            used[path_of(node.target)] += 1
        elif node.op == "get_attr" and not program.is_movable(node):
            used[path_of(node.target)] += len(node.users)
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
        groups: dict[Path, list[int]] = {}
        for position, node in enumerate(inside):
            path = program.scope[node][: len(around) + 1]
            if len(path) > len(around):
                groups.setdefault(path, []).append(position)
        for path, group in groups.items():
            size, module = len(group), module_path(path)
            if module not in repeated:
                continue
            if module in shared or module in weightless:
                signatures = [_signature(program, inside[position], len(path)) for position in group]
                size = _period(signatures) if module in shared else _run(group, signatures)
            for number in range(len(group) // size):
                call = [inside[position] for position in group[number * size : (number + 1) * size]]
                alias = path if not number else (*around, f"{path[-1]}{MARK}{number}")
                if number:
                    _move(program, call, alias)
                pending.append((alias, call))


def _signature(program: Scoped, node: fx.Node, depth: int) -> Hashable:
    return node.op, node.target, program.scope[node][depth:]


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
