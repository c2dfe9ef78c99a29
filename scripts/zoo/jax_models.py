"""Writes the JAX part of the model zoo: small models of Flax and Equinox with random weights, by jax2onnx.

Runs in the environment of `constraints-jax.txt` (``nox -s zoo_jax``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import runner
from flax import nnx
from jax2onnx import onnx_function, to_onnx

BATCH = 2


def export(path: Path, model: Callable[..., Any], x: np.ndarray) -> runner.Sample:
    """Writes a model of one input as ONNX with a dynamic batch; returns its answer to `x`."""
    proto = to_onnx(model, [("B", *x.shape[1:])], return_mode="proto")
    onnx.save(proto, path)
    [name] = [value.name for value in proto.graph.input]
    return runner.Sample({name: x}, [np.asarray(output) for output in jax.tree.leaves(model(jnp.asarray(x)))])


def randomise(model: nnx.Module, generator: np.random.Generator) -> nnx.Module:
    """Gives constant weights (biases, scales) and statistics of a fresh model noise; returns it for inference."""
    for _, variable in nnx.iter_graph(model):
        if isinstance(variable, (nnx.Param, nnx.BatchStat)) and np.std(variable.get_value()) == 0:
            values = np.asarray(variable.get_value())
            noise = 0.1 * np.abs(generator.standard_normal(values.shape))
            variable.set_value(jnp.asarray(values + noise, values.dtype))
    model.eval()
    return model


class Residual(nnx.Module):
    """A residual block with batch normalisations."""

    def __init__(self, inputs: int, outputs: int, stride: int, rngs: nnx.Rngs):
        self.first = nnx.Conv(inputs, outputs, (3, 3), strides=stride, use_bias=False, rngs=rngs)
        self.second = nnx.Conv(outputs, outputs, (3, 3), use_bias=False, rngs=rngs)
        self.shortcut = nnx.Conv(inputs, outputs, (1, 1), strides=stride, rngs=rngs)
        self.norms = nnx.List([nnx.BatchNorm(outputs, rngs=rngs) for _ in range(2)])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns `(batch, height, width, outputs)`."""
        y = nnx.relu(self.norms[0](self.first(x)))
        return nnx.relu(self.norms[1](self.second(y)) + self.shortcut(x))


class Images(nnx.Module):
    """Residual blocks on images, and a dense layer."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = nnx.Conv(3, 4, (5, 5), strides=2, rngs=rngs)
        self.blocks = nnx.List([Residual(4, 6, 1, rngs), Residual(6, 8, 2, rngs)])
        self.head = nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns `(batch, 5)`."""
        x = nnx.silu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


@onnx_function
class Block(nnx.Module):
    """A layer of a transformer, which the file has as a function."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.first, self.second = nnx.RMSNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=2, in_features=width, decode=False, rngs=rngs)
        self.inner, self.outer = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns `(batch, steps, width)`."""
        x = x + self.attention(self.first(x))
        return x + self.outer(nnx.swish(self.inner(self.second(x))))


class Transformer(nnx.Module):
    """Patches of images, positions, two layers and a norm without the fast variance."""

    def __init__(self, rngs: nnx.Rngs):
        self.patches = nnx.Conv(3, 8, (4, 4), strides=4, rngs=rngs)
        self.positions = nnx.Param(jax.random.normal(rngs.params(), (1, 16, 8)))
        self.blocks = nnx.List([Block(8, rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(8, use_fast_variance=False, rngs=rngs)
        self.head = nnx.Linear(8, 6, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns `(batch, 16, 6)`."""
        x = self.patches(x).reshape(x.shape[0], 16, 8) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Recurrent(nnx.Module):
    """An LSTM with a matrix for each gate, a GRU with one for all, an RNN, and a dense layer."""

    def __init__(self, rngs: nnx.Rngs):
        self.lstm = nnx.LSTMCell(5, 6, rngs=rngs)
        self.gru = nnx.GRUCell(6, 4, rngs=rngs)
        self.rnn = nnx.SimpleCell(4, 4, rngs=rngs)
        self.head = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns `(batch, steps, 3)`."""
        x = jnp.swapaxes(x, 0, 1)
        for cell, size in ((self.lstm, 6), (self.gru, 4), (self.rnn, 4)):
            zeros = jnp.zeros((x.shape[1], size))
            _, x = jax.lax.scan(cell, (zeros, zeros) if cell is self.lstm else zeros, x)
        return self.head(jnp.swapaxes(x, 0, 1))


def flax(path: Path, build: Callable[[nnx.Rngs], nnx.Module], sizes: Sequence[int]) -> runner.Sample:
    """Recipe of a model of Flax."""
    generator = np.random.default_rng(0)
    model = randomise(build(nnx.Rngs(0)), generator)
    return export(path, model, generator.standard_normal((BATCH, *sizes)).astype(np.float32))


class Tagger(eqx.Module):
    """A GRU over the steps of one sequence, attention between them, norms, and a layer for each step."""

    cell: eqx.nn.GRUCell
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        keys = jax.random.split(key, 3)
        self.cell, self.attention = eqx.nn.GRUCell(5, 8, key=keys[0]), eqx.nn.MultiheadAttention(2, 8, key=keys[1])
        self.norm, self.head = eqx.nn.LayerNorm(8), eqx.nn.Linear(8, 3, key=keys[2])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns `(steps, 3)` of `(steps, 5)`."""

        def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = self.cell(x, state)
            return state, state

        _, x = jax.lax.scan(step, jnp.zeros(8), x)
        return jax.vmap(self.head)(x + self.attention(*[jax.vmap(self.norm)(x)] * 3))


def equinox(path: Path) -> runner.Sample:
    """Recipe of a model of Equinox, whose modules take one sample."""
    x = np.random.default_rng(0).standard_normal((BATCH, 7, 5)).astype(np.float32)
    return export(path, jax.vmap(Tagger(jax.random.key(0))), x)


RECIPES: dict[str, runner.Recipe] = {
    "flax_images": partial(flax, build=Images, sizes=(16, 16, 3)),
    "flax_transformer": partial(flax, build=Transformer, sizes=(16, 16, 3)),
    "flax_recurrent": partial(flax, build=Recurrent, sizes=(7, 5)),
    "equinox_tagger": equinox,
}
"""All are in `tests/data`."""

if __name__ == "__main__":
    sys.exit(runner.main("jax", RECIPES, __doc__))
