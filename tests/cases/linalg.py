"""Cases of `onnx2nn/ops/linalg.py`."""

import numpy as np

from tests.cases import case, f32, i64, of

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
    case(
        "Gemm",
        np.float32([[1, 2]]),
        np.float32([[3], [4]]),
        np.float32([5]),
        broadcast=1,
        alpha=2.0,
        until=6,
        expected=[np.float32([[27]])],
        why="2 * (3 + 8) + 5",
    ),
    case("Gemm", of(np.int32, 2, 3), of(np.int32, 3, 4), of(np.int32, 4), beta=2.0, since=7),
    case("Gemm", of(np.uint64, 2, 3, low=0), of(np.uint64, 3, 4, low=0), of(np.uint64, 4, low=0), since=7),
    case("Gemm", of(np.float64, 2, 3), of(np.float64, 3, 4), of(np.float64, 4), constant=(1, 2), since=7),
    case("Einsum", f32(2, 3), f32(3, 4), equation="ij,jk->ik"),
    case("Einsum", f32(2, 3), f32(3, 4), equation="ij , jk", constant=(1,)),
    case("Einsum", f32(2, 3, 3), equation="...ii->...i"),
    case("Einsum", f32(5, 2, 3), f32(5, 3, 4), equation="bij, bjk -> bik"),
    case("Einsum", f32(2, 3), equation="ij->j"),
    case("Det", f32(2, 3, 3)),
    case("Det", f32(3, 3)),
    *[
        case(
            "RotaryEmbedding",
            f32(2, 4, 3, 8),
            f32(10, 4),
            f32(10, 4),
            i64(0, 1, 2, 4, 5, 6).reshape(2, 3),
            constant=(1, 2),
            interleaved=i,
        )
        for i in (0, 1)
    ],
    case(
        "RotaryEmbedding",
        f32(2, 3, 32),
        f32(10, 4),
        f32(10, 4),
        i64(0, 1, 2, 4, 5, 6).reshape(2, 3),
        num_heads=4,
        constant=(1, 2),
    ),
    case("RotaryEmbedding", f32(2, 3, 32), f32(2, 3, 2), f32(2, 3, 2), None, num_heads=4, rotary_embedding_dim=4),
    case("RotaryEmbedding", f32(2, 5, 3, 8), f32(2, 3, 4), f32(2, 3, 4), None),
]

Q, K, V = f32(2, 4, 3, 8), f32(2, 4, 5, 8), f32(2, 4, 5, 6)
mask = np.random.default_rng(0).random((3, 5)) < 0.7
mask[1] = False
CASES += [
    case("Attention", Q, K, V),
    case("Attention", Q, K, V, scale=0.3),
    case("Attention", Q, K, V, is_causal=1),
    case("Attention", Q, f32(2, 2, 5, 8), f32(2, 2, 5, 6)),
    case("Attention", f32(2, 3, 32), f32(2, 5, 32), f32(2, 5, 24), q_num_heads=4, kv_num_heads=4),
    case("Attention", f32(2, 3, 32), f32(2, 5, 16), f32(2, 5, 12), q_num_heads=4, kv_num_heads=2),
    case("Attention", Q, K, V, mask),
    case("Attention", Q, K, V, mask, is_causal=1),
    case("Attention", Q, K, V, f32(3, 5)),
    case("Attention", Q, K, V, f32(2, 1, 3, 5), is_causal=1, softcap=2.0),
    case("Attention", Q, K, V, f32(2, 4, 3, 3), since=24),
    *[case("Attention", Q, K, V, mask, outputs=4, softcap=1.5, qk_matmul_output_mode=mode) for mode in (0, 1, 3)],
    *[case("Attention", Q, K, V, f32(3, 5), outputs=4, softcap=1.5, qk_matmul_output_mode=mode) for mode in range(4)],
    case("Attention", Q, K, V, None, f32(2, 4, 2, 8), f32(2, 4, 2, 6), is_causal=1, outputs=3),
    case("Attention", Q, K, V, f32(3, 7), f32(2, 4, 2, 8), f32(2, 4, 2, 6), outputs=4),
    case("Attention", Q, K, V, None, None, None, i64(3, 5)),
    case("Attention", Q, K, V, mask, None, None, i64(2, 5), is_causal=1),
    case("Attention", Q, K, V, left_window_size=1, right_window_size=1),
    case("Attention", Q, K, V, left_window_size=1, right_window_size=1, is_causal=1),
    case("Attention", Q, K, V, None, None, None, i64(4, 5), left_window_size=0),
    case("Attention", *[of(np.float16, 2, 4, 3, 8, low=-1, high=1)] * 3, softmax_precision=1, tolerance=3e-3),
]  # fmt: skip
