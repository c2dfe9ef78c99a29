"""ONNX's element types: their numbers in `TensorProto.DataType`, and the dtypes of their values in a module.

At a module's boundary int2 and int4 are int8, uint2 and uint4 are uint8, float4 and float6 are float32 of equal value.
"""

from __future__ import annotations

from typing import NamedTuple


class SmallFloat(NamedTuple):
    """A float of fewer than eight bits, without infinity and NaN.

    Attributes:
        exponent: exponent of the smallest normal number; the subnormal numbers have the same spacing.
        mantissa: mantissa bits.
        largest: the largest number.
    """

    exponent: int
    mantissa: int
    largest: float


class Element(NamedTuple):
    """One element type.

    Attributes:
        name: as in `TensorProto.DataType`, `"FLOAT"`.
        number: its value there.
        dtype: name of the dtype that holds its values in a module, a torch dtype and, where numpy has it, a numpy one.
        bits: width of a value in the file.
        small: set for float4 and float6.
        largest: set for the float8 types: the largest finite number.
    """

    name: str
    number: int
    dtype: str
    bits: int
    small: SmallFloat | None = None
    largest: float | None = None

    @property
    def narrow(self) -> bool:
        """Whether the type is an integer of fewer than eight bits."""
        return self.bits < 8 and self.small is None

    @property
    def travels_wider(self) -> bool:
        """Whether the dtype that holds its values can hold other values too."""
        return self.bits < 8


STRING = 8
"""`TensorProto.STRING`: a tensor of strings is a numpy object array of str."""

_ALL = (
    Element("FLOAT", 1, "float32", 32),
    Element("UINT8", 2, "uint8", 8),
    Element("INT8", 3, "int8", 8),
    Element("UINT16", 4, "uint16", 16),
    Element("INT16", 5, "int16", 16),
    Element("INT32", 6, "int32", 32),
    Element("INT64", 7, "int64", 64),
    Element("BOOL", 9, "bool", 8),
    Element("FLOAT16", 10, "float16", 16),
    Element("DOUBLE", 11, "float64", 64),
    Element("UINT32", 12, "uint32", 32),
    Element("UINT64", 13, "uint64", 64),
    Element("COMPLEX64", 14, "complex64", 64),
    Element("COMPLEX128", 15, "complex128", 128),
    Element("BFLOAT16", 16, "bfloat16", 16),
    Element("FLOAT8E4M3FN", 17, "float8_e4m3fn", 8, largest=448.0),
    Element("FLOAT8E4M3FNUZ", 18, "float8_e4m3fnuz", 8, largest=240.0),
    Element("FLOAT8E5M2", 19, "float8_e5m2", 8, largest=57344.0),
    Element("FLOAT8E5M2FNUZ", 20, "float8_e5m2fnuz", 8, largest=57344.0),
    Element("UINT4", 21, "uint8", 4),
    Element("INT4", 22, "int8", 4),
    Element("FLOAT4E2M1", 23, "float32", 4, SmallFloat(0, 1, 6.0)),
    Element("FLOAT8E8M0", 24, "float8_e8m0fnu", 8),
    Element("UINT2", 25, "uint8", 2),
    Element("INT2", 26, "int8", 2),
    Element("FLOAT6E2M3", 27, "float32", 6, SmallFloat(0, 3, 7.5)),
    Element("FLOAT6E3M2", 28, "float32", 6, SmallFloat(-2, 2, 28.0)),
)

BY_NUMBER = {element.number: element for element in _ALL}
BY_NAME = {element.name: element for element in _ALL}
