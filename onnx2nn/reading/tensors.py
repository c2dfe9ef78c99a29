"""Lazy tensors: their bytes stay in the file, the caller's bytes or the message until `numpy()` is called."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx
import onnx_ir as ir

from onnx2nn.errors import ModelFileError
from onnx2nn.ground.limits import Account
from onnx2nn.reading.byte_sources import ByteSource, FileSource
from onnx2nn.reading.data_folder import DataFolder

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
_PLAIN_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.INT32: "int32_data",
    ir.DataType.INT64: "int64_data",
}
"""Typed fields with an entry for each element, of the elements' own type."""

_DATA_TYPES = {int(kind): kind for kind in ir.DataType if kind != ir.DataType.UNDEFINED}
_LARGE = 1 << 10
"""Elements above which a message is let go when the reader is closed."""

_DATA_FIELDS = frozenset({"float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data"})


class Ahead(Protocol):
    """Holds bytes that were read before they are needed."""

    def take(self, tensor: StoredTensor) -> np.ndarray | None:
        """Returns the bytes of a tensor as a writable uint8 array, None where they could not be read."""


class StoredTensor(ir.LazyTensor):
    """A tensor of fixed-size elements in a source, read anew by every `numpy()` call.

    Args:
        source: holds its bytes.
        offset: of the first one.
        dtype: its data type.
        shape: its dimensions, frozen.
        name: its name.

    Attributes:
        ahead: has the bytes for the next `numpy()` call; None: the source has.
    """

    __slots__ = ("ahead", "offset", "source")

    def __init__(self, source: ByteSource, offset: int, dtype: ir.DataType, shape: ir.Shape, name: str):
        super().__init__(self._read, dtype, shape=shape, name=name, cache=False)
        self.source, self.offset = source, offset
        self.ahead: Ahead | None = None

    def numpy(self) -> np.ndarray:
        """Returns the elements as a new, writable array."""
        return self._array() if self.dtype.bitwidth >= 8 else super().numpy()

    def _read(self) -> ir.TensorProtocol:
        if self.dtype.bitwidth < 8:
            return ir.PackedTensor(self._bytes(), self.dtype, shape=ir.Shape(self.shape), name=self.name)
        return ir.Tensor(self._array(), self.dtype, name=self.name)

    def _array(self) -> np.ndarray:
        array = self._bytes().view(self.dtype.numpy()).reshape(self.shape.numpy())
        return array if sys.byteorder == "little" else array.byteswap()

    def _bytes(self) -> np.ndarray:
        ahead, self.ahead = self.ahead, None
        found = None if ahead is None else ahead.take(self)
        unit = max(1, self.dtype.bitwidth // 8)
        return self.source.read_array(self.offset, self.nbytes, unit) if found is None else found


class MessageTensor(ir.serde.TensorProtoTensor):
    """A tensor inside a protobuf message, which stays as it is: arrays and the name, which may change, are its own.

    Args:
        proto: the message.
        name: its name.
        dtype: its data type.
        shape: its dimensions, frozen.
        dims: the same as a plain tuple.
    """

    __slots__ = ("_dims", "_dtype", "_own_name", "_shape")

    def __init__(self, proto: onnx.TensorProto, name: str, dtype: ir.DataType, shape: ir.Shape, dims: tuple[int, ...]):
        super().__init__(proto)
        self._own_name = name
        self._dtype, self._shape, self._dims = dtype, shape, dims

    @property
    def name(self) -> str:
        """The name."""
        return self._own_name

    @name.setter
    def name(self, value: str | None) -> None:
        self._own_name = value or ""

    @property
    def raw(self) -> onnx.TensorProto:
        """The message; a copy where the name has changed."""
        if self._proto.name == self._own_name:
            return self._proto
        renamed = onnx.TensorProto()
        renamed.CopyFrom(self._proto)
        renamed.name = self._own_name
        return renamed

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
        proto = self._proto
        dtype = _WHOLE_BYTES.get(self._dtype)
        if dtype is not None and sys.byteorder == "little":
            if proto.HasField("raw_data"):  # a copy, as a view of the message's bytes would be read-only
                return np.ndarray(self._dims, dtype, bytearray(proto.raw_data))
            if (field := _PLAIN_FIELDS.get(self._dtype)) and (elements := getattr(proto, field)):
                return np.array(elements, dtype).reshape(self._dims)
        array = super().numpy()
        return array if array.flags.writeable else array.copy()

    def forget(self) -> None:
        """Lets go of the message; nothing can be read afterwards."""
        self._proto = onnx.TensorProto()


class _Form(NamedTuple):
    """What tensors of one type and shape have in common.

    Attributes:
        dtype: their data type.
        dims: their dimensions.
        shape: the same, frozen.
        size: the number of elements.
        nbytes: the number of bytes, 0 for texts.
        field: the typed field that may have the elements.
        entries: the number of its entries.
    """

    dtype: ir.DataType
    dims: tuple[int, ...]
    shape: ir.Shape
    size: int
    nbytes: int
    field: str
    entries: int


class TensorReader:
    """Turns `TensorProto`s into lazy tensors, after checking that each has exactly the bytes its shape asks for."""

    def __init__(self, account: Account, source: ByteSource | None, spans: dict[int, int], folder: DataFolder | None):
        """Prepares a reader of one model's tensors.

        Args:
            account: counts what the tensors take.
            source: the model's own bytes, where the payloads are that the parsed message leaves out.
            spans: offset and length in bytes of the payloads left out (`onnx2nn.reading.protobuf_wire.skeleton`).
            folder: of the external data; None for a model without a folder.
        """
        self._account = account
        self._source = source
        self._spans = spans
        self._folder = folder
        self._files: dict[str, FileSource] = {}
        self._messages: list[MessageTensor] = []
        self._forms: dict[tuple[int, ...], _Form] = {}  # many tensors have the same few
        self._external_bytes: dict[tuple[int, int], int] = {}  # what the tensors take from each file

    def read(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        """Returns the tensor without reading its elements.

        Raises:
            ModelFileError: unknown data type, bad dimensions, or data that does not fit them.
        """
        fields = {field.name: value for field, value in proto.ListFields()}
        name = fields.get("name", "")
        if not isinstance(name, str):
            raise ModelFileError(f"The model is damaged: a tensor's name is {name!r}.")
        key = (fields.get("data_type", 0), *fields.get("dims", ()))
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = self._form(key[0], key[1:], name)
        external = fields.get("data_location") == onnx.TensorProto.EXTERNAL
        if not external:
            self._account.stored_bytes += form.nbytes
        if "segment" in fields and not external:
            offset, length = proto.segment.begin, proto.segment.end - proto.segment.begin
            if self._source is None or self._spans.get(offset) != length:
                raise ModelFileError(
                    f"Tensor {name!r} is stored in segments, which no ONNX release defines. Export the model again."
                )
            self._check(name, "bytes", length, form.nbytes, form)
            if "raw_data" in fields or not _DATA_FIELDS.isdisjoint(fields):
                raise ModelFileError(f"Tensor {name!r} has data in more than one field. Export the model again.")
            return StoredTensor(self._source, offset, form.dtype, form.shape, name)
        if external:
            return self._external(proto, form)
        self._check_fields(fields, form)
        if form.dtype == ir.DataType.STRING:
            return ir.StringTensor(list(proto.string_data), shape=ir.Shape(form.dims), name=name)
        tensor = MessageTensor(proto, name, form.dtype, form.shape, form.dims)
        if form.size > _LARGE:
            self._messages.append(tensor)
        return tensor

    def _form(self, number: int, dims: tuple[int, ...], name: str) -> _Form:
        """Returns the form of the tensor `name`, of the data type with a number."""
        dtype, size = self._dtype(number, name), self._size(list(dims), name)
        nbytes, field = _nbytes(dtype, size), _TYPED_FIELDS.get(dtype.name, "int32_data")
        entries = 2 * size if dtype.name.startswith("COMPLEX") else nbytes if dtype.name in _PACKED_IN_INT32 else size
        return _Form(dtype, dims, ir.Shape(dims, frozen=True), size, nbytes, field, entries)

    def read_sparse(self, proto: onnx.SparseTensorProto) -> ir.TensorProtocol:
        """Returns a sparse tensor as a dense one, with the name of its values.

        Raises:
            LimitError: more bytes than are left of `Limits.constant_bytes`.
            ModelFileError: indices that do not fit the shape.
        """
        name = proto.values.name
        dims = list(proto.dims)
        size = self._size(dims, name)
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
        self._account.take_bytes(
            size * values.dtype.numpy().itemsize, f"With the sparse tensor {name!r} made dense, constants have"
        )
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
        self._account.check("rank", len(dims), f"The number of dimensions of tensor {name!r} is")
        if dims and min(dims) < 0:
            raise ModelFileError(f"Tensor {name!r} has a negative dimension: {dims}.")
        size = math.prod(dims)
        # NumPy multiplies the non-zero dimensions and refuses more than an index can count, also for empty tensors.
        if (size or math.prod(filter(None, dims))) > sys.maxsize // 16:
            raise ModelFileError(f"Tensor {name!r} has impossible dimensions: {dims}.")
        return size

    def _check(self, name: str, unit: str, found: int, wanted: int, form: _Form) -> None:
        if found != wanted:
            raise ModelFileError(
                f"Tensor {name!r} of shape {[*form.dims]} and type {form.dtype.name} needs {wanted} {unit} of data, "
                f"but the file holds {found}. The file is damaged or was written wrongly: export it again."
            )

    def _check_fields(self, fields: Mapping[str, Any], form: _Form) -> None:
        name, used = fields.get("name", ""), _DATA_FIELDS.intersection(fields)
        if "raw_data" in fields:
            if form.dtype == ir.DataType.STRING or used:
                raise ModelFileError(
                    f"Tensor {name!r} has raw_data besides or instead of a typed field. Export the model again."
                )
            self._check(name, "bytes", len(fields["raw_data"]), form.nbytes, form)
            return
        if used and used != {form.field}:
            found = ", ".join(sorted(used))
            raise ModelFileError(
                f"Tensor {name!r} of type {form.dtype.name} has its data in {found}, not {form.field}."
            )
        self._check(name, "entries", len(fields.get(form.field, ())), form.entries, form)

    def _external(self, proto: onnx.TensorProto, form: _Form) -> ir.LazyTensor:
        name, nbytes = proto.name, form.nbytes
        entries = {entry.key: entry.value for entry in proto.external_data}
        if form.dtype == ir.DataType.STRING:
            raise ModelFileError(f"Tensor {name!r} of strings is stored as external data, which ONNX does not allow.")
        source = self._open(entries.get("location", ""), name)
        offset = _number(entries, "offset", name) or 0
        length = _number(entries, "length", name)
        if length is not None:
            self._check(name, "bytes", length, nbytes, form)
        if offset + nbytes > source.size:
            raise ModelFileError(
                f"Tensor {name!r} lies at bytes {offset} to {offset + nbytes} of {source.path}, which has "
                f"{source.size} bytes only. Copy or download the data file again."
            )
        self._count(source, nbytes, name)
        return StoredTensor(source, offset, form.dtype, form.shape, name)

    def _count(self, source: FileSource, nbytes: int, name: str) -> None:
        """Counts the bytes of a tensor: as stored, or as bytes in no file where tensors take more than the file has.

        Each tensor becomes a weight of its own, also where others lie at the same bytes.
        """
        taken = self._external_bytes.get(source.identity, 0)
        own = min(nbytes, max(source.size - taken, 0))
        self._external_bytes[source.identity] = taken + nbytes
        self._account.stored_bytes += own
        if nbytes > own:
            what = f"With tensor {name!r}, which shares its bytes in the data file with others, constants have"
            self._account.take_bytes(nbytes - own, what)

    def _open(self, location: str, name: str) -> FileSource:
        if location in self._files:
            return self._files[location]
        if self._folder is None:
            raise ModelFileError(
                f"Tensor {name!r} is stored in the file {location!r} beside the model, and a model given as bytes, "
                "stream or ModelProto has no folder. Give base_dir=, or the path of the .onnx file."
            )
        try:
            self._files[location] = self._folder.open(location)
        except ModelFileError as error:
            raise ModelFileError(f"Tensor {name!r}: {error}") from error.__cause__
        return self._files[location]

    def close(self) -> None:
        """Lets go of the model's bytes; no tensor can be read afterwards."""
        for source in (self._source, *self._files.values()):
            if source is not None:
                source.close()
        for message in self._messages:
            message.forget()


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
