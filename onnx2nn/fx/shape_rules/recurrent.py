"""Shape rules of recurrent layers and of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import broadcast_dimensions, common_float, equal_shapes, is_spec
from onnx2nn.fx.shape_rules.products import expand_into
from onnx2nn.fx.shape_rules.rule import Result, Sizes, rule
from onnx2nn.fx.spec import Shape, Spec
from onnx2nn.sizes.conditions import equal, less
from onnx2nn.sizes.expression import Number


def _recurrent(
    sizes: Sizes,
    input: Spec,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Result:
    """The output, then the final states. torch does not check the states; it reads beyond one that is too small."""
    states: list[Any] = [hx] if isinstance(hx, Spec) else list(hx)
    if type(has_biases) is not bool or not isinstance(params, (list, tuple)) or not is_spec(input, *states, *params):
        return None
    x, dtype, ways = input.shape, common_float(input, *states, *params), 1 + bool(bidirectional)
    per_way = 2 + 2 * has_biases
    if dtype is None or x is None or len(x) != 3 or len(params) != num_layers * ways * per_way:
        return None
    recurrent = params[1].shape
    if len(recurrent) != 2 or any(len(state.shape) != 3 for state in states):
        return None
    rows, hidden = recurrent
    batch = x[0 if batch_first else 1]
    for state in states:
        wanted: Shape = (num_layers * ways, batch, hidden)
        equal_shapes(sizes, state.shape, wanted, "the initial state of a recurrent layer")
    for place in range(num_layers * ways):
        width = x[2] if place < ways else ways * hidden
        of_way = params[place * per_way : (place + 1) * per_way]
        shapes: list[Shape] = [(rows, width), (rows, hidden), (rows,), (rows,)]
        for parameter, shape in zip(of_way, shapes, strict=False):
            if len(parameter.shape) != len(shape):
                return None
            equal_shapes(sizes, parameter.shape, shape, "the parameters of a recurrent layer")
    sizes.require(less(0, x[1 if batch_first else 0]), "a sequence that is not empty")
    last = Spec((num_layers * ways, batch, hidden), dtype)
    return Spec((*x[:2], ways * hidden), dtype), *[last] * len(states)


rule(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)(_recurrent)


@rule(F.scaled_dot_product_attention)
def _attention(
    sizes: Sizes,
    query: Spec,
    key: Spec,
    value: Spec,
    attn_mask: Spec | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Result:
    q, k, v, dtype = query.shape, key.shape, value.shape, common_float(query, key, value)
    if dtype is None or q is None or k is None or v is None or min(len(q), len(k), len(v)) < 2:
        return None
    if attn_mask is not None and (is_causal or attn_mask.shape is None or attn_mask.dtype not in (torch.bool, dtype)):
        return None
    if enable_gqa:
        if min(len(q), len(k), len(v)) < 3:
            return None
        k, v = (_repeated_heads(sizes, q, shape) for shape in (k, v))
    sizes.equal(q[-1], k[-1], "the features of queries and keys")
    sizes.equal(k[-2], v[-2], "the number of keys and values")
    scores = broadcast_dimensions(sizes, q[:-2], k[:-2], "the heads of queries and keys")
    if attn_mask is not None:
        mask = attn_mask.shape or ()
        if not expand_into(sizes, mask, (*scores, q[-2], k[-2]), "an attention mask"):
            return None
    lead = broadcast_dimensions(sizes, scores, v[:-2], "the heads of scores and values")
    return Spec((*lead, q[-2], v[-1]), dtype)


def _repeated_heads(sizes: Sizes, q: Shape, shape: Shape) -> Shape:
    sizes.require(less(0, shape[-3]), "the heads of keys and values")
    sizes.require(equal(q[-3] % shape[-3], 0), "the heads of queries, a multiple of those of keys and values")
    return (*shape[:-3], q[-3], *shape[-2:])


@rule(F.multi_head_attention_forward)
def _multi_head_attention(
    sizes: Sizes,
    query: Spec,
    key: Spec,
    value: Spec,
    embed_dim_to_check: Number,
    num_heads: int,
    in_proj_weight: Spec | None,
    in_proj_bias: Spec | None,
    bias_k: Spec | None,
    bias_v: Spec | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Spec,
    out_proj_bias: Spec | None,
    training: bool = True,
    key_padding_mask: Spec | None = None,
    need_weights: bool = True,
    attn_mask: Spec | None = None,
    **others: Any,
) -> Result:
    """The rule of self-attention over a batch, whose weights are not asked for."""
    x, weight, dtype = query.shape, in_proj_weight, common_float(query, in_proj_weight, in_proj_bias, out_proj_weight)
    if x is None or len(x) != 3 or dtype is None or weight is None or weight.shape is None or key != query:
        return None
    if value != query or bias_k is not None or bias_v is not None or add_zero_attn or need_weights or others:
        return None
    if type(num_heads) is not int or num_heads < 1 or not is_spec(weight, out_proj_weight):
        return None
    length, batch, features = x
    sizes.equal(features, embed_dim_to_check, "the features of an attention")
    sizes.require(equal(features % num_heads, 0), "the heads of an attention")
    parameters: Any = ((weight, (3 * features, features)), (in_proj_bias, (3 * features,)))
    for parameter, shape in (*parameters, (out_proj_weight, (features, features))):
        if parameter is not None and len(parameter.shape) != len(shape):
            return None
        if parameter is not None:
            equal_shapes(sizes, parameter.shape, shape, "the parameters of an attention")
    if out_proj_bias is not None and not expand_into(sizes, out_proj_bias.shape or (), x, "the bias of an attention"):
        return None
    masks: Any = ((attn_mask, (batch * num_heads, length, length)), (key_padding_mask, (batch, length)))
    for mask, wanted in masks:
        if mask is None:
            continue
        if mask.shape is None or mask.dtype not in (torch.bool, dtype):
            return None
        rank = len(mask.shape)
        if rank != len(wanted) and not (mask is attn_mask and rank == 2):
            return None
        equal_shapes(sizes, mask.shape, wanted[-rank:], "the mask of an attention")
    return Spec(x, dtype), None
