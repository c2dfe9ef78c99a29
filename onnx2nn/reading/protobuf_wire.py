"""Protobuf's wire format, as far as needed to parse a model without its weights.

Parsing a model as one message holds every weight in memory and fails above 2 GiB. Here the file is walked field by
field; payloads of tensors are left out and their place in the file is noted.

Source: https://protobuf.dev/programming-guides/encoding and onnx.proto.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from onnx2nn.errors import ModelFileError

# Smaller messages (bytes) are copied unparsed: most nodes are small, and walking them would take time.
_THRESHOLD = 1024
_WINDOW = 1 << 16
# Of the messages that hold one large field, a tensor or the node around it, the others are at the start.
_SMALL_WINDOW = 1 << 9
_FLAT = frozenset({"Node", "Attribute", "SparseTensor", "Tensor"})
# The small fields of a tensor, of the attribute around it and of the node around that one lie beside each other.
_AHEAD = 1 << 10
# Payload bytes of the wire types that need no length: 64 bits, start and end of a group, 32 bits.
_FIXED_LENGTH = {1: 8, 3: 0, 4: 0, 5: 4}
# The most bytes of a number. Where fields of this size are left out, those of a repeated field, such as the ids of a
# million nodes of trees, are passed over together.
_LONGEST_NUMBER = 10
# Protobuf's own limit on messages inside messages.
_MAX_DEPTH = 100

# Message fields that can hold tensors: message -> field number -> message.
_CHILDREN: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
}
_TRAINING_INFO = 20
# TensorProto fields whose packed encoding is the elements' little-endian bytes: field number -> data types.
_DATA_TYPE, _SEGMENT, _RAW_DATA = 2, 3, 9
_PACKED = {4: (1, 14), 10: (11, 15)}


class Readable(Protocol):
    """Random access to the bytes of a model."""

    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Returns exactly `length` bytes from `offset`."""


class _Ahead:
    """A source of which small pieces beside each other are read at once: each read is a call of the system.

    The next read is twice as long where the pieces go on, as nodes do, and short behind a payload that is left out.

    Args:
        source: the source.
    """

    def __init__(self, source: Readable):
        self.size = source.size
        self._source, self._start, self._piece, self._ahead = source, 0, b"", _AHEAD

    def read(self, offset: int, length: int) -> bytes:
        """Returns exactly `length` bytes from `offset`."""
        start = offset - self._start
        if start < 0 or start + length > len(self._piece):
            self._ahead = min(2 * self._ahead, _WINDOW) if 0 <= start <= len(self._piece) else _AHEAD
            if length > min(self._ahead // 2, self.size - offset):
                return self._source.read(offset, length)
            self._start, start = offset, 0
            self._piece = self._source.read(offset, min(self._ahead, self.size - offset))
        return self._piece[start : start + length]


class Field(NamedTuple):
    """One field of a message: `[start, end)` with its tag, `[body, end)` its payload; offsets in bytes."""

    number: int
    wire_type: int
    start: int
    body: int
    end: int


def skeleton(source: Readable) -> tuple[bytes, dict[int, int]]:
    """Returns a serialized ModelProto without large tensor payloads and training information.

    A tensor whose payload was left out has the payload's place in `source` in its `segment` field instead.

    Args:
        source: a serialized ModelProto.

    Returns:
        The message, and length by offset (bytes) of each payload left out.

    Raises:
        ModelFileError: the bytes end early or are not the wire format.
    """
    spans: dict[int, int] = {}
    return _message(_Ahead(source), 0, source.size, "Model", spans, 0), spans


def fields(source: Readable, start: int, end: int, at_least: int = 0, at_once: int = _WINDOW) -> Iterator[Field]:
    """Yields the fields of the message at `[start, end)`, except fields inside groups (obsolete, unknown).

    Args:
        source: where the message is.
        start: offset of the message, bytes.
        end: offset of its end, bytes.
        at_least: smallest payload, in bytes, of the fields to yield; the others are passed over quickly.
        at_once: bytes that are read together.

    Raises:
        ModelFileError: a field does not end before `end`, or is malformed.
    """
    position, low, safe = start, 0, -1
    window = b""
    groups = 0
    while position < end:
        if position > safe:
            low = position
            window = source.read(position, min(at_once, end - position))
            # A tag and a length end within 20 bytes; at the message's end the window has all there is.
            safe = end if low + len(window) == end else low + len(window) - 20
        try:
            cursor = position - low
            tag = window[cursor]
            cursor += 1
            if tag >= 0x80:
                tag, cursor = _varint(window, cursor - 1)
            wire_type = tag & 7
            if wire_type == 2:
                length = window[cursor]
                cursor += 1
                if length >= 0x80:
                    length, cursor = _varint(window, cursor - 1)
            elif wire_type == 0:
                length = _varint(window, cursor)[1] - cursor
            else:
                length = _FIXED_LENGTH[wire_type]
        except (IndexError, KeyError, OverflowError):
            raise _damaged(source, position, end) from None
        body = low + cursor
        stop = body + length
        if at_least > _LONGEST_NUMBER and tag < 0x80 and wire_type in (0, 5):
            passed = _end_of_run(window, position - low, tag)
            if passed > stop - low:
                stop = low + passed
                at_once = _WINDOW
        groups += (wire_type == 3) - (wire_type == 4)
        if stop > end or tag < 8 or groups < 0:
            raise _damaged(source, position, end)
        if length >= at_least and not groups and wire_type != 4:
            yield Field(tag >> 3, wire_type, position, body, stop)
        position = stop
    if groups:
        raise _damaged(source, position, end)


def _end_of_run(window: bytes, start: int, tag: int) -> int:
    """Returns where the numbers of one field end that stand one behind the other in a window, each with its tag.

    Args:
        window: the bytes.
        start: where the first of them begins.
        tag: of one byte, of varints or of numbers of 32 bits.
    """
    if tag & 7 == 0:
        found = _varints(tag).match(window, start)
        return start if found is None else found.end()
    tags = window[start : len(window) - 4 : 5]
    return start + 5 * (len(tags) - len(tags.lstrip(tags[:1])))


@functools.cache
def _varints(tag: int) -> re.Pattern[bytes]:
    """Returns the pattern of numbers of a field, as `_varint` reads them."""
    return re.compile(b"(?:%s[\x80-\xff]{0,9}[\x00-\x7f])+" % re.escape(bytes([tag])))


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while shift < 70:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position + 1
        shift += 7
    raise OverflowError


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _length_delimited(number: int, payload: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(payload)) + payload


def _damaged(source: Readable, position: int, end: int) -> ModelFileError:
    what = "is cut off" if end == source.size else "is damaged"
    return ModelFileError(
        f"The model {what}: the data at byte {position} does not end before byte {end} of {source.size}, or is no "
        "ONNX. Copy, download or export the file again."
    )


def _message(source: Readable, start: int, end: int, kind: str, spans: dict[int, int], depth: int) -> bytes:
    if depth > _MAX_DEPTH:
        raise ModelFileError(f"The model holds messages nested deeper than {_MAX_DEPTH} levels.")
    if kind == "Tensor":
        return _tensor(source, start, end, spans)
    children = _CHILDREN[kind]
    parts: list[bytes] = []
    copied = start
    at_once = _SMALL_WINDOW if kind in _FLAT else _WINDOW
    for number, wire_type, tag, body, stop in fields(source, start, end, _THRESHOLD, at_once):
        if wire_type != 2:
            continue
        if number in children:
            parts.append(source.read(copied, tag - copied))
            child = _message(source, body, stop, children[number], spans, depth + 1)
            parts.append(_length_delimited(number, child))
            copied = stop
        elif kind == "Model" and number == _TRAINING_INFO:
            parts.append(source.read(copied, tag - copied))
            copied = stop
    parts.append(source.read(copied, end - copied))
    return b"".join(parts)


def _tensor(source: Readable, start: int, end: int, spans: dict[int, int]) -> bytes:
    found = list(fields(source, start, end, at_once=_SMALL_WINDOW))
    data_type = 0
    for field in found:
        if field.number == _DATA_TYPE and field.wire_type == 0:
            data_type = _varint(source.read(field.body, field.end - field.body), 0)[0]
    payload = _payload(found, data_type)
    if payload is None:
        return source.read(start, end - start)
    offset, length = payload.body, payload.end - payload.body
    spans[offset] = length
    segment = b"\x08" + _encode_varint(offset) + b"\x10" + _encode_varint(offset + length)
    # As a protobuf parser does, the last value of a repeated singular field counts.
    kept = [f for f in found if f.number != _SEGMENT and not (f.number == payload.number and f.wire_type == 2)]
    parts = [source.read(f.start, f.end - f.start) for f in kept]
    return b"".join(parts) + _length_delimited(_SEGMENT, segment)


def _payload(found: list[Field], data_type: int) -> Field | None:
    """Returns the field that holds all elements as little-endian bytes, if it is large."""
    raw = [field for field in found if field.number == _RAW_DATA and field.wire_type == 2]
    if raw:
        return raw[-1] if raw[-1].end - raw[-1].body >= _THRESHOLD else None
    for number, data_types in _PACKED.items():
        typed = [field for field in found if field.number == number]
        if data_type in data_types and len(typed) == 1 and typed[0].wire_type == 2:
            return typed[0] if typed[0].end - typed[0].body >= _THRESHOLD else None
    return None
