"""The plan of an import: the row or function of each node. `report` lists the nodes without one."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import onnx
import onnx_ir as ir
from onnx import defs

from onnx2nn.errors import OperatorError, Problem, first_line, listed, shown_name
from onnx2nn.ground.limits import Account
from onnx2nn.optable.registry import TABLE, Table
from onnx2nn.optable.row import Row
from onnx2nn.provenance.author import Author

ADVICE = "Register a body for it with onnx2nn.register(...)."


_PACKAGES = dict.fromkeys(("ai.onnx.contrib", "com.microsoft.extensions"), "onnxruntime-extensions")
"""The packages that bring operators of a domain, by the domain."""

LIST, DICTIONARY = "it is a list of modules", "it is a dictionary of modules"
HOLDERS = frozenset({LIST, DICTIONARY})
"""Why a container that is called by nobody is no fault."""


@dataclass
class Report:
    """The result of `check`.

    Attributes:
        operators: the number of nodes of each operator, by `domain::name`.
        problems: the operators that cannot be imported; empty where `load` will find every operator.
        guards: the conditions on the sizes of inputs that the imported module checks at its entry, with their reasons.
        tree: `meta["onnx2nn"]["tree"]` of the imported module; empty where it was not imported.
    """

    operators: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    tree: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every operator of the model is known."""
        return not self.problems

    def __str__(self) -> str:
        head = f"{sum(self.operators.values())} nodes of {len(self.operators)} operators"
        if self.ok:
            limits = ["It takes inputs of these sizes only:", *listed([*map(shown_name, self.guards)], "conditions")]
            return "\n".join([f"{head}, all of them known.", *self._blocks(), *(limits if self.guards else [])])
        return "\n".join([f"{head}; unknown:", *listed(self.problems, "problems")])

    def _blocks(self) -> list[str]:
        if not self.tree:
            return []
        inside, calls, blocks = self.tree["inside"], self.tree["calls"], len(self.tree["blocks"])
        return [
            f"{inside} of {calls} calls are inside of {blocks} blocks, which can be called alone.",
            *(f"  {path} cannot: {reason}." for path, reason in self.tree["flat"].items() if reason not in HOLDERS),
            *(
                f"  Hooks of {path} do not see each call: {reason}."
                for path, reason in self.tree.get("entered", {}).items()
            ),
        ]


LAST_VERSION = (1 << 31) - 1
"""The largest opset version that onnx takes; a file may name a larger one."""


@functools.cache
def schema_of(domain: str, operator: str, version: int) -> Any:
    """Returns the schema of an operator in an opset, None where onnx has none."""
    try:
        return defs.get_schema(operator, min(version, LAST_VERSION), domain)
    except defs.SchemaError:
        return None


TypeOf = tuple["ir.DataType | None", str]
"""An element type (None: unknown) and its container: `""` for a tensor, else `seq`, `optional` or `map`."""

UNKNOWN_TYPE: TypeOf = (None, "")
_NUMBERS = frozenset(map(int, ir.DataType)) - {0}
_NAMES = {str(kind.name).lower(): kind for kind in ir.DataType} | {"double": ir.DataType.DOUBLE}


def _parse_type(text: str) -> TypeOf:
    """Parses a schema's type string such as `seq(tensor(float))`."""
    container = text.split("(")[0]
    inner = text.replace(")", "").split("(")[-1].split(",")[-1].strip()
    return _NAMES.get(inner), "" if container == "tensor" else container


def _type_of(value: ir.Value) -> TypeOf:
    kind = value.type
    if kind is None:
        return (ir.DataType(value.const_value.dtype), "") if value.const_value is not None else UNKNOWN_TYPE
    if isinstance(kind, ir.SequenceType):
        return kind.dtype, "seq"
    if isinstance(kind, ir.OptionalType):
        return kind.dtype, "optional"
    return kind.dtype, ""


def _type_proto(known: TypeOf) -> onnx.TypeProto:
    """Returns a type as a `TypeProto`; an unknown element type becomes undefined."""
    kind, container = known
    proto = onnx.TypeProto()
    inner = {"seq": proto.sequence_type.elem_type, "optional": proto.optional_type.elem_type}.get(container, proto)
    inner.tensor_type.elem_type = int(kind or 0)
    return proto


def _complete(function: onnx.FunctionProto, schema: Any) -> None:
    """Completes a schema's function body: adds defaults of attributes, and outputs that the body does not compute.

    The node does not use such an output; a copy of another output takes its place.
    """
    for name in list(function.attribute):
        default = schema.attributes[name].default_value
        if default.name:
            function.attribute.remove(name)
            function.attribute_proto.append(default)
    made = {output for node in function.node for output in node.output} | set(function.input)
    for name in function.output:
        if name not in made:
            function.node.add(op_type="Identity", input=[next(o for o in function.output if o in made)], output=[name])
    if not any(opset.domain == "" for opset in function.opset_import):
        function.opset_import.add(domain="", version=defs.onnx_opset_version())


def _built(schema: Any, call: onnx.NodeProto, version: int, types: Sequence[TypeOf]) -> onnx.FunctionProto | None:
    """Returns the function body that onnx builds for one node, None where it builds none."""
    version = min(version, LAST_VERSION)
    node, inputs = call.SerializeToString(), [_type_proto(known).SerializeToString() for known in types]
    build = schema.get_context_dependent_function_with_opset_version
    # Where an operator in the body has a later revision onnx builds it for the schema's own opset alone.
    own = max(
        (known for known in schema.context_dependent_function_opset_versions if known <= version), default=version
    )
    body = build(version, node, inputs) or build(own, node, inputs)
    return onnx.FunctionProto.FromString(body) if body else None


def version_of(node: ir.Node, opsets: Mapping[str, int]) -> int:
    """Returns the opset version of a node: its own, which raised nodes have, else its graph's.

    PyTorch's old exporters import their domain in version 0; that is read as version 1.
    """
    return node.version or opsets.get(node.domain) or 1


class Plan:
    """The row or function of every node of a model, the types of its values, the author's names, and the account.

    `blocks` says what becomes a block of the module, as `onnx2nn.load` explains.
    """

    def __init__(
        self,
        model: ir.Model,
        table: Table,
        author: Author | None = None,
        account: Account | None = None,
        blocks: str = "named",
    ):
        self.model, self.table, self.author, self.account = model, table, author, account or Account()
        self.blocks = blocks
        self._types: dict[ir.Value, TypeOf] = {}
        self._schema_functions: dict[Any, ir.Function | None] = {}

    def find(
        self,
        node: ir.Node,
        version: int,
        types: Callable[[], Sequence[TypeOf]] | None = None,
        attributes: Mapping[str, ir.Attr] = MappingProxyType({}),
    ) -> Row | ir.Function:
        """Returns the model's own function, the table's row, or the schema's function body for `node`, in this order.

        Args:
            node: a node of the model, or of a function body.
            version: opset version of its domain.
            types: returns the types of its inputs, on which some schemas' bodies depend; by default the file's.
            attributes: attributes of the surrounding function's call, to which the node's may refer.

        Raises:
            OperatorError: there is no row and no function.
        """
        if self.model.functions:
            function = self.model.functions.get((node.domain, node.op_type, node.overload))
            if function is not None:
                return function
        row = self.table.find(node.domain, node.op_type, version)
        if row is not None:
            return row
        known = types or (lambda: self._declared_types(node))
        function = self._schema_function(node, version, known, attributes)
        if function is not None:
            return function
        raise OperatorError(self._reason(node, version))

    def _reason(self, node: ir.Node, version: int) -> str:
        revisions = self.table.revisions(node.domain, node.op_type)
        if revisions:
            return f"known from opset {revisions[0].since} on, the model uses opset {version}."
        package = _PACKAGES.get(node.domain)
        origin = f": it is one of the package {package}, whose code ONNX Runtime loads" if package else ""
        return f"there is no such operator in the op table{origin}. {ADVICE}"

    def _declared_types(self, node: ir.Node) -> list[TypeOf]:
        return [UNKNOWN_TYPE if value is None else self.type_of(value) for value in node.inputs]

    def _schema_function(
        self,
        node: ir.Node,
        version: int,
        types: Callable[[], Sequence[TypeOf]],
        outer: Mapping[str, ir.Attr],
    ) -> ir.Function | None:
        schema = schema_of(node.domain, node.op_type, version)
        if schema is None or not (schema.has_function or schema.has_context_dependent_function):
            return None
        known = tuple(types())
        try:
            call = ir.to_proto(node)
        except ir.serde.SerdeError as error:
            raise OperatorError(f"its attributes cannot be written: {first_line(error)}.") from error
        for attribute in [a for a in call.attribute if a.ref_attr_name]:
            referred = outer.get(attribute.ref_attr_name)
            name = attribute.name
            call.attribute.remove(attribute)
            if referred is not None:
                call.attribute.append(ir.to_proto(ir.Attr(name, referred.type, referred.value)))
        attributes = str([a.SerializeToString() for a in sorted(call.attribute, key=lambda a: a.name)])
        key = (schema.domain, schema.name, version, known, len(node.outputs), attributes)
        if key not in self._schema_functions:
            try:
                self._schema_functions[key] = self._expand(schema, call, version, known)
            except (KeyError, RuntimeError, TypeError, ValueError) as error:  # of onnx, which builds some bodies
                raise OperatorError(f"its function body cannot be built: {first_line(error)}.") from error
        return self._schema_functions[key]

    def _expand(self, schema: Any, call: onnx.NodeProto, version: int, types: Sequence[TypeOf]) -> ir.Function | None:
        if schema.has_function:
            body = schema.get_function_with_opset_version(min(version, LAST_VERSION))
            if body is None:
                return None
            proto = onnx.FunctionProto.FromString(body if isinstance(body, bytes) else body.SerializeToString())
        else:
            built = _built(schema, call, version, types)
            if built is None:
                return None
            proto = built
        if not proto.opset_import:
            proto.opset_import.add(domain=call.domain, version=min(version, LAST_VERSION))
        proto.name = proto.name or call.op_type
        _complete(proto, schema)
        function = ir.from_proto(proto)
        assert isinstance(function, ir.Function)
        return function

    def type_name(self, value: ir.Value) -> str | None:
        """Returns the name of a value's ONNX element type (`"INT4"`), None where it is unknown."""
        kind = self.type_of(value)[0]
        return None if kind is None else kind.name

    def type_of(self, value: ir.Value) -> TypeOf:
        """Returns a value's type, as declared in the file or inferred from its producer."""
        chain = [value]
        found = self._type_or_source(value)
        while isinstance(found, ir.Value):
            chain.append(found)
            found = self._type_or_source(found)
        self._types |= dict.fromkeys(chain, found)
        return found

    def _type_or_source(self, value: ir.Value) -> TypeOf | ir.Value:
        """Returns a value's type, or the input of its producer that has the same type."""
        declared = _type_of(value)
        if declared != UNKNOWN_TYPE:
            return declared
        if value in self._types:
            return self._types[value]
        node = value.producer()
        opsets = None if node is None else self._opsets_of(node)
        if node is None or opsets is None:
            return UNKNOWN_TYPE
        return self._schema_type(node, value.index() or 0, version_of(node, opsets))

    def _opsets_of(self, node: ir.Node) -> Mapping[str, int] | None:
        """Returns the opset versions that hold for a node, None for one that is not of the model."""
        graph = node.graph
        if graph is self.model.graph:
            return self.model.graph.opset_imports
        return self._inner_opsets.get(graph)

    @functools.cached_property
    def _inner_opsets(self) -> Mapping[ir.Graph | ir.Function | None, Mapping[str, int]]:
        """The opset versions of functions, and of the graphs in nodes."""
        own = self.model.graph.opset_imports
        found: dict[ir.Graph | ir.Function | None, Mapping[str, int]] = {}
        found |= {node.graph: own for node in self.model.graph.all_nodes()}
        for function in self.model.functions.values():
            found |= {node.graph: {**own, **function.opset_imports} for node in function.all_nodes()}
        return found

    def _schema_type(self, node: ir.Node, index: int, version: int) -> TypeOf | ir.Value:
        """Infers an output's type from the operator's schema and the attributes; it may be the type of an input."""
        for name in ("to", "dtype", "output_dtype"):
            attribute = node.attributes.get(name)
            if attribute is not None and isinstance(attribute.value, int) and attribute.value in _NUMBERS:
                return ir.DataType(attribute.value), ""
        held = node.attributes.get("value")
        if node.op_type == "Constant" and held is not None and held.type is ir.AttributeType.TENSOR:
            return (None if held.is_ref() else ir.DataType(held.value.dtype)), ""
        schema = schema_of(node.domain, node.op_type, version)
        if schema is None or not schema.outputs:
            return UNKNOWN_TYPE
        text = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
        if "(" in text:
            return _parse_type(text)
        for position, value in enumerate(node.inputs):
            formal = schema.inputs[min(position, len(schema.inputs) - 1)]
            if value is not None and formal.type_str == text:
                return value
        constraints = [c for c in schema.type_constraints if c.type_param_str == text]
        parsed = {_parse_type(item) for constraint in constraints for item in constraint.allowed_type_strs}
        if len(parsed) == 1:
            return parsed.pop()
        containers = {container for _, container in parsed}
        return None, containers.pop() if len(containers) == 1 else ""


def plan(model: ir.Model, author: Author | None = None, account: Account | None = None, blocks: str = "named") -> Plan:
    """Returns the plan of `model`; a node without a row is an error when it is looked up.

    Args:
        model: as `reader.read` gives it.
        author: the author's names, from `restore.restore`.
        account: counts what the import takes; by default a new one with the default limits.
        blocks: as for `onnx2nn.load`.
    """
    return Plan(model, TABLE, author, account, blocks)


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def nodes_of(model: ir.Model) -> Iterator[tuple[ir.Node, int]]:
    """Yields the nodes of a model, of its subgraphs and functions, with the opset versions of their domains."""
    opsets = model.graph.opset_imports
    for node in _inside(model.graph):
        yield node, version_of(node, opsets)
    for function in model.functions.values():
        versions = {**opsets, **function.opset_imports}
        for node in _inside(function):
            yield node, version_of(node, versions)


def _inside(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """Yields the nodes of a graph, each before those of its own graphs; `all_nodes` takes twice the time."""
    for node in graph:
        yield node
        for attribute in node.attributes.data.values():
            if attribute.type in _GRAPHS and not attribute.is_ref():
                for inner in [attribute.value] if attribute.type is ir.AttributeType.GRAPH else attribute.value:
                    yield from _inside(inner)
