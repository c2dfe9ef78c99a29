"""Cases of `onnx2nn/ops/activation.py`."""

import numpy as np

from tests.cases import case, f32

_PLAIN = ("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Gelu", "Swish", "Mish", "HardSwish", "HardSigmoid", "Sigmoid")
_PLAIN += ("Tanh", "Softplus", "Softsign", "Shrink", "ThresholdedRelu", "Clip")
_WIDE = np.linspace(-60, 60, 41, dtype=np.float32)

CASES = [
    *(case(name, f32(2, 3), since=6 if name == "Selu" else 1) for name in _PLAIN),
    case(
        "Selu",
        np.array([-1.0, 2.0], np.float32),
        until=5,
        expected=[np.array([1.0507 * 1.6732 * np.expm1(-1.0), 1.0507 * 2.0], np.float32)],
        why="both oracles take the constants of opset 6; these are the formula's with the defaults of Selu-1",
    ),
    *(case(name, _WIDE, note="wide", since=6 if name == "Selu" else 1) for name in _PLAIN),
    *(
        case(name, f32(2, 3), alpha=0.3)
        for name in ("LeakyRelu", "Elu", "Celu", "Swish", "ThresholdedRelu", "HardSigmoid")
    ),
    case("Selu", f32(2, 3), alpha=2.0, gamma=3.0),
    case("Gelu", f32(2, 3), approximate="tanh"),
    case("HardSigmoid", f32(2, 3), alpha=1 / 6, beta=0.5),
    case("Shrink", f32(2, 3), bias=0.2, lambd=0.7),
    case("Clip", f32(2, 3), np.array(-0.5, np.float32), np.array(0.5, np.float32), constant=(1, 2)),
    case("Clip", f32(2, 3), np.array(-0.5, np.float32), np.array(0.5, np.float32), since=11),
    case("Clip", f32(2, 3), None, np.array(0.5, np.float32), constant=(2,), since=11),
    case("Clip", f32(2, 3), np.array(0.5, np.float32), np.array(-0.5, np.float32), constant=(1, 2)),
    *(
        case("Clip", np.array([1, 5, 9], d), np.array(2, d), np.array(6, d), since=12, constant=(1, 2))
        for d in (np.int8, np.int64, np.uint8, np.uint32, np.uint64)
    ),
    *(
        case("PRelu", f32(2, 3, 4), f32(*shape), constant=c, since=7)
        for shape in ((1,), (3, 1), (4,))
        for c in ((), (1,))
    ),
    *(case("PRelu", f32(2, 3), f32(1, 1, 1), constant=c, since=7) for c in ((), (1,))),
    case("PRelu", f32(2, 3, 4), f32(3), constant=(1,), until=6),
    *(case(n, f32(2, 3, 4), axis=axis) for n in ("Softmax", "LogSoftmax", "Hardmax") for axis in (0, 1, 2)),
    *(case(n, f32(2, 3, 4)) for n in ("Softmax", "LogSoftmax", "Hardmax")),
    *(case(n, f32(2, 3, 4), axis=-1, since=11) for n in ("Softmax", "LogSoftmax", "Hardmax")),
    case("Hardmax", np.array([[1, 3, 3], [2, 2, 1]], np.float32)),
]
