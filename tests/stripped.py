"""Copies of files in which names are missing, as optimisers and other exporters leave them."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx


def without_scopes(path: Path) -> Path:
    """Writes a copy of a file in which the names of the weights alone are left."""
    model = onnx.load(path)
    graph, numbers = model.graph, itertools.count()
    kept = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    names: dict[str, str] = {}
    del graph.value_info[:]
    for node in graph.node:
        node.name = ""
        del node.metadata_props[:]
        node.input[:] = [names.get(name, name) for name in node.input]
        for name in node.output:
            names[name] = name if name in kept or not name else f"v{next(numbers)}"
        node.output[:] = [names[name] for name in node.output]
    onnx.save(model, path.with_suffix(".bare.onnx"))
    return path.with_suffix(".bare.onnx")


def without_names(path: Path, target: Path) -> Path:
    """Writes a copy of a file in which the names of inputs and outputs alone are left, and the weights are numbered."""
    model = onnx.load(path)
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    _number(model.graph, {name: name for name in kept})
    model.producer_name = ""
    del model.metadata_props[:]
    onnx.save(model, target)
    return target


def _number(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Numbers the values of a graph and of those in it.

    Args:
        graph: is changed in place.
        names: the names so far.
    """

    def renamed(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}") if name else ""

    del graph.value_info[:], graph.metadata_props[:]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = renamed(value.name)
    for node in graph.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        node.input[:] = map(renamed, node.input)
        node.output[:] = map(renamed, node.output)
        for attribute in node.attribute:
            for inner in (attribute.g,) if attribute.HasField("g") else attribute.graphs:
                _number(inner, names)
