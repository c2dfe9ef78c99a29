"""Cases of the conversions between element types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from onnx2nn.ground.element_types import BY_NAME
from tests.cases import case

_EDGES = [
    0, -0.0, 1.5, -1.5, 2.5, 3.7, 7.5, 8, -9, 15.5, 100, -100, 200, 300, -300, 1e5, -1e5, 3e9, -3e9, 1e10, 1e19, -1e19,
    1e20, np.nan, np.inf, -np.inf,
]  # fmt: skip
_FLOAT8_EDGES = [
    0, -0.0, 1e-9, -1e-3, 0.3, 17, 25, 239, 240, 247, 248, 249, 448, 463, 464, 465, 480, 57344, 61439, 61440, 61441,
    1e6, -465, -1e38, np.nan, np.inf, -np.inf,
]  # fmt: skip
_INTEGERS = [0, 1, 7, 8, 100, 127, 128, 200, 255, -1, -8, -9, -128, -129, 300, 40000, -40000]
_NAMES = (
    "FLOAT",
    "DOUBLE",
    "FLOAT16",
    "BOOL",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
)
_NUMPY = {name: helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name)) for name in _NAMES}


def _held(*names: str) -> tuple[str, ...]:
    """Returns the element types of which the installed onnx makes arrays; an older onnx returns wider arrays."""
    known = [name for name in names if hasattr(TensorProto, name)]
    return tuple(
        name
        for name in known
        if helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name)).itemsize * 8 == BY_NAME[name].bits
    )


_FLOAT8 = _held("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")


def _values(name: str) -> np.ndarray:
    dtype = _NUMPY[name]
    with np.errstate(all="ignore"):
        values = np.array(_EDGES if dtype.kind == "f" else _INTEGERS)
        return values.astype(dtype)


def _to(source: str, target: str, **options: object) -> object:
    options = {"to": int(getattr(TensorProto, target)), **options}
    return case("Cast", _values(source), note=f"{source} to {target}", **options)


def _float8_expected(target: str, saturate: int) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, target))
    values = np.array(_FLOAT8_EDGES, np.float32)
    if saturate:
        values = np.clip(values, ml_dtypes.finfo(dtype).min, ml_dtypes.finfo(dtype).max)
    return values.astype(dtype)


CASES = [
    *(_to(source, target) for source in _NUMPY for target in _NUMPY),
    *(
        case(
            "Cast", np.array(_FLOAT8_EDGES, np.float32), to=int(getattr(TensorProto, target)), saturate=saturate,
            expected=[_float8_expected(target, saturate)], note=f"float to {target} saturate={saturate}",
            why="ONNX Runtime gives no float8 arrays out; ml_dtypes is what the standard's data are made with",
        )
        for target in _FLOAT8
        for saturate in (0, 1)
    ),
    *(
        case("Cast", np.arange(256, dtype=np.uint8).view(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, source))),
             to=int(getattr(TensorProto, target)), note=f"{source} to {target}", expected=[
             np.arange(256, dtype=np.uint8).view(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, source))).astype(
                 _NUMPY[target])], why="ONNX Runtime takes no float8 arrays; every value of the type, by ml_dtypes")
        for source in (*_FLOAT8, *_held("FLOAT8E8M0"))
        for target in ("FLOAT", "FLOAT16", "DOUBLE")
    ),
    *(
        case("Cast", np.array(texts, dtype=object), to=int(getattr(TensorProto, target)), note=f"text to {target}",
             since=9)
        for texts, targets in (
            (["1.5", "2.7", " 3", "1e3", "inf", "-INF", "NaN", "+INF"], ("FLOAT", "DOUBLE", "FLOAT16")),
            (["12", "-3", "+4", "300", "12.7"], ("INT8", "UINT8", "INT32", "INT64", "UINT64", "BOOL", "FLOAT")),
        )
        for target in targets
    ),
    *(
        case("Cast", np.array([0, 1.5, 3.14159265358979, 1e-5, 1e5, 123456789.0, np.nan, np.inf, -np.inf, 0.1]).astype(
            _NUMPY[source]), to=TensorProto.STRING, since=9, until=27, note=f"{source} to text")
        for source in ("FLOAT", "DOUBLE", "FLOAT16")
    ),
    *(
        case("Cast", _values(source), to=TensorProto.STRING, since=9, until=27, note=f"{source} to text")
        for source in ("INT8", "INT64", "UINT64", "BOOL")
    ),
    *(
        case("CastLike", _values(source), _values(target)[:2], note=f"{source} like {target}")
        for source, target in (("FLOAT", "INT64"), ("INT64", "FLOAT16"), ("UINT8", "BOOL"), ("DOUBLE", "UINT32"))
    ),
    *(
        case("Cast", np.array(["1e3", "-3", "inf", "nan"], dtype=object), to=int(getattr(TensorProto, target)), saturate=0,
             since=19, note="text to float8, not saturated", why="ONNX Runtime gives these numbers as bytes", expected=[
             np.float32([np.nan, -3, np.nan, np.nan]).astype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, target)))])
        for target in _held("FLOAT8E4M3FN")
    ),
    *(
        case("Cast", np.array(["2.5", "1e3", "0.75"], dtype=object), to=int(getattr(TensorProto, target)),
             round_mode="down", since=24, note="text to float8e8m0, down")
        for target in _held("FLOAT8E8M0")
    ),
    case("CastLike", np.array(["7"], dtype=object), np.float32([1]), note="text like float"),
    case("CastLike", np.float32([7.5]), np.array(["x"], dtype=object), note="float like text"),
    *(
        case("BitCast", _values(source), to=int(getattr(TensorProto, target)), note=f"{source} as {target}")
        for source, target in (
            ("FLOAT", "UINT32"), ("DOUBLE", "INT64"), ("FLOAT16", "BFLOAT16"), ("UINT8", "INT8"), ("INT64", "DOUBLE"),
        )
    ),
]  # fmt: skip
