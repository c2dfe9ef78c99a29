"""ONNX's text formats, which are parsed in memory at once."""

from __future__ import annotations

import os
import re

import numpy as np
import onnx
from onnx.serialization import registry

from onnx2nn.errors import ModelFileError
from onnx2nn.ground.limits import Account
from onnx2nn.reading.byte_sources import FileSource

# Text formats of onnx.load, by ending.
_SUFFIXES = (".onnxtxt", ".onnxtext", ".textproto", ".prototxt", ".pbtxt", ".json", ".onnxjson")


def is_text(path: str) -> bool:
    """Returns whether the ending of a path is that of a text format."""
    return path.lower().endswith(_SUFFIXES)


_NO_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|#[^\n]*', re.DOTALL)
"""Quoted text and comments of ONNX's own text format."""

_STEPS = np.zeros(256, np.int8)
_STEPS[[*b"([{"]], _STEPS[[*b")]}"]] = 1, -1

_DEEPEST = 100
"""Brackets inside each other; each is a message, of which protobuf allows so many inside each other."""

_BLOCK = 1 << 20
"""Bytes that are looked at together."""


def parsed_text(source: FileSource, account: Account) -> onnx.ModelProto:
    """Returns the message in a file.

    Raises:
        LimitError: the file is larger than the limit.
        ModelFileError: it is no model in the format of its ending.
    """
    account.check("text_bytes", source.size, "The number of bytes of the text file is")
    data = source.read(0, source.size)
    form = registry.get_format_from_file_extension(os.path.splitext(source.path.lower())[1])
    if form == "onnxtxt":
        _check_nesting(data)
    try:
        return onnx.load_model_from_string(data, format=form or "")
    except Exception as error:  # every text format has parse errors of its own
        raise ModelFileError(f"The file is no ONNX model in the text format of its ending: {error}") from error


def _check_nesting(data: bytes) -> None:
    """Refuses a text whose brackets are deeper than those of any model: onnx's parser calls itself for each.

    Raises:
        ModelFileError: they are.
    """
    letters, depth = np.frombuffer(_NO_BRACKETS.sub(b"", data), np.uint8), 0
    for start in range(0, len(letters), _BLOCK):
        depths = depth + _STEPS[letters[start : start + _BLOCK]].cumsum(dtype=np.int64)
        if (deepest := int(depths.max())) > _DEEPEST:
            raise ModelFileError(f"The file has brackets nested {deepest} deep. No ONNX model has that many.")
        depth = int(depths[-1])
