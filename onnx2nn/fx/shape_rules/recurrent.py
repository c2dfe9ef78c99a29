"""Shape rules of recurrent layers (`lstm`, `gru`, `rnn`) and of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from onnx2nn.fx.shape_rules.operands import broadcast, common_float, equal_shapes, expand_into, positive_int, shape_of
from onnx2nn.fx.shape_rules.rule import Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Shape, Spec
from onnx2nn.sizes.conditions import disjunction, equal, less
from onnx2nn.sizes.expression import Number, product


@rule(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
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
    if type(has_biases) is not bool or not isinstance(params, (list, tuple)) or not isinstance(hx, (list, tuple)):
        raise Uncovered
    states: list[Any] = [hx] if isinstance(hx, Spec) else list(hx)
    x, dtype, ways = shape_of(input, 3), common_float(input, *states, *params), 1 + bool(bidirectional)
    per_way = 2 + 2 * has_biases
    if len(params) != num_layers * ways * per_way or not params:
        raise Uncovered
    rows, hidden = shape_of(params[1], 2)
    batch = x[0 if batch_first else 1]
    for state in states:
        wanted: Shape = (num_layers * ways, batch, hidden)
        equal_shapes(sizes, shape_of(state), wanted, "the initial state of a recurrent layer")
    for place in range(num_layers * ways):
        width = x[2] if place < ways else ways * hidden
        of_way = params[place * per_way : (place + 1) * per_way]
        shapes: list[Shape] = [(rows, width), (rows, hidden), (rows,), (rows,)]
        for parameter, shape in zip(of_way, shapes, strict=False):
            equal_shapes(sizes, shape_of(parameter), shape, "the parameters of a recurrent layer")
    sizes.require(less(0, x[1 if batch_first else 0]), "a sequence that is not empty")
    last = Spec((num_layers * ways, batch, hidden), dtype)
    return Spec((*x[:2], ways * hidden), dtype), *[last] * len(states)


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
    q, k, v, dtype = shape_of(query), shape_of(key), shape_of(value), common_float(query, key, value)
    if min(len(q), len(k), len(v)) < (3 if enable_gqa else 2):
        raise Uncovered
    if attn_mask is not None and (is_causal or attn_mask.dtype not in (torch.bool, dtype)):
        raise Uncovered
    if enable_gqa:
        k, v = (_repeated_heads(sizes, q, shape) for shape in (k, v))
    sizes.equal(q[-1], k[-1], "the features of queries and keys")
    sizes.equal(k[-2], v[-2], "the number of keys and values")
    scores = broadcast(sizes, [q[:-2], k[:-2]], "the heads of queries and keys")
    if attn_mask is not None:
        expand_into(sizes, shape_of(attn_mask), (*scores, q[-2], k[-2]), "an attention mask")
    lead = broadcast(sizes, [scores, v[:-2]], "the heads of scores and values")
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
    """The rule of attention over a batch with one projection for all operands, whose weights are not asked for."""
    x, dtype = shape_of(query, 3), common_float(query, key, value, in_proj_weight, in_proj_bias, out_proj_weight)
    if bias_k is not None or bias_v is not None or others:
        raise Uncovered
    if in_proj_weight is None or add_zero_attn or need_weights:
        raise Uncovered
    length, batch, features = x
    keys, batch_of_keys, width = equal_shapes(sizes, shape_of(key, 3), shape_of(value), "the shapes of keys and values")
    sizes.equal(width, features, "the features of queries and keys")
    fits = disjunction([equal(batch_of_keys, batch), equal(product((keys, features)), 0)])
    sizes.require(fits, "the batch of queries and keys")
    sizes.equal(features, embed_dim_to_check, "the features of an attention")
    sizes.require(equal(features % positive_int(num_heads), 0), "the heads of an attention")
    parameters: tuple[tuple[Spec | None, Shape], ...] = (
        (in_proj_weight, (3 * features, features)),
        (in_proj_bias, (3 * features,)),
        (out_proj_weight, (features, features)),
    )
    for parameter, shape in parameters:
        if parameter is not None:
            equal_shapes(sizes, shape_of(parameter), shape, "the parameters of an attention")
    if out_proj_bias is not None:
        expand_into(sizes, shape_of(out_proj_bias), x, "the bias of an attention")
    masks: tuple[tuple[Spec | None, Shape], ...] = (
        (attn_mask, (batch * num_heads, length, keys)),
        (key_padding_mask, (batch, keys)),
    )
    for mask, wanted in masks:
        if mask is None:
            continue
        if mask.dtype not in (torch.bool, dtype):
            raise Uncovered
        given = shape_of(mask)
        kept = 2 if mask is attn_mask and len(given) == 2 else len(wanted)
        equal_shapes(sizes, given, wanted[-kept:], "the mask of an attention")
    return Spec(x, dtype), None
