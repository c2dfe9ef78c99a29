"""A model whose numbers have a wider type: what the oracle computes with it shows how far its own roundings go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

TYPES = ("to", "dtype")
"""Attributes that name the type of a result (Cast, RandomNormal, EyeLike ...)."""


class Widening(NamedTuple):
    """A float type and the wider one that takes its place, as NumPy's and as ONNX's numbers of them."""

    narrow: np.dtype
    wide: np.dtype
    number: int
    wide_number: int


SINGLE = Widening(np.dtype(np.float32), np.dtype(np.float64), onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
HALF = Widening(np.dtype(np.float16), np.dtype(np.float32), onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)


def widened(model: onnx.ModelProto, types: Widening) -> onnx.ModelProto:
    """Returns a copy in the wide type of a model that computes in the narrow one.

    The result need not be a valid model: not every operator takes float64, and the oracle then refuses it.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen_graph(wide.graph, types)
    return wide


def widened_feeds(feeds: Mapping[str, np.ndarray], types: Widening) -> dict[str, np.ndarray]:
    """Returns arrays of the narrow type in the wide one, others as they are."""
    return {name: array.astype(types.wide) if array.dtype == types.narrow else array for name, array in feeds.items()}


def _widen_graph(graph: onnx.GraphProto, types: Widening) -> None:
    del graph.value_info[:]
    for value in [*graph.input, *graph.output]:
        if value.type.tensor_type.elem_type == types.number:
            value.type.tensor_type.elem_type = types.wide_number
    for tensor in graph.initializer:
        _widen_tensor(tensor, types)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in TYPES and attribute.i == types.number:
                attribute.i = types.wide_number
            if attribute.HasField("t"):
                _widen_tensor(attribute.t, types)
            for inner in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                _widen_graph(inner, types)


def _widen_tensor(tensor: onnx.TensorProto, types: Widening) -> None:
    if tensor.data_type == types.number and tensor.data_location != onnx.TensorProto.EXTERNAL:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(types.wide), tensor.name))
