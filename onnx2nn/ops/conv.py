"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import NeedsValues


def resolve_pads(
    auto_pad: str,
    pads: Sequence[int] | None,
    sizes: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[Any]:
    """Returns explicit pads `[begin_1, ..., end_1, ...]` of a convolution or pool.

    `SAME_*`: the output is ceil(input / stride); half of the padding goes to each side, an odd element to the end
    (`SAME_UPPER`) or the beginning (`SAME_LOWER`). Source: ONNX Conv-22.

    Raises:
        OperatorError: the standard does not have this `auto_pad`.
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
        # ceil(size / stride) * stride is size + (-size) % stride: no branch on a dynamic size in the usual cases.
        missing = (k - 1) * dilation + 1 - stride
        total = missing if stride == 1 else 0 if k == 1 else missing + (-size) % stride
        if missing < 0 and stride > 1:
            if not isinstance(total, int):
                raise NeedsValues("SAME pads over a dynamic size, of a kernel smaller than its stride")
            total = max(total, 0)
        small = total // 2
        begins.append(small if auto_pad == "SAME_UPPER" else total - small)
        ends.append(total - small if auto_pad == "SAME_UPPER" else small)
    return begins + ends


def check_window(
    kernel: Sequence[Any],
    *,
    kernel_shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    **_: Any,
) -> None:
    """Checks the attributes of a convolution or pool.

    Args:
        kernel: the spatial sizes of the weights, or the size of the windows of a pool.
        kernel_shape, strides, pads, dilations: the attributes.

    Raises:
        OperatorError: they do not fit the kernel, or are not positive.
    """
    rank, given = len(kernel), {"strides": strides, "dilations": dilations, "kernel_shape": kernel_shape}
    for name, numbers in {**given, "pads": pads}.items():
        needed = 2 * rank if name == "pads" else rank
        if numbers and len(numbers) != needed:
            raise OperatorError(f"{name}={list(numbers)} has not {needed} numbers, as {rank} dimensions need them.")
        if numbers and name != "pads" and min(numbers) < 1:
            raise OperatorError(f"{name}={list(numbers)} has a number below 1.")
    if kernel_shape and any(isinstance(b, int) and a != b for a, b in zip(kernel_shape, kernel, strict=True)):
        raise OperatorError(f"kernel_shape={list(kernel_shape)} contradicts the kernel, which has {list(kernel)}.")


def window_of(
    x: Sequence[Any], w: Sequence[int], attributes: Mapping[str, Any]
) -> tuple[Sequence[int], Sequence[Any], Sequence[int]]:
    """Returns strides, explicit pads and dilations of a convolution of these shapes by ONNX's attributes."""
    rank = len(w) - 2
    check_window(w[2:], **attributes)
    strides, dilations = attributes["strides"] or [1] * rank, attributes["dilations"] or [1] * rank
    pads = resolve_pads(attributes["auto_pad"], attributes["pads"], x[2:], w[2:], strides, dilations)
    return strides, pads, dilations


def is_zero(pad: Any) -> bool:
    """Returns whether a pad, which may depend on a dynamic size, is 0 at every size."""
    return isinstance(pad, int) and pad == 0


def pad_spatial(F: Any, X: Any, pads: Sequence[Any], value: float = 0.0) -> Any:
    """Returns `X` with its spatial dimensions padded; `pads` in ONNX's order, begins before ends."""
    rank = len(pads) // 2
    if all(map(is_zero, pads)):
        return X
    order = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])]
    return F.nn.functional.pad(X, order, value=value) if value else F.nn.functional.pad(X, order)


@op("Conv", 1, traits=["channels_first", "keeps_rank"])
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
    """Asymmetric pads become a pad in front of an unpadded convolution."""
    rank = W.ndim - 2
    if rank < 1:
        raise OperatorError(f"a kernel of {W.ndim} dimensions has no spatial dimension.")
    if X.ndim != W.ndim:
        raise OperatorError(f"an input of {X.ndim} dimensions and a kernel of {W.ndim}. Both need the same number.")
    check_window(W.shape[2:], kernel_shape=kernel_shape, strides=strides, pads=pads, dilations=dilations)
    strides, dilations = list(strides or [1] * rank), list(dilations or [1] * rank)
    pads = resolve_pads(auto_pad, pads, X.shape[2:], W.shape[2:], strides, dilations)
    if rank > 3:
        return _conv_by_slices(F, pad_spatial(F, X, pads), W, B, strides, dilations, group)
    padding: list[Any] = [0] * rank
    if all(isinstance(p, int) and p >= 0 for p in pads) and pads[:rank] == pads[rank:]:
        padding = list(pads[:rank])
    else:
        X = pad_spatial(F, X, pads)
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return function(X, W, B, tuple(strides), tuple(padding), tuple(dilations), group)


def _conv_by_slices(
    F: Any, X: Any, W: Any, B: Any, strides: Sequence[int], dilations: Sequence[int], group: int
) -> Any:
    """Returns a convolution over more than three spatial dimensions as a sum of convolutions over one fewer.

    It sums over the kernel's first spatial dimension; the input's first spatial dimension joins the batch.
    """
    stride, dilation, kernel = strides[0], dilations[0], W.shape[2]
    last = X.shape[2] - (kernel - 1) * dilation
    total = None
    for k in range(kernel):
        part = X[:, :, k * dilation : k * dilation + last : stride].transpose(1, 2)
        count = part.shape[1]
        part = conv(F, part.flatten(0, 1), W[:, :, k], strides=strides[1:], dilations=dilations[1:], group=group)
        part = part.unflatten(0, (X.shape[0], count)).transpose(1, 2)
        total = part if total is None else total + part
    return total if B is None else total + B.reshape([-1] + [1] * (W.ndim - 2))


@op("ConvTranspose", 1, traits=["channels_first", "keeps_rank"])
def conv_transpose(
    F: Any,
    X: Any,
    W: Any,
    B: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """Pads crop the full result, by torch's `padding` and `output_padding` where the end is not cropped more.

    SAME_* never makes a result larger than the full one, as in ONNX Runtime. An `output_shape` that is larger, which
    ONNX Runtime refuses, is filled up with zeros (and the bias), as in the standard's test.
    """
    rank = W.ndim - 2
    if rank not in (1, 2, 3):
        raise OperatorError(f"a transposed convolution over {rank} spatial dimensions is not possible; 1 to 3 are.")
    check_window(W.shape[2:], kernel_shape=kernel_shape, strides=strides, pads=pads, dilations=dilations)
    strides, dilations = list(strides or [1] * rank), list(dilations or [1] * rank)
    extra = list(output_padding or [0] * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(W.shape[2:], dilations, strict=True)]
    begins, ends = [0] * rank, [0] * rank
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        for i in range(rank):
            if output_shape:
                total = (X.shape[2 + i] - 1) * strides[i] + extra[i] + spans[i] - list(output_shape)[-rank:][i]
            else:
                total = extra[i] + spans[i] - strides[i]
            if not isinstance(total, int):
                raise NeedsValues("the crop of a transposed convolution of dynamic size")
            total = total if output_shape else max(total, 0)
            small = total // 2
            begins[i], ends[i] = (small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small)
    elif pads and auto_pad == "NOTSET":
        begins, ends = list(pads[:rank]), list(pads[rank:])
    elif auto_pad not in ("NOTSET", "VALID"):
        raise OperatorError(f"auto_pad={auto_pad!r} is none of NOTSET, SAME_UPPER, SAME_LOWER, VALID.")
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    # torch takes an output_padding below the stride or the dilation; it restores an end that is cropped less.
    outputs = [e - end + begin for e, end, begin in zip(extra, ends, begins, strict=True)]
    limits = [max(s, d) for s, d in zip(strides, dilations, strict=True)]
    if all(0 <= o < limit for o, limit in zip(outputs, limits, strict=True)) and all(b >= 0 for b in begins):
        return function(X, W, B, tuple(strides), tuple(begins), tuple(outputs), group, tuple(dilations))
    tails = [e - end for e, end in zip(extra, ends, strict=True)]
    late = B is not None and any(amount > 0 for amount in (*tails, *(-b for b in begins)))
    Y = function(X, W, None if late else B, tuple(strides), 0, 0, group, tuple(dilations))
    Y = pad_spatial(F, Y, [*(-b for b in begins), *tails])
    return Y + B.reshape([-1] + [1] * rank) if late else Y


@op("CausalConvWithState", 27)
def causal_conv_with_state(
    F: Any, input: Any, weight: Any, bias: Any = None, past_state: Any = None, *, activation: str = "none"
) -> tuple[Any, ...]:
    """A depthwise convolution over past state and input, and their tail, the new state; silu is computed in float32."""
    if activation not in ("none", "silu", "swish"):
        raise OperatorError(f"activation={activation!r} is none of none, silu, swish.")
    length = weight.shape[2] - 1
    X = F.nn.functional.pad(input, (length, 0)) if past_state is None else F.cat([past_state, input], 2)
    Y = F.conv1d(X, weight, bias, groups=weight.shape[0])
    Y = Y if activation == "none" else F.nn.functional.silu(Y.float()).to(Y.dtype)
    return Y, X.narrow(2, X.shape[2] - length, length)


@op("Col2Im", 18, static=["image_shape", "block_shape"])
def col2im(
    F: Any,
    input: Any,
    image_shape: Sequence[Any],
    block_shape: Sequence[int],
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """torch's fold over two dimensions, else a transposed convolution with one kernel for each element of a block."""
    if not (input.is_floating_point() or input.is_complex()):
        options = dict(dilations=dilations, pads=pads, strides=strides)
        return _col2im_of_integers(F, input, image_shape, block_shape, **options)
    rank = len(block_shape)
    dilations, strides = list(dilations or [1] * rank), list(strides or [1] * rank)
    pads = list(pads or [0] * (2 * rank))
    if rank == 2 and pads[:2] == pads[2:]:
        options = dict(dilation=tuple(dilations), padding=tuple(pads[:2]), stride=tuple(strides))
        return F.nn.functional.fold(input, tuple(image_shape), tuple(block_shape), **options)
    elements = math.prod(block_shape)
    spans = [(k - 1) * d + 1 for k, d in zip(block_shape, dilations, strict=True)]
    counts = [(image_shape[i] + pads[i] + pads[i + rank] - spans[i]) // strides[i] + 1 for i in range(rank)]
    ends = [(counts[i] - 1) * strides[i] + spans[i] - pads[i] - image_shape[i] for i in range(rank)]
    blocks = input.reshape([-1, elements, *counts])
    kernels = F.eye(elements, dtype=input.dtype).reshape([elements, 1, *block_shape])
    image = conv_transpose(F, blocks, kernels, dilations=dilations, strides=strides, pads=[*pads[:rank], *ends])
    return image.reshape([input.shape[0], input.shape[1] // elements, *image_shape])


def _col2im_of_integers(F: Any, input: Any, image_shape: Any, block_shape: Any, **options: Any) -> Any:
    """Returns Col2Im of integers, summed exactly in float64, 64-bit integers in two halves; sums wrap around."""
    if input.dtype == F.uint64:
        return _col2im_of_integers(F, input.to(F.int64), image_shape, block_shape, **options).to(F.uint64)

    def summed(x: Any) -> Any:
        return col2im(F, x.to(F.float64), image_shape, block_shape, **options).to(F.int64)

    if input.dtype != F.int64:
        return summed(input).to(input.dtype)
    return summed(input & 0xFFFFFFFF) + (summed(input >> 32) << 32)


@op("DeformConv", 19, traits=["channels_first", "keeps_rank"])
def deform_conv(
    F: Any,
    X: Any,
    W: Any,
    offset: Any,
    B: Any = None,
    mask: Any = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """Samples X bilinearly at the offsets (0 outside of X), then multiplies by the kernel.

    Raises:
        OperatorError: X has not two spatial dimensions.
    """
    if X.ndim != 4:
        raise OperatorError(f"a deformable convolution over {X.ndim - 2} spatial dimensions is not possible; 2 are.")
    check_window(W.shape[2:], kernel_shape=kernel_shape, strides=strides, pads=pads, dilations=dilations)
    strides, dilations = list(strides or [1, 1]), list(dilations or [1, 1])
    pads = list(pads or [0, 0, 0, 0])
    batch, channels, elements = X.shape[0], X.shape[1], W.shape[2] * W.shape[3]
    rows, columns = offset.shape[2], offset.shape[3]
    shifts = offset.reshape([batch * offset_group, elements, 2, rows, columns])
    grid = []
    for axis, outputs, size in ((1, columns, X.shape[3]), (0, rows, X.shape[2])):
        steps = F.arange(W.shape[2 + axis], dtype=X.dtype) * dilations[axis] - pads[axis]
        start = F.arange(outputs, dtype=X.dtype) * strides[axis]
        taps = (
            steps.reshape(-1, 1).expand(W.shape[2], W.shape[3]) if axis == 0 else steps.expand(W.shape[2], W.shape[3])
        )
        base = taps.reshape(elements, 1, 1) + (start.reshape(-1, 1) if axis == 0 else start)
        grid.append((shifts[:, :, axis] + base) * (2 / size) + (1 / size - 1))
    points = F.stack(grid, -1).flatten(1, 2)
    planes = X.reshape([batch * offset_group, channels // offset_group, X.shape[2], X.shape[3]])
    samples = F.nn.functional.grid_sample(planes, points, align_corners=False)
    samples = samples.unflatten(2, (elements, rows))
    if mask is not None:
        samples = samples * mask.reshape([batch * offset_group, 1, elements, rows, columns])
    samples = samples.reshape([batch, group, channels // group * elements, rows * columns])
    kernels = W.reshape([group, W.shape[0] // group, W.shape[1] * elements])
    Y = (kernels @ samples).reshape([batch, W.shape[0], rows, columns])
    return Y if B is None else Y + B.reshape(-1, 1, 1)
