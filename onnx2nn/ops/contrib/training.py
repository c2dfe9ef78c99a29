"""Operators that ONNX Runtime's training writes, as its documentation of operators defines them."""

from __future__ import annotations

from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.norm import dropout
from onnx2nn.optable.registry import op

_DROPOUT: Any = {"static": ["ratio", "training_mode"], "random": True}


def _packed(F: Any, mask: Any) -> Any:
    """Returns a mask as uint32, 32 elements in each, the first in the lowest bit."""
    bits = mask.flatten().to(F.int64)
    bits = F.nn.functional.pad(bits, (0, -bits.shape[0] % 32)).reshape(-1, 32)
    return (bits << F.arange(32)).sum(1).to(F.uint32)


@op("BiasDropout", 1, domain=MICROSOFT, **_DROPOUT)
def bias_dropout(
    F: Any,
    data: Any,
    bias: Any,
    residual: Any = None,
    ratio: Any = None,
    training_mode: Any = None,
    *,
    seed: int | None = None,
    _outputs: int = 1,
) -> Any:
    """Dropout of data + bias, plus the residual; the mask is drawn by torch, the seed is not read."""
    dropped = dropout(F, data + bias, ratio, training_mode, _outputs=_outputs)
    Y, *mask = dropped if _outputs > 1 else (dropped,)
    Y = Y if residual is None else Y + residual
    return (Y, *mask) if mask else Y


@op("BitmaskDropout", 1, domain=MICROSOFT, **_DROPOUT)
def bitmask_dropout(
    F: Any, data: Any, ratio: Any = None, training_mode: Any = None, *, seed: int | None = None, _outputs: int = 1
) -> Any:
    """Dropout whose mask is packed, 32 elements in a uint32."""
    if _outputs == 1:
        return dropout(F, data, ratio, training_mode)
    Y, mask = dropout(F, data, ratio, training_mode, _outputs=2)
    return Y, _packed(F, mask)


@op("BitmaskBiasDropout", 1, domain=MICROSOFT, **_DROPOUT)
def bitmask_bias_dropout(
    F: Any,
    data: Any,
    bias: Any,
    residual: Any = None,
    ratio: Any = None,
    training_mode: Any = None,
    *,
    seed: int | None = None,
    _outputs: int = 1,
) -> Any:
    """BiasDropout whose mask is packed, 32 elements in a uint32."""
    result = bias_dropout(F, data, bias, residual, ratio, training_mode, _outputs=_outputs)
    return result if _outputs == 1 else (result[0], _packed(F, result[1]))


@op("IsAllFinite", 1, domain=MICROSOFT)
def is_all_finite(F: Any, *input: Any, isinf_only: int = 0, isnan_only: int = 0) -> Any:
    """Whether no element of any input is infinite or NaN, or is what the attributes name alone."""
    if isinf_only and isnan_only:
        raise OperatorError("isinf_only=1 and isnan_only=1 exclude each other.")
    if isinf_only:
        bad = [F.isinf(x).any() for x in input]
    elif isnan_only:
        bad = [F.isnan(x).any() for x in input]
    else:
        bad = [F.logical_not(F.isfinite(x)).any() for x in input]
    return F.logical_not(F.stack(bad).any())


@op("TorchEmbedding", 1, domain=MICROSOFT)
def torch_embedding(F: Any, weight: Any, indices: Any, padding_idx: Any = None, scale_grad_by_freq: Any = None) -> Any:
    """torch's embedding; padding_idx and scale_grad_by_freq concern gradients alone."""
    return F.nn.functional.embedding(indices, weight)
