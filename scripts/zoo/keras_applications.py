"""Writes every architecture of keras.applications with random weights and small images, by tf2onnx.

Those that `tensorflow_models.py` writes already are left out. Runs in the environment of
`constraints-tensorflow.txt` (``nox -s zoo_tensorflow -- --list`` makes it).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import runner
import tensorflow as tf
import tensorflow_models
from tf2onnx import utils
from tf2onnx.handler import tf_op

EDGE = 64
BYTES_OF_COLOUR = {"low": 0, "high": 255}
OPTIONS = {"EfficientNet": BYTES_OF_COLOUR, "ConvNeXt": BYTES_OF_COLOUR, "MobileNetV3": BYTES_OF_COLOUR}
"""Beginning of a name → the values of the images that the model scales itself."""


def _function(function: Callable[..., Any] | None = None, *, jit_compile: bool = False) -> Any:
    """`tf.function` without XLA: Keras compiles grouped convolutions by it, which hides them from tf2onnx."""
    return FUNCTION(function) if function else FUNCTION


FUNCTION = tf.function


@tf_op("Erfc")
class ComplementaryErrorFunction:
    """What TensorFlow computes GELU by, and tf2onnx 1.17 does not know."""

    @classmethod
    def version_9(cls, context: Any, node: Any, **_: Any) -> None:
        """Writes `1 - Erf(x)`."""
        (result,), (x,) = node.output, node.input
        kinds = {"shapes": [context.get_shape(result)], "dtypes": [context.get_dtype(result)]}
        one = context.make_const(utils.make_name("one"), np.array(1, np.float32)).output[0]
        context.remove_node(node.name)
        error = context.make_node("Erf", [x], **kinds).output[0]
        context.make_node("Sub", [one, error], outputs=[result], **kinds)


def application(path: Path, **options: Any) -> runner.Sample:
    """Recipe of a model with no part compiled."""
    with mock.patch.object(tf, "function", _function):
        return tensorflow_models.application(path, **options)


def _options(name: str) -> dict[str, float]:
    return next((options for start, options in OPTIONS.items() if name.startswith(start)), {})


BUILDERS = {name: value for name, value in vars(keras.applications).items() if name[0].isupper() and callable(value)}
WRITTEN = {recipe.keywords["build"] for recipe in tensorflow_models.MODELS.values()}
RECIPES: dict[str, runner.Recipe] = {
    f"keras_{name}": partial(application, build=build, edge=EDGE, **_options(name))
    for name, build in sorted(BUILDERS.items())
    if build not in WRITTEN
}

if __name__ == "__main__":
    sys.exit(runner.main("keras", RECIPES, __doc__ or ""))
