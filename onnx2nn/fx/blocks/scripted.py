"""Calls of functions that an author scripted, of which torch's older exporter writes no scope."""

from __future__ import annotations

from collections.abc import Iterator, Set

from torch import fx

from onnx2nn.fx.blocks.activations import NO_ACTIVATIONS, module_of
from onnx2nn.fx.blocks.scopes import Scoped, older_scope, plain_values
from onnx2nn.importing.regions import Path


def place_scripted(program: Scoped, unknown: Set[fx.Node]) -> None:
    """Places the calls of scripted functions in the modules that go on with their results.

    `torch.jit.script` and `script_if_tracing` make the exporter write a function's nodes without the scope of the
    module that calls it. Calls without a scope that compute one value of another, which functions of one module alone
    use, are taken for the beginning of this module: a norm whose author scripted the statistics. Where another module
    gave the value, and to nothing else, they may be its end, and an activation alone may be the caller's: these stay
    between both.

    Args:
        program: its `scope` is changed.
        unknown: the calls of which the file names no scope.
    """
    if not unknown or not any(map(older_scope, program.graph.nodes)):
        return
    plain = plain_values(program.graph)
    for calls in _connected(unknown, plain):
        sources = {
            used for node in calls for used in node.all_input_nodes if used.op != "get_attr" and used not in plain
        }
        users = {user for node in calls for user in node.users} - calls - plain
        places = {program.scope[user] if older_scope(user) else () for user in users if user.op != "output"}
        if len(sources - calls) != 1 or len(places) != 1 or any(user.op not in _FUNCTIONS for user in users):
            continue
        (path,), (source,) = places, sources - calls
        before = program.scope[source]
        given = any(not _is_around(before, program.scope[user]) for user in source.users.keys() - calls)
        begins = before != path and (given or _is_around(before, path))
        if begins and not (len(calls) == 1 and all(map(_is_activation, calls))):
            program.scope |= {node: path for node in calls if _is_around(program.scope[node], path)}


_FUNCTIONS = ("call_function", "call_method")


def _is_activation(node: fx.Node) -> bool:
    found = module_of(node)
    return found is not None and not issubclass(found[0], NO_ACTIVATIONS)


def _is_around(one: Path, other: Path) -> bool:
    return other[: len(one)] == one


def _connected(unknown: Set[fx.Node], plain: Set[fx.Node]) -> Iterator[set[fx.Node]]:
    """Yields the sets of calls without a scope that give each other tensors."""
    rest = dict.fromkeys(node for node in unknown if node not in plain and node.op in _FUNCTIONS)
    while rest:
        first, _ = rest.popitem()
        found, pending = {first}, [first]
        while pending:
            node = pending.pop()
            near = [other for other in (*node.all_input_nodes, *node.users) if other in rest]
            for other in near:
                rest.pop(other, None)
            found.update(near)
            pending += near
        yield found
