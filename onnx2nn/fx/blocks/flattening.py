"""A nested program as one flat list of calls."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from onnx2nn.fx.blocks.block import Block
from onnx2nn.fx.blocks.extended_layers import function_of, plain_layer, settings_of
from onnx2nn.fx.blocks.program import REPEAT
from onnx2nn.fx.blocks.scopes import declared_classes, declared_scope, path_of
from onnx2nn.fx.modules.module_tree import children_of
from onnx2nn.importing.plan import HOLDERS
from onnx2nn.importing.regions import Path


def flattened(module: fx.GraphModule) -> fx.GraphModule:
    """Returns a module that calls the layers of `module` itself, and no block; it shares the layers and the state.

    The calls note their modules in the tree in place of those in the file: `meta["scopes"]` and `meta["classes"]` are
    in the form of torch's exporter, `['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d']`.
    """
    blocks = set(module.meta.get("onnx2nn", {}).get("tree", {}).get("blocks", ()))  # a pickle has plain GraphModules
    flat = flat_graph(module, lambda path, _: ".".join(path) in blocks, plain=True)
    result = fx.GraphModule(module, flat.graph, type(module).__name__)
    for path in flat.layers:
        result.set_submodule(path, plain_layer(module.get_submodule(path)))
    result.meta, result.training = module.meta, module.training
    _note_scopes(module, flat)
    return result


def _note_scopes(module: fx.GraphModule, flat: Flat) -> None:
    """Notes the modules around each call, from the outermost to a layer that is called, and their classes."""
    full: dict[str, str] = {}
    for node in flat.graph.nodes:
        for path, kind in declared_classes(node).items():
            full.setdefault(path, kind)

    @functools.cache
    def around(path: Path, running: tuple[Path, ...]) -> tuple[list[str], list[str]]:
        ends = (path[:end] for end in range(len(path) + 1))
        called = [".".join(end) for end in ends if end in running or end in ((), path)]
        return called, [_class_of(module.get_submodule(step), full.get(step, "")) for step in called]

    dissolved = {
        path_of(path): why for path, why in module.meta.get("onnx2nn", {}).get("tree", {}).get("flat", {}).items()
    }
    for node, inside in flat.inside.items():
        place = path_of(node.target) if node.op == "call_module" else _within(node, inside, dissolved)
        paths, kinds = around(place, flat.running[node])
        node.meta["scopes"] = repr([*paths, node.name])
        node.meta["classes"] = repr([*kinds, getattr(node.target, "__name__", str(node.target))])


def _within(node: fx.Node, inside: Path, dissolved: Mapping[Path, str]) -> Path:
    """Returns the container of a call: that in the file, where it is inside of the block but no block itself.

    A list or a dictionary of modules makes no calls; what left a module of one is a call of the block.
    """
    scope = declared_scope(node) or ()
    if scope[: len(inside)] != inside:
        return inside
    end = len(inside)
    while end < len(scope) and scope[: end + 1] in dissolved:
        end += 1
    while end > len(inside) and dissolved[scope[:end]] in HOLDERS:
        end -= 1
    return scope[:end]


def _class_of(module: nn.Module, full: str) -> str:
    """Returns the name of a module's class with its home; `full` is that in the file, the only one that a block has."""
    kind = type(module)
    if not isinstance(module, fx.GraphModule):
        return f"{kind.__module__}.{kind.__qualname__}"
    return full if full.rpartition(".")[2] == kind.__name__ else kind.__name__


@dataclass(eq=False)
class Flat:
    """A nested program as one flat list of calls.

    Attributes:
        graph: the calls.
        inside: the path of the module whose program makes each call.
        running: the paths of the modules that run then, the outermost first.
        placed: the path of each call's container, where it is known: the one in the file for calls of the root.
        callers: the paths of the modules that run while calls are added.
        plain: whether extended layers are called as plain ones, and not their functions.
        layers: the paths of those that are.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    inside: dict[fx.Node, Path] = field(default_factory=dict)
    running: dict[fx.Node, tuple[Path, ...]] = field(default_factory=dict)
    placed: dict[fx.Node, Path | None] = field(default_factory=dict)
    callers: list[Path] = field(default_factory=list)
    plain: bool = False
    layers: list[str] = field(default_factory=list)

    def note(self, node: fx.Node, inside: Path, placed: Path | None) -> None:
        """Notes where a call that was added stands."""
        self.inside[node], self.running[node], self.placed[node] = inside, tuple(self.callers), placed


def flat_graph(module: fx.GraphModule, inline: Callable[[Path, nn.Module], bool], plain: bool = False) -> Flat:
    """Returns the calls of `module`, with the calls of inner modules in place of calls of these.

    Args:
        module: the module of the program.
        inline: says of the path of a module that is called, and of the module, whether its calls replace it.
        plain: whether the graph calls the layers that their author extended, and not their functions.
    """
    flat = Flat(plain=plain)
    flat.graph.output(_inlined(flat, module, (), {}, inline))
    return flat


def _inlined(
    flat: Flat,
    module: fx.GraphModule,
    prefix: Path,
    known: dict[fx.Node, Any],
    inline: Callable[[Path, nn.Module], bool],
    repeat: Sequence[Mapping[str, Any]] | None = None,
) -> Any:
    """Copies the calls of `module` to `flat`; returns its output. `repeat` has their notes in a further call."""
    inside_block = isinstance(module, Block)
    layer, settings = function_of(module) if flat.plain else None, settings_of(module)
    nodes = [*module.graph.nodes]
    if repeat is None:
        repeat = [node.meta for node in nodes]
    elif len(repeat) != len(nodes):  # someone changed the module's graph
        repeat = [{} for _ in nodes]
    for node, meta in zip(nodes, repeat, strict=True):
        if node.op == "output":
            return fx.map_arg(node.args[0], known.__getitem__)
        if node in known or (layer is not None and node.op == "get_attr"):
            continue
        if node.op == "get_attr" and node.target in settings:
            known[node] = settings[node.target]
            continue
        if layer is not None and node.target is layer:
            known[node] = _layer_call(flat, prefix, known[node.args[0]], meta)
            continue
        path = (*prefix, *path_of(node.target)) if node.op in ("call_module", "get_attr") else ()
        called = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if called is not None and inline(path, called):
            given = list(fx.map_arg(node.args, known.__getitem__))
            known[node] = _expanded(flat, called, path, given, inline, meta.get(REPEAT))
        elif node.target is operator.getitem and isinstance(known.get(node.args[0]), (tuple, list)):
            known[node] = known[node.args[0]][node.args[1]]
        else:
            copy = known[node] = flat.graph.node_copy(node, known.__getitem__)
            copy.meta = dict(meta)
            if path:
                copy.target = ".".join(path)
            scope = None if inside_block else declared_scope(node)
            flat.note(copy, prefix, (*prefix, *scope) if scope is not None else prefix or None)
    raise AssertionError("a graph without an output")


def _layer_call(flat: Flat, path: Path, given: fx.Node, meta: Mapping[str, Any]) -> fx.Node:
    """Adds the call of an extended layer as a plain one."""
    target = ".".join(path)
    flat.layers.append(target)
    call = flat.graph.call_module(target, (given,))
    call.meta.update(meta)
    flat.note(call, path, path)
    return call


def _expanded(
    flat: Flat,
    module: nn.Module,
    prefix: Path,
    given: list[Any],
    inline: Callable[[Path, nn.Module], bool],
    repeat: Any,
) -> Any:
    """Copies the calls of a block or an `nn.Sequential` to `flat`; returns its output. `repeat` has their notes."""
    flat.callers.append(prefix)
    if not isinstance(module, fx.GraphModule):
        result = _series(flat, module, prefix, given, inline, repeat)
    else:
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        result = _inlined(flat, module, prefix, dict(zip(inputs, given, strict=True)), inline, repeat)
    flat.callers.pop()
    return result


def _series(
    flat: Flat,
    module: nn.Module,
    prefix: Path,
    given: list[Any],
    inline: Callable[[Path, nn.Module], bool],
    repeat: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """Copies the calls of an `nn.Sequential` to `flat`; returns its output. `repeat` has their notes, as above."""
    notes: Mapping[str, Mapping[str, Any]] = getattr(module, "onnx_calls", {}) if repeat is None else repeat
    (value,) = given
    for name, inner in children_of(module).items():
        path = (*prefix, name)
        if not inline(path, inner):
            value = flat.graph.call_module(".".join(path), (value,))
            value.meta.update(notes.get(name, {}))
            flat.note(value, prefix, prefix)
        else:
            value = _expanded(flat, inner, path, [value], inline, notes.get(name, {}).get(REPEAT))
    return value
