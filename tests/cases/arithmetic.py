"""Cases of `onnx2nn/ops/arithmetic.py`."""

import numpy as np

from tests.cases import case, f32, i64, of

_INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
_BINARY = ("Add", "Sub", "Mul", "Div")
_UNARY = ("Neg", "Abs", "Reciprocal", "Floor", "Ceil", "Round", "Exp", "Erf", "Sign", "Sin", "Cos", "Tan")
_UNARY += ("Atan", "Sinh", "Cosh", "Asinh")


def _big(dtype):
    info = np.iinfo(dtype)
    return np.array([info.max, info.max - 1, info.max // 2, 7, 1], dtype), np.array([info.max, 3, 2, 2, 5], dtype)


CASES = [
    *(case(name, f32(2, 3, 4), f32(2, 3, 4)) for name in _BINARY),
    *(case(name, f32(2, 3, 4), f32(3, 1), since=7) for name in _BINARY),
    *(case(name, f32(2, 3, 4), f32(1), since=7, constant=(1,)) for name in _BINARY),
    *(case(name, f32(2, 3, 4, 5), f32(3, 4), axis=1, broadcast=1, until=6) for name in (*_BINARY, "Pow")),
    *(case(name, f32(2, 3, 4), f32(4), broadcast=1, until=6) for name in _BINARY),
    *(case(name, f32(2, 3, 4), f32(3), axis=-2, broadcast=1, until=6) for name in _BINARY),
    *(
        case(name, of(dtype, 3, 4, low=1, high=100), of(dtype, 3, 4, low=1, high=9), note=f"{dtype.__name__}")
        for name in _BINARY
        for dtype in _INTEGERS
    ),
    *(case(name, *_big(dtype), note=f"big {dtype.__name__}") for name in ("Div", "Mod") for dtype in _INTEGERS),
    case("Div", i64(-7, 7, -7, 2**53 + 1), i64(2, -2, -2, 1)),
    case("Mod", i64(-7, 7, -7, 7), i64(3, -3, -3, 3)),
    case("Mod", i64(-7, 7, -7, 7), i64(3, -3, -3, 3), fmod=1),
    case("Mod", f32(5), f32(5), fmod=1),
    *(case(name, f32(3, 4)) for name in _UNARY),
    *(case(name, of(np.float32, 3, 4, low=0.1, high=0.9)) for name in ("Sqrt", "Log", "Asin", "Acos", "Atanh")),
    case("Acosh", of(np.float32, 3, 4, low=1.1, high=4)),
    case("Round", np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)),
    *(case("Neg", of(d, 4)) for d in (np.int8, np.int32, np.int64)),
    case("Pow", of(np.float32, 3, 4, low=0.1, high=3), f32(3, 4)),
    case("Pow", f32(3, 4), np.array(2.0, np.float32), since=7, constant=(1,)),
    case("Pow", of(np.int32, 3, 4, low=1, high=9), np.array(2.5, np.float32), since=12, constant=(1,)),
    case("Pow", of(np.int32, 3, 4), of(np.int32, 3, 4, low=0, high=5), since=12),
    case("Pow", f32(3, 4), i64(3), since=12),
    *(case(name, f32(2, 3), f32(2, 3), f32(2, 3)) for name in ("Max", "Min", "Sum", "Mean")),
    *(case(name, f32(2, 3), f32(3), f32(1), since=8) for name in ("Max", "Min", "Sum", "Mean")),
    *(case(name, f32(2, 3)) for name in ("Max", "Min", "Sum", "Mean")),
    *(case(name, *_big(d), since=12) for name in ("Max", "Min") for d in (np.int32, np.uint32, np.uint64)),
    case("Max", np.array([np.nan, 1.0], np.float32), np.array([1.0, 2.0], np.float32)),
    *(
        case("CumSum", f32(3, 4), i64(axis)[0].reshape(()), exclusive=e, reverse=r, constant=(1,))
        for axis, e, r in ((0, 0, 0), (1, 1, 0), (-1, 0, 1), (-2, 1, 1))
    ),
    case("CumSum", of(np.int32, 3, 4), np.array(1), constant=(1,)),
    *(case(f"Bitwise{n}", of(d, 6), of(d, 6)) for n in ("And", "Or", "Xor") for d in (np.int32, np.uint16)),
    *(case("BitwiseNot", of(d, 6)) for d in (np.int32, np.uint8, np.uint32)),
    *(
        case("BitShift", *_big(d), direction=way, note=f"{d.__name__} {way}")
        for d in (np.uint8, np.uint32, np.uint64)
        for way in ("LEFT", "RIGHT")
    ),
]
