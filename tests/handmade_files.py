"""Models as bytes and as protobuf messages, made by hand: of one node by default, or field by field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

OPSETS = [helper.make_opsetid("", 17)]
RELU = helper.make_node("Relu", ["x"], ["y"])


def value_info(name: str, dims: Sequence[int | str | None] = (None,)) -> onnx.ValueInfoProto:
    """Returns a float value."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims))


def model_of(
    nodes: Sequence[onnx.NodeProto] = (RELU,),
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    **options: Any,
) -> onnx.ModelProto:
    """Returns a model of vectors; the options are those of `helper.make_model`."""
    graph = helper.make_graph(
        list(nodes), "g", [value_info(i) for i in inputs], [value_info(o) for o in outputs], list(initializers)
    )
    return helper.make_model(graph, ir_version=8, **{"opset_imports": OPSETS, **options})


def varint(value: int) -> bytes:
    """Returns a number as protobuf writes it."""
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, payload: bytes) -> bytes:
    """Returns a protobuf field of bytes or a message."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload
