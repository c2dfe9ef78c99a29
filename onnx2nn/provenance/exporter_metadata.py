"""The notes of exporters in a file: parameters and buffers, and each node's module, call and line of source.

`torch.onnx.export(dynamo=True)` lists parameters and buffers with their keys in the graph's metadata, and notes on each
node the modules around it, its call and the lines of source. `dynamo=False` names nodes after their modules
(`/layer1/layer1.0/conv1/Conv`), and weights by their keys unless it changed their values.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import onnx_ir as ir

from onnx2nn.ground.naming import is_generated, split_scopes

SCOPES, CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
"""Metadata of nodes: the modules around one, the outermost first, and the call; the classes of these."""

CALL = "pkg.torch.onnx.fx_node"
"""Metadata of nodes: the call of torch that became one, with the names of its arguments."""

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
_STACK = "pkg.torch.onnx.stack_trace"

_JOB_OP = re.compile(r"(.+)-[a-z]\w*-\d+(?:/|$)")
"""Names of the ops of a OneFlow job: the module's path, the type of op and a number."""

_ENTRY = re.compile(
    r"^(?P<name>\w+): (?P<kind>PARAMETER|BUFFER) target='(?P<key>[^']+)'(?: persistent=(?P<persistent>True|False))?",
    re.MULTILINE,
)
_OLDER_ENTRY = re.compile(
    r"InputKind\.(?P<kind>PARAMETER|BUFFER): \d+>, arg=TensorArgument\(name='(?P<name>\w+)'\), "
    r"target='(?P<key>[^']+)'(?:, persistent=(?P<persistent>True|False))?"
)
"""An entry of the signature as PyTorch 2.5 and 2.6 write it."""

_TARGET = re.compile(r"call_function\[target=torch\.ops\.([\w.]+)\]\(args = \(")
_MARK = re.compile(r"[()\[\]{},]")
_NESTED = frozenset("([{}]")
_DEEPER = {"(": 1, "[": 1, "{": 1, ",": 0, "}": -1, "]": -1, ")": -1}
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class State(NamedTuple):
    """A parameter or buffer of the author's module."""

    key: str
    parameter: bool
    persistent: bool


class Call(NamedTuple):
    """The call of torch that became a node: its target, as `aten.linear.default`, and its arguments' text."""

    target: str
    arguments: tuple[str, ...]


class Place(NamedTuple):
    """The module of a node: its path and the full name of its class, `""` where the class is not known."""

    path: str
    kind: str


def keeps_names(model: ir.Model) -> bool:
    """Returns whether initializers are keys of a state_dict: torch's exporters or oneflow_bridge wrote the file.

    A tool that changed such a file, as ONNX Runtime's quantiser does, put its own name in it, and left the newer
    exporter's list of keys, or the names that an exporter gave to a node with weights.
    """
    if not is_changed(model) or _SIGNATURE in model.graph.metadata_props:
        return True
    return _has_named(model.graph)


def _has_named(graph: ir.Graph) -> bool:
    """Returns whether torch's exporters named a node with weights: after the module of these, or after its result."""
    modules = {name.rpartition(".")[0] for name in graph.initializers if "/" not in name}
    steps = [module.split(".") for module in modules if module]
    inside = {".".join(path[start:]) for path in steps for start in range(len(path))}
    for node in graph:
        name = node.name or ""
        if name.startswith("/"):
            if ".".join(split_scopes(name)[:-1]) in inside:
                return True
        elif name.startswith("node_"):
            result = node.outputs[0].name if node.outputs else None
            if name == f"node_{result}" and any(_module_of(_unrounded(value)) for value in node.inputs):
                return True
    return False


def _module_of(value: ir.Value | None) -> str:
    """Returns the path of the module of a weight, `""` for other values."""
    return (value.name or "").rpartition(".")[0] if value is not None and value.is_initializer() else ""


def _unrounded(value: ir.Value | None) -> ir.Value | None:
    """Returns what a quantiser rounds to `value` by a QuantizeLinear, a DequantizeLinear or both; others unchanged."""
    for _ in range(2):
        node = value.producer() if value is not None else None
        if node is not None and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            value = node.inputs[0]
    return value


def is_changed(model: ir.Model) -> bool:
    """Returns whether another tool than torch's exporters and oneflow_bridge wrote the file."""
    return model.producer_name not in ("pytorch", "onnx2nn")


def signature(graph: ir.Graph) -> dict[str, State] | None:
    """Returns the author's parameters and buffers by their names in calls; None without such a note."""
    text = graph.metadata_props.get(_SIGNATURE)
    if text is None:
        return None
    entry = _OLDER_ENTRY if text.startswith("ExportGraphSignature(") else _ENTRY
    return {
        found["name"]: State(found["key"], found["kind"] == "PARAMETER", found["persistent"] != "False")
        for found in entry.finditer(text)
    }


def call_of(node: ir.Node) -> Call | None:
    """Returns the call that became `node`, None without such a note."""
    text = node.metadata_props.get(CALL)
    return _parsed_call(text) if text else None


@functools.lru_cache(1 << 12)
def _parsed_call(text: str) -> Call | None:
    """Returns the call that a note describes, None for another text; several passes ask for that of each node."""
    found = _TARGET.search(text)
    if found is None:
        return None
    arguments, depth, start = [], 0, found.end()
    end = text.find(")", start)
    plain = text[start:end]
    if end >= 0 and _NESTED.isdisjoint(plain):
        return Call(found[1], tuple(argument for part in plain.split(",") if (argument := part.strip())))
    for mark in _MARK.finditer(text, start):
        depth += _DEEPER[mark[0]]
        if depth < 0 or (mark[0] == "," and not depth):
            arguments.append(text[start : mark.start()].strip())
            start = mark.end()
        if depth < 0:
            break
    return Call(found[1], tuple(argument for argument in arguments if argument))


def is_in_call(node: ir.Node, text: str) -> bool:
    """Returns whether the note of the call that became `node` has a text in it; False without such a note."""
    return text in node.metadata_props.get(CALL, "")


def padding_index(node: ir.Node) -> int | None:
    """Returns the row of an embedding that gets no gradient; None where the file notes none."""
    call = call_of(node)
    if call is None or not call.target.startswith("aten.embedding.") or len(call.arguments) < 3:
        return None
    index = call.arguments[2]
    return int(index) if index.isdecimal() else None


def place_of(node: ir.Node) -> Place | None:
    """Returns the module of `node`, None where the file does not say."""
    notes = node.metadata_props
    return _place(notes.get(SCOPES, ""), notes.get(CLASSES, ""), node.name or "")


@functools.lru_cache(1 << 12)
def _place(scopes: str, classes: str, name: str) -> Place | None:
    """Returns the module of a node by what the file notes of it; several passes ask for that of each node."""
    paths = _words(scopes)
    if len(paths) > 1:  # the last one is the call itself
        kinds = _words(classes)
        return Place(paths[-2], kinds[-2] if len(kinds) == len(paths) else "")
    return Place(".".join(split_scopes(name)[:-1]), "") if name.startswith("/") else None


def computed_weights(graph: ir.Graph | None) -> dict[str, set[str]]:
    """Returns path → the first matrix or kernel of each node of that module that reads some the exporter computed."""
    found: dict[str, set[str]] = {}
    for node in graph if graph is not None else ():
        place = place_of(node)
        weights = (value for value in node.inputs if value is not None and _is_computed(value))
        first = next(weights, None) if place is not None else None
        if place is not None and first is not None:
            found.setdefault(place.path, set()).add(first.name or "")
    return found


def _is_computed(value: ir.Value) -> bool:
    """Returns whether a value is a matrix or kernel that the exporter computed, by its name."""
    matrix = value.is_initializer() and value.shape is not None and len(value.shape) > 1
    return matrix and is_generated(value.name or "")


def call_name(node: ir.Node) -> str:
    """Returns the name of the call that became `node`, unique in its file; `""` without such a note."""
    return next(reversed(_words(node.metadata_props.get(SCOPES, ""))), "")


def modules(graph: ir.Graph, wanted: Callable[[str], bool]) -> dict[str, str]:
    """Returns path → full class name of the modules around nodes whose class is wanted; `""` is the outermost path."""
    found: dict[str, str] = {}
    picked: dict[str, list[tuple[int, str]]] = {}
    for node in graph:
        text = node.metadata_props.get(CLASSES, "")
        if text not in picked:
            picked[text] = [(i, kind) for i, kind in enumerate(_words(text)[:-1]) if wanted(kind)]
        if picked[text]:
            paths = _words(node.metadata_props.get(SCOPES, ""))
            found.update({paths[i]: kind for i, kind in picked[text] if i < len(paths)})
    return found


def inside(node: ir.Node, path: str, kind: str, call: str) -> dict[str, str]:
    """Returns the notes of a call in a module that the module of `node` calls.

    Args:
        node: a call, with such notes.
        path: of the inner module.
        kind: the full name of its class.
        call: the name of the call.
    """
    notes = node.metadata_props
    steps, kinds = (_words(notes.get(key, ""))[:-1] for key in (SCOPES, CLASSES))
    return {SCOPES: repr([*steps, path, call]), CLASSES: repr([*kinds, kind, call])}


def scopes_of(path: str, call: str) -> dict[str, str]:
    """Returns the notes of a call in the module at a path."""
    steps = path.split(".")
    return {SCOPES: repr(["", *(".".join(steps[:end]) for end in range(1, len(steps) + 1)), call])}


def exported_place(model: ir.Model, node: ir.Node) -> str:
    """Returns the path of a node's module in a file of `oneflow_bridge.export`, `""` in any other file."""
    found = _JOB_OP.match(node.name or "") if model.producer_name == "onnx2nn" else None
    return found[1] if found is not None else ""


def folded_from(value: ir.Value) -> set[str]:
    """Returns the names of the values that the exporter folded into an initializer; empty without such a note."""
    return set(_words(value.metadata_props.get(_FOLDED, "")))


def note_folded(value: ir.Value, names: set[str]) -> None:
    """Notes on an initializer what it was folded from, as the exporter does."""
    value.metadata_props[_FOLDED] = str(sorted(names))


def source_of(node: ir.Node) -> str:
    """Returns the author's line of source for `node`, as `net.py:12`; `""` without such a note."""
    frames = _FRAME.findall(node.metadata_props.get(_STACK, ""))
    own = [frame for frame in frames if "/torch/nn/" not in frame[0].replace("\\", "/")] or frames
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


def _words(text: str) -> list[str]:
    """Returns the strings of a list that Python printed."""
    return text[2:-2].split("', '") if len(text) > 4 else []
