"""Calls of elementwise operators."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.drawn.draw import F16, F32, F64, INTS, Call, Draw, call

UNARY_FLOAT = dict(
    Acos=7,
    Acosh=9,
    Asin=7,
    Asinh=9,
    Atan=7,
    Atanh=9,
    Cos=7,
    Cosh=9,
    Erf=13,
    Exp=13,
    Floor=13,
    Ceil=13,
    Log=13,
    Reciprocal=13,
    Round=11,
    Sigmoid=13,
    Sin=7,
    Sinh=9,
    Softplus=1,
    Softsign=1,
    Sqrt=13,
    Tan=7,
    Tanh=13,
    HardSwish=14,
    Mish=18,
    IsNaN=13,
)


def _unary(d: Draw, name: str) -> Call:
    t = d.float()
    return Call(name, max(UNARY_FLOAT[name], 13) + d.one((0, 0, 5)), [d.array(d.shape(), t, special=True)])


call(*UNARY_FLOAT)(_unary)


@call("Abs", "Neg", "Sign")
def _abs(d: Draw, name: str) -> Call:
    t = d.number()
    if name == "Neg" and np.dtype(t).kind == "u":
        t = F32
    return Call(name, 13, [d.array(d.shape(), t, special=np.dtype(t).kind == "f")])


@call("Relu")
def _relu(d: Draw) -> Call:
    return Call("Relu", 14, [d.array(d.shape(), d.one((F32, F64, F16, np.int32, np.int8)), special=False)])


@call("Elu", "Celu", "Selu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Shrink", "Gelu", "IsInf", "Swish")
def _elu(d: Draw, name: str) -> Call:
    t = d.float()
    a = {}
    if name in ("Elu", "Celu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Selu", "Swish") and d.flag():
        a["alpha"] = d.one((0.0, 0.1, 0.5, 1.0, 2.0, -0.5)) if name not in ("Celu",) else d.one((0.1, 0.5, 2.0))
    if name == "HardSigmoid" and d.flag():
        a["beta"] = d.one((0.0, 0.3, 1.0))
    if name == "Selu" and d.flag():
        a["gamma"] = d.one((0.5, 1.2))
    if name == "Shrink":
        if d.flag():
            a["lambd"] = d.one((0.0, 0.3, 1.0))
        if d.flag():
            a["bias"] = d.one((0.0, 0.3, -0.5))
    if name == "Gelu" and d.flag():
        a["approximate"] = d.one(("none", "tanh"))
    if name == "IsInf":
        if d.flag():
            a["detect_negative"] = d.int(0, 1)
        if d.flag():
            a["detect_positive"] = d.int(0, 1)
    if name in ("Celu",):
        t = F32
    return Call(
        name,
        24 if name == "Swish" else 20,
        [d.array(d.shape(), t, special=name in ("IsInf", "LeakyRelu", "ThresholdedRelu"))],
        a,
        rtol=1e-3 if name == "Gelu" else 1e-4,  # ONNX Runtime's erf cancels where the result is near 0
    )


@call("Add", "Sub", "Mul", "Div", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
def _binary(d: Draw, name: str) -> Call:
    t = d.number()
    s = d.shape()
    x, y = d.array(s, t), d.array(d.broadcastable(s), t)
    if name == "Div" and np.dtype(t).kind != "f":
        y = np.where(y == 0, 3, y).astype(t)
        if np.dtype(t).kind == "i":
            y = np.where((y == -1), 2, y).astype(t)
    if name == "Equal" and d.flag(5):
        x, y = x > 0, y > 0
    if d.flag() and not (name == "Div" and np.dtype(t).kind != "f"):
        x, y = y, x
    return Call(
        name,
        19 if name == "Equal" else 16 if "Or" in name else 14 if name in ("Add", "Sub", "Mul", "Div") else 13,
        [x, y],
    )


@call("Mod")
def _mod(d: Draw) -> Call:
    t = d.number()
    fl = np.dtype(t).kind == "f"
    s = d.shape()
    x, y = d.array(s, t), d.array(d.broadcastable(s), t)
    y = np.where(y == 0, 3, y).astype(t)
    return Call("Mod", 13, [x, y], {"fmod": 1} if fl or d.flag() else {})


@call("Pow")
def _pow(d: Draw) -> Call:
    t, u = d.one((F32, F64, np.int32, np.int64)), d.one((F32, F64, np.int32, np.int64))
    s = d.shape()
    x, y = (
        d.array(s, t, *((0.1, 3) if np.dtype(t).kind == "f" else (1, 4))),
        d.array(d.broadcastable(s), u, *((-2, 3) if np.dtype(u).kind == "f" and np.dtype(t).kind == "f" else (0, 3))),
    )
    return Call("Pow", 15, [x, y])


@call("And", "Or", "Xor")
def _logic(d: Draw, name: str) -> Call:
    s = d.shape()
    return Call(name, 7 + d.one((6, 8)), [d.array(s, bool), d.array(d.broadcastable(s), bool)])


@call("Not")
def _not(d: Draw) -> Call:
    return Call("Not", 13, [d.array(d.shape(), bool)])


@call("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bits(d: Draw, name: str) -> Call:
    t = d.one(INTS)
    s = d.shape()
    return Call(name, 18, [d.array(s, t), d.array(d.broadcastable(s), t)])


@call("BitwiseNot")
def _bitwise_not(d: Draw) -> Call:
    return Call("BitwiseNot", 18, [d.array(d.shape(), d.one(INTS))])


@call("BitShift")
def _shift(d: Draw) -> Call:
    t = d.one((np.uint8, np.uint16, np.uint32, np.uint64))
    s = d.shape()
    return Call(
        "BitShift", 13, [d.array(s, t), d.array(d.broadcastable(s), t, 0, 7)], {"direction": d.one(("LEFT", "RIGHT"))}
    )


@call("Max", "Min", "Sum", "Mean")
def _variadic(d: Draw, name: str) -> Call:
    t = d.number() if name in ("Max", "Min") else d.float()
    s = d.shape()
    return Call(
        name,
        13,
        [d.array(s if i == 0 else d.broadcastable(s), t, special=name in ("Max", "Min")) for i in range(d.int(1, 3))],
    )


@call("Where")
def _where(d: Draw) -> Call:
    s = d.shape()
    t = d.one((F32, F64, F16, np.int32, np.int64, np.uint8, bool))
    return Call("Where", 16, [d.array(d.broadcastable(s), bool), d.array(s, t), d.array(d.broadcastable(s), t)])


@call("Clip")
def _clip(d: Draw) -> Call:
    t = d.number()
    lo, hi = (
        None if d.flag(3) else d.array([], t, *((0, 4) if np.dtype(t).kind == "u" else (-4, 4))) for _ in range(2)
    )
    return Call("Clip", 13, [d.array(d.shape(), t, special=True), lo, hi])


@call("PRelu")
def _prelu(d: Draw) -> Call:
    t = d.one((F32, F32, F64, F16))
    s = d.shape(1)
    sl = [1 if d.flag(3) else k for k in s]
    sl = sl[d.int(0, len(sl) - 1) :]
    return Call("PRelu", 16, [d.array(s, t), d.array(sl, t)])


@call("Cast")
def _cast(d: Draw) -> Call:
    t = d.number() if d.mostly(4) else bool
    to = d.one(
        (
            TensorProto.FLOAT,
            TensorProto.DOUBLE,
            TensorProto.FLOAT16,
            TensorProto.BFLOAT16,
            TensorProto.INT8,
            TensorProto.INT16,
            TensorProto.INT32,
            TensorProto.INT64,
            TensorProto.UINT8,
            TensorProto.UINT16,
            TensorProto.UINT32,
            TensorProto.UINT64,
            TensorProto.BOOL,
            TensorProto.FLOAT8E4M3FN,
            TensorProto.FLOAT8E5M2,
        )
    )
    a = {"to": to}
    x = d.array(d.shape(), t)
    if np.dtype(t).kind == "f" and to not in (1, 10, 11, 16, 9, 17, 19):
        x = np.abs(np.clip(x, -100, 100)).astype(t)
    if to in (17, 19) and d.flag():
        a["saturate"] = d.int(0, 1)
    return Call("Cast", 19, [x], a)


@call("CumSum")
def _cumsum(d: Draw) -> Call:
    s = d.shape(1)
    t = d.one((F32, F64, np.int32, np.int64))
    return Call(
        "CumSum",
        14,
        [d.array(s, t), np.array(d.axis(len(s)), d.one((np.int32, np.int64)))],
        {k: d.int(0, 1) for k in ("exclusive", "reverse") if d.flag()},
        static=frozenset({1}),
    )


@call("CastLike")
def _cast_like(d: Draw) -> Call:
    source = d.one((F32, F64, np.int32, np.int64, np.uint8, bool))
    target = d.one((F32, F64, F16, np.int32, np.int64, bool))
    x = d.array(d.shape(), source, *((0, 100) if source is not bool else ()))
    return Call("CastLike", 19, [x, d.array([1], target)])
