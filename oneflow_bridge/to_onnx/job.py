"""Reads a compiled OneFlow job into an onnx-ir graph whose nodes are OneFlow's own user ops (domain `oneflow`).

A job is what `oneflow.nn.Graph.build_graph` returns: a protobuf with one entry an op and, in its helper, the shape and
data type of every tensor (*logical blob*), all static. Several jobs of one model, traced at different input sizes, are
read into one graph: what differs between them becomes a symbolic dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import InputError, ModelFileError
from onnx2nn.rewrite.patterns import NUMBER

DOMAIN = "oneflow"
"""The node domain of OneFlow's user ops, in the graphs read here and in files written with unmapped ops."""

OPERANDS = "operands"
RESULTS = "results"
"""Node attributes that name each input and output as OneFlow's op definition does, in the order of the node."""

VARYING = "varying"
"""Key of `node.meta`: the attributes that differ between traces, their varying entries replaced by dimension names."""

DIMENSIONS = "dimensions"
"""Key of `model.meta`: the `Dimensions` of the model."""

_NUMBERS = "Float Double Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64 Float16 BFloat16 Bool Complex64 Complex128"

DTYPES = {f"k{name}": ir.DataType[name.upper()] for name in _NUMBERS.split()} | {"kChar": ir.DataType.INT8}
"""OneFlow data type name → ONNX element type."""

_BOXING = {
    "distribute_split_conf": "distribute_split",
    "distribute_concat_conf": "distribute_concat",
    "distribute_clone_conf": "distribute_clone",
    "distribute_add_conf": "distribute_add",
    "identity_conf": "identity",
    "copy_conf": "copy",
    "cast_to_local_conf": "identity",
    "cast_from_local_conf": "identity",
    "boxing_identity_conf": "identity",
    "return_conf": "identity",
}
"""System ops with a meaning for one device, read as user ops of these names."""


@dataclass
class Dimensions:
    """The sizes that varied between traces, by name.

    Attributes:
        symbols: the caller's dimension names → their size in each trace.
        sizes: every dimension name, the caller's included → its size in each trace.
    """

    symbols: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self):
        self.sizes.update(self.symbols)
        self._names = {sizes: name for name, sizes in self.sizes.items()}

    def entry(self, sizes: Sequence[int]) -> int | str:
        """The size where all traces agree, else the name of the dimension.

        A dimension proportional to one of the caller's is called `7*batch`; any other gets a number.
        """
        sizes = tuple(sizes)
        if len(set(sizes)) == 1:
            return sizes[0]
        if sizes not in self._names:
            name = next(
                (f"{factor}*{symbol}" for symbol, base in self.symbols.items() if (factor := _ratio(sizes, base))),
                f"size_{len(self.sizes)}",
            )
            self._names[sizes] = name
            self.sizes[name] = sizes
        return self._names[sizes]


def _ratio(sizes: tuple[int, ...], base: tuple[int, ...]) -> int | None:
    """k where sizes == k * base with an integer k, else None."""
    factor = sizes[0] // base[0]
    return factor if all(size == factor * b for size, b in zip(sizes, base, strict=True)) and factor else None


def read_job(
    jobs: Sequence[Any],
    weights: Mapping[str, Any],
    *,
    symbols: Mapping[str, tuple[int, ...]] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    scope: str = "",
) -> ir.Model:
    """Reads one model's jobs into a graph of OneFlow ops, topologically sorted.

    Args:
        jobs: job protos (`oneflow.core.job.job_pb2.Job` with blob descriptions, as `build_graph` returns) of one model;
            several differ only in sizes.
        weights: variable op name without `scope` → tensor or array; the names become the initializers' names.
        symbols: dimension name → its size in each job.
        input_names: names of the graph inputs, in the order of the job's arguments.
        output_names: names of the graph outputs, in the order of the job's results.
        scope: prefix of the job's variable and op names that is left out (`"m."`).

    Returns:
        A model whose nodes have domain `oneflow`; every value has a dtype and a shape.

    Raises:
        ModelFileError: a job is inconsistent, or the jobs are not the same list of ops.
        InputError: a weight is missing, or the number of names does not fit.
    """
    reader = _JobReader(jobs, weights, Dimensions(dict(symbols or {})), scope)
    return reader.read(input_names, output_names)


class _JobReader:
    """Walks the ops of all jobs in step; the first job names things, the others only contribute sizes."""

    def __init__(self, jobs: Sequence[Any], weights: Mapping[str, Any], dimensions: Dimensions, scope: str):
        if not jobs:
            raise InputError("No job was given: pass at least one job proto.")
        self._jobs = jobs
        self._descriptions = [job.helper.lbn2logical_blob_desc for job in jobs]
        self._weights = weights
        self._dimensions = dimensions
        self._scope = scope
        self._values: dict[str, ir.Value] = {}
        self._current: dict[str, str] = {}  # logical blob → the logical blob that replaced it (assign)
        self._nodes: list[ir.Node] = []
        self._inputs: list[ir.Value] = []
        self._initializers: list[ir.Value] = []
        self._outputs: list[str] = []

    def read(self, input_names: Sequence[str] | None, output_names: Sequence[str] | None) -> ir.Model:
        self._check_same_ops()
        steps = [list(ops) for ops in zip(*(job.net.op for job in self._jobs), strict=True)]
        self._check_assign_order(steps)
        for ops in steps:
            self._declare(ops)
        for ops in steps:
            self._connect(ops)
        outputs = [self._value(blob) for blob in self._outputs]
        weights = {value.name or "": "a weight" for value in self._initializers}
        inputs = _names(len(self._inputs), input_names, "input", weights)
        for value, name in zip(self._inputs, inputs, strict=True):
            value.name = name
        model = self._model(outputs)
        taken = weights | dict.fromkeys(inputs, "an input")
        model.meta["output_names"] = _names(len(outputs), output_names, "output", taken)
        return model

    def _model(self, outputs: list[ir.Value]) -> ir.Model:
        graph = ir.Graph(
            self._inputs,
            outputs,
            nodes=self._nodes,
            initializers=self._initializers,
            opset_imports={DOMAIN: 1},
            name=self._jobs[0].job_conf.job_name or "oneflow",
        )
        graph.sort()
        model = ir.Model(graph, ir_version=8, producer_name="onnx2nn")
        model.meta["oneflow_ops"] = sorted({node.op_type for node in self._nodes})
        model.meta[DIMENSIONS] = graph.meta[DIMENSIONS] = self._dimensions
        return model

    def _check_same_ops(self) -> None:
        lists = [[_kind(op) for op in job.net.op] for job in self._jobs]
        for other in lists[1:]:
            if other != lists[0]:
                raise ModelFileError(
                    "Tracing at another size gave another list of ops: the model's Python code depends on a size that "
                    f"was asked to be dynamic. First difference: {_first_difference(lists[0], other)}. "
                    "Export with that dimension fixed."
                )

    def _check_assign_order(self, steps: list[list[Any]]) -> None:
        """`assign` has no output: later readers see the new value, so the order in the file must be a program's."""
        if not any(_kind(ops[0]) == "assign" for ops in steps):
            return
        written: set[str] = set()
        for ops in steps:
            for blobs in _operands(ops[0]).values():
                for blob in blobs:
                    if blob not in written:
                        raise ModelFileError(
                            f"The job holds `assign` ops ({ops[0].name} ...) but is not in program order, so it is not "
                            "known which reads come after the write. Replace `copy_` in the model by a new tensor."
                        )
            written.update(blob for blobs in _results(ops[0]).values() for blob in blobs)

    def _declare(self, ops: list[Any]) -> None:
        for blobs in zip(*([b for bs in _results(op).values() for b in bs] for op in ops), strict=True):
            self._values[blobs[0]] = self._described(blobs)

    def _described(self, blobs: Sequence[str]) -> ir.Value:
        found = []
        for blob, descriptions in zip(blobs, self._descriptions, strict=True):
            if blob not in descriptions:
                raise ModelFileError(
                    f"The job does not say what shape {blob} has. Save the full job "
                    "(`job, _ = graph.build_graph(...)`), not the one of `oneflow.save`."
                )
            found.append(descriptions[blob])
        shape = [self._dimensions.entry(sizes) for sizes in zip(*(list(d.shape.dim) for d in found), strict=True)]
        return ir.Value(name=self._short(blobs[0]), shape=ir.Shape(shape), type=ir.TensorType(_dtype(found[0])))

    def _connect(self, ops: list[Any]) -> None:
        op = ops[0]
        kind = op.WhichOneof("op_type")
        if kind in ("input_conf", "feed_input_conf"):
            self._inputs.append(self._value(f"{op.name}/{_out(op)}"))
        elif kind in ("variable_conf", "feed_variable_conf"):
            self._initializers.append(self._variable(op))
        elif kind in ("output_conf", "fetch_output_conf"):
            self._outputs.append(_operands(op)["in"][0])
        elif _kind(op) == "assign":
            self._assign(op)
        else:
            self._nodes.append(self._node(ops))

    def _assign(self, op: Any) -> None:
        operands = _operands(op)
        reference, value = operands["ref"][0], operands["value"][0]
        self._current[reference] = self._latest(value)

    def _latest(self, blob: str) -> str:
        return self._current.get(blob, blob)

    def _value(self, blob: str) -> ir.Value:
        blob = self._latest(blob)
        if blob not in self._values:
            raise ModelFileError(f"The job reads {blob}, which no op of it writes.")
        return self._values[blob]

    def _variable(self, op: Any) -> ir.Value:
        value = self._values[f"{op.name}/{_out(op)}"]
        name = op.name.removeprefix(self._scope)
        if name not in self._weights:
            raise InputError(
                f"No weight named {name!r} was given for the variable {op.name} of the job. A plain tensor attribute "
                "gets such a name: make it a parameter or a buffer (register_buffer), or pass its value."
            )
        value.name = name
        value.const_value = _lazy(self._weights[name], value)
        return value

    def _node(self, ops: list[Any]) -> ir.Node:
        op = ops[0]
        operands, results = _operands(op), _results(op)
        attributes, varying = self._attributes(ops)
        node = op_node(
            _kind(op),
            [(name, self._value(blob)) for name, blobs in operands.items() for blob in blobs],
            [(name, self._values[blob]) for name, blobs in results.items() for blob in blobs],
            attributes,
            op.name.removeprefix(self._scope),
        )
        if varying:
            node.meta[VARYING] = varying
        number = _number(attributes | varying)
        if number is not None:
            node.meta[NUMBER] = number
        return node

    def _attributes(self, ops: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        found = [_plain_attributes(op) for op in ops]
        varying = {
            name: self._vary(ops[0], name, [other[name] for other in found])
            for name, value in found[0].items()
            if any(other[name] != value for other in found[1:])
        }
        return found[0], varying

    def _vary(self, op: Any, name: str, values: list[Any]) -> Any:
        if all(isinstance(value, int) for value in values):
            return self._dimensions.entry(values)
        if all(isinstance(value, float) for value in values):
            return tuple(values)  # as in the 1 / n of a mean; an op that cannot use it refuses it
        if all(isinstance(value, list) for value in values) and len({len(value) for value in values}) == 1:
            return [self._dimensions.entry(sizes) for sizes in zip(*values, strict=True)]
        raise ModelFileError(
            f"The attribute {name} of {op.name} ({_kind(op)}) depends on a dynamic dimension and is not a size "
            f"({values[0]!r}, {values[1]!r}). Export with that dimension fixed."
        )

    def _short(self, blob: str) -> str:
        return blob.removeprefix(self._scope)


def op_node(
    op_type: str,
    operands: Sequence[tuple[str, ir.Value]],
    results: Sequence[tuple[str, ir.Value]],
    attributes: Mapping[str, Any],
    name: str,
) -> ir.Node:
    """Returns a node of a OneFlow op.

    Args:
        op_type: user op type name.
        operands: inputs with the names that OneFlow's op definition gives them.
        results: outputs with theirs.
        attributes: attributes as Python values.
        name: the node's name.
    """
    written = [attribute(key, value) for key, value in attributes.items()]
    written.append(ir.AttrStrings(OPERANDS, [key for key, _ in operands]))
    written.append(ir.AttrStrings(RESULTS, [key for key, _ in results]))
    inputs, outputs = ([value for _, value in named] for named in (operands, results))
    return ir.Node(DOMAIN, op_type, inputs, written, outputs=outputs, name=name)


def distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names, with a number behind those that are taken or that came before."""
    found: list[str] = []
    known = set(taken)
    for base in names:
        name, number = base, 0
        while name in known:
            number += 1
            name = f"{base}_{number}"
        known.add(name)
        found.append(name)
    return found


def _names(count: int, names: Sequence[str] | None, what: str, taken: Mapping[str, str]) -> list[str]:
    """Names of the inputs or outputs; `taken` are those that other values have, and what these are."""
    if names is None:
        return distinct([what] if count == 1 else [f"{what}_{i}" for i in range(count)], taken)
    if len(names) != count or len(set(names)) != count:
        raise InputError(f"The model has {count} {what}s; {len(names)} names were given for them: {list(names)}.")
    for name in names:
        if not name:
            raise InputError(f"An {what} cannot be called '': in ONNX that means that there is none.")
        if name in taken:
            raise InputError(f"An {what} cannot be called {name!r}, {taken[name]} of the model is called so.")
    return list(names)


def _kind(op: Any) -> str:
    """The user op's type name; for a system op the name of its meaning, or of its field."""
    kind = op.WhichOneof("op_type")
    if kind == "user_conf":
        return op.user_conf.op_type_name
    return _BOXING.get(kind, kind.removesuffix("_conf") if kind else "nothing")


def _out(op: Any) -> str:
    return getattr(op, op.WhichOneof("op_type")).out


def _operands(op: Any) -> dict[str, list[str]]:
    """Input name → logical blobs, in the op's own order."""
    kind = op.WhichOneof("op_type")
    conf = getattr(op, kind)
    if kind == "user_conf":
        return {name: list(conf.input[name].s) for name in conf.input_order}
    fields = [f for f in conf.DESCRIPTOR.fields if f.name in ("in", "ref", "value")]
    return {f.name: _blobs(getattr(conf, f.name)) for f in fields} if kind not in _SOURCES else {}


def _results(op: Any) -> dict[str, list[str]]:
    """Output name → logical blobs, in the op's own order."""
    kind = op.WhichOneof("op_type")
    conf = getattr(op, kind)
    if kind == "user_conf":
        return {name: list(conf.output[name].s) for name in conf.output_order}
    if kind in ("output_conf", "fetch_output_conf") or not hasattr(conf, "out"):
        return {}
    return {"out": [f"{op.name}/{blob}" for blob in _blobs(conf.out)]}


_SOURCES = frozenset({"input_conf", "feed_input_conf", "variable_conf", "feed_variable_conf"})


def _blobs(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _plain_attributes(op: Any) -> dict[str, Any]:
    """Attributes as Python values: shapes as lists, data types by their OneFlow name."""
    kind = op.WhichOneof("op_type")
    if kind == "user_conf":
        return {name: _attribute_value(op.user_conf.attr[name]) for name in op.user_conf.attr}
    conf = getattr(op, kind)
    return {"axis": conf.axis} if hasattr(conf, "axis") else {}


def _number(attributes: Mapping[str, Any]) -> Any:
    """Returns the number of an op that takes a tensor and a number; a name or a tuple where it is dynamic."""
    return next(
        (attributes[f"{kind}_operand"] for kind in ("int", "float") if attributes.get(f"has_{kind}_operand")), None
    )


def _attribute_value(attribute: Any) -> Any:
    kind = attribute.WhichOneof("value")
    value = getattr(attribute, kind)
    if kind in ("at_shape", "at_stride"):
        return list(value.dim)
    if kind == "at_data_type":
        return _dtype_name(value)
    if kind in ("at_list_shape", "at_list_stride"):
        return [list(shape.dim) for shape in value.val]
    if kind == "at_list_data_type":
        return [_dtype_name(dtype) for dtype in value.val]
    return list(value.val) if kind.startswith("at_list") else value


def attribute(name: str, value: Any) -> ir.Attr:
    """An attribute of the kind that a Python value is; an empty list is one of integers."""
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, (bool, int)):
        return ir.AttrInt64(name, int(value))
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    if value and isinstance(value[0], str):
        return ir.AttrStrings(name, value)
    if value and isinstance(value[0], float):
        return ir.AttrFloat32s(name, value)
    if value and isinstance(value[0], list):
        return ir.AttrString(name, str(value))
    return ir.AttrInt64s(name, [int(v) for v in value])


def _dtype_name(number: int) -> str:
    from oneflow.core.common import data_type_pb2  # generated protobuf, part of OneFlow

    return str(data_type_pb2.DataType.Name(number))


def _dtype(description: Any) -> ir.DataType:
    name = _dtype_name(description.data_type)
    if name not in DTYPES:
        raise ModelFileError(f"The job holds a tensor of OneFlow type {name}, which ONNX does not have.")
    return DTYPES[name]


def sizes_of(value: ir.Value) -> list[int | str]:
    """The shape of a value: sizes, and names where they are dynamic.

    Raises:
        ModelFileError: the shape is not known.
    """
    if value.shape is None:
        raise ModelFileError(f"The job does not say what shape {value.name} has.")
    return [d if isinstance(d, int) else str(d.value) for d in value.shape]


def type_of(value: ir.Value) -> ir.TensorType:
    """The element type of a value.

    Raises:
        ModelFileError: it is not known.
    """
    if value.dtype is None:
        raise ModelFileError(f"The job does not say what type {value.name} has.")
    return ir.TensorType(value.dtype)


def _lazy(weight: Any, value: ir.Value) -> ir.LazyTensor:
    """A tensor that asks for the weight's memory when it is written, so that no second copy is held before."""
    shape = ir.Shape(list(weight.shape))
    if shape != value.shape:
        raise InputError(f"The weight {value.name!r} has shape {list(shape)}; the job expects {sizes_of(value)}.")
    dtype = type_of(value).dtype

    def load() -> ir.Tensor:
        array = weight if isinstance(weight, np.ndarray) else weight.detach().numpy()
        return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype, name=value.name)

    return ir.LazyTensor(load, dtype=dtype, shape=shape, cache=True, name=value.name)  # a view, no copy


def _first_difference(one: list[str], other: list[str]) -> str:
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return f"op {position} is {a} in one trace and {b} in another"
    return f"{len(one)} ops in one trace, {len(other)} in another"
