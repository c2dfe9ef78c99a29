"""Jobs of one op that no call makes on CPU: what a GPU job or an older release holds, written as the proto itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx.compiled_job import CompiledJob

import_oneflow()
from oneflow.core.common import data_type_pb2  # noqa: E402
from oneflow.core.job import job_pb2  # noqa: E402

Arrays = Mapping[str, np.ndarray | Sequence[np.ndarray]]

_TYPES = {
    **{"float32": "kFloat", "float64": "kDouble", "int8": "kInt8", "uint8": "kUInt8"},
    **{"int32": "kInt32", "int64": "kInt64", "bool": "kBool"},
}
_ATTRIBUTES = {bool: "at_bool", int: "at_int64", float: "at_float", str: "at_string"}


@dataclass(frozen=True)
class HandmadeCase:
    """An op, its inputs and attributes, and what it must give: `outputs` in the op's order; None is not looked at.

    Attributes:
        op: user op type.
        inputs: input name → array, or a list of arrays.
        outputs: output name → expected array, or a list of arrays.
        attributes: attribute → value.
    """

    op: str
    inputs: Arrays
    outputs: Arrays
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.op

    def job(self) -> CompiledJob:
        """The job: every input is a graph input, every output a graph output."""
        job = job_pb2.Job()
        job.job_conf.job_name = self.op
        job.job_conf.predict_conf.SetInParent()
        conf = _user_op(self.op, self.attributes)
        names = []
        for key, array, index in _each(self.inputs):
            name = f"{key}_{index}"
            names.append(name)
            _input(job, name, array)
            conf.user_conf.input[key].s.append(f"{name}/out")
            _once(conf.user_conf.input_order, key)
        job.net.op.append(conf)
        for key, array, index in _each(self.outputs):
            blob = f"op/{key}_{index}"
            conf.user_conf.output[key].s.append(blob)
            _once(conf.user_conf.output_order, key)
            _describe(job, blob, array)
            _output(job, blob)
        job.net.op[len(names)].CopyFrom(conf)
        return CompiledJob([job], {}, input_names=names)

    def feeds(self) -> dict[str, np.ndarray]:
        """The inputs by the names of the job's arguments."""
        return {f"{key}_{index}": array for key, array, index in _each(self.inputs)}

    def expected(self) -> list[np.ndarray]:
        """The outputs in the order of the job's results."""
        return [array for _, array, _ in _each(self.outputs)]


def _each(arrays: Arrays) -> list[tuple[str, np.ndarray, int]]:
    return [
        (key, np.asarray(array), index)
        for key, value in arrays.items()
        for index, array in enumerate(value if isinstance(value, list) else [value])
    ]


def _once(order: Any, key: str) -> None:
    if key not in order:
        order.append(key)


def _user_op(op_type: str, attributes: Mapping[str, Any]) -> Any:
    conf = job_pb2.Job().net.op.add(name="op")
    conf.user_conf.op_type_name = op_type
    for name, value in attributes.items():
        attribute = conf.user_conf.attr[name]
        if isinstance(value, list):
            kind = "at_list_float" if value and isinstance(value[0], float) else "at_list_int64"
            getattr(attribute, kind).val.extend(value)
        else:
            setattr(attribute, _ATTRIBUTES[type(value)], value)
    return conf


def _input(job: Any, name: str, array: np.ndarray) -> None:
    op = job.net.op.add(name=name)
    op.input_conf.out = "out"
    op.input_conf.blob_conf.shape.dim.extend(array.shape)
    _describe(job, f"{name}/out", array)


def _output(job: Any, blob: str) -> None:
    op = job.net.op.add(name=f"output_{len(job.net.op)}")
    setattr(op.output_conf, "in", blob)
    op.output_conf.out = "out"
    op.output_conf.blob_conf.SetInParent()


def _describe(job: Any, blob: str, array: np.ndarray) -> None:
    description = job.helper.lbn2logical_blob_desc[blob]
    description.shape.dim.extend(array.shape)
    description.stride.dim.extend([0] * array.ndim)
    description.data_type = data_type_pb2.DataType.Value(_TYPES[array.dtype.name])
    description.is_dynamic = False
