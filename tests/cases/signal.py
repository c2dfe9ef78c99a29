"""Cases of `onnx2nn/ops/signal.py` that ONNX's own suite lacks."""

import numpy as np

from tests.cases import case, f32, i64

_STEP, _WINDOW = i64(4).reshape(()), np.hanning(8).astype(np.float32)

CASES = [
    case("STFT", f32(2, 32), _STEP, _WINDOW, constant=(1, 2), tolerance=1e-5, note="real, without a last dimension"),
    case("STFT", f32(2, 32, 1), _STEP, _WINDOW, constant=(1, 2), tolerance=1e-5),
]
