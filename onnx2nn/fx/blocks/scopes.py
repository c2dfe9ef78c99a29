"""Where the calls of a program belong: the path of the container of each."""

from __future__ import annotations

import ast
import functools
import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from onnx2nn import functional
from onnx2nn.fx.spec import Spec
from onnx2nn.fx.tracer import ASSERTIONS
from onnx2nn.ground.naming import identifier, split_scopes
from onnx2nn.sizes.expression import Size

Path = tuple[str, ...]


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
    """

    root: nn.Module
    graph: fx.Graph
    specs: Mapping[fx.Node, Spec] = field(default_factory=dict)
    layers: set[Path] = field(default_factory=set)
    containers: set[Path] = field(default_factory=set)
    scope: dict[fx.Node, Path] = field(default_factory=dict)
    class_names: dict[Path, str] = field(default_factory=dict)

    @functools.cached_property
    def persistent(self) -> frozenset[str]:
        """The keys of the state_dict."""
        return frozenset(self.root.state_dict(keep_vars=True))

    @functools.cached_property
    def tensors(self) -> frozenset[str]:
        """The keys of all parameters and buffers, also of buffers in no state_dict."""
        found = (self.root.named_parameters, self.root.named_buffers)
        return frozenset(name for named in found for name, _ in named(remove_duplicate=False))

    def is_movable(self, node: fx.Node) -> bool:
        """Returns whether a node reads a buffer in no state_dict, which any module may hold."""
        key = str(node.target)
        return node.op == "get_attr" and key in self.tensors and key not in self.persistent

    def parameters(self, path: Path) -> dict[str, nn.Parameter]:
        """Returns the parameters that the module at `path` holds itself, by name."""
        return dict(self.module(path).named_parameters(recurse=False, remove_duplicate=False))

    def buffers(self, path: Path) -> dict[str, torch.Tensor]:
        """Returns the buffers that the module at `path` holds itself, by name."""
        return dict(self.module(path).named_buffers(recurse=False, remove_duplicate=False))

    def children(self, path: Path) -> list[str]:
        """Returns the names of the modules that the module at `path` holds itself, all names of a shared module."""
        modules = self.module(path).named_modules(remove_duplicate=False)
        return [name for name, _ in modules if name and "." not in name]

    def module(self, path: Path) -> nn.Module:
        """Returns the module at `path`."""
        return self.root.get_submodule(".".join(path))

    def find_containers(self, placed: dict[fx.Node, Path | None]) -> None:
        """Finds the layers and containers, and gives every call its container.

        Args:
            placed: the path of a call's container, where it is known; others follow from the file's names.
        """
        self.layers = {path_of(node.target) for node in self.graph.nodes if node.op == "call_module"}
        self.containers = {
            path
            for name, _ in self.root.named_modules(remove_duplicate=False)
            if not _inside(path := path_of(name), self.layers)
        }
        if self.containers == {()}:
            self.scope = dict.fromkeys(self.graph.nodes, ())
            return
        for node in self.graph.nodes:
            _note_classes(self, node)
        _place(self, placed)
        _check_inputs_first(self)
        _compute_sizes_near_their_use(self)
        _read_sizes_near_their_use(self)
        _move_out(self)


def path_of(target: Any) -> Path:
    """Returns a dotted path as its steps."""
    return tuple(str(target).split(".")) if target else ()


def _inside(path: Path, layers: set[Path]) -> bool:
    return any(path[:end] in layers for end in range(1, len(path) + 1))


def is_attribute(name: str) -> bool:
    """Returns whether a module's name can be written after a dot."""
    return name.isidentifier() and not keyword.iskeyword(name)


def common(paths: Iterable[Path]) -> Path:
    """Returns the longest path that all of `paths` begin with."""
    first, *others = paths
    for other in others:
        end = 0
        while end < min(len(first), len(other)) and first[end] == other[end]:
            end += 1
        first = first[:end]
    return first


def declared_scope(node: fx.Node) -> Path | None:
    """Returns the module path that the file names for a node, None where it names none."""
    scopes = _metadata(node, "scopes")
    if len(scopes) > 1 and not str(scopes[0]).startswith("_"):
        return path_of(scopes[-2])
    name = node.meta.get("onnx", ("", "", ""))[2]
    return tuple(split_scopes(name)[:-1]) if "/" in name else None


def declared_module(node: fx.Node) -> Path | None:
    """Returns the module path that an exporter of torch notes for a node; None where the name is of another framework.

    In files of TensorFlow and Paddle a scope may name an operation, and no module.
    """
    of_torch = _metadata(node, "scopes") or node.meta.get("onnx", ("", "", ""))[2].startswith("/")
    return declared_scope(node) if of_torch else None


def declared_class(node: fx.Node) -> str:
    """Returns the class of the author's module that called a node, where the exporter notes it."""
    classes = _metadata(node, "classes")
    return str(classes[-2]).rsplit(".", 1)[-1] if len(classes) > 1 else ""


def _metadata(node: fx.Node, key: str) -> Sequence[Any]:
    return _parsed(node.meta.get(key) or "[]")


@functools.lru_cache(1 << 12)
def _parsed(text: str) -> tuple[Any, ...]:
    """Returns the items of a list that an exporter wrote, none for another text."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the file may hold anything
        return ()
    return tuple(found) if isinstance(found, list) else ()


def _note_classes(program: Scoped, node: fx.Node) -> None:
    for scope, name in zip(_metadata(node, "scopes")[:-1], _metadata(node, "classes"), strict=False):
        program.class_names.setdefault(path_of(scope), str(name).rsplit(".", 1)[-1])


def _place(program: Scoped, placed: dict[fx.Node, Path | None]) -> None:
    """Gives every node a scope: its module's, else the one in the file, else the common scope of its neighbours."""

    def clip(path: Path) -> Path:
        """Returns the innermost container at or above `path`; the tree may hold a step as an identifier."""
        found: Path = ()
        for step in path:
            inner = next(
                ((*found, name) for name in (step, identifier(step)) if (*found, name) in program.containers), None
            )
            if inner is None:
                break
            found = inner
        return found

    scope = program.scope
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output"):
            scope[node] = ()
        elif node.op == "call_module":
            scope[node] = clip(path_of(node.target)[:-1])
        elif node.op != "get_attr" and placed.get(node) is not None:
            scope[node] = clip(placed[node] or ())
    following = _next_scopes(program)
    for node in program.graph.nodes:
        if node not in scope and node.op != "get_attr":
            before = [scope[arg] for arg in node.all_input_nodes if arg.op not in ("get_attr", "placeholder")]
            after = following[node]
            meetings = [common((one, other)) for one in before or after for other in after or before]
            scope[node] = max(meetings, key=len, default=())
    for node in [node for node in program.graph.nodes if node.op == "get_attr"]:
        if program.is_movable(node):
            scope[node] = common([scope[user] for user in node.users])
            continue
        holder = clip(path_of(node.target)[:-1])

        def meeting(user: fx.Node, holder: Path = holder) -> Path:
            return common((scope[user], holder))

        _copy_for_users(program, node, meeting)


def _next_scopes(program: Scoped) -> dict[fx.Node, dict[Path, None]]:
    """Returns the scopes of the nearest users that have one, for each call that has none."""
    found: dict[fx.Node, dict[Path, None]] = {}
    for node in reversed(program.graph.nodes):
        if node not in program.scope and node.op != "get_attr":
            scopes = found[node] = {}
            for user in node.users:
                scopes |= {program.scope[user]: None} if user in program.scope else found[user]
    return found


def _copy_for_users(program: Scoped, node: fx.Node, scope_for: Callable[[fx.Node], Path]) -> None:
    """Replaces `node` by a copy in each of the scopes that `scope_for` gives for its users."""
    copies: dict[Path, fx.Node] = {}
    for user in list(node.users):
        scope = scope_for(user)
        if scope not in copies:
            if not copies:
                copies[scope] = node
            else:
                with program.graph.inserting_after(node):
                    copies[scope] = program.graph.node_copy(node)
            program.scope[copies[scope]] = scope
        if copies[scope] is not node:
            user.replace_input_with(node, copies[scope])
    program.scope.setdefault(node, ())


def is_size(node: fx.Node) -> bool:
    """Returns whether a node reads a size or the device of a tensor, which the import does once for all uses."""
    return (node.op == "call_method" and node.target == "size") or node.target is getattr


def is_number(node: fx.Node) -> bool:
    """Returns whether a node is a size of a tensor, or computes a number of numbers."""
    if node.op == "call_method":
        return node.target == "size" and len(node.args) == 2
    if node.op != "call_function":
        return False
    plain = getattr(node.target, "__module__", "") in ("_operator", "builtins", "math") and node.target is not getattr
    used = node.all_input_nodes
    return (plain or node.target in _OF_NUMBERS) and bool(used) and all(map(is_number, used))


_OF_NUMBERS = (functional.onnx2nn__SizeFloor, functional.onnx2nn__SizeIf)


def _compute_sizes_near_their_use(program: Scoped) -> None:
    """Copies what is computed of sizes alone into every region that uses it, so that no number leaves a region."""
    for node in reversed([node for node in program.graph.nodes if not is_size(node) and is_number(node)]):
        _copy_for_users(program, node, program.scope.__getitem__)


def _read_sizes_near_their_use(program: Scoped) -> None:
    """Reads sizes in every region from a tensor that is there: the same one, or one with an equal dimension."""
    scope, position = program.scope, {node: index for index, node in enumerate(program.graph.nodes)}
    equal, fed = _equal_dimensions(program), _fed(program)
    reads: dict[tuple[Path, fx.Node, int], fx.Node] = {}
    for node in [node for node in program.graph.nodes if is_size(node)]:
        tensor = node.args[0]
        if not isinstance(tensor, fx.Node):
            continue
        present = [scope[tensor], *(scope[user] for user in tensor.users if not is_size(user))]
        present += [scope[user] for user in node.users if scope[user] not in fed]
        size = _dimension(program, node)
        for user in list(node.users):
            if size is None or scope[user] in present or user.target in ASSERTIONS:
                continue
            before = (item for item in equal.get((scope[user], size), ()) if position[item[0]] < position.get(user, 0))
            other, axis = next(before, (None, 0))
            if other is None:
                continue
            key = (scope[user], other, axis)
            if key not in reads:
                with program.graph.inserting_after(other):
                    reads[key] = program.graph.call_method("size", (other, axis))
                scope[reads[key]] = scope[user]
            user.replace_input_with(node, reads[key])

        def nearest(user: fx.Node, present: list[Path] = present) -> Path:
            return max((common((scope[user], path)) for path in present), key=len)

        _copy_for_users(program, node, nearest)
        if not node.users:
            program.graph.erase_node(node)
            del scope[node]


def _fed(program: Scoped) -> set[Path]:
    """Returns the regions that take a tensor; another takes one whose sizes or device it reads, in place of these."""
    found: set[Path] = {()}
    for node in program.graph.nodes:
        inside = program.scope[node]
        for used in () if is_size(node) else node.all_input_nodes:
            known = used.op == "get_attr" or is_size(used) or is_number(used)
            if not known and program.scope[used][: len(inside)] != inside:
                found.add(inside)
    return found


def _dimension(program: Scoped, node: fx.Node) -> Size | None:
    """Returns the size expression that a node reads, None where it is not known, or a number."""
    match node.target, node.args:
        case "size", (fx.Node() as tensor, int(axis)):
            spec = program.specs.get(tensor)
            size = None if spec is None or spec.shape is None else spec.shape[axis]
            return size if isinstance(size, Size) else None
    return None


def _equal_dimensions(program: Scoped) -> dict[tuple[Path, Size], list[tuple[fx.Node, int]]]:
    """Returns the tensors that are used in each region, by the size expressions of their dimensions."""
    found: dict[tuple[Path, Size], list[tuple[fx.Node, int]]] = {}
    seen: set[tuple[Path, fx.Node]] = set()
    for node in program.graph.nodes:
        for tensor in node.all_input_nodes if node.op in ("call_function", "call_method", "call_module") else ():
            spec = program.specs.get(tensor)
            if is_size(node) or spec is None or spec.shape is None or (program.scope[node], tensor) in seen:
                continue
            seen.add((program.scope[node], tensor))
            for axis, size in enumerate(spec.shape):
                if isinstance(size, Size):
                    found.setdefault((program.scope[node], size), []).append((tensor, axis))
    return found


def _weighted(program: Scoped) -> dict[fx.Node, list[Path]]:
    """Returns the scopes of the layers and weights that each node depends on."""
    found: dict[fx.Node, list[Path]] = {}
    for node in program.graph.nodes:
        held = node.op == "get_attr" and not program.is_movable(node)
        own = [program.scope[node]] if node.op == "call_module" or held else []
        found[node] = list(dict.fromkeys([*own, *(path for arg in node.all_input_nodes for path in found[arg])]))
    return found


def _check_inputs_first(program: Scoped) -> None:
    """Places the checks that no weight affects at the entry."""
    checks = [node for node in program.graph.nodes if node.target in ASSERTIONS]
    weighted = _weighted(program) if checks else {}
    for node in checks:
        if not weighted[node]:
            program.scope[node] = ()


def _move_out(program: Scoped) -> None:
    """Moves values that several regions share, and that no weight affects, to the innermost region around all of them.

    An attention mask is computed in the first layer of a file and used in all layers; here it becomes their argument.
    """
    scope = program.scope
    weighted = _weighted(program)
    stateful = {path[:end] for paths in weighted.values() for path in paths for end in range(len(path) + 1)}
    for node in reversed(program.graph.nodes):
        if node.op in ("placeholder", "output", "call_module") or not node.users:
            continue
        target = common([scope[node], *(scope[user] for user in node.users)])
        while target != scope[node] and node.op != "get_attr":
            level = scope[node][: len(target) + 1]
            if level not in stateful or any(path[: len(level)] == level for path in weighted[node]):
                break  # a module without weights, such as a rotary embedding, gives what it computes
            scope[node] = target
        if program.is_movable(node):
            scope[node] = common([scope[user] for user in node.users])
        elif node.op == "get_attr":
            scope[node] = target
