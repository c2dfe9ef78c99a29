"""The operators that ONNX Runtime's optimiser writes for a layout of its own (com.microsoft.nchwc).

A tensor in the layout NCHWc holds blocks of channels, which are padded to whole blocks. Every operator between
ReorderInput and ReorderOutput computes the same on plain tensors with the padded channels, so that only the weights of
Conv are read in blocks. Their size is that of the processor that wrote the file, which the file does not state. As
ONNX Runtime does, the rows take the size of the processor that reads it, and warn; what shows that it is another one
is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ground.processor import channels_of_a_block
from onnx2nn.ops import pool
from onnx2nn.ops.contrib.fused import fused_conv
from onnx2nn.ops.resize import resize
from onnx2nn.optable.registry import op

NCHWC = "com.microsoft.nchwc"


def _block() -> int:
    block = channels_of_a_block()
    if block is None:
        raise OperatorError(
            "the channels in a block of its layout are not known for this processor. "
            "Save the file at ORT_ENABLE_EXTENDED."
        )
    return block


@op("ReorderInput", 1, domain=NCHWC)
def reorder_input(F: Any, X: Any, *, channels_last: int = 0) -> Any:
    """The channels padded with zeros to whole blocks; they come last with channels_last."""
    X = X.movedim(-1, 1) if channels_last else X
    return F.nn.functional.pad(X, (0, 0, 0, 0, 0, -X.shape[1] % _block()))


@op("ReorderOutput", 1, domain=NCHWC)
def reorder_output(F: Any, X: Any, *, channels: int = 0, channels_last: int = 0) -> Any:
    """The first channels, which come last with channels_last."""
    Y = X[:, :channels] if channels else X
    return Y.movedim(1, -1) if channels_last else Y


def _plain(weight: Any, block: int) -> Any:
    """Returns a weight `(out, in, height, width)` whose data are blocks of output channels, and of input channels.

    Input channels that are no whole blocks, as those of an image or the one of a depthwise convolution, have none.
    """
    out, inner, height, width = weight.shape
    if out % block:
        raise OperatorError(
            f"a weight of {out} channels has no blocks of {block}, those of this processor: another kind wrote the "
            "file. Save it at ORT_ENABLE_EXTENDED."
        )
    warnings.warn(
        "The file was saved at ORT_ENABLE_ALL: its weights lie in blocks of channels whose size it does not state. "
        f"{block}, that of this processor, is taken. A file that another kind of processor saved gives wrong numbers, "
        "in ONNX Runtime too: save it at ORT_ENABLE_EXTENDED.",
        stacklevel=2,
    )
    if inner % block:
        return weight.reshape(out // block, inner, height, width, block).permute(0, 4, 1, 2, 3).flatten(0, 1)
    blocks = weight.reshape(out // block, inner // block, height, width, block, block)
    return blocks.permute(0, 5, 1, 4, 2, 3).reshape(out, inner, height, width)


@op("Conv", 1, domain=NCHWC)
def conv(
    F: Any,
    X: Any,
    W: Any,
    B: Any = None,
    Sum: Any = None,
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
    """FusedConv whose weight is in blocks."""
    return fused_conv(
        F, X, _plain(W, _block()), B, Sum, activation=activation, activation_params=activation_params,
        auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides,
    )  # fmt: skip


@op("MaxPool", 1, domain=NCHWC)
def max_pool(
    F: Any,
    X: Any,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> Any:
    return pool.max_pool(
        F, X, auto_pad=auto_pad, ceil_mode=ceil_mode, dilations=dilations, kernel_shape=kernel_shape, pads=pads,
        strides=strides,
    )  # fmt: skip


@op("AveragePool", 1, domain=NCHWC)
def average_pool(
    F: Any,
    X: Any,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    return pool.average_pool(
        F, X, auto_pad=auto_pad, ceil_mode=ceil_mode, count_include_pad=count_include_pad, dilations=dilations,
        kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip


@op("GlobalAveragePool", 1, domain=NCHWC)
def global_average_pool(F: Any, X: Any) -> Any:
    return pool.global_average_pool(F, X)


@op("GlobalMaxPool", 1, domain=NCHWC)
def global_max_pool(F: Any, X: Any) -> Any:
    return pool.global_max_pool(F, X)


@op("Upsample", 1, domain=NCHWC)
def upsample(
    F: Any,
    X: Any,
    *,
    coordinate_transformation_mode: str = "asymmetric",
    mode: str = "nearest",
    scales: Sequence[int] | None = None,
) -> Any:
    """Resize by whole numbers; the nearest element is that at the floor of a coordinate."""
    factors = [float(scale) for scale in scales or (1, 1, 1, 1)]
    options: dict[str, Any] = dict(coordinate_transformation_mode=coordinate_transformation_mode, mode=mode)
    return resize(F, X, None, factors, nearest_mode="floor", **options)
