"""Reads an ONNX file, in any of its forms, as an `onnx_ir.Model` whose weights are read on demand."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from onnx2nn.errors import ModelFileError, Onnx2nnError
from onnx2nn.ground import gc_pause
from onnx2nn.ground.limits import Account
from onnx2nn.ground.pass_times import timed
from onnx2nn.reading.byte_sources import ByteSource, FileSource, MemorySource
from onnx2nn.reading.data_folder import DataFolder
from onnx2nn.reading.deserialize import Deserializer
from onnx2nn.reading.protobuf_wire import skeleton
from onnx2nn.reading.remote import local_source
from onnx2nn.reading.tensors import TensorReader
from onnx2nn.reading.text_formats import is_text, parsed_text

__all__ = ["opened", "read"]

# Other files that are given by mistake: offset and first bytes, the name of the format and advice.
_LOOKALIKES = (
    (0, b"version https://git-lfs", "a Git LFS pointer, not the model itself. Run `git lfs pull`."),
    (
        0,
        b"PK\x03\x04",
        "a zip archive: a PyTorch checkpoint (.pth, .pt), a Keras file or an archive. Export or unpack it.",
    ),
    (0, b"\x80\x02", "a Python pickle, such as an old PyTorch checkpoint. Export it to ONNX with torch.onnx.export."),
    (0, b"\x89HDF", "an HDF5 file, such as a Keras model. Convert it to ONNX with tf2onnx."),
    (0, b"\x1f\x8b", "compressed with gzip. Unpack it."),
    (0, b"7767517", "an NCNN parameter file."),
    (4, b"TFL3", "a TensorFlow Lite model. Convert it to ONNX with tf2onnx."),
    (4, b"ORTM", "ONNX Runtime's own format (.ort). Give the .onnx file that it was made from."),
    (8, b'{"', "a safetensors file, which holds weights only."),
    (0, b"{", "JSON. An ONNX model in JSON is read when its name ends in .json."),
    (0, b"<", "HTML or XML, such as the error page of a download. Download the model again."),
)


def read(
    source: str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto,
    *,
    base_dir: str | os.PathLike[str] | None = None,
    follow_links: bool = False,
    account: Account | None = None,
) -> ir.Model:
    """Reads a model without its weights.

    Tensors above about 1 KiB stay in the file (or in the bytes given) and are read anew by each call of their
    `numpy()`, which returns a new, writable array. So the peak of memory is about one copy of the tensors in use,
    files above protobuf's 2 GiB can be read, and the file must stay in place while the model is in use. Graph inputs
    that have an initializer are listed only among the initializers. Nodes are sorted. Sparse
    initializers and attributes become dense tensors. Training information, quantization annotations, denotations,
    documentation and checksums of external data are ignored.

    Args:
        source: path, URL (see `remote.local_source`), bytes, binary stream (read to its end) or message. Paths may
            also end in a text format's suffix (`.onnxtxt`, `.textproto`, `.json`).
        base_dir: folder of the external data; by default the folder of the path.
        follow_links: whether external data may be links, wherever they lead, and files with several names; otherwise
            it must lie in the folder, or in the blobs of the Hugging Face cache of which the folder is a snapshot.
        account: the limits, and what is used of them; by default a new one with the default limits.

    Returns:
        The model, checked to be consistent: every value is defined once, the graph has no cycle, every tensor has its
        bytes.

    Raises:
        LimitError: the model exceeds a limit.
        ModelFileError: the source is not a readable ONNX model; the message says why and what to do.
        TypeError: `source` is of none of the types above.
    """
    return _read(source, base_dir, follow_links, account or Account())[0]


@contextlib.contextmanager
def opened(
    source: str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto,
    *,
    base_dir: str | os.PathLike[str] | None = None,
    follow_links: bool = False,
    account: Account | None = None,
) -> Iterator[ir.Model]:
    """Yields a model as `read` returns it, and lets go of its files and bytes at the end.

    A model consists of cycles of objects, so that a file without this is open until Python's cyclic garbage collector
    comes along. The text of an error that is raised meanwhile is limited as the account says.
    """
    account = account or Account()
    try:
        model, tensors = _read(source, base_dir, follow_links, account)
        try:
            yield model
        finally:
            tensors.close()
    except Onnx2nnError as error:
        error.limit_length(account.limits.message_length)
        raise


@timed("reading")
def _read(
    source: object, base_dir: str | os.PathLike[str] | None, follow_links: bool, account: Account
) -> tuple[ir.Model, TensorReader]:
    try:
        found, path = _source(local_source(source, account, with_data=base_dir is None))
        folder = os.path.dirname(path) or "." if base_dir is None and path is not None else base_dir
        data = None if folder is None else DataFolder(os.fspath(folder), follow_links=follow_links)
        if isinstance(found, onnx.ModelProto):
            return _build(found, TensorReader(account, None, {}, data), account)
        try:
            if isinstance(found, FileSource) and is_text(found.path):
                proto = parsed_text(found, account)
                return _build(proto, TensorReader(account, found, {}, data), account)
            return _read_bytes(found, data, account)
        except BaseException as error:
            found.close()
            if isinstance(error, ModelFileError) and isinstance(source, (str, os.PathLike)):
                raise error.of_file(os.fspath(source)) from error.__cause__
            raise
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(f"The model is damaged: {error}. Copy, download or export the file again.") from error
    except RecursionError as error:
        raise ModelFileError("The model is nested too deeply for Python's stack.") from error


def _source(source: object) -> tuple[ByteSource | onnx.ModelProto, str | None]:
    """Returns the bytes or the message of a model, and the path of its file where it has one."""
    if isinstance(source, onnx.ModelProto):
        return source, None
    if isinstance(source, (bytes, bytearray, memoryview)):
        return MemorySource(source), None
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        return FileSource(path), path
    if hasattr(source, "read"):
        path = _path_of(source)
        if path is not None:
            return FileSource(path), path
        try:
            data = source.read()
        except OSError as error:
            raise ModelFileError(f"The stream cannot be read: {error.strerror or error}.") from error
        if not isinstance(data, bytes):
            raise ModelFileError('The stream gives text. Open the file in binary mode: open(path, "rb").')
        return MemorySource(data), None
    advice = " onnx_ir.to_proto makes a ModelProto of it." if isinstance(source, ir.Model) else ""
    raise TypeError(
        f"A model is a path, bytes, a binary stream or a ModelProto, not a {type(source).__name__}.{advice}"
    )


def _path_of(stream: object) -> str | None:
    """Return the path of a stream over a regular file that was not read from yet, so that it can be opened anew."""
    try:
        path = stream.name  # type: ignore[attr-defined]
        if not isinstance(path, str) or stream.tell() != 0:  # type: ignore[attr-defined]
            return None
        return path if os.path.samestat(os.stat(path), os.fstat(stream.fileno())) else None  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return None


def _read_bytes(source: ByteSource, folder: DataFolder | None, account: Account) -> tuple[ir.Model, TensorReader]:
    if not source.size:
        raise ModelFileError("The file is empty. Copy, download or export it again.")
    try:
        message, spans = skeleton(source)
        if len(message) >= 1 << 31:
            raise ModelFileError("The model has 2 GiB or more without its weights, above protobuf's limit.")
        proto = onnx.ModelProto.FromString(message)
        if not proto.HasField("graph"):
            raise ModelFileError("There is no graph in it.")
    except (ModelFileError, DecodeError) as error:
        head = source.read(0, min(source.size, 64))
        for offset, start, meaning in _LOOKALIKES:
            if head[offset:].startswith(start):
                raise ModelFileError(f"This is {meaning}") from error
        raise ModelFileError(f"This is no complete ONNX model. {error}") from error
    return _build(proto, TensorReader(account, source, spans, folder), account)


def _build(proto: onnx.ModelProto, tensors: TensorReader, account: Account) -> tuple[ir.Model, TensorReader]:
    try:
        with gc_pause.paused():
            return Deserializer(account, tensors).model(proto), tensors
    except BaseException:
        tensors.close()
        raise
