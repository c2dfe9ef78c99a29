"""Runs of numbers are passed over as they are read one by one, also where bytes of them are wrong."""

from __future__ import annotations

from typing import Any

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from onnx2nn.errors import ModelFileError
from onnx2nn.reading.protobuf_wire import Field, fields
from tests.handmade_files import varint

LEAST = 16
"""Bytes of the payloads that are yielded."""


class Bytes:
    """Bytes as a file to read."""

    def __init__(self, data: bytes):
        self.data, self.size = data, len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


def found(data: bytes, at_least: int, at_once: int) -> tuple[list[Field], str]:
    """Returns the fields of a payload of at least `LEAST` bytes, and the error."""
    result: list[Field] = []
    try:
        for field in fields(Bytes(data), 0, len(data), at_least, at_once):
            result += [field] if field.end - field.body >= LEAST else []
    except ModelFileError as error:
        return result, str(error)
    return result, ""


def _run(number: int, kind: int, values: list[int]) -> bytes:
    tag = varint(number << 3 | kind)
    return b"".join(tag + (varint(value) if kind == 0 else value.to_bytes(8, "little")[:4]) for value in values)


NUMBERS = st.lists(st.one_of(st.integers(0, 130), st.integers(0, (1 << 64) - 1)), max_size=60)
RUNS = st.builds(_run, st.sampled_from([7, 8, 15, 16, 300]), st.sampled_from([0, 5]), NUMBERS)
TEXTS = st.binary(max_size=40).map(lambda text: b"\x4a" + varint(len(text)) + text)
LONG = st.integers(7, 13).map(lambda count: b"\x40\x01\x40" + b"\xff" * count + b"\x01")
MESSAGES = st.lists(st.one_of(RUNS, RUNS, TEXTS, LONG), max_size=8).map(b"".join)


@settings(max_examples=500)
@given(MESSAGES, st.data())
def test_runs_of_numbers(message: bytes, data: Any) -> None:
    if message and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(message) - 1))
        message = data.draw(
            st.sampled_from(
                [message[:at], message[:at] + b"\xff" * 12 + message[at:], message[:at] + message[at + 1 :]]
            )
        )
    windows = st.sampled_from([32, 64, 1 << 16])
    assert found(message, LEAST, data.draw(windows)) == found(message, 0, data.draw(windows))


def test_a_million_numbers() -> None:
    """Of an attribute's lists, with a text behind them."""
    attribute = helper.make_attribute("numbers", [number % 700 for number in range(1 << 20)])
    attribute.floats.extend([0.5] * (1 << 20))
    attribute.s = b"x" * 20
    message = attribute.SerializeToString()
    assert isinstance(attribute, onnx.AttributeProto)
    [text] = [field for field in found(message, LEAST, 512)[0] if field.number == 4]
    assert message[text.body : text.end] == b"x" * 20
