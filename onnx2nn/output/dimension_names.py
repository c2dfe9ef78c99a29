"""The names of dynamic dimensions, for a torch.onnx.export that takes none: PyTorch 2.6's leaves such axes fixed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

TAKEN = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)
"""Whether torch.onnx.export takes names of dimensions in `dynamic_shapes`."""

_WORD = re.compile(r"\w+")


def dynamic_shapes(axes: Sequence[Mapping[int, str] | None]) -> tuple[dict[int, Any] | None, ...]:
    """Returns the axes of each input that are dynamic in the form that this torch.onnx.export takes."""
    dynamic = torch.export.Dim.DYNAMIC
    return tuple(
        {axis: name if TAKEN else dynamic for axis, name in named.items()} if named else None for named in axes
    )


def rename(model: ir.Model, axes: Sequence[Mapping[int, str] | None]) -> None:
    """Gives the dimensions of an exported model their names, where the exporter took none and called them s0, s1 ..."""
    if TAKEN:
        return
    names: dict[str, str] = {}
    for value, named in zip(model.graph.inputs, axes, strict=False):
        for axis, name in (named or {}).items():
            found = value.shape[axis] if value.shape is not None else None
            if isinstance(found, ir.SymbolicDim) and found.value is not None:
                names.setdefault(found.value, name)
    nodes = model.graph.all_nodes()
    values = [*model.graph.inputs, *(output for node in nodes for output in node.outputs)]
    shapes = {id(value.shape): value.shape for value in values if value.shape is not None}  # values may share one
    for shape in shapes.values():
        for axis, size in enumerate(shape):
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                shape[axis] = ir.SymbolicDim(_WORD.sub(lambda word: names.get(word[0], word[0]), size.value))
