"""Texts of a protobuf message: names, domains, metadata and string attributes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from onnx2nn.errors import ModelFileError


def checked_text(text: str) -> str:
    """Returns a text as it is.

    Raises:
        ModelFileError: the text is not UTF-8, for which protobuf gives bytes.
    """
    if isinstance(text, str):
        return text
    raise ModelFileError(f"The model is damaged: it holds {text!r} where a name should be.")


def domain_of(text: str) -> str:
    """Returns an operator domain, `""` for ai.onnx."""
    return "" if text == "ai.onnx" else checked_text(text)


def metadata_of(protos: Sequence[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    """Returns metadata entries by key, None where there are none."""
    if not protos:
        return None
    found = {entry.key: entry.value for entry in protos}
    if {*map(type, found), *map(type, found.values())} != {str}:
        for text in (*found, *found.values()):
            checked_text(text)
    return found


def decoded_text(data: bytes) -> str | bytes:
    """Returns a string attribute as text; custom operators keep arbitrary bytes in them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
