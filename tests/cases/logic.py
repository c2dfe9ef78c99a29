"""Cases of `onnx2nn/ops/logic.py`."""

import numpy as np

from tests.cases import case, f32, of

_BOOL = (np.array([[True, True], [False, False]]), np.array([[True, False], [True, False]]))
_ORDER = ("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal")

CASES = [
    *(case(name, *_BOOL) for name in ("And", "Or", "Xor")),
    *(case(name, _BOOL[0], _BOOL[1][0], axis=1, broadcast=1, until=6) for name in ("And", "Or", "Xor")),
    case("Not", _BOOL[0]),
    *(case(name, f32(3, 4), f32(3, 4), since=1 if name in ("Less", "Greater") else 9) for name in _ORDER),
    *(case(name, of(np.int64, 3, 4), of(np.int64, 4), since=9, constant=(1,)) for name in _ORDER),
    *(case(name, np.array([1, 2**63 + 5, 3], np.uint64), np.array([2, 7, 3], np.uint64), since=9) for name in _ORDER),
    case("IsNaN", np.array([np.nan, 1, np.inf], np.float32)),
    *(
        case("IsInf", np.array([np.nan, 1, np.inf, -np.inf], np.float32), detect_negative=n, detect_positive=p)
        for n in (0, 1)
        for p in (0, 1)
    ),
]
