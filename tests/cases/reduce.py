"""Cases of `onnx2nn/ops/reduce.py`."""

import numpy as np

from onnx2nn.ops.reduce import FUNCTIONS
from tests.cases import case, f32, i64, of

CASES = [
    *(
        case(name, of(np.float32, 2, 3, 4, low=0.1, high=2), i64(*axes), keepdims=keep, constant=(1,))
        for name in FUNCTIONS
        for axes in ((1,), (0, 2), (-1,), (1, 1), (1, 0, -2))
        for keep in (0, 1)
    ),
    *(case(name, of(np.float32, 2, 3, 4, low=0.1, high=2)) for name in FUNCTIONS),
    *(case(name, of(np.int32, 3, 4, low=1, high=9), i64(1), constant=(1,)) for name in FUNCTIONS),
    *(
        case(name, f32(2, 3), i64(), noop_with_empty_axes=1, constant=(1,), since=13)
        for name in ("ReduceSum", "ReduceMax", "ReduceMean")
    ),
    *(
        case(name, np.zeros((2, 0, 3), np.float32), i64(1), constant=(1,), since=18, keepdims=0)
        for name in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin")
    ),
    *(
        case(name, f32(3, 4), axis=axis, keepdims=k)
        for name in ("ArgMax", "ArgMin")
        for axis in (0, -1)
        for k in (0, 1)
    ),
    *(
        case(name, np.array([[2, 5, 5], [5, 2, 2]], np.float32), axis=1, select_last_index=last)
        for name in ("ArgMax", "ArgMin")
        for last in (0, 1)
    ),
]
