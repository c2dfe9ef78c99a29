"""`ModelProto` to `onnx_ir.Model`, with every structural check of the ONNX IR specification in the same pass.

`onnx_ir.from_proto` accepts invalid graphs (it logs, asserts or invents values) and refuses map types and sparse
tensors; checking before calling it would walk the messages twice. Source of the rules:
https://github.com/onnx/onnx/blob/main/docs/IR.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onnx2nn.errors import ModelFileError
from onnx2nn.ground.limits import Account
from onnx2nn.reading.attributes import AttributeReader, GraphReader
from onnx2nn.reading.function_calls import Body, FunctionId, check_calls, function_id
from onnx2nn.reading.protobuf_texts import checked_text, domain_of, metadata_of
from onnx2nn.reading.tensors import TensorReader
from onnx2nn.reading.value_types import ValueTypes

_Scope = dict[str, ir.Value]


class Deserializer:
    """Builds one model: its graphs share the account, the decoded types and the counts of the current body."""

    def __init__(self, account: Account, tensors: TensorReader):
        self._account = account
        self._tensors = tensors
        self._functions: set[FunctionId] = set()
        self._types = ValueTypes()
        self._attributes = AttributeReader(tensors)
        self._body = Body()

    def model(self, proto: onnx.ModelProto) -> ir.Model:
        """Builds the model.

        Raises:
            LimitError: the model exceeds a limit.
            ModelFileError: the model breaks a rule of the ONNX IR specification.
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
        self._functions = {function_id(function) for function in proto.functions}
        if len(self._functions) != len(proto.functions):
            raise ModelFileError("The model defines a function twice. Export it again.")
        main = self._body
        graph = self._graph(proto.graph, [], 0)
        self._sort(graph)
        graph.opset_imports.update(opsets)
        bodies: dict[FunctionId, Body] = {}
        functions = []
        for function in proto.functions:
            self._body = bodies[function_id(function)] = Body()
            functions.append(self._function(function))
        check_calls(main, bodies, self._account)
        return ir.Model(
            graph,
            ir_version=proto.ir_version,
            producer_name=checked_text(proto.producer_name),
            producer_version=checked_text(proto.producer_version),
            domain=checked_text(proto.domain),
            model_version=proto.model_version,
            functions=functions,
            metadata_props=metadata_of(proto.metadata_props),
        )

    def _graph(self, proto: onnx.GraphProto, scopes: list[_Scope], depth: int) -> ir.Graph:
        self._account.check("subgraph_depth", depth, "The depth of nested subgraphs is")
        infos = {info.name: info for info in proto.value_info}
        infos.update((info.name, info) for info in proto.output)
        inputs = [self._declare(info.name, info, None) for info in proto.input]
        scope: _Scope = {}
        for value in inputs:
            _define(scope, value, "graph input")
        initializers = self._initializers(proto, scope, infos)
        scopes.append(scope)
        tensors: list[onnx.NodeProto] = []
        protos: list[onnx.NodeProto] = []
        for node in proto.node:
            (tensors if _is_initializer(node) else protos).append(node)
        self._count(len(tensors))
        initializers += [self._initializer(node, scope, infos) for node in tensors]
        nodes = self._nodes(protos, scopes, infos, depth)
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
            name=checked_text(proto.name) or None,
            metadata_props=metadata_of(proto.metadata_props),
        )

    def _function(self, proto: onnx.FunctionProto) -> ir.Function:
        domain, name, overload = function_id(proto)
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
            metadata_props=metadata_of(proto.metadata_props),
        )
        self._sort(graph)
        attributes = [self._attributes.read(attribute, self._outer_graph) for attribute in proto.attribute_proto]
        attributes += [
            ir.Attr(checked_text(attribute), ir.AttributeType.UNDEFINED, None) for attribute in proto.attribute
        ]
        return ir.Function(domain, name, overload, graph=graph, attributes=attributes)

    def _outer_graph(self, proto: onnx.GraphProto) -> ir.Graph:
        """Returns a subgraph that reads no values from around it: a default of a function's attribute."""
        return self._graph(proto, [], 1)

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
                info = infos.get(name)  # with the exporter's note of the values that it folded
                value = ir.Value(name=name, metadata_props=None if info is None else metadata_of(info.metadata_props))
                _define(scope, value, "initializer")
            values.append(_holding(value, tensor))
        return values

    def _initializer(self, proto: onnx.NodeProto, scope: _Scope, infos: dict[str, onnx.ValueInfoProto]) -> ir.Value:
        """Returns the initializer that a node is, see `_is_initializer`."""
        (name,) = proto.output
        value = self._declare(name, infos.get(name), None)
        _define(scope, value, f"output of a {proto.op_type} node")
        return _holding(value, self._tensors.read(proto.attribute[0].t))

    def _nodes(
        self, protos: Sequence[onnx.NodeProto], scopes: list[_Scope], infos: dict[str, Any], depth: int
    ) -> list[ir.Node]:
        self._count(len(protos))
        protos = list(protos)  # each of these objects would be made anew by a second walk
        # All outputs are declared first: in real files a node may come before the producer of its input, though the
        # specification asks for sorted nodes.
        scope = scopes[-1]
        outputs = []
        for proto in protos:
            values = []
            for name in proto.output:
                value = self._declare(name, infos.get(name), _PENDING)
                if name and scope.setdefault(checked_text(name), value) is not value:
                    raise _twice(name, f"output of a {proto.op_type} node")
                values.append(value)
            outputs.append(values)

        def subgraph(inner: onnx.GraphProto) -> ir.Graph:
            return self._graph(inner, scopes, depth + 1)

        return [self._node(proto, values, scopes, subgraph) for proto, values in zip(protos, outputs, strict=True)]

    def _count(self, nodes: int) -> None:
        self._body.nodes += nodes
        self._account.stored_nodes += nodes
        self._account.check("nodes", self._account.stored_nodes, "The number of nodes in the file is")

    def _node(
        self, proto: onnx.NodeProto, outputs: list[ir.Value], scopes: list[_Scope], subgraph: GraphReader
    ) -> ir.Node:
        name, op_type, domain = checked_text(proto.name), checked_text(proto.op_type), domain_of(proto.domain)
        overload = checked_text(getattr(proto, "overload", ""))
        if not op_type:
            raise ModelFileError(f"Node {name!r} has no operator. Export the model again.")
        if (domain, op_type, overload) in self._functions:
            self._body.calls[domain, op_type, overload] += 1
        inputs = [self._lookup(name, scopes, proto) if name else None for name in proto.input]
        attributes = [self._attributes.read(attribute, subgraph) for attribute in proto.attribute or ()]
        node = ir.Node(
            domain,
            op_type,
            inputs,
            attributes,
            overload=overload,
            outputs=outputs,
            name=name,
            metadata_props=metadata_of(proto.metadata_props),
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
        type_, shape = self._types.read(info.type, name)
        return ir.Value(
            name=name, index=index, type=type_, shape=shape, metadata_props=metadata_of(info.metadata_props)
        )

    def _sort(self, graph: ir.Graph) -> None:
        if not self._body.unsorted:
            return
        try:
            graph.sort()
        except ValueError as error:
            raise ModelFileError(
                "The graph has a cycle: some node needs its own result. Export the model again."
            ) from error


# Index of a node's output until the node is built.
_PENDING = -1


_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
)


def _is_initializer(proto: onnx.NodeProto) -> bool:
    """Returns whether a node is an initializer in another place: floats with dimensions, under their value's name.

    Paddle2ONNX wrote all weights so until version 1.2, with the names that they have in the author's program. A single
    number, integers (axes and shapes, which some builders name too) and a tensor of another name or none are constants
    of the author's code.
    """
    if proto.op_type != "Constant" or proto.domain or proto.input or len(proto.attribute) != 1:
        return False
    attribute = proto.attribute[0]
    if attribute.name != "value" or attribute.type != onnx.AttributeProto.TENSOR or attribute.ref_attr_name:
        return False
    tensor = attribute.t
    return tensor.data_type in _FLOATS and bool(tensor.name and tensor.dims) and list(proto.output) == [tensor.name]


def _holding(value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    """Returns a value made an initializer with a tensor."""
    value.const_value = tensor
    value.type = ir.TensorType(tensor.dtype)
    value.shape = tensor.shape  # type: ignore[assignment]  # the reader's tensors have an ir.Shape
    return value


def _define(scope: _Scope, value: ir.Value, what: str) -> None:
    name = value.name or ""
    if scope.setdefault(checked_text(name), value) is not value:
        raise _twice(name, what)


def _twice(name: str, what: str) -> ModelFileError:
    return ModelFileError(
        f"The value {name!r} is defined twice, the second time as {what}. Which one is meant is unknown: "
        "export the model again."
    )


def _label(proto: onnx.NodeProto) -> str:
    return f"{proto.name!r} ({proto.op_type})" if proto.name else f"{proto.op_type} -> {list(proto.output)[:3]}"


def _opset_imports(protos: Iterable[onnx.OperatorSetIdProto], owner: str) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for proto in protos:
        domain = domain_of(proto.domain)
        if proto.version < (domain == ""):
            raise ModelFileError(
                f"{owner} imports opset version {proto.version} of domain {domain!r}: no such version."
            )
        if opsets.setdefault(domain, proto.version) != proto.version:
            raise ModelFileError(f"{owner} imports two versions of domain {domain!r}. Export the model again.")
    return opsets
