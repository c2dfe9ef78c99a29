"""The shapes that a file declares for its values, after dimensions were freed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnx2nn.importing.node_facts import inner_graphs
from onnx2nn.unfreeze.size_points import Points


def declare(
    model: ir.Model, shapes: Mapping[str, Sequence[int | str | None]], known: Mapping[ir.Value, Points]
) -> None:
    """Declares the shapes of a model's values anew: those of the file hold at its own sizes only.

    Args:
        model: changed in place.
        shapes: the dimensions of every input, dynamic ones by name.
        known: the values whose shapes are known at several sizes; the shape of any other value becomes unknown.
    """
    names: dict[tuple[int, ...], str] = {}
    for value in model.graph.inputs:
        dims = shapes.get(value.name or "")
        if dims is not None:
            value.shape = ir.Shape(dims)
        for axis, dim in enumerate(dims or ()):
            if isinstance(dim, str) and value in known:
                names.setdefault(known[value].sizes(axis), dim)
    pending: list[ir.Graph] = [model.graph]
    for graph in pending:
        pending += inner_graphs(graph)
        for node in graph:
            for value in node.outputs:
                if value.shape is not None or value in known:
                    value.shape = _shape(value, known.get(value), names)


def _shape(value: ir.Value, known: Points | None, names: dict[tuple[int, ...], str]) -> ir.Shape | None:
    """Returns a shape with a name for each dimension that varies, one name for dimensions that vary alike."""
    if known is None:
        return None
    columns = [known.sizes(axis) for axis in range(len(known.shape))]
    return ir.Shape(
        column[0] if len(set(column)) == 1 else names.setdefault(column, f"{value.name}_{axis}")
        for axis, column in enumerate(columns)
    )
