"""Lazy tensors: their bytes stay in the file, the caller's bytes or the message until `numpy()` is called."""

from __future__ import annotations

import math
import os
import stat
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir

from onnx2nn.errors import ModelFileError
from onnx2nn.reading.limits import Limits

# TensorProto's typed field for each data type (onnx.proto, TensorProto); int32_data for all others.
_TYPED_FIELDS: dict[str, str] = {
    **dict.fromkeys(("FLOAT", "COMPLEX64"), "float_data"),
    **dict.fromkeys(("DOUBLE", "COMPLEX128"), "double_data"),
    **dict.fromkeys(("UINT32", "UINT64"), "uint64_data"),
    "INT64": "int64_data",
    "STRING": "string_data",
}
# Several elements of these types share one entry of int32_data, as in raw_data; a 6-bit float has its own entry.
_PACKED_IN_INT32 = ("UINT4", "INT4", "UINT2", "INT2", "FLOAT4E2M1")
_WHOLE_BYTES = {
    int(kind): kind.numpy()
    for kind in ir.DataType
    if kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and kind.bitwidth % 8 == 0
}
_DATA_TYPES = {int(kind): kind for kind in ir.DataType if kind != ir.DataType.UNDEFINED}
_DATA_FIELDS = frozenset({"float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data"})


class ByteSource(Protocol):
    """Random access to the bytes of a model or of its external data."""

    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Returns exactly `length` bytes from `offset`."""

    def read_array(self, offset: int, length: int) -> np.ndarray:
        """Returns the bytes as a new, writable uint8 array (length,)."""


class MemorySource:
    """Bytes that the caller already holds."""

    def __init__(self, data: bytes | bytearray | memoryview):
        self._data = memoryview(data)
        self.size = self._data.nbytes

    def read(self, offset: int, length: int) -> bytes:
        """Returns exactly `length` bytes from `offset`."""
        return bytes(self._data[offset : offset + length])

    def read_array(self, offset: int, length: int) -> np.ndarray:
        """Returns a copy as a writable uint8 array (length,)."""
        return np.frombuffer(self._data, np.uint8, length, offset).copy() if length else np.empty(0, np.uint8)


class FileSource:
    """A regular file, held open as long as one of its tensors lives.

    It is read, not mapped: mapped pages count as resident memory in addition to their copy, and a mapped file that
    shrinks kills the process. The open file stays the file that was checked, even if its name is reused.
    """

    def __init__(self, path: str):
        """Opens the file.

        Raises:
            ModelFileError: the file does not exist, cannot be opened, or is no regular file.
        """
        try:
            # Without O_NONBLOCK, opening a FIFO waits for a writer.
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ModelFileError(f"Cannot open {path}: {reason}. Check the path and its permissions.") from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ModelFileError(f"{path} is {kind}. Give the path of an .onnx file.")
        self._file = open(descriptor, "rb", buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self.path = path
        self.size = status.st_size

    def read(self, offset: int, length: int) -> bytes:
        """Returns exactly `length` bytes from `offset`."""
        return self.read_array(offset, length).tobytes()

    def read_array(self, offset: int, length: int) -> np.ndarray:
        """Returns the bytes as a new, writable uint8 array (length,)."""
        array = np.empty(length, np.uint8)
        view = memoryview(array)  # type: ignore[arg-type]
        with self._lock:
            self._file.seek(offset)
            done = 0
            while done < length:
                count = self._file.readinto(view[done:])
                if not count:
                    raise ModelFileError(
                        f"{self.path} became shorter while it was read. Read it again when it is complete."
                    )
                done += count
        return array


def stored_tensor(
    source: ByteSource, offset: int, dtype: ir.DataType, shape: Sequence[int], name: str
) -> ir.LazyTensor:
    """Returns a tensor of fixed-size elements at an offset (bytes) of `source`, read anew by every `numpy()` call."""

    def load() -> ir.TensorProtocol:
        data = source.read_array(offset, _nbytes(dtype, math.prod(shape)))
        if dtype.bitwidth < 8:
            return ir.PackedTensor(data, dtype, shape=ir.Shape(shape), name=name)
        array = data.view(dtype.numpy()).reshape(shape)
        return ir.Tensor(array if sys.byteorder == "little" else array.byteswap(), dtype, name=name)

    return ir.LazyTensor(load, dtype, shape=ir.Shape(shape, frozen=True), name=name, cache=False)


class MessageTensor(ir.serde.TensorProtoTensor):
    """A tensor inside a protobuf message; unlike its base it gives arrays that belong to the caller.

    Args:
        proto: the message.
        dtype: its data type.
        shape: its dimensions, frozen.
        dims: the same as a plain tuple.
    """

    __slots__ = ("_dims", "_dtype", "_shape")

    def __init__(self, proto: onnx.TensorProto, dtype: ir.DataType, shape: ir.Shape, dims: tuple[int, ...]):
        super().__init__(proto)
        self._dtype, self._shape, self._dims = dtype, shape, dims

    @property
    def dtype(self) -> ir.DataType:  # type: ignore[override]  # onnx_ir's protocol says attribute, its tensors have properties
        """The data type."""
        return self._dtype

    @property
    def shape(self) -> ir.Shape:  # type: ignore[override]  # a property for the protocol's attribute, as onnx_ir's own
        """The dimensions."""
        return self._shape

    def numpy(self) -> np.ndarray:
        """Returns the elements as a new, writable array."""
        proto = self.raw
        dtype = _WHOLE_BYTES.get(self._dtype)
        if dtype is not None and proto.HasField("raw_data") and sys.byteorder == "little":
            # A copy, as a view of the message's bytes would be read-only.
            return np.ndarray(self._dims, dtype, bytearray(proto.raw_data))
        array = super().numpy()
        return array if array.flags.writeable else array.copy()


class TensorReader:
    """Turns `TensorProto`s into lazy tensors, after checking that each has exactly the bytes its shape asks for."""

    def __init__(self, limits: Limits, source: ByteSource | None, spans: dict[int, int], roots: Sequence[str]):
        """Prepares a reader of one model's tensors.

        Args:
            limits: limits on rank and dense size.
            source: the model's own bytes, where the payloads are that the parsed message leaves out.
            spans: offset and length in bytes of the payloads left out (`onnx2nn.reading.protobuf_wire.skeleton`).
            roots: the model's folder first, then further folders its external data may resolve to; empty when the
                model has no folder.
        """
        self._limits = limits
        self._source = source
        self._spans = spans
        self._roots = roots
        self._files: dict[str, FileSource] = {}
        self._shapes: dict[tuple[int, ...], ir.Shape] = {}

    def read(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        """Returns the tensor without reading its elements.

        Raises:
            ModelFileError: unknown data type, bad dimensions, or data that does not fit them.
        """
        fields = {field.name: value for field, value in proto.ListFields()}
        name = fields.get("name", "")
        if not isinstance(name, str):
            raise ModelFileError(f"The model is damaged: a tensor's name is {name!r}.")
        dims = list(fields.get("dims", ()))
        dtype = self._dtype(fields.get("data_type", 0), name)
        size = self._size(dims, name)
        external = fields.get("data_location") == onnx.TensorProto.EXTERNAL
        if "segment" in fields and not external:
            offset, length = proto.segment.begin, proto.segment.end - proto.segment.begin
            if self._source is None or self._spans.get(offset) != length:
                raise ModelFileError(
                    f"Tensor {name!r} is stored in segments, which no ONNX release defines. Export the model again."
                )
            self._check(name, "bytes", length, _nbytes(dtype, size), dims, dtype)
            if "raw_data" in fields or not _DATA_FIELDS.isdisjoint(fields):
                raise ModelFileError(f"Tensor {name!r} has data in more than one field. Export the model again.")
            return stored_tensor(self._source, offset, dtype, dims, name)
        if external:
            return self._external(proto, dtype, dims, _nbytes(dtype, size))
        self._check_fields(fields, dtype, dims, size)
        if dtype == ir.DataType.STRING:
            return ir.StringTensor(list(proto.string_data), shape=ir.Shape(dims), name=name)
        key = tuple(dims)
        if key not in self._shapes:  # many small tensors have the same few
            self._shapes[key] = ir.Shape(key, frozen=True)
        return MessageTensor(proto, dtype, self._shapes[key], key)

    def read_sparse(self, proto: onnx.SparseTensorProto) -> ir.TensorProtocol:
        """Returns a sparse tensor as a dense one, with the name of its values.

        Raises:
            ModelFileError: indices that do not fit the shape, or more elements than `Limits.sparse_elements`.
        """
        name = proto.values.name
        dims = list(proto.dims)
        size = self._size(dims, name)
        if size > self._limits.sparse_elements:
            raise ModelFileError(
                f"Sparse tensor {name!r} has {size} elements once dense, above the limit of "
                f"{self._limits.sparse_elements}. Raise Limits.sparse_elements if the file is to be trusted."
            )
        values = self.read(proto.values)
        indices = self.read(proto.indices)
        count = values.size
        if indices.dtype != ir.DataType.INT64 or values.dtype == ir.DataType.STRING or len(values.shape) != 1:
            raise ModelFileError(f"Sparse tensor {name!r}: its values must be a vector of numbers, its indices int64.")
        index = indices.numpy()
        if index.shape == (count, len(dims)):
            in_range = bool(((index >= 0) & (index < np.array(dims, np.int64))).all())
            flat = index @ np.array([math.prod(dims[axis + 1 :]) for axis in range(len(dims))], np.int64)
        elif index.shape == (count,):
            in_range, flat = bool(((index >= 0) & (index < size)).all()), index
        else:
            raise ModelFileError(f"Sparse tensor {name!r}: indices of shape {index.shape} do not fit {count} values.")
        if not in_range:
            raise ModelFileError(f"Sparse tensor {name!r}: an index lies outside its shape {dims}.")
        dense = np.zeros(size, values.dtype.numpy())
        dense[flat] = values.numpy()
        return ir.Tensor(dense.reshape(dims), dtype=values.dtype, name=name)

    def _dtype(self, number: int, name: str) -> ir.DataType:
        dtype = _DATA_TYPES.get(number)
        if dtype is None:
            raise ModelFileError(
                f"Tensor {name!r} has data type {number}, which is not known here. "
                "A file from a newer exporter may need newer onnx and onnx-ir packages."
            )
        return dtype

    def _size(self, dims: list[int], name: str) -> int:
        if len(dims) > self._limits.rank:
            raise ModelFileError(f"Tensor {name!r} has {len(dims)} dimensions, above the limit of {self._limits.rank}.")
        if dims and min(dims) < 0:
            raise ModelFileError(f"Tensor {name!r} has a negative dimension: {dims}.")
        size = math.prod(dims)
        # NumPy multiplies the non-zero dimensions and refuses more than an index can count, also for empty tensors.
        if (size or math.prod(filter(None, dims))) > sys.maxsize // 16:
            raise ModelFileError(f"Tensor {name!r} has impossible dimensions: {dims}.")
        return size

    def _check(self, name: str, unit: str, found: int, wanted: int, dims: list[int], dtype: ir.DataType) -> None:
        if found != wanted:
            raise ModelFileError(
                f"Tensor {name!r} of shape {dims} and type {dtype.name} needs {wanted} {unit} of data, "
                f"but the file holds {found}. The file is damaged or was written wrongly: export it again."
            )

    def _check_fields(self, fields: Mapping[str, Any], dtype: ir.DataType, dims: list[int], size: int) -> None:
        name = fields.get("name", "")
        used = [] if _DATA_FIELDS.isdisjoint(fields) else sorted(_DATA_FIELDS.intersection(fields))
        if "raw_data" in fields:
            if dtype == ir.DataType.STRING or used:
                raise ModelFileError(
                    f"Tensor {name!r} has raw_data besides or instead of a typed field. Export the model again."
                )
            self._check(name, "bytes", len(fields["raw_data"]), _nbytes(dtype, size), dims, dtype)
            return
        field = _TYPED_FIELDS.get(dtype.name, "int32_data")
        if used and used != [field]:
            raise ModelFileError(
                f"Tensor {name!r} of type {dtype.name} has its data in {', '.join(used)}, not {field}."
            )
        wanted = size
        if dtype.name.startswith("COMPLEX"):
            wanted = 2 * size
        elif dtype.name in _PACKED_IN_INT32:
            wanted = _nbytes(dtype, size)
        self._check(name, "entries", len(fields.get(field, ())), wanted, dims, dtype)

    def _external(self, proto: onnx.TensorProto, dtype: ir.DataType, dims: list[int], nbytes: int) -> ir.LazyTensor:
        name = proto.name
        entries = {entry.key: entry.value for entry in proto.external_data}
        if dtype == ir.DataType.STRING:
            raise ModelFileError(f"Tensor {name!r} of strings is stored as external data, which ONNX does not allow.")
        source = self._open(entries.get("location", ""), name)
        offset = _number(entries, "offset", name) or 0
        length = _number(entries, "length", name)
        if length is not None:
            self._check(name, "bytes", length, nbytes, dims, dtype)
        if offset + nbytes > source.size:
            raise ModelFileError(
                f"Tensor {name!r} lies at bytes {offset} to {offset + nbytes} of {source.path}, which has "
                f"{source.size} bytes only. Copy or download the data file again."
            )
        return stored_tensor(source, offset, dtype, dims, name)

    def _open(self, location: str, name: str) -> FileSource:
        if location in self._files:
            return self._files[location]
        if not self._roots:
            raise ModelFileError(
                f"Tensor {name!r} is stored in the file {location!r} beside the model, and a model given as bytes, "
                "stream or ModelProto has no folder. Give base_dir=, or the path of the .onnx file."
            )
        parts = location.replace("\\", "/").split("/")
        if not location or "\0" in location or ".." in parts or parts[0] == "" or ":" in parts[0]:
            raise ModelFileError(
                f"Tensor {name!r} names {location!r} as its data file. ONNX allows only relative paths inside the "
                "model's folder: the file is refused as unsafe."
            )
        path = os.path.join(self._roots[0], location)
        target = os.path.realpath(path)
        # A download cache may hold model and data as links into one folder: that folder is a root as well.
        if not any(target.startswith(os.path.join(os.path.realpath(root), "")) for root in self._roots):
            raise ModelFileError(
                f"Tensor {name!r}: the data file {path} is a link to {target}, outside the model's folder: "
                "it is refused as unsafe. Copy the file into the folder."
            )
        if not os.path.exists(target):
            raise ModelFileError(
                f"Tensor {name!r} is stored in {path}, which does not exist. Put the model's data file beside it, "
                "under exactly this name."
            )
        self._files[location] = FileSource(target)
        return self._files[location]


def _nbytes(dtype: ir.DataType, size: int) -> int:
    if dtype == ir.DataType.STRING:
        return 0
    return (dtype.bitwidth * size + 7) // 8


def _number(entries: dict[str, str], key: str, name: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelFileError(f"Tensor {name!r}: external data {key} is {text[:40]!r}, not a number of bytes.")
    return int(text)
