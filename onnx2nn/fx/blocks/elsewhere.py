"""Calls in modules that stand elsewhere in the tree than in the module that calls them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from torch import fx

from onnx2nn.fx.blocks.scopes import Scoped, path_of
from onnx2nn.ground.shared_scopes import SharedScope, numbered
from onnx2nn.importing.regions import Path, around_of


def called_from_elsewhere(program: Scoped, declared: Mapping[fx.Node, Path | None]) -> dict[fx.Node, Path]:
    """Returns the scopes of calls in modules that stand elsewhere in the tree than in the module that calls them.

    Torch's older exporter writes such a scope as the caller's, `blocks.0`, and the name that the module has where it
    stands, `gate`: its layer `gate.conv` is in `blocks.0.gate.conv`, and its functions in `blocks.0.gate`. Constants
    that it made are where the scope says, so that a module which holds nothing else is none of the author's.

    Of modules that have one scope, such as `down.0.block.0` and `down.1.block.0` where no `down` is called, the calls
    are told apart by the layers next to them: those of the second have its number, `block.0.conv_1` and `block.0_1`.
    """
    scopes: dict[Path, SharedScope[Path]] = {}
    homes: dict[Path, Path] = {}
    for position, (node, scope) in enumerate(declared.items()):
        if node.op != "call_module" or not scope or (place := path_of(node.target)) == scope:
            continue
        last, number = numbered(scope[-1])
        for end in range(1, min(len(scope), len(place))):
            if (scope[-end - 1], scope[-end] if end > 1 else last) != place[-end - 1 : len(place) - end + 1]:
                break
            scopes.setdefault(scope[:-end], SharedScope()).add(position, place[:-end], number)
            if scope[-end:] == place[-end:]:
                homes.setdefault(scope[:-end], place[:-end])
    if not scopes:
        return {}
    found = dict[fx.Node, Path]()
    paths = {path_of(node.target) for node in program.graph.find_nodes(op="call_module", sort=False)}
    weights = (path_of(key) for key, kept in program.persistent.items() if kept and key not in program.made)
    there = paths | around_of([*paths, *weights])
    shared = {scope: known for scope, known in scopes.items() if scope not in there and known.is_shared}
    homes = {scope: place for scope, place in homes.items() if scope not in there and scope not in shared}
    for position, (node, scope) in enumerate(declared.items()):
        if not scope:
            continue
        called = next((path for path in itertools.accumulate(zip(scope)) if path in homes), None)
        if called is not None:
            found[node] = (*homes[called], *scope[len(called) :])
        elif node.op != "call_module" and shared:
            last, number = numbered(scope[-1])
            inside = (*scope[:-1], last)
            known = next((inside[:end] for end in range(len(inside), 0, -1) if inside[:end] in shared), ())
            if known and (module := shared[known].module_of(position, number)) is not None:
                found[node] = (*module, *inside[len(known) :])
    return found
