"""Cases of `onnx2nn/ops/norm.py`."""

import numpy as np

from tests.cases import case, f32, of

positive = of(np.float32, 3, low=0.5, high=2)

CASES = [
    case("BatchNormalization", f32(2, 3, 4, 5), f32(3), f32(3), f32(3), positive, constant=(1, 2, 3, 4)),
    case("BatchNormalization", f32(2, 3, 4, 5), f32(3), f32(3), f32(3), positive, epsilon=0.01),
    case("BatchNormalization", f32(2, 3), f32(3), f32(3), f32(3), positive, constant=(1, 2, 3, 4)),
    case("BatchNormalization", f32(2, 3, 4), f32(3), f32(3), f32(3), positive, constant=(1, 2, 3, 4)),
    case("BatchNormalization", f32(2, 3, 4, 2, 2, 2), f32(3), f32(3), f32(3), positive, constant=(1, 2, 3, 4)),
    case("BatchNormalization", f32(2, 3, 4, 5), f32(3), f32(3), f32(3), positive, training_mode=1, momentum=0.7, outputs=3),
    case("BatchNormalization", f32(2, 3, 4, 5), f32(3), f32(3), f32(3), positive, training_mode=1),
    case("BatchNormalization", of(np.float64, 2, 3, 4), *[of(np.float64, 3, low=0.5)] * 4, constant=(1, 2, 3, 4)),
    case("BatchNormalization", of(np.float16, 2, 3, 4), *[of(np.float16, 3, low=0.5)] * 4, constant=(1, 2, 3, 4), since=14, tolerance=2e-3),
    case("BatchNormalization", f32(2, 3, 2, 2), f32(3, 2, 2), f32(3, 2, 2), f32(3, 2, 2), of(np.float32, 3, 2, 2, low=0.5), spatial=0, until=8),
    case("InstanceNormalization", f32(2, 3, 4, 5), f32(3), f32(3), constant=(1, 2)),
    case("InstanceNormalization", f32(2, 3, 6), f32(3), f32(3), epsilon=0.01),
    case("InstanceNormalization", f32(2, 3, 1, 1), f32(3), f32(3), constant=(1, 2)),
    case("InstanceNormalization", f32(2, 3, 2, 3, 2), f32(3), f32(3), constant=(1, 2)),
    case("LayerNormalization", f32(2, 3, 4), f32(4), f32(4), constant=(1, 2)),
    case("LayerNormalization", f32(2, 3, 4), f32(4), axis=2, epsilon=0.01, constant=(1,)),
    case("LayerNormalization", f32(2, 3, 4), f32(3, 4), f32(3, 4), axis=1, outputs=3, constant=(1, 2)),
    case("LayerNormalization", f32(2, 3, 4), f32(4), f32(3, 4), axis=1, outputs=2),
    case("LayerNormalization", f32(2, 3, 4), f32(2, 3, 4), axis=0),
    case("LayerNormalization", of(np.float16, 2, 3, 4), of(np.float16, 4), of(np.float16, 4), outputs=3, tolerance=2e-3),
    case("LayerNormalization", of(np.float64, 2, 3, 4), of(np.float64, 4), of(np.float64, 4)),
    case("LRN", f32(2, 6, 4, 5), size=3),
    case("LRN", f32(2, 6, 4, 5), size=5, alpha=0.1, beta=0.5, bias=2.0),
    case("LRN", f32(6, 6, 4, 5), size=4, alpha=0.1, bias=2.0),
    case("LRN", f32(6, 6, 4, 5), size=2, alpha=0.1),
    case("LRN", f32(2, 6, 4, 5), size=9, alpha=0.1),
    case("Dropout", f32(2, 3), until=11),
    case("Dropout", f32(2, 3), ratio=0.1, outputs=2, until=11, since=7),
    case("Dropout", f32(2, 3), is_test=1, outputs=2, until=6),
    case("Dropout", f32(2, 3), is_test=1, until=6),
    case("Dropout", f32(2, 3), since=12),
    case("Dropout", f32(2, 3), np.array(0.3, np.float32), np.array(False), outputs=2, constant=(1, 2), since=12),
    case("Dropout", f32(2, 3), np.array(0.3, np.float32), np.array(False), outputs=2, since=12),
    case("Dropout", f32(2, 3), np.array(0.0, np.float32), np.array(True), outputs=2, constant=(1, 2), since=12),
]  # fmt: skip
