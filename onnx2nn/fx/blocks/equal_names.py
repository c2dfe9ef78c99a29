"""Containers for the equal parts of a file without names: `block.0`, `block.1`, ..."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Set

from torch import fx, nn

from onnx2nn.fx.blocks.block import BLOCK_ATTRIBUTES
from onnx2nn.fx.blocks.equal_parts import Part, find_equal_parts
from onnx2nn.fx.blocks.scopes import path_of
from onnx2nn.fx.modules.module_tree import container, remove
from onnx2nn.importing.regions import Path, common

_NAME = "block"


def name_equal_parts(
    root: nn.Module, graph: fx.Graph, declared: Mapping[fx.Node, Path | None], own: Set[str]
) -> tuple[dict[fx.Node, Path], dict[str, str]]:
    """Moves the layers and weights of equal parts of a program without scopes into containers `block.0`, `block.1`.

    Equal layers of these have equal names, by their classes. Names of the author's stay.

    Args:
        root: the module of the program.
        graph: a flat program; its targets are changed.
        declared: the scope that the file names for a call, None where it names none.
        own: the author's keys.

    Returns:
        The containers of the parts' calls, and the keys that the state_dict has without this, by those that it has now.
    """
    paths = [path_of(node.target)[:-1] for node in graph.nodes if node.op in ("call_module", "get_attr")]
    around = common(paths) if paths else ()
    outside = {node for node in graph.nodes if not _is_free(root, node, declared.get(node), around, own)}
    naming = _Naming(root, graph, around)
    for parts in find_equal_parts(root, graph, outside):
        naming.place(parts)
    naming.order()
    if naming.placed:
        calls = [node for node in graph.nodes if node.op.startswith("call_") and node not in outside]
        naming.placed = dict.fromkeys(calls, around) | naming.placed
    return naming.placed, naming.keys


def _is_free(root: nn.Module, node: fx.Node, scope: Path | None, around: Path, own: Set[str]) -> bool:
    """Returns whether a node may be in a part: the file names neither a scope nor a key of the author's for it."""
    if scope is not None and node.op != "get_attr":
        return False
    if node.op not in ("call_module", "get_attr"):
        return True
    path = path_of(node.target)
    if node.op == "get_attr":
        keys = [str(node.target)]
    else:
        keys = [f"{node.target}.{key}" for key in root.get_submodule(str(node.target)).state_dict(keep_vars=True)]
    return path[:-1] == around and own.isdisjoint(keys)


class _Naming:
    """Moves layers and weights, and notes what it did.

    Args:
        root: the module of the program.
        graph: the program.
        around: the path of the container that holds the layers and weights.

    Attributes:
        placed: the containers of calls.
        keys: the earlier keys of moved weights, by the new ones.
    """

    def __init__(self, root: nn.Module, graph: fx.Graph, around: Path):
        self.root, self.graph, self.around = root, graph, around
        self.placed: dict[fx.Node, Path] = {}
        self.keys: dict[str, str] = {}
        self.calls: dict[str, list[fx.Node]] = {}
        self.uses: Counter[str] = Counter()
        self.persistent = frozenset(root.state_dict(keep_vars=True))
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            if node.op == "call_module":
                self.calls.setdefault(str(node.target), []).append(node)
                self.uses[str(node.target)] += 1
            elif node.op == "get_attr":  # of a layer's weight too
                self.uses[str(node.target).rpartition(".")[0]] += 1

    def place(self, parts: list[Part]) -> None:
        """Makes the containers of equal parts; those that call the same layers are calls of one container."""
        groups: dict[tuple[str, ...], list[Part]] = {}
        for part in parts:
            layers = tuple(str(node.target) for node in part.nodes if node.op in ("call_module", "get_attr"))
            groups.setdefault(layers, []).append(part)
        whole = [
            group
            for layers, group in groups.items()
            if all(self.uses[layer] in (0, count * len(group)) for layer, count in Counter(layers).items())
        ]
        if len(whole) < 2 and not any(len(group) > 1 for group in whole):
            return
        same = {other for group in whole for part in group for other in part.nodes.values() if other is not None}
        names = self._names(same, {})
        holder = self.root.get_submodule(".".join(self.around))
        name = numbered(_NAME, dir(holder))
        for index, group in enumerate(whole):
            self._move(group, (*self.around, name, str(index)), names)

    def _names(self, nodes: Iterable[fx.Node], known: Mapping[fx.Node, str]) -> dict[fx.Node, str]:
        """Returns names for the layers and weights of a part: those that are `known`, and others beside them."""
        names, taken = dict(known), {*BLOCK_ATTRIBUTES, *known.values()}
        layers: dict[str, str] = {}
        for node in sorted(nodes, key=self.position.__getitem__):
            target = str(node.target)
            if node.op == "call_module":
                stem = _WORD.sub("_", type(self.root.get_submodule(target)).__name__).lower()
            elif node.op == "get_attr":
                stem = "weight"
            else:
                continue
            if target not in layers:
                layers[target] = numbered(stem, taken)
                taken.add(layers[target])
            names[node] = layers[target]
        return names

    def _move(self, group: list[Part], place: Path, names: Mapping[fx.Node, str]) -> None:
        """Moves the layers and weights of calls of one part to the container at `place`."""
        for part in group:
            own = self._names((node for node, same in part.nodes.items() if same is None), names)
            for node in sorted(part.nodes, key=self.position.__getitem__):
                name = own.get(part.nodes[node] or node, "")
                if node.op == "call_module":
                    self._move_layer(str(node.target), (*place, name))
                elif node.op == "get_attr":
                    self._move_weight(node, part, (*place, name))
                    continue
                self.placed[node] = place

    def _move_layer(self, target: str, path: Path) -> None:
        if target not in self.calls:
            return  # it moved with an earlier call
        layer = self.root.get_submodule(target)
        new = ".".join(path)
        self.keys |= {f"{new}.{key}": f"{target}.{key}" for key in layer.state_dict(keep_vars=True)}
        remove(self.root, target)
        holder, name = container(self.root, new)
        assert not hasattr(holder, name), "a name for each layer"
        holder.add_module(name, layer)
        for node in self.calls.pop(target):
            node.target = new

    def _move_weight(self, node: fx.Node, part: Part, path: Path) -> None:
        old, new = str(node.target), ".".join(path)
        before = self.root.get_submodule(old.rpartition(".")[0])
        tensor = getattr(before, path_of(old)[-1])
        if old not in self.persistent or not node.users.keys() <= part.nodes.keys():
            return  # it is in no state_dict, or of several parts
        remove(self.root, old)
        holder, name = container(self.root, new)
        assert not hasattr(holder, name), "a name for each weight"
        if isinstance(tensor, nn.Parameter):
            holder.register_parameter(name, tensor)
        else:
            holder.register_buffer(name, tensor)
        node.target = new
        self.keys[new] = old

    def order(self) -> None:
        """Puts the modules around in the order of their first calls."""
        if not self.placed:
            return
        depth, first = len(self.around), dict[str, int]()
        for node in self.graph.nodes:
            path = path_of(node.target) if node.op in ("call_module", "get_attr") else ()
            if len(path) > depth + 1 or node.op == "call_module":
                first.setdefault(path[depth], len(first))
        holder = self.root.get_submodule(".".join(self.around))
        children = dict(holder.named_children())
        for name in sorted(children, key=lambda name: first.get(name, len(first))):
            delattr(holder, name)
            holder.add_module(name, children[name])


def numbered(name: str, taken: Container[str]) -> str:
    """Returns `name`, numbered where it is taken."""
    number, wanted = 0, name
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Where a word begins in the name of a class."""
