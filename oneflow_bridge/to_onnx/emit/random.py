"""Random numbers: ONNX promises the distribution, not the sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.job import DTYPES
from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit


def _sizes(g: Builder, shape: Sequence[int | str]) -> list[int]:
    return [g.static(size, "the shape of random numbers") for size in shape]


@emit("normal", ignore="seed")
def normal(g: Builder, *, mean: float, std: float, dtype: str, shape: Sequence) -> ir.Value:
    """Gaussian numbers."""
    return g.RandomNormal(mean=mean, scale=std, shape=_sizes(g, shape), dtype=DTYPES[dtype])


@emit("uniform", ignore="seed")
def uniform(g: Builder, *, from_: float = 0.0, to: float = 1.0, dtype: str, shape: Sequence) -> ir.Value:
    """Numbers of [from, to)."""
    return g.RandomUniform(low=from_, high=to, shape=_sizes(g, shape), dtype=DTYPES[dtype])


@emit("uniform_int", ignore="seed")
def uniform_int(g: Builder, *, from_: int = 0, to: int = 1, dtype: str, shape: Sequence) -> ir.Value:
    """Integers of [from, to)."""
    numbers = g.RandomUniform(low=float(from_), high=float(to), shape=_sizes(g, shape), dtype=ir.DataType.DOUBLE)
    return g.Cast(g.Floor(numbers), to=DTYPES[dtype])


@emit("exponential", ignore="seed")
def exponential(g: Builder, *, lambd: float, dtype: str, out_shape: Sequence) -> ir.Value:
    """Exponential numbers: -log(1 - u) / lambda."""
    u = g.RandomUniform(low=0.0, high=1.0, shape=_sizes(g, out_shape), dtype=DTYPES[dtype])
    return g.Div(g.Neg(g.Log(g.Sub(g.full(1, u), u))), lambd)


@emit("bernoulli", ignore="seed has_seed")
def bernoulli(g: Builder, in_: ir.Value, *, dtype: str) -> ir.Value:
    """1 with the given probability; the standard's body of Bernoulli, which runtimes inline, gives the opposite."""
    u = g.RandomUniformLike(in_, low=0.0, high=1.0)
    return g.Cast(g.Less(u, in_), to=DTYPES[dtype])


@emit("random_mask_like", ignore="seed")
def random_mask_like(g: Builder, like: ir.Value, *, rate: float) -> ir.Value:
    """False with the given probability."""
    u = g.RandomUniformLike(like, low=0.0, high=1.0, dtype=ir.DataType.FLOAT)
    return g.Cast(g.Greater(u, rate), to=g.result().dtype)


@emit("randperm", ignore="seed")
def randperm(g: Builder, *, n: int) -> ir.Value:
    """The numbers below n in a random order: the order that sorts random numbers."""
    u = g.RandomUniform(low=0.0, high=1.0, shape=[n], dtype=ir.DataType.FLOAT)
    return g.Cast(g.TopK(u, n, 0)[1], to=g.result().dtype)


@emit("coin_flip", ignore="seed has_seed")
def coin_flip(g: Builder, *, probability: float, batch_size: int) -> ir.Value:
    """int8 1 with the given probability."""
    u = g.RandomUniform(low=0.0, high=1.0, shape=[batch_size], dtype=ir.DataType.FLOAT)
    return g.Cast(g.Less(u, probability), to=g.result().dtype)


@emit("dropout")
def dropout(g: Builder, in_: ir.Value, _add_to_output: ir.Value | None = None, *, rate: float) -> dict[str, ir.Value]:
    """Dropout that is on although the model is in eval mode (F.dropout with training=True): it stays on."""
    g.needs("Dropout that drops in inference", 12)
    ratio, training = g.const(np.float32(rate)), g.const(np.array(True))
    y, mask = g.append("Dropout", in_, ratio, training, n_outputs=2)
    y = y if _add_to_output is None else g.Add(y, _add_to_output)
    return {"out": y, "mask": g.Cast(mask, to=g.result("mask").dtype)} if g.used("mask") else {"out": y}
