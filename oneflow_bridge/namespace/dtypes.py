"""Data types by torch's names, and torch's rules of type promotion.

OneFlow 0.9 has no int16, uint16, uint32 and uint64: they live in int64 tensors, with the value range of the real type.
uint64 is held by its bits, as torch's `view(torch.int64)` gives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow_bridge.runtime import import_oneflow
from onnx2nn.errors import OperatorError

flow: Any = import_oneflow()


@dataclass(frozen=True, eq=False)
class DType:
    """A data type; there is one object for each, compared by identity.

    Attributes:
        name: torch's name.
        kind: numpy's kind letter: `b`ool, `u`nsigned, `i`nteger, `f`loat, `c`omplex.
        bits: size of an element.
        storage: the OneFlow type that holds it, None where nothing can.
        compute: the OneFlow type in which its kernels are complete and exact.
    """

    name: str
    kind: str
    bits: int
    storage: Any
    compute: Any

    @property
    def is_floating_point(self) -> bool:
        """True for float types."""
        return self.kind == "f"

    @property
    def is_complex(self) -> bool:
        """True for complex types, of which OneFlow has none."""
        return self.kind == "c"

    @property
    def is_signed(self) -> bool:
        """False for bool and the unsigned integers."""
        return self.kind not in "bu"

    @property
    def itemsize(self) -> int:
        """Bytes of an element in torch."""
        return self.bits // 8

    @property
    def emulated(self) -> bool:
        """Whether an int64 tensor stands for it."""
        return self.kind in "iu" and self.storage is flow.int64 and self is not int64

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return self.kind in "iu"

    def __repr__(self) -> str:
        return self.name


bool_ = DType("bool", "b", 8, flow.bool, flow.bool)
uint8 = DType("uint8", "u", 8, flow.uint8, flow.int64)
int8 = DType("int8", "i", 8, flow.int8, flow.int64)
int16 = DType("int16", "i", 16, flow.int64, flow.int64)
int32 = DType("int32", "i", 32, flow.int32, flow.int64)
int64 = DType("int64", "i", 64, flow.int64, flow.int64)
uint16 = DType("uint16", "u", 16, flow.int64, flow.int64)
uint32 = DType("uint32", "u", 32, flow.int64, flow.int64)
uint64 = DType("uint64", "u", 64, flow.int64, flow.int64)
float16 = DType("float16", "f", 16, flow.float16, flow.float32)
bfloat16 = DType("bfloat16", "f", 16, flow.bfloat16, flow.float32)
float32 = DType("float32", "f", 32, flow.float32, flow.float32)
float64 = DType("float64", "f", 64, flow.float64, flow.float64)

# Named so that tables of types can be written down; a tensor of them cannot be made.
complex64 = DType("complex64", "c", 64, None, None)
complex128 = DType("complex128", "c", 128, None, None)
float8_e4m3fn = DType("float8_e4m3fn", "f", 8, None, None)
float8_e4m3fnuz = DType("float8_e4m3fnuz", "f", 8, None, None)
float8_e5m2 = DType("float8_e5m2", "f", 8, None, None)
float8_e5m2fnuz = DType("float8_e5m2fnuz", "f", 8, None, None)
float8_e8m0fnu = DType("float8_e8m0fnu", "f", 8, None, None)
float4_e2m1fn_x2 = DType("float4_e2m1fn_x2", "f", 8, None, None)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, DType))
BY_NAME = {dtype.name: dtype for dtype in ALL}
NATIVE = {dtype.storage: dtype for dtype in ALL if dtype.storage is not None and not dtype.emulated}
ALIASES = {
    "float": float32,
    "double": float64,
    "half": float16,
    "long": int64,
    "int": int32,
    "short": int16,
    "cfloat": complex64,
    "cdouble": complex128,
}


def as_dtype(dtype: Any) -> DType:
    """The DType for one of ours, OneFlow's, numpy's or Python's (`bool`, `int`, `float`).

    Raises:
        OperatorError: OneFlow cannot hold this type.
    """
    found = dtype if isinstance(dtype, DType) else NATIVE.get(dtype) if isinstance(dtype, flow.dtype) else None
    if found is None:
        python = {bool: "bool", int: "int64", float: "float32", complex: "complex64"}
        found = BY_NAME.get(python.get(dtype) or np.dtype(dtype).name)
    if found is None or found.storage is None:
        raise OperatorError(f"OneFlow 0.9 has no data type {found or dtype}.")
    return found


def numpy_dtype(dtype: DType) -> np.dtype:
    """The numpy type of the same name; float32 for bfloat16, which numpy lacks."""
    return np.dtype(np.float32 if dtype is bfloat16 else dtype.name)


_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
_WIDE_UNSIGNED = (uint16, uint32, uint64)


def category(dtype: DType) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex."""
    return _CATEGORY[dtype.kind]


def promote_types(a: DType, b: DType) -> DType:
    """The type that a result of `a` and `b` has; torch.promote_types.

    Raises:
        OperatorError: one of uint16, uint32, uint64 meets another integer type, which torch refuses too.
    """
    if a is b:
        return a
    if category(a) != category(b):
        return a if category(a) > category(b) else b
    if a.is_floating_point:
        if a.bits != b.bits:
            return a if a.bits > b.bits else b
        return float32  # float16 with bfloat16
    if a in _WIDE_UNSIGNED or b in _WIDE_UNSIGNED:
        raise OperatorError(f"No common type of {a} and {b}.")
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed = a if a.kind == "i" else b
    return int16 if signed is int8 else signed


def scalar_dtype(value: Any) -> DType:
    """The type torch gives to a Python number."""
    if isinstance(value, (bool, np.bool_)):
        return bool_
    if isinstance(value, (int, np.integer)):
        return int64
    if isinstance(value, (float, np.floating)):
        return float32
    raise OperatorError(f"OneFlow 0.9 has no number of type {type(value).__name__}.")


class FInfo:
    """Limits of a float type, torch.finfo."""

    def __init__(self, dtype: Any = float32):
        dtype = as_dtype(dtype)
        if not dtype.is_floating_point:
            raise TypeError(f"finfo of {dtype}, which is not a float type")
        self.dtype, self.bits = dtype.name, dtype.bits
        if dtype is bfloat16:
            self.max, self.tiny, self.eps = (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-7
        else:
            info = np.finfo(dtype.name)
            self.max, self.tiny, self.eps = float(info.max), float(info.tiny), float(info.eps)
        self.min, self.smallest_normal = -self.max, self.tiny


class IInfo:
    """Limits of an integer type, torch.iinfo."""

    def __init__(self, dtype: Any):
        dtype = as_dtype(dtype)
        if not dtype.is_integer:
            raise TypeError(f"iinfo of {dtype}, which is not an integer type")
        self.dtype, self.bits = dtype.name, dtype.bits
        self.min = -(2 ** (dtype.bits - 1)) if dtype.kind == "i" else 0
        self.max = 2 ** (dtype.bits - (dtype.kind == "i")) - 1
