"""The tree of modules of a report, and the program of each block as a graph of calls."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx, nn

from onnx2nn.fx.modules.module_tree import children_of
from onnx2nn.reporting.model_report import Call, FileNode, Module, Weight
from onnx2nn.reporting.module_runs import Measured, ModuleRun, joined

_LONGEST_DETAIL = 300


class ModuleTree:
    """Builds the modules of a report.

    Args:
        module: the imported module.
        weights: its weights.
        nodes: the nodes of the file; those that the module computes get the position of their module.
        producers: name of a value of the file → the position of its node, and the names of the values it needs.
        run: what the calls gave.

    Attributes:
        modules: the tree.
        programs: the programs of its blocks.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        weights: Sequence[Weight],
        nodes: Sequence[FileNode],
        producers: Mapping[str, tuple[int, list[str]]],
        run: ModuleRun,
    ):
        self.modules: list[Module] = []
        self.programs: list[str] = []
        self._weights, self._nodes, self._producers, self._run = weights, nodes, producers, run
        self._program_of: dict[str, int] = {}
        self._positions = {path: number for number, (path, _) in enumerate(_walk(module))}
        self._named = {name for _, inner in _walk(module) for name in _outputs_in(inner)}
        self._by_name: dict[str, list[int]] = {}
        for number, node in enumerate(nodes):
            self._by_name.setdefault(node.name, []).append(number)
        self._taken: set[int] = set()
        for path, inner in _walk(module):
            self._add(path, inner)
        for path, inner in _walk(module):
            self._add_calls(path, inner)
        self._add_weights()
        self._add_seconds()

    def position(self, path: str) -> int:
        """Returns the position of a module, of the innermost one around it where the tree has none of this path."""
        while path not in self._positions:
            path = path.rpartition(".")[0]
        return self._positions[path]

    def _add(self, path: str, module: nn.Module) -> None:
        parent = self.position(path.rpartition(".")[0]) if path else None
        detail = "" if isinstance(module, fx.GraphModule) else module.extra_repr()[:_LONGEST_DETAIL]
        self.modules.append(Module(path, type(module).__name__, detail, parent))

    def _add_calls(self, path: str, module: nn.Module) -> None:
        entry = self.modules[self._positions[path]]
        if isinstance(module, fx.GraphModule):
            numbers: dict[fx.Node, int] = {}
            for node in module.graph.nodes:
                numbers[node] = len(numbers)
                given = sorted({numbers[used] for used in node.all_input_nodes})
                entry.calls.append(self._call(path, module, node, given))
            entry.code = self._program(module.code.strip())
        elif type(module) is nn.Sequential and len(module) and _is_called(self._run, path):
            entry.calls.append(Call("input", "input", "input", None, []))
            for name in children_of(module):
                meta = getattr(module, "onnx_calls", {}).get(name, {})
                last = len(entry.calls) - 1
                entry.calls.append(self._made(path, name, "module", joined(path, name), [last], meta))
            entry.calls.append(Call("output", "output", "output", None, [len(entry.calls) - 1]))

    def _program(self, text: str) -> int:
        if text not in self._program_of:
            self._program_of[text] = len(self.programs)
            self.programs.append(text)
        return self._program_of[text]

    def _call(self, path: str, module: nn.Module, node: fx.Node, given: list[int]) -> Call:
        if node.op in ("placeholder", "output"):
            kind = "input" if node.op == "placeholder" else "output"
            measured = self._run.calls.get((path, node.name))
            value = measured.value if measured else ""
            return Call(node.name, kind, node.name, None, given, value, measured is None or measured.tensor)
        if node.op == "call_module":
            return self._made(path, node.name, "module", joined(path, str(node.target)), given, _meta_of(node))
        kind = "weight" if node.op == "get_attr" else "function"
        return self._made(path, node.name, kind, label_of(module, node), given, node.meta)

    def _made(self, path: str, name: str, kind: str, target: str, given: list[int], meta: Mapping[str, Any]) -> Call:
        """Returns a call that computes something; `target` is the path of a module, or the name of a function."""
        measured = self._run.calls.get((path, name), Measured("", True, 0.0))
        called = self._positions.get(target) if kind == "module" else None
        nodes = self._nodes_behind(meta)
        inner = self.modules[called] if called is not None else None
        home = called if inner is not None else self._positions[path]
        for number in nodes:
            self._nodes[number].module = home
        if inner is not None:
            inner.nodes += nodes
            inner.value = inner.value or measured.value
        label = inner.kind if inner is not None else target
        seconds = measured.seconds if measured.value else None
        return Call(name, kind, label, called, given, measured.value, measured.tensor, nodes, seconds)

    def _nodes_behind(self, meta: Mapping[str, Any]) -> list[int]:
        """Returns the nodes that a call computes, up to values that other calls have; each node belongs to one call.

        A node that became several calls, as a convolution with a folded batch normalisation does, belongs to each.
        """
        outputs = meta.get("onnx_outputs", ())
        waiting = [name for name in outputs if name in self._producers]
        found: list[int] = []
        if outputs and not waiting:
            found += self._by_name.get(meta.get("onnx", ("", "", ""))[2], [])
        while waiting:
            number, read = self._producers[waiting.pop(0)]
            if number not in self._taken:
                self._taken.add(number)
                found.append(number)
                waiting += [name for name in read if name in self._producers and name not in self._named]
        return found

    def _add_weights(self) -> None:
        counted: set[tuple[int, str]] = set()
        for number, weight in enumerate(self._weights):
            place = self.position(weight.key.rpartition(".")[0])
            self.modules[place].weights.append(number)
            holder: int | None = place
            while holder is not None and (holder, weight.tied or weight.key) not in counted:
                counted.add((holder, weight.tied or weight.key))
                self.modules[holder].bytes += weight.bytes
                self.modules[holder].parameters += weight.elements if weight.role == "parameter" else 0
                holder = self.modules[holder].parent

    def _add_seconds(self) -> None:
        """Adds up the times of calls that call no further program of the tree."""
        for entry in reversed(self.modules):
            own = [call for call in entry.calls if call.seconds is not None]
            for call in own:
                if call.module is not None and not self.modules[call.module].calls:
                    inner = self.modules[call.module]
                    inner.seconds = (inner.seconds or 0.0) + (call.seconds or 0.0)
            plain = [call.seconds or 0.0 for call in own if call.module is None]
            if plain:
                entry.seconds = (entry.seconds or 0.0) + sum(plain)
        for entry in reversed(self.modules):
            if entry.parent is not None and entry.seconds is not None:
                around = self.modules[entry.parent]
                around.seconds = (around.seconds or 0.0) + entry.seconds


def _walk(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(module.named_modules(remove_duplicate=False))


def _outputs_in(module: nn.Module) -> list[str]:
    """Returns the names of the file's values that calls of a module's own program compute."""
    if isinstance(module, fx.GraphModule):
        return [name for node in module.graph.nodes for name in node.meta.get("onnx_outputs", ())]
    known: Mapping[str, Mapping[str, Any]] = getattr(module, "onnx_calls", {})
    return [name for meta in known.values() for name in meta.get("onnx_outputs", ())]


def _is_called(run: ModuleRun, path: str) -> bool:
    return not run.calls or any(place == path for place, _ in run.calls)


def _meta_of(node: fx.Node) -> Mapping[str, Any]:
    """Returns the record of a call; one that gives several values names them where they are taken apart."""
    if node.meta.get("onnx_outputs"):
        return node.meta
    parts = [user for user in node.users if user.target is operator.getitem]
    names = [name for user in parts for name in user.meta.get("onnx_outputs", ())]
    return {**node.meta, "onnx_outputs": names}


def label_of(module: nn.Module, node: fx.Node) -> str:
    """Returns the class, function or key that a node of a module's program calls or reads."""
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target))).__name__
    if node.target is operator.getitem:
        index = node.args[1]
        return f"[{', '.join(map(_index, index if isinstance(index, tuple) else (index,)))}]"
    if isinstance(node.target, str):
        return node.target
    return str(getattr(node.target, "__name__", node.target)).removeprefix("onnx2nn_functional_")


def _index(index: Any) -> str:
    """Returns one index of a tensor as Python writes it."""
    if isinstance(index, slice):
        parts = ["" if part is None else str(part) for part in (index.start, index.stop, index.step)]
        return ":".join(parts[:2] if index.step is None else parts)
    return "..." if index is Ellipsis else str(index)
