"""A nested program as one flat list of calls."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import fx, nn

from onnx2nn.fx.blocks.block import Block
from onnx2nn.fx.blocks.scopes import Path, declared_scope, path_of


def flattened(module: fx.GraphModule) -> fx.GraphModule:
    """Returns a module that calls the layers of `module` itself, and no block; it shares the layers and the state.

    A module without blocks is returned as it is.
    """
    blocks = set(module.meta.get("onnx2nn", {}).get("tree", {}).get("blocks", ()))  # a pickle has plain GraphModules
    if not blocks:
        return module
    graph, _ = flat_graph(module, lambda path, _: ".".join(path) in blocks)
    result = fx.GraphModule(module, graph, type(module).__name__)
    result.meta, result.training = module.meta, module.training
    return result


def flat_graph(
    module: fx.GraphModule, inline: Callable[[Path, nn.Module], bool]
) -> tuple[fx.Graph, dict[fx.Node, Path | None]]:
    """Returns a graph of the calls of `module`, with the calls of inner modules in place of calls of these.

    Args:
        module: the module of the program.
        inline: says of the path of a module that is called, and of the module, whether its calls replace it.

    Returns:
        The graph, and for each call the path of its container, where it is known.
    """
    graph = fx.Graph()
    placed: dict[fx.Node, Path | None] = {}
    graph.output(_inlined(graph, module, (), {}, placed, inline))
    return graph, placed


def _inlined(
    graph: fx.Graph,
    module: fx.GraphModule,
    prefix: Path,
    known: dict[fx.Node, Any],
    placed: dict[fx.Node, Path | None],
    inline: Callable[[Path, nn.Module], bool],
) -> Any:
    """Copies the calls of `module` to `graph`; returns its output."""
    inside_block = isinstance(module, Block)
    for node in module.graph.nodes:
        if node.op == "output":
            return fx.map_arg(node.args[0], known.__getitem__)
        if node in known:
            continue
        path = (*prefix, *path_of(node.target)) if node.op in ("call_module", "get_attr") else ()
        called = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if called is not None and inline(path, called):
            given = list(fx.map_arg(node.args, known.__getitem__))
            if isinstance(called, fx.GraphModule):
                inputs = [inner for inner in called.graph.nodes if inner.op == "placeholder"]
                known[node] = _inlined(graph, called, path, dict(zip(inputs, given, strict=True)), placed, inline)
            else:
                known[node] = _series(graph, called, path, given, placed, inline)
        elif node.target is operator.getitem and isinstance(known.get(node.args[0]), (tuple, list)):
            known[node] = known[node.args[0]][node.args[1]]
        else:
            copy = known[node] = graph.node_copy(node, known.__getitem__)
            if path:
                copy.target = ".".join(path)
            scope = None if inside_block else declared_scope(node)
            placed[copy] = (*prefix, *scope) if scope is not None else prefix or None
    raise AssertionError("a graph without an output")


def _series(
    graph: fx.Graph,
    module: nn.Module,
    prefix: Path,
    given: list[Any],
    placed: dict[fx.Node, Path | None],
    inline: Callable[[Path, nn.Module], bool],
) -> Any:
    """Copies the calls of an `nn.Sequential` to `graph`; returns its output."""
    (value,) = given
    for name, inner in module.named_children():
        path = (*prefix, name)
        if not inline(path, inner):
            value = graph.call_module(".".join(path), (value,))
            value.meta.update(getattr(module, "onnx_calls", {}).get(name, {}))
            placed[value] = prefix
        elif isinstance(inner, fx.GraphModule):
            placeholders = [node for node in inner.graph.nodes if node.op == "placeholder"]
            value = _inlined(graph, inner, path, dict(zip(placeholders, [value], strict=True)), placed, inline)
        else:
            value = _series(graph, inner, path, [value], placed, inline)
    return value
