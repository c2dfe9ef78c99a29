"""The tensors of a message whose data lie in other files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx


def external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yields the tensors whose data lie outside of the message."""
    parts: list[Any] = [proto.graph, *proto.functions]
    while parts:
        part = parts.pop()
        if isinstance(part, onnx.TensorProto):
            if part.data_location == onnx.TensorProto.EXTERNAL:
                yield part
        elif isinstance(part, onnx.SparseTensorProto):
            parts += [part.values, part.indices]
        elif isinstance(part, onnx.AttributeProto):
            parts += [part.t, *part.tensors, part.sparse_tensor, *part.sparse_tensors, *part.graphs]
            parts += [part.g] if part.HasField("g") else []
        elif isinstance(part, onnx.NodeProto):
            parts += part.attribute
        else:
            parts += part.node
            parts += [*part.initializer, *part.sparse_initializer] if isinstance(part, onnx.GraphProto) else []
