"""Cases of operators that ONNX Runtime's optimiser fuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import Case, by_formula, case, f32, of


def ms(operator: str, *inputs: Any, **options: Any) -> Case:
    """Returns a case of ONNX Runtime's own domain."""
    return case(operator, *inputs, domain="com.microsoft", **options)


_DOCUMENTATION = "ONNX Runtime has no CPU kernel; the formula of its documentation"


def _fast_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _gemm_fast_gelu(X: np.ndarray, W: np.ndarray, bias: Any = None) -> np.ndarray:
    return _fast_gelu(X.astype(np.float64) @ W + (0 if bias is None else bias)).astype(np.float32)


def _matmul_activation(A: np.ndarray, B: np.ndarray, *, activation: str, **attributes: Any) -> np.ndarray:
    Y = (A.astype(np.float64) @ B) * attributes.get("alpha", 1.0)
    if activation == "Softmax":
        Y = np.exp(Y) / np.exp(Y).sum(attributes.get("activation_axis", -1), keepdims=True)
    else:
        Y = {"Relu": np.maximum(Y, 0), "LeakyRelu": np.where(Y < 0, Y * attributes.get("activation_alpha", 0.01), Y)}[
            activation
        ]
    return Y.astype(np.float32)


_F16 = np.float16
_IDS = np.array([[1, 4, 2], [0, 3, 5]], np.int32)
_SEGMENTS = np.array([[0, 0, 1], [1, 0, 1]], np.int32)
_EMBEDDINGS = (f32(6, 8), f32(5, 8))
_IMAGE = np.arange(12, dtype=np.float32).reshape(1, 2, 3, 2)
"""(batch, height, width, channels)"""
_KERNEL = np.array([[[[1, 2]], [[0, -3]]]], np.float32)
"""One filter of 1 x 2: (1, channels, height, width)"""
_CONVOLVED = np.array([[[[-2.5], [-4.5], [-4.5]], [[-8.5], [-4.5], [-4.5]]]], np.float32)
_RESIDUAL = np.array([[[[1], [9], [10]], [[15], [20], [1]]]], np.float32)
_BIAS = np.log(np.array([[1, 3], [1, 1]], np.float32))

CASES = [
    ms("CDist", f32(4, 3), f32(5, 3)),
    *(ms("CDist", f32(4, 3), f32(5, 3), metric=metric) for metric in ("sqeuclidean", "euclidean")),
    ms("CDist", of(np.float64, 1, 8), of(np.float64, 6, 8), metric="euclidean"),
    *(
        ms("FusedConv", f32(2, 4, 7, 6), f32(6, 4, 3, 2), f32(6), constant=(1, 2), pads=[1, 0, 1, 1],
           activation=name, activation_params=list(parameters))
        for name, parameters in (("Relu", [1.0]), ("Tanh", [1.0]), ("Sigmoid", [1.0]), ("LeakyRelu", [0.2]),
                                 ("Clip", [-0.5, 0.7]), ("HardSigmoid", [0.3, 0.4]), ("HardSwish", [1.0]))
    ),
    ms("FusedConv", f32(2, 4, 7, 6), f32(4, 2, 3, 3), None, f32(2, 4, 4, 3), constant=(1,), group=2, strides=[2, 2],
       pads=[1, 1, 1, 1], activation="Relu", note="sum"),
    ms("FusedConv", f32(2, 4, 7, 6), f32(4, 4, 3, 3), f32(4), auto_pad="SAME_UPPER", note="plain"),
    ms("NhwcFusedConv", _IMAGE, _KERNEL, np.array([0.5], np.float32), _RESIDUAL, pads=[0, 1, 0, 0],
       activation="Relu", expected=[np.maximum(_CONVOLVED + _RESIDUAL, 0)], why="ONNX Runtime has no CPU kernel; documentation, by hand"),
    ms("NhwcConv", _IMAGE, _KERNEL.transpose(0, 2, 3, 1), np.array([0.5], np.float32), pads=[0, 1, 0, 0],
       expected=[_CONVOLVED], why="likewise; the layout of W is what ONNX Runtime's optimiser makes of Conv's"),
    ms("BiasSoftmax", np.zeros((2, 2, 2), np.float32), _BIAS, axis=2, is_inner_broadcast=0,
       expected=[np.float32([[[0.25, 0.75], [0.5, 0.5]]] * 2)], why="ONNX Runtime has no CPU kernel; its documentation, by hand"),
    ms("BiasSoftmax", np.zeros((2, 3, 2), np.float32), _BIAS.reshape(2, 1, 2), axis=2, is_inner_broadcast=1,
       expected=[np.float32([[[0.25, 0.75]] * 3, [[0.5, 0.5]] * 3])], why="likewise"),
    ms("BiasSoftmax", np.zeros((1, 2, 2), np.float32), _BIAS, axis=1, is_inner_broadcast=0,
       expected=[np.float32([[[1 / 6, 3 / 6], [1 / 6, 1 / 6]]])], why="likewise"),
    ms("ConvTransposeWithDynamicPads", f32(2, 4, 5, 6), f32(4, 3, 3, 2), np.array([1, 0, 1, 1]), f32(3),
       constant=(1, 2, 3), strides=[2, 1]),
    ms("ConvTransposeWithDynamicPads", f32(2, 4, 5, 6), f32(4, 3, 3, 2), np.array([1, 0, 1, 1]), None,
       strides=[2, 2], output_padding=[1, 1], note="run time pads"),
    *(
        ms("FusedGemm", f32(3, 4), f32(4, 5), f32(5), constant=(1, 2), activation=name, **parameters)
        for name, parameters in (("Relu", {}), ("Tanh", {}), ("Sigmoid", {}), ("LeakyRelu", {"activation_alpha": 0.2}),
                                 ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
                                 ("Elu", {"activation_alpha": 0.7}), ("Softplus", {}), ("Softsign", {}),
                                 ("Selu", {"activation_alpha": 1.5, "activation_gamma": 1.1}),
                                 ("ThresholdedRelu", {"activation_alpha": 0.3}), ("Celu", {"activation_alpha": 0.6}))
    ),
    ms("FusedGemm", f32(4, 3), f32(5, 4), f32(3, 1), transA=1, transB=1, alpha=0.5, beta=2.0, activation="Relu"),
    ms("FusedMatMul", f32(3, 4), f32(4, 5), constant=(1,), alpha=0.25),
    ms("FusedMatMul", f32(3, 4), f32(4, 5), alpha=0.25),
    ms("FusedMatMul", f32(2, 4, 3), f32(2, 5, 4), transA=1, transB=1),
    ms("FusedMatMul", f32(2, 6, 3, 4), f32(2, 6, 4, 5), note="plain"),
    ms("FusedMatMul", f32(3, 2, 6, 4), f32(2, 6, 4, 5), transBatchA=1),
    ms("FusedMatMul", f32(4, 2, 6, 3), f32(5, 2, 6, 4), transBatchA=1, transA=1, transBatchB=1, transB=1, alpha=2.0),
    ms("FusedMatMul", f32(4), f32(4, 5), transA=1, note="vector"),
    ms("TransposeMatMul", f32(4, 3), f32(5, 4), transA=1, transB=1, alpha=0.5),
    *(
        by_formula(ms("FusedMatMulActivation", f32(2, 3, 4), f32(4, 5), **options), _matmul_activation, _DOCUMENTATION)
        for options in ({"activation": "Relu"}, {"activation": "LeakyRelu", "activation_alpha": 0.2, "alpha": 0.5},
                        {"activation": "Softmax"}, {"activation": "Softmax", "activation_axis": 1})
    ),
    by_formula(ms("GemmFastGelu", f32(2, 3, 4), f32(4, 5), note="plain"), _gemm_fast_gelu, _DOCUMENTATION),
    by_formula(ms("GemmFastGelu", f32(3, 4), f32(4, 5), f32(5), note="bias"), _gemm_fast_gelu, _DOCUMENTATION),
    ms("Gelu", f32(3, 4)),
    ms("BiasGelu", f32(2, 3, 4), f32(4), constant=(1,)),
    ms("FastGelu", f32(2, 3, 4)),
    ms("FastGelu", f32(2, 3, 4), f32(4), constant=(1,), note="bias"),
    ms("QuickGelu", f32(2, 3, 4)),
    ms("QuickGelu", f32(2, 3, 4), alpha=1.0),
    case("SimplifiedLayerNormalization", f32(2, 3, 8), f32(8), constant=(1,)),
    case("SimplifiedLayerNormalization", f32(2, 3, 8), f32(3, 8), axis=1, epsilon=0.1),
    case("SimplifiedLayerNormalization", of(_F16, 2, 3, 8), of(_F16, 8), constant=(1,), note="float16",
         tolerance=1e-3),
    ms("SkipLayerNormalization", f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8), f32(8), constant=(2, 3, 4)),
    ms("SkipLayerNormalization", f32(2, 3, 8), f32(3, 8), f32(8), constant=(2,), epsilon=0.1),
    ms("SkipLayerNormalization", f32(2, 3, 8), f32(1, 3, 8), f32(8), f32(8), f32(8), constant=(2, 3), outputs=4,
       absent=(1, 2), note="sum"),
    ms("SkipLayerNormalization", *(of(_F16, 2, 3, 8),) * 2, of(_F16, 8), of(_F16, 8), note="float16", tolerance=1e-3),
    ms("SkipSimplifiedLayerNormalization", f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8), constant=(2, 3)),
    ms("SkipSimplifiedLayerNormalization", f32(2, 3, 8), f32(2, 3, 8), f32(8), outputs=4, absent=(1, 2), epsilon=0.1),
    ms("SkipSimplifiedLayerNormalization", f32(4, 8), f32(4, 8), f32(8), note="tokens"),
    ms("EmbedLayerNormalization", _IDS, _SEGMENTS, *_EMBEDDINGS, f32(2, 8), f32(8), f32(8), constant=(2, 3, 4, 5, 6),
       outputs=2),
    ms("EmbedLayerNormalization", _IDS, None, *_EMBEDDINGS, None, f32(8), f32(8), outputs=2, note="no segments"),
    ms("EmbedLayerNormalization", _IDS, _SEGMENTS, *_EMBEDDINGS, f32(2, 8), f32(8), f32(8),
       np.array([[1, 1, 0], [1, 0, 1]], np.int32), np.array([[2, 0, 1], [4, 4, 3]], np.int32), epsilon=0.1, outputs=3,
       constant=(2, 3, 4, 5, 6)),
]  # fmt: skip
