"""A model with its external data inside the message, for other packages, which open such data by rules of their own."""

from __future__ import annotations

import os
from contextlib import closing

import onnx

from onnx2nn.errors import ModelFileError
from onnx2nn.ground.limits import Account
from onnx2nn.reading.byte_sources import FileSource
from onnx2nn.reading.data_folder import DataFolder
from onnx2nn.reading.external_tensors import external_tensors
from onnx2nn.reading.tensors import TensorReader
from onnx2nn.reading.text_formats import is_text, parsed_text


def embedded(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    base_dir: str | os.PathLike[str] | None = None,
    follow_links: bool = False,
    account: Account | None = None,
) -> onnx.ModelProto:
    """Returns a message that holds all of a model's data; a message without external data is returned itself.

    Args:
        source: path, bytes or message.
        base_dir: as for `reader.read`.
        follow_links: as for `reader.read`.
        account: as for `reader.read`.

    Raises:
        ModelFileError: the source is not a readable model, or its external data cannot be read.
    """
    proto = source if isinstance(source, onnx.ModelProto) else _parsed(source, account or Account())
    if not any(True for _ in external_tensors(proto)):
        return proto
    if proto is source:
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
    if base_dir is None and isinstance(source, (str, os.PathLike)):
        base_dir = os.path.dirname(os.fspath(source)) or "."
    folder = None if base_dir is None else DataFolder(os.fspath(base_dir), follow_links=follow_links)
    tensors = TensorReader(account or Account(), None, {}, folder)
    try:
        for tensor in external_tensors(proto):
            data = tensors.read(tensor).tobytes()
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = data
    finally:
        tensors.close()
    return proto


def _parsed(source: str | os.PathLike[str] | bytes, account: Account) -> onnx.ModelProto:
    try:
        if isinstance(source, bytes):
            return onnx.load_from_string(source)
        with closing(FileSource(os.fspath(source))) as file:
            if is_text(file.path):
                return parsed_text(file, account)
            return onnx.load_from_string(file.read(0, file.size))
    except ModelFileError:
        raise
    except Exception as error:  # protobuf's, onnx's and the system's errors share no base class
        raise ModelFileError(f"Cannot read the model: {error}") from error
