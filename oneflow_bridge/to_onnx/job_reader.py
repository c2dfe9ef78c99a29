"""Reads the protobuf of a compiled OneFlow job into a graph of OneFlow ops (see `job`).

A job is the result of `oneflow.nn.Graph.build_graph`: one entry an op, and the static shape and data type of every
tensor (*logical blob*). Several jobs of one model, traced at different input sizes, are read into one graph: a size
that differs between them becomes a symbolic dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.job import (
    DIMENSIONS,
    DOMAIN,
    DTYPES,
    VARYING,
    Dimensions,
    distinct,
    op_node,
    sizes_of,
    type_of,
)
from onnx2nn.errors import InputError, ModelFileError
from onnx2nn.rewrite.patterns import NUMBER

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
"""System op → the user op that it is read as, for the system ops that mean something on one device."""


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
    """Walks the ops of all jobs in parallel; names come from the first job, the others only contribute sizes."""

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
                    f"should be dynamic. First difference: {_first_difference(lists[0], other)}. "
                    "Export with that dimension fixed."
                )

    def _check_assign_order(self, steps: list[list[Any]]) -> None:
        """Refuses a job with `assign` ops that is not in program order: later ops read the assigned value."""
        if not any(_kind(ops[0]) == "assign" for ops in steps):
            return
        written: set[str] = set()
        for ops in steps:
            for blobs in _operands(ops[0]).values():
                for blob in blobs:
                    if blob not in written:
                        raise ModelFileError(
                            f"The job holds `assign` ops ({ops[0].name} ...) but is not in program order, so the reads "
                            "after the write are unknown. Replace `copy_` in the model by a new tensor."
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
                    f"The job holds no shape for {blob}. Save the full job "
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
            raise ModelFileError(f"The job reads {blob}, which none of its ops writes.")
        return self._values[blob]

    def _variable(self, op: Any) -> ir.Value:
        value = self._values[f"{op.name}/{_out(op)}"]
        name = op.name.removeprefix(self._scope)
        if name not in self._weights:
            raise InputError(
                f"No weight named {name!r} was given for the variable {op.name} of the job. A plain tensor attribute "
                "gets such a name. Make it a parameter or a buffer (register_buffer), or pass its value."
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
            return tuple(values)  # such as the 1 / n of a mean; other ops refuse it
        if all(isinstance(value, list) for value in values) and len({len(value) for value in values}) == 1:
            return [self._dimensions.entry(sizes) for sizes in zip(*values, strict=True)]
        raise ModelFileError(
            f"The attribute {name} of {op.name} ({_kind(op)}) depends on a dynamic dimension and is not a size "
            f"({values[0]!r}, {values[1]!r}). Export with that dimension fixed."
        )

    def _short(self, blob: str) -> str:
        return blob.removeprefix(self._scope)


def _names(count: int, names: Sequence[str] | None, what: str, taken: Mapping[str, str]) -> list[str]:
    """Returns the names of the inputs or outputs; `taken` maps the names of other values to their kind."""
    if names is None:
        return distinct([what] if count == 1 else [f"{what}_{i}" for i in range(count)], taken)
    if len(names) != count or len(set(names)) != count:
        raise InputError(f"The model has {count} {what}s; {len(names)} names were given for them: {list(names)}.")
    for name in names:
        if not name:
            raise InputError(f"An {what} has the empty name, which means an absent value in ONNX; give it a name.")
        if name in taken:
            raise InputError(
                f"An {what} has the name {name!r}, which {taken[name]} of the model has; choose another one."
            )
    return list(names)


def _kind(op: Any) -> str:
    """Returns the user op's type name; for a system op the name of its user op in `_BOXING`, or of its field."""
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


def read_ops(job: Any) -> set[str]:
    """Names of the ops of which another op reads a result."""
    return {blob.rpartition("/")[0] for op in job.net.op for blobs in _operands(op).values() for blob in blobs}


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


def _dtype_name(number: int) -> str:
    from oneflow.core.common import data_type_pb2  # generated protobuf, part of OneFlow

    return str(data_type_pb2.DataType.Name(number))


def _dtype(description: Any) -> ir.DataType:
    name = _dtype_name(description.data_type)
    if name not in DTYPES:
        raise ModelFileError(f"The job holds a tensor of OneFlow type {name}, which ONNX does not have.")
    return DTYPES[name]


def _lazy(weight: Any, value: ir.Value) -> ir.LazyTensor:
    """Returns a tensor that reads the weight when it is written, so that no second copy is held before."""
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
