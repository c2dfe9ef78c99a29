"""Writes a model to a file tensor by tensor, so that no copy of the weights is made on the way."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import onnx
import onnx_ir as ir

from oneflow_bridge.to_onnx.job import sizes_of
from onnx2nn.errors import InputError, ModelFileError
from onnx2nn.ground.pass_times import timed

PROTOBUF_LIMIT = 2**31 - 1
_MARGIN = 2**24
"""Bytes reserved for the graph when the size of the weights is compared with the limit."""

# Field tags of onnx.proto: (field number << 3) | 2, the wire type of length-delimited fields.
_MODEL_GRAPH = b"\x3a"
_GRAPH_INITIALIZER = b"\x2a"
_TENSOR_RAW_DATA = b"\x4a"


@timed("writing")
def write_model(
    model: ir.Model,
    path: str | os.PathLike[str] | None,
    *,
    external_data: bool | None = None,
    verify: Callable[[Path], None] | None = None,
) -> onnx.ModelProto:
    """Writes a model under a temporary name, verifies the file, and renames it.

    Args:
        model: the model; its weights are read one after the other.
        path: the file; None writes to a temporary folder if `verify` is given, else not at all.
        external_data: weights into `<path>.data`; None does so above protobuf's limit of 2 GB.
        verify: called with the written file; if it raises, no file is left behind.

    Returns:
        The model as a proto; with external data its weights refer to the file.

    Raises:
        InputError: the model is too large for one file and `external_data` is False.
        ModelFileError: the file cannot be written.
    """
    size = sum(_tensor(value).nbytes for value in model.graph.initializers.values())
    if external_data is None:
        external_data = size > PROTOBUF_LIMIT - _MARGIN
    if size > PROTOBUF_LIMIT - _MARGIN and (not external_data or path is None):
        raise InputError(f"The weights have {size} bytes; above 2 GB they must go to external data, beside a file.")
    if path is None and verify is None:
        return _with_weights(_without_weights(model), model)
    target = None if path is None else Path(path)
    shell = None if external_data else _without_weights(model)
    try:
        with _beside(target) as folder:
            written = folder / (target.name if target else "model.onnx")
            if shell is None:
                ir.save(model, written, external_data=f"{written.name}.data")
            else:
                _stream(shell, model, written)
            if verify is not None:
                verify(written)
            if target is not None:
                _move(written, target)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be written: {error}") from error
    return onnx.load(str(target), load_external_data=False) if shell is None else _with_weights(shell, model)


@contextmanager
def _beside(target: Path | None) -> Iterator[Path]:
    """A temporary folder on the target's file system."""
    parent = None if target is None else target.resolve().parent
    with tempfile.TemporaryDirectory(prefix=".onnx-export-", dir=parent) as folder:
        yield Path(folder)


def _move(written: Path, target: Path) -> None:
    """Moves the data first, so that a reader never finds a model without its weights."""
    for file in sorted(written.parent.iterdir(), key=lambda file: file == written):
        os.replace(file, target.parent / file.name)


def _stream(shell: onnx.ModelProto, model: ir.Model, path: Path) -> None:
    """Writes the graph, then each weight behind it as one more initializer of that graph."""
    graph = shell.graph.SerializeToString()
    around = onnx.ModelProto()
    for field, value in shell.ListFields():
        if field.name == "graph":
            continue
        if field.label == field.LABEL_REPEATED:
            getattr(around, field.name).extend(value)
        else:
            setattr(around, field.name, value)
    tensors = [(_head(value), _tensor(value)) for value in model.graph.initializers.values()]
    sizes = [len(head) + _field_size(tensor.nbytes) for head, tensor in tensors]
    with open(path, "wb") as file:
        file.write(around.SerializeToString())
        file.write(_MODEL_GRAPH + _varint(len(graph) + sum(_field_size(size) for size in sizes)))
        file.write(graph)
        for (head, tensor), size in zip(tensors, sizes, strict=True):
            file.write(_GRAPH_INITIALIZER + _varint(size) + head + _TENSOR_RAW_DATA + _varint(tensor.nbytes))
            _write_raw(file, tensor)


def _with_weights(shell: onnx.ModelProto, model: ir.Model) -> onnx.ModelProto:
    """The proto with the weights put in."""
    for value in model.graph.initializers.values():
        tensor = _tensor(value)
        proto = shell.graph.initializer.add()
        proto.ParseFromString(_head(value))
        proto.raw_data = tensor.tobytes()
    return shell


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """The proto of the model with an empty list of initializers."""
    held = {value: value.const_value for value in model.graph.initializers.values()}
    nothing = ir.Tensor(np.zeros(0, dtype=np.float32))
    try:
        for value in held:
            value.const_value = nothing
        proto = ir.serde.serialize_model(model)
    finally:
        for value, tensor in held.items():
            value.const_value = tensor
    del proto.graph.initializer[:]
    return proto


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    if value.const_value is None:
        raise InputError(f"The weight {value.name!r} has no value.")
    return value.const_value


def _head(value: ir.Value) -> bytes:
    """A TensorProto without its data."""
    tensor = _tensor(value)
    dims = [int(size) for size in sizes_of(value)]
    return onnx.TensorProto(name=value.name, data_type=int(tensor.dtype), dims=dims).SerializeToString()


def _write_raw(file: IO[bytes], tensor: ir.TensorProtocol) -> None:
    """The elements, little endian, straight from the weight's memory."""
    array = np.ascontiguousarray(tensor.numpy())
    if array.nbytes != tensor.nbytes or array.dtype.byteorder == ">":
        file.write(tensor.tobytes())
    else:
        file.write(array.reshape(-1).view(np.uint8).data)


def _field_size(length: int) -> int:
    """Bytes of a length-delimited field: tag, length, contents."""
    return 1 + len(_varint(length)) + length


def _varint(number: int) -> bytes:
    """Protobuf's base-128 form, low groups first."""
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)
