"""Transposes that torch's older exporter cancels: the last call of a module, and the first call of the next one.

A normalisation over the channels of an image puts these last, and back. Where another module begins with the first of
both, the exporter lets it read the value before the second, so that one module would give both, and the other take
another layout than its author's.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from torch import fx

from onnx2nn.fx.blocks.scopes import Scoped
from onnx2nn.importing.regions import Path, common


def transpose_again(program: Scoped, declared: Mapping[fx.Node, Path | None]) -> None:
    """Lets other modules read the value that a module transposes at its end, and transpose it back.

    One that ends with the same transpose does so itself, another one is given the value by its caller.

    Args:
        program: its scopes are filled; its graph gets the transposes.
        declared: the scope that the file names for a call, None where it names none.
    """
    ends = {node: done for node in program.graph.nodes if declared.get(node) and (done := _transpose(node))}
    ending = {(program.scope[node], done) for node, done in ends.items()}
    for node, done in ends.items():
        home, given = program.scope[node], node.all_input_nodes[0]
        if not home or program.scope[given][: len(home)] != home or given.op == "get_attr":
            continue
        inside = {user for user in given.users if program.scope[user][: len(home)] == home}
        others = [user for user in given.users if user not in inside]
        leaves = any(program.scope[user][: len(home)] != home for user in node.users)
        if not leaves or any(user.op == "output" for user in others):
            continue
        if min(others, default=node) < node:
            given.append(node)
        readers: dict[Path, list[fx.Node]] = {}
        for user in others:
            readers.setdefault(_place(program.scope[user], home, done, ending), []).append(user)
        for place, users in readers.items():
            with program.graph.inserting_before(min(users)):
                back = program.copied(node, place)
            back.args = (node, *_inverse(done))
            if given in program.specs:
                program.specs[back] = program.specs[given]
            for user in users:
                user.replace_input_with(given, back)


_Transpose = tuple[str, tuple[int, ...]]
"""A call's target, and its arguments behind the tensor."""


def _transpose(node: fx.Node) -> _Transpose | None:
    """Returns what a call that transposes does, None for another call."""
    match node.target, node.args:
        case (("permute" | "transpose" as target), (fx.Node(), *given)):
            axes = tuple(axis for axis in given if isinstance(axis, int))
            return (target, axes) if len(axes) == len(given) else None
    return None


def _inverse(transpose: _Transpose) -> tuple[int, ...]:
    """Returns the arguments with which the same method undoes a transpose."""
    target, axes = transpose
    return axes if target == "transpose" else tuple(axes.index(axis) for axis in range(len(axes)))


def _place(reader: Path, home: Path, transpose: _Transpose, ending: Set[tuple[Path, _Transpose]]) -> Path:
    """Returns the module that transposes back: the outermost around a reader that ends as `home`, or the caller."""
    shared = len(common((reader, home)))
    around = (reader[:end] for end in range(shared + 1, len(reader) + 1))
    return next((path for path in around if (path, transpose) in ending), reader[:shared])
