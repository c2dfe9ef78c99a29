"""Attributes of nodes: `AttributeProto` to `onnx_ir.Attr`."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from onnx2nn.errors import ModelFileError
from onnx2nn.reading.protobuf_texts import checked_text, decoded_text
from onnx2nn.reading.tensors import TensorReader
from onnx2nn.reading.value_types import read_type

_Kind = ir.AttributeType

GraphReader = Callable[[onnx.GraphProto], ir.Graph]
"""Decodes a subgraph."""

_ATTRIBUTE_FIELDS = {
    _Kind.FLOAT: "f",
    _Kind.INT: "i",
    _Kind.STRING: "s",
    _Kind.TENSOR: "t",
    _Kind.GRAPH: "g",
    _Kind.SPARSE_TENSOR: "sparse_tensor",
    _Kind.TYPE_PROTO: "tp",
    _Kind.FLOATS: "floats",
    _Kind.INTS: "ints",
    _Kind.STRINGS: "strings",
    _Kind.TENSORS: "tensors",
    _Kind.GRAPHS: "graphs",
    _Kind.SPARSE_TENSORS: "sparse_tensors",
    _Kind.TYPE_PROTOS: "type_protos",
}
_KINDS = {int(kind): kind for kind in _Kind}
_PLAIN = {int(kind): (kind, _ATTRIBUTE_FIELDS[kind]) for kind in (_Kind.FLOAT, _Kind.INT, _Kind.FLOATS, _Kind.INTS)}
"""Kinds whose values are taken as they are, most of those in a file, with their fields by the kinds' numbers."""

_MESSAGES = (_Kind.TENSOR, _Kind.GRAPH, _Kind.SPARSE_TENSOR, _Kind.TYPE_PROTO)
_SCALARS = (_Kind.FLOAT, _Kind.INT, _Kind.STRING, *_MESSAGES)
_SIMPLE_FIELDS = ("f", "i", "s", "floats", "ints", "strings", "tensors", "graphs")


class AttributeReader:
    """Decodes attributes.

    Args:
        tensors: decodes their tensors.
    """

    def __init__(self, tensors: TensorReader):
        self._tensors = tensors

    def read(self, proto: onnx.AttributeProto, graph: GraphReader) -> ir.Attr:
        """Returns an attribute.

        Args:
            proto: the message.
            graph: decodes its subgraphs.

        Raises:
            ModelFileError: the value is missing, or of another type than declared.
        """
        name = checked_text(proto.name)
        plain = _PLAIN.get(proto.type)
        if plain is not None and (value := getattr(proto, plain[1])) and not proto.ref_attr_name:
            return ir.Attr(name, plain[0], value)
        kind = _kind(proto)
        if proto.ref_attr_name and kind in (_Kind.GRAPH, _Kind.GRAPHS):
            raise ModelFileError(f"Attribute {name!r} refers to a graph that calls of its function give: unsupported.")
        if proto.ref_attr_name:
            return ir.RefAttr(name, checked_text(proto.ref_attr_name), kind)
        field = _ATTRIBUTE_FIELDS[kind]
        value = getattr(proto, field)
        if kind in _MESSAGES and not proto.HasField(field):
            raise ModelFileError(f"Attribute {name!r} of type {kind.name} has no value. Export the model again.")
        # A default value may be left out of the file, but a value of another type contradicts the declared one.
        if not value and any(getattr(proto, other) for other in _SIMPLE_FIELDS if other != field):
            raise ModelFileError(f"Attribute {name!r} is declared {kind.name} but holds another type of value.")
        if kind == _Kind.TENSOR:
            value = self._tensors.read(value)
        elif kind == _Kind.STRING:
            value = decoded_text(value)
        elif kind == _Kind.STRINGS:
            texts = {item: decoded_text(item) for item in set(value)}  # of a million nodes of trees most are equal
            value = [texts[item] for item in value]
        elif kind == _Kind.TENSORS:
            value = [self._tensors.read(item) for item in value]
        elif kind == _Kind.SPARSE_TENSOR:
            kind, value = _Kind.TENSOR, self._tensors.read_sparse(value)
        elif kind == _Kind.SPARSE_TENSORS:
            kind, value = _Kind.TENSORS, [self._tensors.read_sparse(item) for item in value]
        elif kind == _Kind.GRAPH:
            value = graph(value)
        elif kind == _Kind.GRAPHS:
            value = [graph(item) for item in value]
        elif kind == _Kind.TYPE_PROTO:
            value = ir.TypeAndShape(*read_type(value, name))
        elif kind == _Kind.TYPE_PROTOS:
            value = [ir.TypeAndShape(*read_type(item, name)) for item in value]
        return ir.Attr(name, kind, value)


def _kind(proto: onnx.AttributeProto) -> ir.AttributeType:
    if proto.type:
        return _KINDS.get(proto.type) or _Kind(proto.type)
    # IR version 1 had no `type`: the field in use tells.
    for kind, field in _ATTRIBUTE_FIELDS.items():
        value = getattr(proto, field)
        if proto.HasField(field) if kind in _SCALARS else len(value):
            return kind
    raise ModelFileError(f"Attribute {proto.name!r} has neither a type nor a value. Export the model again.")
