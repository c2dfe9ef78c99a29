"""Operators into which ONNX Runtime's optimiser fuses standard ones, as its documentation of operators defines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops import activation
from onnx2nn.ops.arithmetic import widened
from onnx2nn.ops.axes import from_front
from onnx2nn.ops.conv import conv, conv_transpose
from onnx2nn.ops.linalg import gemm, matmul
from onnx2nn.ops.norm import inverse_root, layer_normalization
from onnx2nn.optable.registry import op
from onnx2nn.optable.revisions import revision
from onnx2nn.optable.row import REQUIRED, Lookup

MICROSOFT = "com.microsoft"

_ACTIVATIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "Relu": (activation.relu, ()),
    "Tanh": (activation.tanh, ()),
    "Sigmoid": (activation.sigmoid, ()),
    "Softplus": (activation.softplus, ()),
    "Softsign": (activation.softsign, ()),
    "LeakyRelu": (activation.leaky_relu, ("alpha",)),
    "ThresholdedRelu": (activation.thresholded_relu, ("alpha",)),
    "Elu": (activation.elu, ("alpha",)),
    "Celu": (activation.celu, ("alpha",)),
    "Clip": (activation.clip_6, ("min", "max")),
    "HardSigmoid": (activation.hard_sigmoid, ("alpha", "beta")),
    "HardSwish": (activation.hard_swish, ()),
    "Selu": (activation.selu, ("alpha", "gamma")),
    "ParametricSoftplus": (activation.parametric_softplus, ("alpha", "beta")),
    "ScaledTanh": (activation.scaled_tanh, ("alpha", "beta")),
}
"""Activations that another operator may hold → function, and its parameters in the order of activation_params."""


def _activated(F: Any, Y: Any, name: str | None, parameters: Sequence[float | None]) -> Any:
    """Returns `Y` after a fused activation; a parameter that is None takes the activation's default."""
    if not name:
        return Y
    if name not in _ACTIVATIONS:
        raise OperatorError(f"activation={name!r} is none of {', '.join(_ACTIVATIONS)}.")
    function, names = _ACTIVATIONS[name]
    pairs = zip(names, parameters, strict=False)
    return function(F, Y, **{key: value for key, value in pairs if value is not None})


@op("FusedConv", 1, domain=MICROSOFT)
def fused_conv(
    F: Any,
    X: Any,
    W: Any,
    B: Any = None,
    Z: Any = None,
    *,
    activation: str | None = None,
    activation_params: Sequence[float] | None = None,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """The activation of the convolution plus Z."""
    Y = conv(F, X, W, B, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides)
    return _activated(F, Y if Z is None else Y + Z, activation, activation_params or ())


def _channels_first(X: Any) -> Any:
    return X.movedim(-1, 1)


def _channels_last(X: Any) -> Any:
    return X.movedim(1, -1)


@op("NhwcFusedConv", 1, domain=MICROSOFT)
def nhwc_fused_conv(
    F: Any,
    X: Any,
    W: Any,
    B: Any = None,
    Z: Any = None,
    *,
    activation: str | None = None,
    activation_params: Sequence[float] | None = None,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """X, Z and the result have their channels last; W has Conv's layout."""
    options = dict(auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides)
    Y = _channels_last(conv(F, _channels_first(X), W, B, **options))
    return _activated(F, Y if Z is None else Y + Z, activation, activation_params or ())


@op("NhwcConv", 1, domain=MICROSOFT)
def nhwc_conv(
    F: Any,
    X: Any,
    W: Any,
    B: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """X, W and the result have their channels last; W: (M, *kernel, C / group)."""
    options = dict(auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides)
    return _channels_last(conv(F, _channels_first(X), _channels_first(W), B, **options))


@op("ConvTransposeWithDynamicPads", 1, domain=MICROSOFT, static=["Pads"])
def conv_transpose_with_dynamic_pads(
    F: Any,
    X: Any,
    W: Any,
    Pads: Any = None,
    B: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    options = dict(auto_pad=auto_pad, dilations=dilations, group=group, output_padding=output_padding, strides=strides)
    return conv_transpose(F, X, W, B, pads=Pads, **options)


@op("FusedGemm", 1, domain=MICROSOFT)
def fused_gemm(
    F: Any,
    A: Any,
    B: Any,
    C: Any = None,
    *,
    activation: str | None = None,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    Y = gemm(F, A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    second = activation_gamma if activation == "Selu" else activation_beta
    return _activated(F, Y, activation, (activation_alpha, second))


def _matrix(X: Any, transposed: int, batch: int) -> Any:
    """Returns an operand of FusedMatMul as (*batch, rows, columns); a vector is returned as it is.

    `batch` moves the first dimension before the last.
    """
    if X.ndim == 1:
        return X
    if batch and X.ndim > 2:
        X = X.movedim(0, -2)
    return X.mT if transposed else X


@op("FusedMatMul", 1, domain=MICROSOFT)
@widened
def fused_matmul(
    F: Any,
    A: Any,
    B: Any,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Any:
    """A constant B is multiplied by alpha at import."""
    A, B = _matrix(A, transA, transBatchA), _matrix(B, transB, transBatchB)
    if alpha == 1.0:
        return matmul(F, A, B)
    if type(A) is not type(B) and isinstance(B, F.Tensor):
        return matmul(F, A, B * alpha)
    return matmul(F, A, B) * alpha


@op("FusedMatMulActivation", 1, domain=MICROSOFT)
def fused_matmul_activation(
    F: Any,
    A: Any,
    B: Any,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Any:
    options = dict(transA=transA, transB=transB, transBatchA=transBatchA, transBatchB=transBatchB)
    Y = fused_matmul(F, A, B, alpha=alpha, **options)
    if activation in ("Softmax", "LogSoftmax"):
        function = F.softmax if activation == "Softmax" else F.log_softmax
        return function(Y, -1 if activation_axis is None else activation_axis)
    second = activation_gamma if activation == "Selu" else activation_beta
    return _activated(F, Y, activation, (activation_alpha, second))


revision(fused_matmul, 1, operator="TransposeMatMul", without=["transBatchA", "transBatchB"])


revision(activation.gelu, 1, domain=MICROSOFT, without=["approximate"])
revision(activation.swish, 1, domain=MICROSOFT, operator="QuickGelu", defaults={"alpha": 1.702})


@op("BiasGelu", 1, domain=MICROSOFT)
def bias_gelu(F: Any, A: Any, B: Any) -> Any:
    return activation.gelu(F, A + B)


@op("FastGelu", 1, domain=MICROSOFT)
def fast_gelu(F: Any, X: Any, bias: Any = None) -> Any:
    return activation.gelu(F, X if bias is None else X + bias, approximate="tanh")


@op("GemmFastGelu", 1, domain=MICROSOFT)
def gemm_fast_gelu(F: Any, X: Any, W: Any, bias: Any = None) -> Any:
    return fast_gelu(F, matmul(F, X, W), bias)


def _sum(F: Any, input: Any, skip: Any, bias: Any) -> tuple[Any, Any]:
    """Returns input + skip + bias twice: for the normalisation (float16 in float32), and in the type of the inputs."""
    dtype = input.dtype
    if dtype in (F.float16, F.bfloat16):
        input, skip = input.to(F.float32), skip.to(F.float32)
    total = input + skip
    total = total if bias is None else total + bias
    return total, total if total.dtype == dtype else total.to(dtype)


@op("SkipLayerNormalization", 1, domain=MICROSOFT)
def skip_layer_normalization(
    F: Any,
    input: Any,
    skip: Any,
    gamma: Any,
    beta: Any = None,
    bias: Any = None,
    *,
    epsilon: float = 1e-12,
    _outputs: int = 1,
) -> Any:
    """Layer normalisation of input + skip + bias over the last dimension; the fourth output is the sum.

    Mean and inverse deviation are LayerNormalization's; ONNX Runtime's CPU leaves them undefined.
    """
    total, rounded = _sum(F, input, skip, bias)
    if gamma.dtype == total.dtype:
        statistics = layer_normalization(F, total, gamma, beta, epsilon=epsilon, _outputs=min(_outputs, 3))
        Y, *rest = statistics if _outputs > 1 else (statistics,)
    else:  # a factor of its own: a converted weight would be no parameter any more
        Y = F.nn.functional.layer_norm(total, total.shape[-1:], None, None, epsilon) * gamma
        Y = (Y if beta is None else Y + beta).to(input.dtype)
        rest = [] if _outputs == 1 else _statistics(F, total, epsilon)
    return Y if _outputs == 1 else (Y, *rest, rounded)[:_outputs]


def _statistics(F: Any, X: Any, epsilon: float) -> list[Any]:
    """Returns the means and the inverse deviations over the last dimension."""
    inverse = (X.var((-1,), correction=0, keepdim=True) + epsilon).rsqrt()
    return [X.mean((-1,), keepdim=True), inverse]


@op("SkipSimplifiedLayerNormalization", 1, domain=MICROSOFT)
def skip_simplified_layer_normalization(
    F: Any, input: Any, skip: Any, gamma: Any, bias: Any = None, *, epsilon: float = 1e-12, _outputs: int = 1
) -> Any:
    """RMS normalisation of input + skip + bias over the last dimension; the fourth output is the sum.

    The second output, the mean, is zeros: the operator computes none.
    """
    total, rounded = _sum(F, input, skip, bias)
    if gamma.dtype == total.dtype:
        Y = F.nn.functional.rms_norm(total, total.shape[-1:], gamma, epsilon)
    else:  # a factor of its own: a converted weight would be no parameter any more
        Y = (F.nn.functional.rms_norm(total, total.shape[-1:], None, epsilon) * gamma).to(input.dtype)
    if _outputs == 1:
        return Y
    inverse = inverse_root(F, total, (-1,), epsilon)
    return (Y, F.zeros_like(inverse), inverse, rounded)[:_outputs]


@op(
    "EmbedLayerNormalization",
    1,
    domain=MICROSOFT,
    lookups=(
        Lookup("input_ids", "word_embedding"),
        Lookup("segment_ids", "segment_embedding"),
        Lookup("position_ids", "position_embedding"),
    ),
)
def embed_layer_normalization(
    F: Any,
    input_ids: Any,
    segment_ids: Any = None,
    word_embedding: Any = REQUIRED,
    position_embedding: Any = REQUIRED,
    segment_embedding: Any = None,
    gamma: Any = REQUIRED,
    beta: Any = REQUIRED,
    mask: Any = None,
    position_ids: Any = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int | None = None,
    _outputs: int = 1,
) -> Any:
    """The sum of word, position and segment embeddings, normalised; positions count from 0 by default.

    The second output, (batch,) int32, counts the ones in each row of the mask; zeros without a mask.
    """
    embedding = F.nn.functional.embedding
    total = embedding(input_ids, word_embedding)
    if position_ids is None:
        total = total + position_embedding[: input_ids.shape[1]]
    else:
        total = total + embedding(position_ids, position_embedding)
    if segment_embedding is not None:
        total = total + embedding(segment_ids, segment_embedding)
    Y = F.nn.functional.layer_norm(total, total.shape[-1:], gamma, beta, epsilon)
    if _outputs == 1:
        return Y
    count = F.zeros(input_ids.shape[:1], dtype=F.int32) if mask is None else (mask == 1).sum(1, dtype=F.int32)
    return (Y, count, total)[:_outputs]


@op("BiasSoftmax", 1, domain=MICROSOFT)
def bias_softmax(F: Any, data: Any, bias: Any, *, axis: int = 1, is_inner_broadcast: int) -> Any:
    """Softmax of data + bias over all dimensions from `axis` on.

    The bias broadcasts as usual, from the last dimension. With `is_inner_broadcast` it has the leading and the
    normalised dimensions of data: dimensions of 1 are inserted in front of `axis`.
    """
    axis = from_front(axis, data.ndim)
    if is_inner_broadcast and bias.ndim < data.ndim:
        missing = data.ndim - bias.ndim
        bias = bias.reshape([*bias.shape[: axis - missing], *[1] * missing, *bias.shape[axis - missing :]])
    total = data + bias
    if axis == data.ndim - 1:
        return F.softmax(total, -1)
    return F.softmax(total.flatten(axis), -1).reshape(data.shape)


@op("CDist", 1, domain=MICROSOFT)
def cdist(F: Any, A: Any, B: Any, *, metric: str = "sqeuclidean") -> Any:
    if metric not in ("sqeuclidean", "euclidean"):
        raise OperatorError(f"metric={metric!r} is none of sqeuclidean, euclidean.")
    squared = (A.unsqueeze(1) - B.unsqueeze(0)).square().sum(-1)
    return squared.sqrt() if metric == "euclidean" else squared
