"""A model whose float32 numbers are float64: what the oracle computes with it shows how far its own roundings go."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

_TYPES = ("to", "dtype")
"""Attributes that name the type of a result (Cast, RandomNormal, EyeLike ...)."""


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy in float64 of a model that computes in float32.

    The result need not be a valid model: not every operator takes float64, and the oracle then refuses it.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen_graph(wide.graph)
    return wide


def widened_feeds(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns float32 arrays as float64, others as they are."""
    return {name: _widened(array) for name, array in feeds.items()}


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _widen_graph(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for value in [*graph.input, *graph.output]:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.DOUBLE
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            for inner in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                _widen_graph(inner)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == onnx.TensorProto.FLOAT and tensor.data_location != onnx.TensorProto.EXTERNAL:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
