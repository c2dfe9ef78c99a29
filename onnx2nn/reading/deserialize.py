"""`ModelProto` to `onnx_ir.Model`, with every structural check of the ONNX IR specification in the same pass.

`onnx_ir.from_proto` accepts invalid graphs (it logs, asserts or invents values) and refuses map types and sparse
tensors; checking before calling it would walk the messages twice. Source of the rules:
https://github.com/onnx/onnx/blob/main/docs/IR.md.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

from onnx2nn.errors import ModelFileError
from onnx2nn.reading.limits import Limits
from onnx2nn.reading.tensors import TensorReader

_Scope = dict[str, ir.Value]
_FunctionId = tuple[str, str, str]
_Kind = ir.AttributeType

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
_MESSAGES = (_Kind.TENSOR, _Kind.GRAPH, _Kind.SPARSE_TENSOR, _Kind.TYPE_PROTO)


class _Type(NamedTuple):
    type: ir.TypeProtocol | None
    shape: ir.Shape | None


class _Body:
    """What is counted while the graph of the model or of one function is built."""

    def __init__(self) -> None:
        self.nodes = 0
        self.calls: Counter[_FunctionId] = Counter()
        self.unsorted = False


class Deserializer:
    """Builds one model."""

    def __init__(self, limits: Limits, tensors: TensorReader):
        self._limits = limits
        self._tensors = tensors
        self._functions: set[_FunctionId] = set()
        self._tensor_types: dict[bytes, tuple[ir.DataType, ir.Shape | None]] = {}
        self._body = _Body()

    def model(self, proto: onnx.ModelProto) -> ir.Model:
        """Build the model.

        Raises:
            ModelFileError: the model breaks a rule of the ONNX IR specification or a limit.
        """
        if not proto.HasField("graph"):
            raise ModelFileError("The model has no graph. The file is incomplete or is no ONNX model: export it again.")
        if proto.ir_version > onnx.IR_VERSION:
            warnings.warn(
                f"The model has IR version {proto.ir_version}; the installed onnx {onnx.__version__} knows up to "
                f"{onnx.IR_VERSION}. What is new in it is ignored: if the result is wrong, upgrade onnx.",
                stacklevel=2,
            )
        opsets = _opset_imports(proto.opset_import, "The model")
        if not opsets:
            if proto.ir_version >= 3:
                raise ModelFileError("The model imports no opset, so its operators are undefined. Export it again.")
            opsets = {"": 1}  # IR.md: before IR version 3 operators are those of opset 1.
        self._functions = {_function_id(function) for function in proto.functions}
        if len(self._functions) != len(proto.functions):
            raise ModelFileError("The model defines a function twice. Export it again.")
        main = self._body
        graph = self._graph(proto.graph, [], 0)
        self._sort(graph)
        graph.opset_imports.update(opsets)
        bodies: dict[_FunctionId, _Body] = {}
        functions = []
        for function in proto.functions:
            self._body = bodies[_function_id(function)] = _Body()
            functions.append(self._function(function))
        self._check_calls(main, bodies)
        return ir.Model(
            graph,
            ir_version=proto.ir_version,
            producer_name=_text(proto.producer_name),
            producer_version=_text(proto.producer_version),
            domain=_text(proto.domain),
            model_version=proto.model_version,
            functions=functions,
            metadata_props=_metadata(proto.metadata_props),
        )

    def _graph(self, proto: onnx.GraphProto, scopes: list[_Scope], depth: int) -> ir.Graph:
        if depth > self._limits.subgraph_depth:
            raise ModelFileError(
                f"Subgraphs are nested deeper than the limit of {self._limits.subgraph_depth} levels "
                "(Limits.subgraph_depth)."
            )
        infos = {info.name: info for info in proto.value_info}
        infos.update((info.name, info) for info in proto.output)
        inputs = [self._declare(info.name, info, None) for info in proto.input]
        scope: _Scope = {}
        for value in inputs:
            _define(scope, value, "graph input")
        initializers = self._initializers(proto, scope, infos)
        scopes.append(scope)
        nodes = self._nodes(proto.node, scopes, infos, depth)
        outputs = [self._output(info.name, scopes, nodes) for info in proto.output]
        scopes.pop()
        # Up to IR version 3 every initializer had to be listed as an input. A caller gives it no value, in any
        # version, and neither does a loop.
        inputs = [value for value in inputs if value.const_value is None]
        return ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            name=_text(proto.name) or None,
            metadata_props=_metadata(proto.metadata_props),
        )

    def _function(self, proto: onnx.FunctionProto) -> ir.Function:
        domain, name, overload = _function_id(proto)
        inputs = [ir.Value(name=input_name) for input_name in proto.input]
        scope: _Scope = {}
        for value in inputs:
            _define(scope, value, f"input of function {name!r}")
        infos = {info.name: info for info in proto.value_info} if hasattr(proto, "value_info") else {}
        nodes = self._nodes(proto.node, [scope], infos, 0)
        graph = ir.Graph(
            inputs,
            [self._output(output, [scope], nodes) for output in proto.output],
            nodes=nodes,
            opset_imports=_opset_imports(proto.opset_import, f"Function {name!r}"),
            name=name,
            metadata_props=_metadata(proto.metadata_props),
        )
        self._sort(graph)
        attributes = [self._attribute(attribute, [], 0) for attribute in proto.attribute_proto]
        attributes += [ir.Attr(_text(attribute), _Kind.UNDEFINED, None) for attribute in proto.attribute]
        return ir.Function(domain, name, overload, graph=graph, attributes=attributes)

    def _initializers(
        self, proto: onnx.GraphProto, scope: _Scope, infos: dict[str, onnx.ValueInfoProto]
    ) -> list[ir.Value]:
        tensors = [self._tensors.read(tensor) for tensor in proto.initializer]
        tensors += [self._tensors.read_sparse(tensor) for tensor in proto.sparse_initializer]
        values = []
        for tensor in tensors:
            name = tensor.name
            if not name:
                raise ModelFileError("An initializer has no name. Export the model again.")
            value = scope.get(name)
            if value is None or value.const_value is not None:
                info = infos.get(name)  # the exporter notes there what it folded
                value = ir.Value(name=name, metadata_props=None if info is None else _metadata(info.metadata_props))
                _define(scope, value, "initializer")
            value.const_value = tensor
            value.type = ir.TensorType(tensor.dtype)
            value.shape = tensor.shape  # type: ignore[assignment]
            values.append(value)
        return values

    def _nodes(
        self, protos: Sequence[onnx.NodeProto], scopes: list[_Scope], infos: dict[str, Any], depth: int
    ) -> list[ir.Node]:
        self._body.nodes += len(protos)
        if self._body.nodes > self._limits.nodes:
            raise ModelFileError(f"The model has more than {self._limits.nodes} nodes (Limits.nodes).")
        protos = list(protos)  # each of these objects would be made anew by a second walk
        # All outputs are declared first: a node may stand before the one that it takes its input from, though the
        # specification wants nodes sorted; real files break this.
        scope = scopes[-1]
        outputs = []
        for proto in protos:
            values = []
            for name in proto.output:
                value = self._declare(name, infos.get(name), _PENDING)
                if name and scope.setdefault(_text(name), value) is not value:
                    raise _twice(name, f"output of a {proto.op_type} node")
                values.append(value)
            outputs.append(values)
        return [self._node(proto, values, scopes, depth) for proto, values in zip(protos, outputs, strict=True)]

    def _node(self, proto: onnx.NodeProto, outputs: list[ir.Value], scopes: list[_Scope], depth: int) -> ir.Node:
        name, op_type, domain = _text(proto.name), _text(proto.op_type), _domain(proto.domain)
        overload = _text(getattr(proto, "overload", ""))
        if not op_type:
            raise ModelFileError(f"Node {name!r} has no operator. Export the model again.")
        if (domain, op_type, overload) in self._functions:
            self._body.calls[domain, op_type, overload] += 1
        inputs = [self._lookup(name, scopes, proto) if name else None for name in proto.input]
        attributes = [self._attribute(attribute, scopes, depth) for attribute in proto.attribute or ()]
        node = ir.Node(
            domain,
            op_type,
            inputs,
            attributes,
            overload=overload,
            outputs=outputs,
            name=name,
            metadata_props=_metadata(proto.metadata_props),
        )
        if attributes and len(node.attributes) != len(attributes):
            raise ModelFileError(f"Node {_label(proto)} has an attribute twice. Export the model again.")
        return node

    def _lookup(self, name: str, scopes: list[_Scope], proto: onnx.NodeProto) -> ir.Value:
        for scope in reversed(scopes):
            value = scope.get(name)
            if value is not None:
                if value.index() == _PENDING:
                    self._body.unsorted = True
                return value
        raise ModelFileError(
            f"Node {_label(proto)} takes the value {name!r}, which nothing in the model defines. Export it again."
        )

    def _output(self, name: str, scopes: list[_Scope], nodes: list[ir.Node]) -> ir.Value:
        value = scopes[-1].get(name)
        if value is not None:
            return value
        for scope in reversed(scopes[:-1]):
            if name in scope:
                # A branch that passes on an outer value: legal only by way of a node.
                node = ir.Node("", "Identity", [scope[name]])
                nodes.append(node)
                if scope[name].index() == _PENDING:
                    self._body.unsorted = True
                return node.outputs[0]
        raise ModelFileError(f"Nothing in the model defines the graph output {name!r}. Export the model again.")

    def _declare(self, name: str, info: onnx.ValueInfoProto | None, index: int | None) -> ir.Value:
        if info is None:
            return ir.Value(name=name, index=index)
        type_, shape = self._value_type(info.type, name)
        return ir.Value(name=name, index=index, type=type_, shape=shape, metadata_props=_metadata(info.metadata_props))

    def _value_type(self, proto: onnx.TypeProto, name: str) -> _Type:
        # A model has few different types, and decoding one field by field costs several times as much as copying it.
        key = proto.SerializeToString()
        if key in self._tensor_types:
            dtype, shape = self._tensor_types[key]
            return _Type(ir.TensorType(dtype), None if shape is None else shape.copy())
        decoded = _type(proto, name)
        if isinstance(decoded.type, ir.TensorType):
            self._tensor_types[key] = decoded.type.dtype, decoded.shape
        return decoded

    def _attribute(self, proto: onnx.AttributeProto, scopes: list[_Scope], depth: int) -> ir.Attr:
        name = _text(proto.name)
        kind = _kind(proto)
        if proto.ref_attr_name:
            return ir.RefAttr(name, _text(proto.ref_attr_name), kind)
        field = _ATTRIBUTE_FIELDS[kind]
        value = getattr(proto, field)
        if kind in _MESSAGES and not proto.HasField(field):
            raise ModelFileError(f"Attribute {name!r} of type {kind.name} has no value. Export the model again.")
        # A default value may be left out of the file, but a value of another type contradicts the declared one.
        if not value and any(getattr(proto, other) for other in _SIMPLE_FIELDS if other != field):
            raise ModelFileError(f"Attribute {name!r} is declared {kind.name} but holds another type of value.")
        if kind == _Kind.STRING:
            value = _decode(value)
        elif kind == _Kind.STRINGS:
            value = [_decode(item) for item in value]
        elif kind == _Kind.TENSOR:
            value = self._tensors.read(value)
        elif kind == _Kind.TENSORS:
            value = [self._tensors.read(item) for item in value]
        elif kind == _Kind.SPARSE_TENSOR:
            kind, value = _Kind.TENSOR, self._tensors.read_sparse(value)
        elif kind == _Kind.SPARSE_TENSORS:
            kind, value = _Kind.TENSORS, [self._tensors.read_sparse(item) for item in value]
        elif kind == _Kind.GRAPH:
            value = self._graph(value, scopes, depth + 1)
        elif kind == _Kind.GRAPHS:
            value = [self._graph(item, scopes, depth + 1) for item in value]
        elif kind == _Kind.TYPE_PROTO:
            value = ir.TypeAndShape(*_type(value, name))
        elif kind == _Kind.TYPE_PROTOS:
            value = [ir.TypeAndShape(*_type(item, name)) for item in value]
        return ir.Attr(name, kind, value)

    def _sort(self, graph: ir.Graph) -> None:
        if not self._body.unsorted:
            return
        try:
            graph.sort()
        except ValueError as error:
            raise ModelFileError(
                "The graph has a cycle: some node needs its own result. Export the model again."
            ) from error

    def _check_calls(self, main: _Body, bodies: dict[_FunctionId, _Body]) -> None:
        """Refuse functions that call themselves and models that would be huge once inlined."""
        sizes: dict[_FunctionId, tuple[int, int]] = {}

        def measure(body: _Body, path: tuple[_FunctionId, ...]) -> tuple[int, int]:
            nodes, height = body.nodes, 0
            for function, count in body.calls.items():
                if function in path:
                    raise ModelFileError(f"Function {function[1]!r} calls itself, which ONNX does not allow.")
                if len(path) < self._limits.function_depth and function not in sizes:
                    sizes[function] = measure(bodies[function], (*path, function))
                function_nodes, function_height = sizes.get(function, (0, 0))
                nodes += count * function_nodes
                height = max(height, 1 + function_height)
            if len(path) + height > self._limits.function_depth:
                raise ModelFileError(
                    f"Functions call each other deeper than {self._limits.function_depth} levels "
                    "(Limits.function_depth)."
                )
            return nodes, height

        for function, body in bodies.items():
            if function not in sizes:
                sizes[function] = measure(body, (function,))
        if measure(main, ())[0] > self._limits.nodes:
            raise ModelFileError(
                f"With its functions inlined the model has more than {self._limits.nodes} nodes (Limits.nodes)."
            )


# Index of a node's output until the node is built.
_PENDING = -1
_SIMPLE_FIELDS = ("f", "i", "s", "floats", "ints", "strings", "tensors", "graphs")


def _define(scope: _Scope, value: ir.Value, what: str) -> None:
    name = value.name or ""
    if scope.setdefault(_text(name), value) is not value:
        raise _twice(name, what)


def _twice(name: str, what: str) -> ModelFileError:
    return ModelFileError(
        f"The value {name!r} is defined twice, the second time as {what}. Which one is meant is unknown: "
        "export the model again."
    )


def _label(proto: onnx.NodeProto) -> str:
    return f"{proto.name!r} ({proto.op_type})" if proto.name else f"{proto.op_type} -> {list(proto.output)[:3]}"


def _function_id(proto: onnx.FunctionProto) -> _FunctionId:
    return _domain(proto.domain), _text(proto.name), _text(getattr(proto, "overload", ""))


def _opset_imports(protos: Iterable[onnx.OperatorSetIdProto], owner: str) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for proto in protos:
        domain = _domain(proto.domain)
        if proto.version < (domain == ""):
            raise ModelFileError(
                f"{owner} imports opset version {proto.version} of domain {domain!r}: no such version."
            )
        if opsets.setdefault(domain, proto.version) != proto.version:
            raise ModelFileError(f"{owner} imports two versions of domain {domain!r}. Export the model again.")
    return opsets


def _metadata(protos: Sequence[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    return {_text(entry.key): _text(entry.value) for entry in protos} if protos else None


def _text(text: str) -> str:
    """Pass text on; protobuf gives bytes where a string is not UTF-8."""
    if isinstance(text, str):
        return text
    raise ModelFileError(f"The model is damaged: it holds {text!r} where a name should be.")


def _domain(text: str) -> str:
    return "" if text == "ai.onnx" else _text(text)


def _decode(data: bytes) -> str | bytes:
    """Decode a string attribute; custom operators keep arbitrary bytes in them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _kind(proto: onnx.AttributeProto) -> ir.AttributeType:
    if proto.type:
        return _Kind(proto.type)
    # IR version 1 had no `type`: the field in use tells.
    for kind, field in _ATTRIBUTE_FIELDS.items():
        value = getattr(proto, field)
        if proto.HasField(field) if kind in _SCALARS else len(value):
            return kind
    raise ModelFileError(f"Attribute {proto.name!r} has neither a type nor a value. Export the model again.")


_SCALARS = (_Kind.FLOAT, _Kind.INT, _Kind.STRING, *_MESSAGES)


def _type(proto: onnx.TypeProto, name: str) -> _Type:
    which = proto.WhichOneof("value")
    if which == "tensor_type":
        tensor = proto.tensor_type
        return _Type(_element_type(ir.TensorType, tensor.elem_type, name), _shape(tensor))
    if which == "sparse_tensor_type":
        tensor = proto.sparse_tensor_type
        return _Type(_element_type(ir.SparseTensorType, tensor.elem_type, name), _shape(tensor))
    if which in ("sequence_type", "optional_type"):
        inner = _type(getattr(proto, which).elem_type, name)
        if inner.type is None:
            return inner
        container = ir.SequenceType if which == "sequence_type" else ir.OptionalType
        return _Type(container(inner.type), inner.shape)
    return _Type(None, None)  # onnx_ir has no map and opaque types.


def _element_type(kind: type[ir.TensorType] | type[ir.SparseTensorType], number: int, name: str) -> Any:
    if not number:
        return None
    try:
        return kind(ir.DataType(number))
    except ValueError:
        raise ModelFileError(
            f"The value {name!r} has data type {number}, which is not known here. "
            "A file from a newer exporter may need newer onnx and onnx-ir packages."
        ) from None


def _shape(tensor: Any) -> ir.Shape | None:
    if not tensor.HasField("shape"):
        return None
    dims: list[int | ir.SymbolicDim] = []
    for dim in tensor.shape.dim:
        # Exporters write -1 and an empty name for an unknown dimension.
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            dims.append(ir.SymbolicDim(_text(dim.dim_param) or None))
    return ir.Shape(dims)
