"""The tree of modules that run: the lines of a flat forward are divided among the containers of the module tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from oneflow_bridge.from_onnx.lines import Line, function_source, member, target, with_members
from oneflow_bridge.from_onnx.module import Block, ImportedModule, NumberedBlock
from oneflow_bridge.namespace.dtypes import flow
from onnx2nn.importing.plan import LIST
from onnx2nn.importing.regions import Divider, Item, Path, Region, Regions, common

_BLOCK_MEMBERS = frozenset(vars(Block())) | {"compile"}
"""Names in a block that are no names of modules or weights."""


@dataclass(eq=False)
class Node:
    """A node of the graph of lines; see `onnx2nn.importing.regions.Node`.

    Attributes:
        op: `"placeholder"` for an input, `"output"`, `"get_attr"` for a read of a weight for modules in which it is
            not, else `"call"`.
        line: what it computes; an input's only has a name.
        users: the nodes that use its values.
        all_input_nodes: the nodes whose values it uses, in the order of the program.
    """

    op: str
    line: Line
    users: dict[Node, None] = field(default_factory=dict)
    all_input_nodes: list[Node] = field(default_factory=list)


def nested(
    module: ImportedModule,
    parameters: Sequence[str],
    lines: Sequence[Line],
    containers: Set[Path],
    held: Sequence[str],
    outputs: Sequence[str],
    uses: Set[str],
    required: Set[str],
) -> None:
    """Compiles the forward of `module`, and replaces containers in it by blocks, which run parts of it.

    Args:
        module: holds plain containers, layers and weights.
        parameters: names of the inputs.
        lines: the forward.
        containers: paths of the containers.
        held: dotted paths of the layers and weights; those that the forward does not read are removed.
        outputs: the expressions of the results.
        uses: the names that these read.
        required: names that are computed though no output needs them.
    """
    lines = _needed(lines, uses, required)
    _drop_unread(module, set(held), [*lines, Line((), " ".join(outputs))])
    graph = _Graph(module, parameters, lines, containers, outputs, uses)
    found: Regions[Region[Node]] = Regions()
    _Divider(graph, module, found).visit(())
    for path in sorted(found.regions, key=len, reverse=True):
        if path:
            _Body(graph, found.regions[path], required).put_block(module)
    _Body(graph, found.regions[()], required).compile_root(module, parameters, outputs, uses)
    _list_modules(module, containers - found.regions.keys())
    module.meta["onnx2nn"] = {"tree": {"blocks": sorted(".".join(p) for p in found.regions if p), "flat": found.flat}}


def _needed(lines: Sequence[Line], uses: Set[str], required: Set[str]) -> list[Line]:
    needed, kept = uses | required, list[Line]()
    for line in reversed(lines):
        if not needed.isdisjoint(line.names):
            kept.append(line)
            needed |= line.uses
    return kept[::-1]


def _drop_unread(root: ImportedModule, held: Set[str], lines: Sequence[Line]) -> None:
    """Removes the layers and weights that no line reads."""
    read = {path for line in lines for path in line.members}
    read |= {path[:end] for path in read for end, letter in enumerate(path) if letter == "."}
    for path in held:
        layer, _, name = path.rpartition(".")
        if path in read or layer in held:
            continue
        holder = _module_at(root, tuple(filter(None, layer.split("."))))
        for members in (holder._modules, holder._parameters, holder._buffers):
            members.pop(name, None)
        holder._non_persistent_buffers_set.discard(name)


class _Graph:
    """The lines as a graph, each with its container.

    A layer stands where its weights do, another line where the file says, and one of which it says nothing in the
    container of its neighbours.

    Attributes:
        nodes: inputs, lines, and the output.
        scope: the container of each.
        calls: how often each module is called, by path.
    """

    def __init__(
        self,
        root: ImportedModule,
        parameters: Sequence[str],
        lines: Sequence[Line],
        containers: Set[Path],
        outputs: Sequence[str],
        uses: Set[str],
    ):
        self.containers = containers
        self.scope: dict[Node, Path] = {}
        self.calls = Counter(tuple(line.module.split(".")) for line in lines if line.module)
        end = Line((), " ".join(outputs), set(uses))
        self.nodes = [
            *(Node("placeholder", Line(name, "")) for name in parameters),
            *(Node("call", line) for line in lines),
            Node("output", end),
        ]
        self._connect()
        self._place()
        self._move_constants(root)
        self._read_members()

    def _connect(self) -> None:
        producer: dict[str, Node] = {}
        for node in self.nodes:
            found = dict.fromkeys(producer[name] for name in sorted(node.line.uses))
            node.all_input_nodes = list(found)
            for used in found:
                used.users[node] = None
            producer |= dict.fromkeys(node.line.names, node)

    def _clip(self, path: Path) -> Path:
        while path not in self.containers:
            path = path[:-1]
        return path

    def _place(self) -> None:
        unknown: list[Node] = []
        for node in self.nodes:
            if node.op != "call":
                self.scope[node] = ()
            elif node.line.module:
                self.scope[node] = self._clip(tuple(node.line.module.split("."))[:-1])
            elif node.line.scope is not None:
                self.scope[node] = self._clip(node.line.scope)
            else:
                unknown.append(node)
        following: dict[Node, dict[Path, None]] = {}
        for node in reversed(unknown):
            scopes = following[node] = {}
            for user in node.users:
                scopes |= {self.scope[user]: None} if user in self.scope else following[user]
        for node in unknown:
            before = [self.scope[used] for used in node.all_input_nodes if used.op != "placeholder"]
            after = list(following[node])
            meetings = [common((one, other)) for one in before or after for other in after or before]
            self.scope[node] = max(meetings, key=len, default=())
        for node in reversed(self.nodes):
            if node.line.numbers and node.users:
                self.scope[node] = common([self.scope[user] for user in node.users])

    def _move_constants(self, root: ImportedModule) -> None:
        """Moves constants that are no weights, buffers in no state_dict, into the containers that use them."""
        places: dict[str, list[Path]] = {}
        for node in self.nodes:
            for path in node.line.members:
                places.setdefault(path, []).append(self.scope[node])
        moved: dict[str, str] = {}
        for path, scopes in places.items():
            *steps, name = path.split(".")
            home, holder = common(scopes), _module_at(root, tuple(steps))
            if home == tuple(steps) or name not in holder._non_persistent_buffers_set:
                continue
            target_module, wanted, number = _module_at(root, home), name, 0
            while hasattr(target_module, name) or name in _BLOCK_MEMBERS:
                number += 1
                name = f"{wanted}_{number}"
            target_module.register_buffer(name, holder._buffers.pop(wanted), persistent=False)
            holder._non_persistent_buffers_set.discard(wanted)
            moved[path] = ".".join((*home, name))
        for node in self.nodes if moved else ():
            node.line.text = with_members(node.line.text, lambda path: member(moved.get(path, path)))

    def _read_members(self) -> None:
        """Adds reads of the weights that a line outside of their module uses, in the container around both."""
        result: list[Node] = []
        for node in self.nodes:
            scope = self.scope[node]
            outside = [path for path in node.line.members if tuple(path.split("."))[: len(scope)] != scope]
            names = {path: f"held_{number}" for number, path in enumerate(dict.fromkeys(outside), len(result))}
            for path, name in names.items():
                read = Node("get_attr", Line(name, member(path)), {node: None})
                self.scope[read] = self._clip(common((scope, tuple(path.split("."))[:-1])))
                node.all_input_nodes.append(read)
                result.append(read)
            if names:
                texts = {path: member(path) for path in node.line.members} | names
                node.line.text = with_members(node.line.text, texts.__getitem__)
                node.line.uses = node.line.uses | set(names.values())
            result.append(node)
        self.nodes = result


class _Divider(Divider[Node, Region[Node]]):
    """Chooses what can be a block."""

    def __init__(self, graph: _Graph, module: ImportedModule, found: Regions[Region[Node]]):
        super().__init__(graph.nodes, graph.scope, graph.containers, found)
        self.module, self.several = module, {path for path, count in graph.calls.items() if count > 1}

    def region(self, path: Path, items: list[Item]) -> Region[Node]:
        """Returns the region of a container."""
        return Region(path, items)

    def refusal(self, path: Path, region: Region[Node]) -> str | None:
        """Returns why a container cannot be a block, None where it can."""
        hidden = _BLOCK_MEMBERS.intersection(_members(_module_at(self.module, path)))
        if hidden:
            return f"blocks have a member {min(hidden)!r} already"
        if any(called[: len(path)] == path for called in self.several):
            return "a module in it is called several times"
        if not region.outputs:
            return "nothing outside uses a value of it"
        chain = len(region.inputs) == len(region.outputs) == 1
        return LIST if not chain and any(name.isdecimal() for name in _members(_module_at(self.module, path))) else None


class _Body:
    """Writes the forward of one region, whose inner regions are blocks already."""

    def __init__(self, graph: _Graph, region: Region[Node], required: Set[str]):
        self.region, self.required = region, required
        self.lines = [item.line if isinstance(item, Node) else self._call(item) for item in region.items]

    @staticmethod
    def _call(region: Region[Node]) -> Line:
        """Returns the line that calls a block."""
        arguments, results = _arguments(region), _results(region)
        text = f"block({', '.join([member('.'.join(region.path)), *arguments])})"
        return Line(results[0] if len(results) == 1 else tuple(results), text, set(arguments))

    def put_block(self, root: ImportedModule) -> None:
        """Puts the block in the place of its container."""
        region, results = self.region, _results(self.region)
        returned = results[0] if len(results) == 1 else target(tuple(results))
        code = function_source(_arguments(region), self.lines, returned, set(results), self._required(), region.path)
        around, container = _module_at(root, region.path[:-1]), _module_at(root, region.path)
        kind = NumberedBlock if any(name.isdecimal() for name in container._modules) else Block
        around._modules[region.path[-1]] = kind.of(container, code)

    def compile_root(
        self, root: ImportedModule, parameters: Sequence[str], outputs: Sequence[str], uses: Set[str]
    ) -> None:
        """Compiles the forward of the outermost module."""
        returned = f"({''.join(f'{text}, ' for text in outputs).rstrip()})"
        root.compile(function_source(parameters, self.lines, returned, uses, self._required(), ()))

    def _required(self) -> Set[str]:
        """Returns the names that are computed in this body though nothing needs them, those of blocks among them."""
        inner = {name for item in self.region.items if isinstance(item, Region) for name in _results(item)}
        return self.required | inner


def _arguments(region: Region[Node]) -> list[str]:
    """Returns the names of a block's inputs."""
    used = set().union(*(node.line.uses for node in region.nodes))
    return [name for node in region.inputs for name in node.line.names if name in used]


def _results(region: Region[Node]) -> list[str]:
    """Returns the names of a block's results."""
    users = {user for node in region.outputs for user in node.users if user not in region.nodes}
    used = set().union(*(user.line.uses for user in users))
    return [name for node in region.outputs for name in node.line.names if name in used]


def _module_at(root: Any, path: Path) -> Any:
    for step in path:
        root = root._modules[step]
    return root


def _members(module: Any) -> Iterable[str]:
    return [*module._modules, *module._parameters, *module._buffers]


def _list_modules(root: ImportedModule, plain: Set[Path]) -> None:
    """Makes lists of the containers that hold modules numbered from 0 and nothing else."""
    for path in sorted(plain - {()}, key=len, reverse=True):
        container = _module_at(root, path)
        numbers = [str(number) for number in range(len(container._modules))]
        if numbers and sorted(_members(container)) == sorted(numbers):
            listed = flow.nn.ModuleList([container._modules[number] for number in numbers])
            _module_at(root, path[:-1])._modules[path[-1]] = listed
