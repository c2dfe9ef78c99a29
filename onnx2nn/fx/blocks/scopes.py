"""Where the calls of a program belong: the path of the container of each."""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn

from onnx2nn import functional
from onnx2nn.fx.modules.module_tree import children_of, is_persistent, module_at, own_buffers, own_parameters
from onnx2nn.fx.values.spec import Spec
from onnx2nn.ground.naming import identifier, is_attribute, split_scopes, without_call_number
from onnx2nn.importing.regions import Path
from onnx2nn.sizes.expression import Number, Size
from onnx2nn.sizes.linear import linear
from onnx2nn.sizes.selection import maximum, minimum

MOVED = "onnx_moved"
"""What a copy of a call in another module notes: the name of the file's node tells of the modules around the first."""

Modules = tuple[Path, ...]
"""The modules around a call, the outermost first."""


@dataclass(eq=False)
class Scoped:
    """A program as one flat list of calls, each with the path of its container in the tree of modules.

    Attributes:
        root: the module of the program.
        graph: its calls.
        specs: shapes of its values, where they are known.
        layers: paths of the modules that are called: `torch.nn` layers.
        containers: paths of the modules that hold modules or weights; the empty path is the root.
        scope: the path of each node's container.
        class_names: the author's class names of containers, where the exporter noted them.
        nameless: the paths of layers and weights that the file does not name.
        made: the paths of constants that the exporter made of the author's code.
        noted: the paths of the modules that an exporter notes, see `complete_scopes`.
        called: the paths of the modules that the file says are called; a list of modules is not.
        numbered: the paths of the modules that hold others under numbers, which are no names of attributes.
        settled: gives a size without what the program's conditions rule out.
    """

    root: nn.Module
    graph: fx.Graph
    specs: dict[fx.Node, Spec] = field(default_factory=dict)
    layers: set[Path] = field(default_factory=set)
    containers: set[Path] = field(default_factory=set)
    scope: dict[fx.Node, Path] = field(default_factory=dict)
    class_names: dict[Path, str] = field(default_factory=dict)
    nameless: Set[str] = frozenset()
    made: Set[str] = frozenset()
    noted: Set[Path] = frozenset()
    called: Set[Path] = frozenset()
    numbered: set[Path] = field(default_factory=set)
    settled: Callable[[Number], Number] = lambda size: size

    @functools.cached_property
    def calls(self) -> dict[Modules, list[fx.Node]]:
        """The calls by the modules around them, the outermost first, as torch's newer exporter notes these."""
        noted: dict[str, list[fx.Node]] = {}
        for node in self.graph.nodes:
            if text := node.meta.get("scopes"):
                noted.setdefault(_text_around(text), []).append(node)
        found: dict[Modules, list[fx.Node]] = {}
        for text, nodes in noted.items():
            if scopes := parsed_list(text):
                found.setdefault(paths_of(scopes), []).extend(nodes)
        return found

    @functools.cached_property
    def persistent(self) -> dict[str, bool]:
        """Whether the state_dict holds the tensors that the program reads, by their keys before anything moves them."""
        found: dict[str, bool] = {}
        for node in self.graph.find_nodes(op="get_attr"):
            *around, name = path_of(node.target)
            holder = self.find(tuple(around))
            if holder is not None and (name in own_parameters(holder) or name in own_buffers(holder)):
                found[str(node.target)] = is_persistent(holder, name)
        return found

    def is_movable(self, node: fx.Node) -> bool:
        """Returns whether any module may hold what a node reads: a buffer in no state_dict, a weight without a name."""
        persistent = self.persistent.get(str(node.target)) if node.op == "get_attr" else None
        return persistent is not None and (not persistent or str(node.target) in self.nameless)

    def has_weights(self, node: fx.Node) -> bool:
        """Returns whether a node is a call of a layer, or reads a weight."""
        return node.op == "call_module" or (node.op == "get_attr" and self.persistent.get(str(node.target), False))

    def copied(self, node: fx.Node, region: Path, known: Mapping[fx.Node, fx.Node] = MappingProxyType({})) -> fx.Node:
        """Returns a copy of a node for a region, at the point where the graph inserts nodes.

        Its value is the node's, which alone is compared with that of the file.

        Args:
            node: the node.
            region: the path of the copy's container.
            known: what the copy takes in place of arguments of the node.
        """
        copied = self.graph.node_copy(node, lambda used: known.get(used, used))
        copied.meta.pop("onnx_outputs", None)
        if region != self.scope.get(node, region):
            copied.meta[MOVED] = True
        self.scope[copied] = region
        if node in self.specs:
            self.specs[copied] = self.specs[node]
        return copied

    def is_nameless(self, node: fx.Node) -> bool:
        """Returns whether a node reads a weight without a name; a number is none."""
        if node.op != "get_attr" or not self.persistent.get(str(node.target)) or str(node.target) not in self.nameless:
            return False
        *around, name = path_of(node.target)
        return bool(getattr(self.module(tuple(around)), name).dim())

    def parameters(self, path: Path) -> dict[str, nn.Parameter]:
        """Returns the parameters that the module at `path` holds itself, by name."""
        return own_parameters(self.module(path))

    def buffers(self, path: Path) -> dict[str, torch.Tensor]:
        """Returns the buffers that the module at `path` holds itself, by name."""
        return own_buffers(self.module(path))

    def children(self, path: Path) -> list[str]:
        """Returns the names of the modules that the module at `path` holds itself, all names of a shared module."""
        return list(children_of(self.module(path)))

    def module(self, path: Path) -> nn.Module:
        """Returns the module at `path`."""
        module = self.root
        for step in path:
            module = vars(module)["_modules"][step]  # in a fifth of the time of an attribute
        return module

    def find(self, path: Path) -> nn.Module | None:
        """Returns the module at `path`, None where there is none."""
        return module_at(self.root, path)

    def find_containers(self) -> None:
        """Finds the layers and containers, and the author's classes."""
        self.layers = {path_of(node.target) for node in self.graph.find_nodes(op="call_module", sort=False)}
        self.containers, self.numbered = {()}, set()
        pending: list[tuple[Path, nn.Module]] = [((), self.root)]
        while pending:
            around, module = pending.pop()
            for name, inner in children_of(module).items():
                path = (*around, name)
                if not is_attribute(name):
                    self.numbered.add(around)
                if path not in self.layers:
                    self.containers.add(path)
                    pending.append((path, inner))
        if self.containers != {()}:
            self._note_classes()

    def _note_classes(self) -> None:
        nameless = self.containers - self.class_names.keys()
        for modules, nodes in self.calls.items():
            if not nameless.isdisjoint(modules):
                for path, name in zip(modules, _metadata(nodes[0], "classes"), strict=False):
                    if path in nameless:
                        nameless.remove(path)
                        self.class_names[path] = name.rsplit(".", 1)[-1]


@functools.lru_cache(1 << 12)
def path_of(target: Any) -> Path:
    """Returns a dotted path as its steps."""
    return tuple(str(target).split(".")) if target else ()


def around_chain(program: Scoped, node: fx.Node, path: Path) -> Path:
    """Returns the container that reads a constant at or around `path`: a chain of modules is given it, as any value."""
    while path in program.numbered and all(user.op == "call_module" for user in node.users):
        path = path[:-1]
    return path


def declared_scope(node: fx.Node) -> Path | None:
    """Returns the module path that the file names for a node, None where it names none."""
    modules = noted_modules(node)
    return modules[-1] if modules else _scope_of_name(node)


def declared_scopes(program: Scoped) -> dict[fx.Node, Path | None]:
    """Returns the module paths that the file names for the nodes of a program."""
    noted = {node: modules[-1] for modules, nodes in program.calls.items() if is_named(modules) for node in nodes}
    return {node: noted[node] if node in noted else _scope_of_name(node) for node in program.graph.nodes}


def scopes_of_torch(program: Scoped, declared: Mapping[fx.Node, Path | None]) -> dict[fx.Node, Path]:
    """Returns the modules around calls where an exporter of torch notes them.

    In files of TensorFlow and Paddle a scope may name an operation, and no module.
    """
    noted = {node for nodes in program.calls.values() for node in nodes}
    return {node: path for node, path in declared.items() if path and (node in noted or _is_of_torch(node))}


def _is_of_torch(node: fx.Node) -> bool:
    return _name(node).startswith("/") or bool(_metadata(node, "scopes"))


def _scope_of_name(node: fx.Node) -> Path | None:
    name = _name(node)
    return tuple(split_scopes(name)[:-1]) if "/" in name else None


def older_scope(node: fx.Node) -> Path:
    """Returns the scope of a call as torch's older exporter writes it, with the numbers of calls; else no steps."""
    name = _name(node)
    return tuple(split_scopes(name)[:-1]) if name.startswith("/") else ()


def names_argument(node: fx.Node, value: fx.Node) -> bool | None:
    """Returns whether torch's newer exporter notes a value among the arguments of a call; None without such notes.

    A value that equals another may be merged with it since, so that the call has another one in its note.
    """
    text, other = node.meta.get("call"), value.meta.get("call")
    if not text or not other:
        return None
    name = re.escape(other.partition(" ")[0])  # `%mul : [num_users=2] = ...`
    return re.search(rf"{name}\b", text) is not None


def is_named(modules: Modules) -> bool:
    """Returns whether the modules around a call are the author's, by the name of the outermost."""
    return not modules[0] or not modules[0][0].startswith("_")


def complete_scopes(program: Scoped) -> None:
    """Completes the modules around calls that torch's newer exporter notes by another place than their caller's.

    In a module whose `forward` someone replaced, as for an export, modules are noted by their names in that one: `conv`
    in `layer1`. A module without weights that is noted by a place elsewhere is taken for one of its caller's;
    one with weights is where these are.

    Args:
        program: flat; the notes of its calls are changed in place, and its tree is that of the weights. Gets the
            places of all modules that are noted, as they are and as identifiers: a number in them is the author's, not
            that of a call.
    """
    found, complete = set[Path](), True
    for modules, nodes in program.calls.items():
        placed = _placed(modules, program)
        found.update(placed)
        if placed != modules:
            complete = False
            for node in nodes:
                node.meta["scopes"] = repr([*map(".".join, placed), parsed_list(node.meta["scopes"])[-1]])
    if not complete:
        del program.calls  # they are read again
    if any(step_name(step) != step for step in set(itertools.chain.from_iterable(found))):
        found |= {tuple(map(step_name, path)) for path in found}
    program.noted = found


def _placed(noted: Modules, program: Scoped) -> Modules:
    """Returns the places of modules, each of which calls the next, in the tree of a program."""
    around = noted[0]
    for path in noted:
        if path[: len(around)] != around:
            break
        around = path
    else:
        return noted
    placed = [noted[0]]
    for before, path in itertools.pairwise(noted):
        if path[: len(before)] == before:
            placed.append((*placed[-1], *path[len(before) :]))
        elif program.find(path) is not None:
            placed.append(path)
        else:
            placed.append((*placed[-1], *(path[-1:] if program.find(path[:1]) is not None else path)))
    return tuple(placed)


_FUSED = "com.microsoft"
"""The domain of operators into which ONNX Runtime fuses the author's."""


def _name(node: fx.Node) -> str:
    """Returns the name of the node in the file whose call this is.

    Of a node that a tool fused and named anew, and that reads one value, it is the name of the result, which is made of
    that of the author's node.
    """
    domain, _, name = node.meta.get("onnx", ("", "", ""))
    results = node.meta.get("onnx_outputs", ())
    fused = domain == _FUSED and "/" not in name and len(node.all_input_nodes) == len(results) == 1
    return str(results[0] if fused else name)


def declared_class(node: fx.Node) -> str:
    """Returns the class of the author's module that called a node, where the exporter notes it."""
    classes = _metadata(node, "classes")
    return classes[-2].rsplit(".", 1)[-1] if len(classes) > 1 else ""


def declared_classes(node: fx.Node) -> dict[str, str]:
    """Returns the classes, with their homes, of the author's modules around a node by path; `""` is the outermost."""
    return dict(zip(_modules_around(node), _metadata(node, "classes"), strict=False))


def noted_modules(node: fx.Node) -> Modules:
    """Returns the modules around a node, the outermost first, as torch's newer exporter notes them; else none."""
    modules = paths_of(_modules_around(node))
    return modules if modules and is_named(modules) else ()


def paths_of(scopes: tuple[str, ...]) -> Modules:
    """Returns dotted paths as their steps."""
    return tuple(map(path_of, scopes))


@functools.lru_cache(1 << 12)
def step_name(step: str) -> str:
    """Returns the name in the tree of a step of a scope: a number, or an identifier."""
    return step if step.isdecimal() else identifier(step)


def _metadata(node: fx.Node, key: str) -> Sequence[str]:
    text = node.meta.get(key)
    return parsed_list(text) if text else ()


def _modules_around(node: fx.Node) -> tuple[str, ...]:
    """Returns the scopes around a node, without the last one, which is the call itself."""
    text = node.meta.get("scopes")
    return parsed_list(_text_around(text)) if text else ()


def _text_around(text: str) -> str:
    """Returns a list without its last item, as text: calls share it, and it is read once for them."""
    around, _, last = text.rpartition("', '")
    if last[-2:] == "']" and last[:-2].isidentifier():  # as torch names calls
        return f"{around}']"
    return repr([*parsed_list(text)[:-1]])


@functools.lru_cache(1 << 12)
def parsed_list(text: str) -> tuple[str, ...]:
    """Returns the items of a list that an exporter wrote, as text, none for another text."""
    items = text[2:-2].split("', '")
    quoted = text[:2] == "['" and text[-2:] == "']" and text.count("'") == 2 * len(items)
    if quoted and "\\" not in text and text.isprintable():
        return tuple(items)  # in a fiftieth of the time
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the file may hold anything
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def is_call(place: Path, other: Path) -> bool:
    """Returns whether two scopes are calls of one module: torch's older exporter numbers the calls."""
    return len(place) == len(other) and all(map(_is_step, place, other))


def _is_step(step: str, other: str) -> bool:
    names = {step_name(step), step_name(without_call_number(step))}
    return not names.isdisjoint((step_name(other), step_name(without_call_number(other))))


def name_inside(node: fx.Node, base: Path, declared: Mapping[fx.Node, Path | None]) -> str | None:
    """Returns the name of the module in `base` that a call is in; empty in that module itself, and None elsewhere."""
    place, noted = declared.get(node) or (), noted_modules(node)
    inside = place[len(base) :]
    if not is_call(place[: len(base)], base) or len(inside) > 1 or (noted and base not in noted):
        return None
    return step_name(inside[0]) if inside else ""


def is_size(node: fx.Node) -> bool:
    """Returns whether a node reads a size or the device of a tensor, which the import does once for all uses."""
    return (node.op == "call_method" and node.target == "size") or node.target is getattr


def dimension_of(program: Scoped, node: fx.Node) -> Size | None:
    """Returns the size expression that a node reads, None where it is not known, or a number."""
    match node.target, node.args:
        case "size", (fx.Node() as tensor, int(axis)):
            spec = program.specs.get(tensor)
            size = None if spec is None or spec.shape is None else spec.shape[axis]
            return size if isinstance(size, Size) else None
    return None


def arithmetic(size: Size, dimension: Number) -> list[tuple[Callable[..., Any], int]]:
    """Returns what computes a size of a dimension with the same slope: functions, each with its second argument."""
    factor, summand, divisor = linear(size, dimension)
    steps = ((operator.mul, factor, 1), (operator.add, summand, 0), (operator.floordiv, divisor, 1))
    return [(function, number) for function, number, idle in steps if number != idle]


def size_expressions(program: Scoped, known: Set[fx.Node]) -> dict[fx.Node, Size]:
    """Returns the size expressions of some numbers of a program, where they are known and no plain numbers."""
    found: dict[fx.Node, Number] = {}
    for node in program.graph.nodes:
        if is_size(node):
            dimension = dimension_of(program, node)
            size = None if dimension is None else program.settled(dimension)
        elif node in known and node.target in _LAWS and found.keys() >= set(node.all_input_nodes):
            numbers_given = [found[item] if isinstance(item, fx.Node) else item for item in node.args]
            if any(isinstance(number, float) for number in numbers_given):
                continue  # no size, as a step of a flow multiplies the logarithm of its determinant by sizes
            size = program.settled(_LAWS[node.target](*numbers_given))
        else:
            continue
        if size is not None:
            found[node] = size
    return {node: size for node, size in found.items() if isinstance(size, Size)}


_LAWS: dict[Any, Callable[..., Number]] = {
    function: function
    for function in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg)
} | {functional.onnx2nn__SizeMax: maximum, functional.onnx2nn__SizeMin: minimum}
"""What functions of numbers compute, as size expressions."""


def numbers(graph: fx.Graph) -> set[fx.Node]:
    """Returns the nodes that are a size of a tensor, or compute a number of numbers."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_method":
            number = node.target == "size" and len(node.args) == 2
        else:
            number = node.op == "call_function" and _is_arithmetic(node.target)
            number = number and bool(used := node.all_input_nodes) and found.issuperset(used)
        if number:
            found.add(node)
    return found


def plain_values(graph: fx.Graph) -> set[fx.Node]:
    """Returns the nodes that give sizes, devices, and numbers computed of these; all uses of one share a node."""
    return numbers(graph).union(filter(is_size, graph.nodes))


def _is_arithmetic(target: Any) -> bool:
    plain = getattr(target, "__module__", "") in ("_operator", "builtins", "math") and target is not getattr
    return plain or target in _OF_NUMBERS


_OF_NUMBERS = (
    functional.onnx2nn__SizeFloor,
    functional.onnx2nn__SizeIf,
    functional.onnx2nn__SizeMax,
    functional.onnx2nn__SizeMin,
)
