"""Calls of a module's parts by others than that module: `self.encoder.embed(x)` beside `self.encoder(x)`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set

from torch import fx

from onnx2nn.fx.blocks.repeats import MARK, module_path
from onnx2nn.fx.blocks.scopes import MOVED, Modules, Scoped, is_named, path_of
from onnx2nn.ground.naming import DEEPEST, split_scopes, without_call_number
from onnx2nn.importing.regions import Path
from onnx2nn.layers import FakeQuantize


def separate_outside(program: Scoped, declared: Mapping[fx.Node, Path | None]) -> None:
    """Gives such calls paths of their own: `encoder.outside` instead of `encoder`, as one step.

    They are no calls of the module around the part, whose forward would get them otherwise. A module that no one calls,
    as a list or a holder of parts, has no forward to keep them out of.

    Args:
        program: its `scope` is changed, and its `containers` get the new paths.
        declared: the modules of calls.
    """
    noted = {modules: nodes for modules, nodes in program.calls.items() if is_named(modules)}
    known = {node for nodes in noted.values() for node in nodes}
    older = {node: scopes for node in program.graph.nodes if node not in known and (scopes := _scopes(node))}
    called = set[Path]().union(*noted, *older.values())  # some time
    found: dict[fx.Node, Set[Path]] = {}
    around: dict[Path, Set[Path]] = {}  # the modules around those in one module
    for modules, nodes in noted.items():
        inside = modules[-1][:-1]
        if inside not in around:
            around[inside] = called.intersection(inside[:end] for end in range(1, len(inside) + 1))
        if passed := around[inside] - {*modules}:
            for node in nodes:
                place = _place(node, declared)
                if modules[-1] in (place, place[:-1]):  # no weight that is somewhere else
                    found[node] = passed
    for node, scopes in older.items():
        place = _place(node, declared)
        running = _running(scopes, place, program.containers)
        if running and (passed := ({place[:end] for end in range(1, len(place))} - running) & called):
            found[node] = passed
    for node, passed in found.items():
        if (owner := _rounded(program, node)) is not None:
            program.scope[node] = owner
            continue
        path = program.scope.get(node, ())
        marked = tuple(f"{step}{MARK}outside" if path[:end] in passed else step for end, step in enumerate(path, 1))
        if marked != path:
            program.scope[node] = marked
            program.containers |= {marked[:end] for end in range(1, len(marked) + 1)}


def _rounded(program: Scoped, node: fx.Node) -> Path | None:
    """Returns the container of the result that a call rounds, if this is that of the quantiser; else None.

    Tools of quantisation add a child to a module, and a hook that calls it: `conv.activation_post_process` is a part of
    `conv(x)`. An exporter notes what a hook calls behind the module, as a call by its caller.
    """
    if node.op != "call_module" or not isinstance(program.root.get_submodule(str(node.target)), FakeQuantize):
        return None
    holder, (value,) = path_of(node.target)[:-1], node.all_input_nodes
    owner = program.scope.get(value, ())[: len(holder)]
    return owner if module_path(owner) == holder and len(value.users) == 1 else None


def _place(node: fx.Node, declared: Mapping[fx.Node, Path | None]) -> Path:
    """Returns the path of the module that a call is, or in which it is."""
    return path_of(node.target) if node.op == "call_module" else declared.get(node) or ()


def _running(scopes: Sequence[Path], place: Path, containers: Set[Path]) -> set[Path]:
    """Returns the paths in the tree of the modules around a call in a file of torch's older exporter.

    The exporter leaves out of the middle of a scope what does not run: `model.attn` is the call of `model.gate.attn`.

    Args:
        scopes: the scopes around the call, the outermost first.
        place: the path of the innermost one in the tree.
        containers: all modules that hold others or weights.

    Returns:
        No paths if the innermost scope is not at that place, nor a call of what stands there by another module.
    """
    last = scopes[-1] if scopes else ()
    left_out = len(place) - len(last)
    if not last or left_out < 0:
        return set()
    start = next((i for i, step in enumerate(last) if not _is_call(step, place[i])), len(last))
    if not all(map(_is_call, last[start:], place[start + left_out :])):
        is_shared = last[:-1] in containers and _is_call(last[-1], place[-1])
        return {place, *(place[:end] for end in range(1, start + 1))} if is_shared else set()
    if start == len(last):  # what stands in the scope itself
        return {place[: len(scope)] for scope in scopes}
    return {place[: len(scope) + (left_out if len(scope) > start else 0)] for scope in scopes}


def _is_call(step: str, name: str) -> bool:
    return name in (step, without_call_number(step))


def _scopes(node: fx.Node) -> Modules:
    """Returns the modules around a call, the outermost first, as torch's older exporter writes them in its name.

    Those of a call that was copied into another module are not its own.
    """
    if node.meta.get(MOVED):
        return ()
    name: str = node.meta.get("onnx", ("", "", ""))[2]
    return _split(name.rpartition("/")[0]) if name.startswith("/") else ()


@functools.lru_cache(1 << 12)
def _split(scope: str) -> tuple[Path, ...]:
    parts = scope.split("/", DEEPEST + 2)
    if len(parts) > DEEPEST + 1:
        return ()  # the tree has no place as deep
    return tuple(tuple(split_scopes("/".join(parts[:end]))) for end in range(2, len(parts) + 1))
