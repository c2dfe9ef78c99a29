"""ONNX's text formats, which are parsed in memory at once."""

from __future__ import annotations

import onnx

from onnx2nn.errors import ModelFileError
from onnx2nn.ground.limits import Account
from onnx2nn.reading.byte_sources import FileSource

# Text formats of onnx.load, by ending.
_SUFFIXES = (".onnxtxt", ".onnxtext", ".textproto", ".prototxt", ".pbtxt", ".json", ".onnxjson")


def is_text(path: str) -> bool:
    """Returns whether the ending of a path is that of a text format."""
    return path.lower().endswith(_SUFFIXES)


def parsed_text(source: FileSource, account: Account) -> onnx.ModelProto:
    """Returns the message in a file.

    Raises:
        LimitError: the file is larger than the limit.
        ModelFileError: it is no model in the format of its ending.
    """
    account.check("text_bytes", source.size, "The number of bytes of the text file is")
    try:
        return onnx.load_model(source.path, load_external_data=False)
    except Exception as error:  # every text format has parse errors of its own
        raise ModelFileError(f"The file is no ONNX model in the text format of its ending: {error}") from error
