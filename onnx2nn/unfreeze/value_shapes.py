"""The shapes that a file declares for its values, after dimensions were freed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnx2nn.importing.node_facts import inner_graphs
from onnx2nn.sizes.expression import Number
from onnx2nn.unfreeze.sized_values import Sized


def declare(model: ir.Model, shapes: Mapping[str, Sequence[int | str | None]], known: Mapping[ir.Value, Sized]) -> None:
    """Declares the shapes of a model's values anew: those of the file hold at its own sizes only.

    Args:
        model: changed in place.
        shapes: the dimensions of every input, dynamic ones by name.
        known: the values whose shapes are known for all sizes; the shape of any other value becomes unknown.
    """
    names: dict[Number, str] = {}
    for value in model.graph.inputs:
        dims = shapes.get(value.name or "")
        if dims is not None:
            value.shape = ir.Shape(dims)
        for axis, dim in enumerate(dims or ()):
            if isinstance(dim, str) and value in known:
                names.setdefault(known[value].sizes[axis], dim)
    pending: list[ir.Graph] = [model.graph]
    for graph in pending:
        pending += inner_graphs(graph)
        for node in graph:
            for value in node.outputs:
                if value.shape is not None or value in known:
                    value.shape = _shape(value, known.get(value), names)


def _shape(value: ir.Value, known: Sized | None, names: dict[Number, str]) -> ir.Shape | None:
    """Returns a shape with a name for each dimension that varies, one name for equal dimensions."""
    if known is None:
        return None
    return ir.Shape(
        size if isinstance(size, int) else names.setdefault(size, f"{value.name}_{axis}")
        for axis, size in enumerate(known.sizes)
    )
