"""Cases of `onnx2nn/ops/linalg.py`."""

import numpy as np

from tests.cases import case, f32, of

CASES = [
    case("MatMul", f32(2, 3), f32(3, 4)),
    case("MatMul", f32(2, 3), f32(3, 4), constant=(1,)),
    case("MatMul", f32(5, 2, 3), f32(3, 4), constant=(1,)),
    case("MatMul", f32(2, 3), f32(3, 4), constant=(0,)),
    case("MatMul", f32(3), f32(3, 4), constant=(1,)),
    case("MatMul", f32(2, 3), f32(3), constant=(1,)),
    case("MatMul", f32(3), f32(3)),
    case("MatMul", f32(5, 1, 2, 3), f32(4, 3, 2), constant=(1,)),
    case("MatMul", of(np.int32, 2, 3), of(np.int32, 3, 4)),
    case("MatMul", of(np.int64, 2, 3), of(np.int64, 3, 4), constant=(1,)),
    case("MatMul", of(np.uint32, 2, 3, low=0), of(np.uint32, 3, 4, low=0)),
    case("MatMul", of(np.uint64, 2, 3, low=0), of(np.uint64, 3, 4, low=0)),
    case("Gemm", f32(2, 3), f32(3, 4), f32(4), constant=(1, 2), since=7),
    case("Gemm", f32(2, 3), f32(4, 3), f32(4), transB=1, constant=(1, 2), since=7),
    case("Gemm", f32(2, 3), f32(4, 3), f32(1, 4), transB=1, alpha=0.5, beta=0.25, constant=(1, 2), since=7),
    case("Gemm", f32(2, 3), f32(4, 3), np.array(0.5, np.float32), transB=1, constant=(1, 2), since=7),
    case("Gemm", f32(2, 3), f32(4, 3), f32(2, 1), transB=1, beta=0.5, constant=(1, 2), since=7),
    case("Gemm", f32(2, 3), f32(4, 3), f32(2, 4), transB=1, beta=0.5, constant=(1,), since=7),
    case("Gemm", f32(2, 3), f32(3, 4), alpha=0.5, constant=(1,), since=7),
    case("Gemm", f32(2, 3), f32(3, 4), alpha=0.5, since=7),
    case("Gemm", f32(3, 2), f32(4, 3), f32(2, 4), transA=1, transB=1, alpha=0.5, beta=2.0, since=7),
    case("Gemm", f32(3, 2), f32(3, 4), f32(4), transA=1, constant=(1, 2), since=7),
    case("Gemm", f32(2, 3), f32(3, 4), f32(4), beta=0.0, since=7),
    case("Gemm", f32(2, 3), f32(3, 4), f32(4), broadcast=1, until=6),
    case("Gemm", of(np.int32, 2, 3), of(np.int32, 3, 4), of(np.int32, 4), beta=2.0, since=7),
    case("Gemm", of(np.uint64, 2, 3, low=0), of(np.uint64, 3, 4, low=0), of(np.uint64, 4, low=0), since=7),
    case("Gemm", of(np.float64, 2, 3), of(np.float64, 3, 4), of(np.float64, 4), constant=(1, 2), since=7),
]
