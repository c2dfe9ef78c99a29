"""Operators of raised graphs only, for patterns of nodes that no single ONNX operator computes.

`onnx2nn.rewrite` puts them in place of the nodes before the import; no file holds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2nn.ops.norm import normalised_instances
from onnx2nn.ops.shape import broadcast, demand, expand, fixed, reshape, split
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import OWN
from onnx2nn.optable.traits import UNARY


@op("Linear", 1, domain=OWN, traits=["matrix_product"])
def linear(F: Any, X: Any, weight: Any, bias: Any) -> Any:
    """X: `(..., in)`, weight: `(in, out)` as MatMul has it, bias: `(out,)`."""
    return F.nn.functional.linear(X, weight.T, bias)


@op("LayerNorm", 1, domain=OWN)
def layer_norm(F: Any, X: Any, *, dims: int, epsilon: float) -> Any:
    """Over the last `dims` dimensions, without weights."""
    return F.nn.functional.layer_norm(X, X.shape[-dims:], eps=epsilon)


@op("RMSNorm", 1, domain=OWN)
def rms_norm(F: Any, X: Any, *, dims: int, epsilon: float) -> Any:
    """Over the last `dims` dimensions, without weights."""
    return F.nn.functional.rms_norm(X, X.shape[-dims:], eps=epsilon)


@op("GroupNorm", 1, domain=OWN, static=["split", "sizes"], weights=["weight", "bias"])
def group_norm(
    F: Any, X: Any, split: Any, sizes: Any, weight: Any = None, bias: Any = None, *, num_groups: int, epsilon: float
) -> Any:
    """X reshaped to `split`, `(N, groups, size)`, normalised, and reshaped to `sizes`; weight and bias: `(C,)`.

    A weight may be there without a bias.

    This is `F.group_norm` where the reshapes keep the samples and the shape of X, and each group has whole channels.
    """
    if all(map(_holds, _conditions_of_groups(X, split, sizes))):
        weights = () if weight is None else (weight, bias)
        return F.nn.functional.group_norm(X, num_groups, *weights, eps=epsilon)
    Y = reshape(F, F.nn.functional.instance_norm(reshape(F, X, split), eps=epsilon), sizes)
    if weight is None:
        return Y
    each = (-1, *[1] * (Y.ndim - 2))  # one number for each channel
    Y = Y * weight.reshape(each)
    return Y if bias is None else Y + bias.reshape(each)


@op("InstanceNorm", 1, domain=OWN, weights=["weight"])
def instance_norm(F: Any, X: Any, weight: Any = None, *, epsilon: float) -> Any:
    """An InstanceNormalization without a bias."""
    return normalised_instances(F, X, weight, None, epsilon)


@op("BatchNorm", 1, domain=OWN, weights=["weight"], buffers=["mean", "var"])
def batch_norm(F: Any, X: Any, mean: Any, var: Any, weight: Any = None, *, epsilon: float, momentum: float) -> Any:
    """A BatchNormalization without a bias, with the momentum of ONNX."""
    if X.dtype == F.float64:
        mean, var = mean.to(X.dtype), var.to(X.dtype)
        weight = None if weight is None else weight.to(X.dtype)
    mean, var = mean.detach(), var.detach()  # torch has no gradient of statistics
    return F.nn.functional.batch_norm(X, mean, var, weight, None, False, round(1 - momentum, 7), epsilon)


@op("GLU", 1, domain=OWN)
def glu(F: Any, X: Any, *, axis: int, padded: int) -> Any:
    """The first part of X times the sigmoid of the second, as Split gives them: of an odd number some have none."""
    size = X.shape[axis]
    if fixed(size) and size % 2 == 0:
        return F.nn.functional.glu(X, axis)
    first, second = split(F, X, axis=axis, num_outputs=2 if padded else None, _outputs=2)
    return first * F.sigmoid(second)


@op("Normalize", 1, domain=OWN, static=["sizes"])
def normalize(F: Any, X: Any, sizes: Any = None, *, p: float, axis: int, epsilon: float) -> Any:
    """X divided by its norm, or by epsilon where epsilon is larger; the divisor is expanded to `sizes` before."""
    if sizes is None or all(map(_holds, _keeps_shape(X, sizes))):
        return F.nn.functional.normalize(X, p, axis, epsilon)
    return X / expand(F, F.linalg.vector_norm(X, p, axis, keepdim=True).clamp_min(epsilon), sizes)


def _holds(condition: Any) -> bool:
    """Returns whether a condition on sizes is proven; one that depends on them does not hold."""
    return condition is True or condition is np.True_


def _keeps_shape(X: Any, sizes: Sequence[Any]) -> list[Any]:
    """Returns the conditions under which `sizes`, in which 0 is X's size at the axis and -1 inferred, are X's shape."""
    if len(sizes) != X.ndim:
        return [False]
    return [a == b for a, b in zip(sizes, X.shape, strict=True) if not (fixed(a) and a in (0, -1))]


def _conditions_of_groups(X: Any, split: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
    """Returns the conditions under which a reshape to `(N, groups, size)` keeps samples, groups whole channels, and a
    reshape to `sizes` gives X's shape again."""
    count, groups, size = split
    if fixed(count) and count == -1:
        kept = [groups * size == math.prod(X.shape[1:])]
    else:
        kept = [] if fixed(count) and count == 0 else [count == X.shape[0]]
    return [*kept, X.shape[1] % groups == 0, *_keeps_shape(X, sizes)]


def _splits(X: Any, split: Sequence[Any], *groups: Sequence[int]) -> bool:
    """Returns whether a reshape to `split` splits each dimension of X into its own group of sizes.

    The pattern does not fix the shape of X: an X of other dimensions and as many elements would be rearranged
    differently. A size of -1 is inferred, 0 is the size of X at this axis.
    """
    if X.ndim != len(groups):
        return False
    sizes = [X.shape[axis] if fixed(size) and size == 0 and axis < X.ndim else size for axis, size in enumerate(split)]
    open_ = [axis for axis, group in enumerate(groups) if any(fixed(sizes[i]) and sizes[i] == -1 for i in group)]
    closed = [axis for axis in range(X.ndim) if axis not in open_]
    return len(open_) < 2 and all(_holds(math.prod(sizes[i] for i in groups[axis]) == X.shape[axis]) for axis in closed)


def _rearranged(F: Any, X: Any, split: Sequence[Any], perm: Sequence[int], join: Sequence[Any]) -> Any:
    return reshape(F, reshape(F, X, split).permute(*perm), join)


@op("PixelShuffle", 1, domain=OWN, static=["split", "join"])
def pixel_shuffle(F: Any, X: Any, split: Any, join: Any, *, factor: int) -> Any:
    """X split, permuted and joined, which is `F.pixel_shuffle` where `split` divides the channels alone."""
    if _splits(X, split, (0,), (1, 2, 3), (4,), (5,)):
        return F.pixel_shuffle(X, factor)
    return _rearranged(F, X, split, (0, 1, 4, 2, 5, 3), join)


@op("PixelUnshuffle", 1, domain=OWN, static=["split", "join"])
def pixel_unshuffle(F: Any, X: Any, split: Any, join: Any, *, factor: int) -> Any:
    """X split, permuted and joined, which is `F.pixel_unshuffle` where `split` divides height and width.

    Where its sizes are quotients, multiples of the factor are required: of others a Reshape lacks elements, or takes
    those of other images.
    """
    if _splits(X, split, (0,), (1,), (2, 3), (4, 5)):
        return F.nn.functional.pixel_unshuffle(X, factor)
    if _splits_into_quotients(X, split, factor):
        for size in X.shape[2:]:
            demand(size % factor == 0, "the size and the factor of pixel_unshuffle")
        return F.nn.functional.pixel_unshuffle(X, factor)
    return _rearranged(F, X, split, (0, 1, 3, 5, 2, 4), join)


def _splits_into_quotients(X: Any, split: Sequence[Any], factor: int) -> bool:
    """Returns whether `split` has X's batch and channels, and its height and width divided by the factor."""
    if X.ndim != 4 or not all(_holds(split[2 * axis - 2] == X.shape[axis] // factor) for axis in (2, 3)):
        return False
    return _splits(X, [*split[:2], *X.shape[2:]], (0,), (1,), (2,), (3,))


@op("ChannelShuffle", 1, domain=OWN, static=["split", "join"])
def channel_shuffle(F: Any, X: Any, split: Any, join: Any, *, groups: int) -> Any:
    """X split, permuted and joined, which is `F.channel_shuffle` where `split` divides the channels alone."""
    rest = range(3, len(split))
    if _splits(X, split, (0,), (1, 2), *((axis,) for axis in rest)):
        return F.nn.functional.channel_shuffle(X, groups)
    return _rearranged(F, X, split, (0, 2, 1, *rest), join)


@op("Detach", 1, domain=OWN, on_shape_values=lambda X: X, traits=UNARY)
def detach(F: Any, X: Any) -> Any:
    """X, through which no gradient goes."""
    return X.detach()


@op("RepeatInterleave", 1, domain=OWN)
def repeat_interleave(F: Any, X: Any, *, repeats: int, axis: int) -> Any:
    return F.repeat_interleave(X, repeats, axis)


@op("RotaryEmbedding", 1, domain=OWN, static=["start", "end"])
def rotary_embedding(F: Any, X: Any, cos: Any, sin: Any, start: Any, end: Any) -> Any:
    """The two halves of X rotated, as in Llama and GPT-NeoX.

    X: `(..., size)`, cos and sin broadcast against it; the lower half ends at `end`, the upper half begins at `start`.
    """
    lower, upper = X[..., : end[0]], X[..., start[0] :]
    return X * cos + F.cat([-upper, lower], -1) * sin


@op("InterleavedRotaryEmbedding", 1, domain=OWN, static=["target"])
def interleaved_rotary_embedding(F: Any, X: Any, cos: Any, sin: Any, target: Any) -> Any:
    """Pairs of neighbours rotated, as in GPT-J; `target` is the shape of X."""
    return X * cos + reshape(F, F.stack([-X[..., 1::2], X[..., ::2]], -1), target) * sin


@op("ScaledDotProductAttention", 1, domain=OWN)
def scaled_dot_product_attention(
    F: Any,
    Q: Any,
    K: Any,
    V: Any,
    mask: Any = None,
    *,
    is_causal: int = 0,
    scale: float | None = None,
    transposed: int = 0,
    grouped: int = 0,
) -> Any:
    """Q: `(..., queries, size)`, K and V: `(..., keys, size)`; K `(..., size, keys)` where it is transposed.

    A bool mask is True at attended keys, a float mask is added. With `grouped`, several heads of Q share a head of K.
    torch takes a mask of at least two dimensions that fits the scores; one that makes them larger is added to them.
    """
    keys = K if transposed else K.mT
    if mask is not None and not grouped and _enlarges(mask, Q, keys):
        scores = Q @ keys * (Q.shape[-1] ** -0.5 if scale is None else scale)
        scores = F.where(mask, scores, -math.inf) if mask.dtype == F.bool else scores + mask
        return F.softmax(scores, -1) @ V
    Q = _expanded_where_empty(F, Q, keys, V, grouped)
    if mask is not None and mask.ndim == 1:
        mask = mask[None]
    options: dict[str, Any] = {"is_causal": True} if is_causal else {}
    if mask is not None:
        options["attn_mask"] = mask
    if scale is not None:
        options["scale"] = scale
    if grouped:
        options["enable_gqa"] = True
    return F.nn.functional.scaled_dot_product_attention(Q, K.mT if transposed else K, V, **options)


def _expanded_where_empty(F: Any, Q: Any, keys: Any, V: Any, grouped: int) -> Any:
    """Returns Q, in the batch of all three where one of them may be empty: torch's result then has the batch of Q.

    Heads of Q stay as they are where they share those of the others, `grouped`.
    """
    if all(_holds(size > 0) for size in (*Q.shape[-2:], keys.shape[-1], V.shape[-1])):
        return Q
    inner = -3 if grouped else -2
    batch = broadcast(broadcast(Q.shape[:inner], keys.shape[:inner]), V.shape[:inner])
    return expand(F, Q, [*batch, *Q.shape[inner:]])


def _enlarges(mask: Any, Q: Any, keys: Any) -> bool:
    """Returns whether a mask surely broadcasts the scores of Q and `keys`, `(..., size, keys)`, to a larger shape."""
    places: list[tuple[Any, ...]] = [(Q.shape[axis], keys.shape[axis]) for axis in range(-min(Q.ndim, keys.ndim), -2)]
    places += [(Q.shape[-2],), (keys.shape[-1],)]
    if mask.ndim > max(Q.ndim, keys.ndim):
        return True
    pairs = zip(reversed(mask.shape), reversed(places), strict=False)
    return any(_holds(wanted != 1) and all(_holds(size == 1) for size in sizes) for wanted, sizes in pairs)


@op("MultiheadAttention", 1, domain=OWN)
def multihead_attention(
    F: Any,
    X: Any,
    weight: Any,
    bias: Any = None,
    out_weight: Any = None,
    out_bias: Any = None,
    attn_mask: Any = None,
    key_padding_mask: Any = None,
    key: Any = None,
    value: Any = None,
    *,
    num_heads: int,
    is_causal: int = 0,
    transB: int = 0,
) -> Any:
    """Attention of X, `(L, N, features)`, to key and value, `(S, N, features)`, which are X where they are absent.

    The weight is `(features, 3 * features)`, with transB `(3 * features, features)`. Masks are nn.MultiheadAttention's:
    a float mask is added, a bool mask is True at masked keys.
    """
    key, value = X if key is None else key, X if value is None else value
    weight = weight if transB else weight.T
    size, packed = weight.shape[1], (weight, bias, None, None, False, 0.0)
    if is_causal:
        attn_mask = F.ones((X.shape[0], key.shape[0]), dtype=F.bool, device=X.device).triu(1)
    options: dict[str, Any] = {"training": False, "need_weights": False}
    masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
    options |= {name: mask for name, mask in masks.items() if mask is not None}
    attend = F.nn.functional.multi_head_attention_forward
    return attend(X, key, value, size, num_heads, *packed, out_weight, out_bias, **options)[0]
