"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.table import op


def resolve_pads(
    auto_pad: str,
    pads: Sequence[int] | None,
    sizes: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[Any]:
    """Returns explicit pads `[begin_1, ..., end_1, ...]` of a convolution or pool.

    `SAME_*`: the output is ceil(input / stride); what is missing in all goes half to each side, the odd one to the end
    (`SAME_UPPER`) or the beginning (`SAME_LOWER`). Source: ONNX Conv-22.

    Raises:
        OperatorError: `auto_pad` is none of the standard's.
    """
    rank = len(kernel)
    if auto_pad == "NOTSET":
        return list(pads) if pads else [0] * (2 * rank)
    if auto_pad == "VALID":
        return [0] * (2 * rank)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise OperatorError(f"auto_pad={auto_pad!r} is none of NOTSET, SAME_UPPER, SAME_LOWER, VALID.")
    begins, ends = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        outputs = (size + stride - 1) // stride
        missing = (outputs - 1) * stride + (k - 1) * dilation + 1 - size
        total = max(missing, 0)
        small = total // 2
        begins.append(small if auto_pad == "SAME_UPPER" else total - small)
        ends.append(total - small if auto_pad == "SAME_UPPER" else small)
    return begins + ends


def pad_spatial(F: Any, X: Any, pads: Sequence[Any], value: float = 0.0) -> Any:
    """Returns `X` padded in front of an operator that takes no such padding itself; `pads` as ONNX orders them."""
    rank = len(pads) // 2
    if all(isinstance(p, int) and p == 0 for p in pads):
        return X
    order = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])]
    return F.nn.functional.pad(X, order, value=value) if value else F.nn.functional.pad(X, order)


@op("Conv", 1)
def conv(
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
    """Asymmetric pads go in front of an unpadded convolution."""
    rank = W.ndim - 2
    if rank not in (1, 2, 3):
        raise OperatorError(f"a convolution over {rank} spatial dimensions; torch has 1 to 3.")
    strides, dilations = list(strides or [1] * rank), list(dilations or [1] * rank)
    pads = resolve_pads(auto_pad, pads, X.shape[2:], W.shape[2:], strides, dilations)
    padding: list[Any] = [0] * rank
    if pads[:rank] == pads[rank:] and all(isinstance(p, int) and p >= 0 for p in pads):
        padding = list(pads[:rank])
    else:
        X = pad_spatial(F, X, pads)
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return function(X, W, B, tuple(strides), tuple(padding), tuple(dilations), group)
