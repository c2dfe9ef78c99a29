"""The file as a dequantised module computes it: products with weights of few bits do not round their activations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import onnx

from onnx2nn.verification.oracle import Stored

_ROUNDED = 4
"""The accuracy_level of MatMulNBits with which ONNX Runtime rounds activations to int8."""


def compared_model(source: Stored, module: Any) -> tuple[Stored, str | None]:
    """Returns the model that a module is compared with, and the folder of its external data, None for the source's own.

    Args:
        source: the file of the module.
        module: of `onnx2nn.load`. Of one with `quantized="keep"` the model is the file.
    """
    meta = getattr(module, "meta", {}).get("onnx2nn", {})
    if "dequantized" not in meta:
        return source, None
    folder = None
    if isinstance(source, onnx.ModelProto):
        model = onnx.ModelProto()
        model.CopyFrom(source)
    elif isinstance(source, bytes):
        model = onnx.load_from_string(source)
    else:
        model, folder = onnx.load(source, load_external_data=False), os.path.dirname(os.path.abspath(source))
    levels = [a for node in _nodes(model) for a in node.attribute if a.name == "accuracy_level" and a.i == _ROUNDED]
    for level in levels:
        level.i = 1
    return (model, folder) if levels else (source, None)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    bodies: list[Iterable[onnx.NodeProto]] = [model.graph.node, *(function.node for function in model.functions)]
    while bodies:
        for node in bodies.pop():
            yield node
            for attribute in node.attribute:
                bodies += [graph.node for graph in (attribute.g, *attribute.graphs) if graph.node]
