"""Cases of `onnx2nn/ops/activation.py`."""

from tests.cases import case, f32

CASES = [
    case("Relu", f32(2, 3)),
    case("LeakyRelu", f32(2, 3)),
    case("LeakyRelu", f32(2, 3), alpha=0.3),
    case("Softmax", f32(2, 3, 4)),
    case("Softmax", f32(2, 3, 4), axis=1),
]
