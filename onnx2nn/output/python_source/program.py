"""The fx graph of an imported module as one flat list of calls, each with the path of its module."""

from __future__ import annotations

import ast
import functools
import keyword
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from onnx2nn import control_flow
from onnx2nn.errors import InputError
from onnx2nn.ground.naming import identifier, split_scopes
from onnx2nn.optable.row import Row
from onnx2nn.output.python_source.inlining import ForeignError, Inlined

Path = tuple[str, ...]


@dataclass(eq=False)
class Program:
    """A module's calls in order, and the tree of their modules.

    Attributes:
        root: the imported module.
        graph: its calls, with the calls of inner graph modules inlined.
        layers: paths of the modules that are called: `torch.nn` layers.
        containers: paths of the modules that hold modules or weights; the empty path is the root.
        scope: the path of each node's container.
        class_names: the author's class names of containers, where the exporter noted them.
        bodies: the graphs that a layer runs, a branch of an If or the body of a loop, by their paths.
        inlined: the operators that run as one function, whose source the file holds.
        foreign: calls that torch alone cannot make, by description, with the names of the nodes.
    """

    root: nn.Module
    graph: fx.Graph
    layers: set[Path] = field(default_factory=set)
    containers: set[Path] = field(default_factory=set)
    scope: dict[fx.Node, Path] = field(default_factory=dict)
    class_names: dict[Path, str] = field(default_factory=dict)
    bodies: dict[Path, Program] = field(default_factory=dict)
    inlined: Inlined = field(default_factory=Inlined)
    foreign: dict[str, list[str]] = field(default_factory=dict)

    def all_class_names(self, prefix: Path = ()) -> Iterator[tuple[Path, str]]:
        """Yields the author's class names by path, also in bodies of control flow."""
        yield from (((*prefix, *path), name) for path, name in self.class_names.items())
        for path, body in self.bodies.items():
            yield from body.all_class_names((*prefix, *path))

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
        """Returns whether a node reads a buffer in no state_dict, which any class may hold."""
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


def read_program(module: fx.GraphModule) -> Program:
    """Returns the calls of `module` with their scopes.

    Raises:
        InputError: calls that torch alone cannot make, all of them.
    """
    program = _read(module, Inlined())
    if program.foreign:
        lines = [f"{what} (nodes: {', '.join(nodes)})" for what, nodes in program.foreign.items()]
        raise InputError(f"The model cannot be written with torch alone: {'; '.join(lines)}.")
    return program


def _read(module: fx.GraphModule, inlined: Inlined) -> Program:
    graph = fx.Graph()
    placed: dict[fx.Node, Path | None] = {}
    output = _inline(graph, module, (), {}, placed)
    graph.output(output)
    program = Program(module, graph, inlined=inlined)
    _note_foreign(program)
    for node in graph.nodes:
        if node.op == "call_module":
            _read_bodies(program, _path(node.target))
    program.layers = {_path(node.target) for node in graph.nodes if node.op == "call_module"}
    program.containers = {
        path
        for name, _ in module.named_modules(remove_duplicate=False)
        if not _inside(path := _path(name), program.layers)
    }
    for node in graph.nodes:
        _note_classes(program, node)
    _place(program, placed)
    _read_sizes_near_their_use(program)
    _move_out(program)
    return program


def _path(target: Any) -> Path:
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


def _inline(
    graph: fx.Graph,
    module: fx.GraphModule,
    prefix: Path,
    known: dict[fx.Node, Any],
    placed: dict[fx.Node, Path | None],
) -> Any:
    """Copies the calls of `module` to `graph`, and inlines the graph modules that it calls; returns its output."""
    for node in module.graph.nodes:
        if node.op == "output":
            return fx.map_arg(node.args[0], known.__getitem__)
        if node in known:
            continue
        path = (*prefix, *_path(node.target)) if node.op in ("call_module", "get_attr") else ()
        called = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(called, fx.GraphModule):
            inputs = [inner for inner in called.graph.nodes if inner.op == "placeholder"]
            given = [known[arg] if isinstance(arg, fx.Node) else arg for arg in node.args]
            known[node] = _inline(graph, called, path, dict(zip(inputs, given, strict=True)), placed)
        elif node.target is operator.getitem and isinstance(known[node.args[0]], (tuple, list)):
            known[node] = known[node.args[0]][node.args[1]]
        else:
            copy = known[node] = graph.node_copy(node, known.__getitem__)
            if path:
                copy.target = ".".join(path)
            scope = _declared_scope(node)
            placed[copy] = (*prefix, *scope) if scope is not None else prefix or None
    raise AssertionError("a graph without an output")


def _declared_scope(node: fx.Node) -> Path | None:
    """Returns the module path that the file names for a node, None where it names none."""
    scopes = _metadata(node, "scopes")
    if len(scopes) > 1 and not str(scopes[0]).startswith("_"):
        return _path(scopes[-2])
    name = node.meta.get("onnx", ("", "", ""))[2]
    return tuple(split_scopes(name)[:-1]) if "/" in name else None


def _metadata(node: fx.Node, key: str) -> list[Any]:
    try:
        found = ast.literal_eval(node.meta.get(key) or "[]")
    except (ValueError, SyntaxError):
        return []
    return found if isinstance(found, list) else []


def _note_classes(program: Program, node: fx.Node) -> None:
    for scope, name in zip(_metadata(node, "scopes")[:-1], _metadata(node, "classes"), strict=False):
        program.class_names.setdefault(_path(scope), str(name).rsplit(".", 1)[-1])


def _read_bodies(program: Program, path: Path) -> None:
    """Reads the graphs that a module of control flow runs."""
    module = program.module(path)
    if not is_control_flow(module):
        return
    for name, inner in module.named_children():
        if isinstance(inner, fx.GraphModule):
            body = _read(inner, program.inlined)
            program.bodies[path + (name,)] = body  # noqa: RUF005 - no unpacking in a subscript before Python 3.11
            for what, nodes in body.foreign.items():
                program.foreign.setdefault(what, []).extend(nodes)
        else:
            _read_bodies(program, (*path, name))


def is_control_flow(module: nn.Module) -> bool:
    """Returns whether a module is one of `onnx2nn.control_flow`."""
    return type(module).__module__ == control_flow.__name__


def _note_foreign(program: Program) -> None:
    """Notes all calls that cannot be written with torch."""
    for node in program.graph.nodes:
        what = _foreign(program, node)
        if what:
            program.foreign.setdefault(what, []).append(str(node.meta.get("onnx", ("", "", node.name))[2]))


def _foreign(program: Program, node: fx.Node) -> str:
    """Returns why a call cannot be written, `""` where it can."""
    if node.op == "call_function" and not isinstance(node.target, str) and not is_torch(node.target):
        row, name = row_of(node), getattr(node.target, "__name__", "")
        if row is None:
            return f"{name} is a function of onnx2nn"
        try:
            program.inlined.add(row)
        except ForeignError as reason:
            return f"{name} runs as a function of onnx2nn, which {reason}"
    elif node.op == "call_module":
        layer = program.root.get_submodule(str(node.target))
        kind = type(layer)
        if not kind.__module__.startswith("torch.nn.") and not is_control_flow(layer):
            return f"{kind.__name__} is a module of {kind.__module__}"
    elif node.op == "get_attr":
        value = operator.attrgetter(str(node.target))(program.root)
        if not isinstance(value, torch.Tensor):
            return f"{node.target} holds no tensor"
    return ""


def row_of(node: fx.Node) -> Row | None:
    """Returns the operator that a call runs as one function, None for any other call."""
    row: Row | None = getattr(node.target, "row", None)
    return row


def is_torch(function: Callable[..., Any]) -> bool:
    """Returns whether a function is one of torch's or Python's own."""
    home = str(getattr(function, "__module__", None) or "torch").split(".")[0]
    return home in ("torch", "builtins", "_operator", "operator", "math")


def _place(program: Program, placed: dict[fx.Node, Path | None]) -> None:
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
            scope[node] = clip(_path(node.target)[:-1])
        elif node.op != "get_attr" and placed.get(node) is not None:
            scope[node] = clip(placed[node] or ())
    for node in program.graph.nodes:
        if node not in scope and node.op != "get_attr":
            before = [scope[arg] for arg in node.all_input_nodes if arg.op not in ("get_attr", "placeholder")]
            after = _next_scopes(node, scope)
            meetings = [common((one, other)) for one in before or after for other in after or before]
            scope[node] = max(meetings, key=len, default=())
    for node in [node for node in program.graph.nodes if node.op == "get_attr"]:
        if program.is_movable(node):
            scope[node] = common([scope[user] for user in node.users])
            continue
        holder = clip(_path(node.target)[:-1])

        def meeting(user: fx.Node, holder: Path = holder) -> Path:
            return common((scope[user], holder))

        _copy_for_users(program, node, meeting)


def _next_scopes(node: fx.Node, scope: dict[fx.Node, Path]) -> list[Path]:
    """Returns the scopes of the nearest users of `node` that have one."""
    found, seen, queue = [], {node}, list(node.users)
    while queue:
        user = queue.pop()
        if user in seen:
            continue
        seen.add(user)
        if user in scope:
            found.append(scope[user])
        else:
            queue += user.users
    return found


def _copy_for_users(program: Program, node: fx.Node, scope_for: Callable[[fx.Node], Path]) -> None:
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
    return node.target == "size" or node.target is getattr


def _read_sizes_near_their_use(program: Program) -> None:
    """Copies reads of sizes into every region that has the tensor."""
    scope = program.scope
    for node in [node for node in program.graph.nodes if is_size(node)]:
        tensor = node.args[0]
        if not isinstance(tensor, fx.Node):
            continue
        present = [scope[tensor], *(scope[user] for user in tensor.users if not is_size(user))]

        def nearest(user: fx.Node, present: list[Path] = present) -> Path:
            return max((common((scope[user], path)) for path in present), key=len)

        _copy_for_users(program, node, nearest)


def _move_out(program: Program) -> None:
    """Moves values that several regions share, and that no weight affects, to the innermost region around all of them.

    An attention mask is computed in the first layer of a file and used in all layers; here it becomes their argument.
    """
    scope = program.scope
    weighted: dict[fx.Node, list[Path]] = {}  # scopes of the layers and weights that a node depends on
    for node in program.graph.nodes:
        held = node.op == "get_attr" and not program.is_movable(node)
        own = [scope[node]] if node.op == "call_module" or held else []
        weighted[node] = list(dict.fromkeys([*own, *(path for arg in node.all_input_nodes for path in weighted[arg])]))
    for node in reversed(program.graph.nodes):
        if node.op in ("placeholder", "output", "call_module") or not node.users:
            continue
        target = common([scope[node], *(scope[user] for user in node.users)])
        while target != scope[node] and node.op != "get_attr":
            level = scope[node][: len(target) + 1]
            if any(path[: len(level)] == level for path in weighted[node]):
                break
            scope[node] = target
        if program.is_movable(node):
            scope[node] = common([scope[user] for user in node.users])
        elif node.op == "get_attr":
            scope[node] = target
