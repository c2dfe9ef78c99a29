"""Writes the TensorFlow part of the model zoo: Keras models with random weights and single operators, by tf2onnx.

Runs in the environment of `constraints-tensorflow.txt` (``nox -s zoo_tensorflow``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import keras
import numpy as np
import runner
import tensorflow as tf
import tf2onnx
from tf2onnx import optimizer

OPSET = 17
BATCH = 2
CALIBRATION_BATCH = 16
CLASSES = 10
SURE = 0.9


def export(path: Path, function: Callable[..., tf.Tensor], inputs: Mapping[str, np.ndarray]) -> runner.Sample:
    """Writes a function of tensors as ONNX with a dynamic batch; returns its answer to `inputs`."""
    signature = [tf.TensorSpec((None, *array.shape[1:]), array.dtype, name=name) for name, array in inputs.items()]
    traced = tf.function(function, input_signature=signature)
    tf2onnx.convert.from_function(traced, input_signature=signature, opset=OPSET, output_path=str(path))
    return runner.Sample(inputs, [function(*map(tf.constant, inputs.values())).numpy()])


def randomise(model: keras.Model, images: np.ndarray, generator: np.random.Generator) -> None:
    """Gives a fresh model weights that a test can tell apart.

    Constant weights (biases, scales) get noise. Batch normalization gets the statistics of `images`, which keep deep
    networks from fading or overflowing, and a shift of about one: at zero each ReLU behind it makes rounding errors 1.2
    times larger, thousands of times in 50 layers. Networks without it get kernels scaled for ReLU (He et al. 2015).
    The classifier is made unsure: probabilities of 0 and 1 would hide differences in front of the softmax.
    """
    normalised = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    for weight in model.trainable_weights:
        shape = tuple(weight.shape)
        if np.std(weight.numpy()) == 0:
            weight.assign(weight.numpy() + 0.1 * generator.standard_normal(shape))
        elif not normalised and len(shape) > 1:
            weight.assign(generator.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1])))
    for layer in normalised:
        layer.beta.assign_add(tf.ones_like(layer.beta))
        layer.momentum = 0.0
    model(images, training=True)
    classifier = [layer for layer in model.layers if hasattr(layer, "kernel")][-1]
    while model(images, training=False).numpy().max() > SURE:
        classifier.kernel.assign(classifier.kernel / 2)


def application(
    path: Path, build: Callable[..., keras.Model], edge: int, low: float = -1.0, high: float = 1.0, **options: object
) -> runner.Sample:
    """Recipe of a model of `keras.applications` for images of `edge` pixels with values from `low` to `high`."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    size = (edge, edge, 3)
    model = build(input_shape=size, weights=None, classes=CLASSES, **options)
    images = generator.uniform(low, high, (CALIBRATION_BATCH, *size)).astype(np.float32)
    randomise(model, images, generator)
    # Not `export`: `from_function` makes inputs of the constants in a Normalization layer.
    signature = [tf.TensorSpec((None, *size), tf.float32, name="image")]
    tf2onnx.convert.from_keras(model, input_signature=signature, opset=OPSET, output_path=str(path))
    return runner.Sample({"image": images[:BATCH]}, [model(images[:BATCH], training=False).numpy()])


apps = keras.applications
MODELS: dict[str, runner.Recipe] = {
    "keras_vgg16": partial(application, build=apps.VGG16, edge=32),
    "keras_resnet50": partial(application, build=apps.ResNet50, edge=64),
    "keras_resnet50_v2": partial(application, build=apps.ResNet50V2, edge=64),
    "keras_xception": partial(application, build=apps.Xception, edge=71),
    "keras_mobilenet": partial(application, build=apps.MobileNet, edge=64, alpha=0.25),
    "keras_mobilenet_v2": partial(application, build=apps.MobileNetV2, edge=96, alpha=0.35),
    "keras_mobilenet_v3_small": partial(application, build=apps.MobileNetV3Small, edge=64, low=0, high=255),
    "keras_mobilenet_v3_large": partial(application, build=apps.MobileNetV3Large, edge=64, low=0, high=255),
    "keras_densenet121": partial(application, build=apps.DenseNet121, edge=64),
    "keras_efficientnet_b0": partial(application, build=apps.EfficientNetB0, edge=64, low=0, high=255),
    "keras_efficientnet_v2_b0": partial(application, build=apps.EfficientNetV2B0, edge=64, low=0, high=255),
    "keras_inception_v3": partial(application, build=apps.InceptionV3, edge=128),
    "keras_inception_resnet_v2": partial(application, build=apps.InceptionResNetV2, edge=96),
}


def operator(path: Path, function: Callable[..., tf.Tensor], shapes: Sequence[tuple[int, ...]]) -> runner.Sample:
    """Recipe of one operator: `function` of float32 inputs `x`, `y` ... of these shapes behind the batch."""
    generator = np.random.default_rng(0)
    names = "xyz"[: len(shapes)]
    arrays = [generator.standard_normal((BATCH, *shape)).astype(np.float32) for shape in shapes]
    return export(path, function, dict(zip(names, arrays, strict=True)))


def weight(*shape: int) -> tf.Tensor:
    """A constant of seeded normal values."""
    return tf.constant(np.random.default_rng(1).standard_normal(shape), tf.float32)


def batch_normalization(x: tf.Tensor) -> tf.Tensor:
    """TensorFlow's fused operator in inference, over 4 channels."""
    variance = tf.abs(weight(4)) + 0.5
    return tf.compat.v1.nn.fused_batch_norm(x, weight(4), weight(4) - 1, weight(4) + 1, variance, is_training=False)[0]


IMAGE = (9, 8, 4)
OPERATORS: dict[str, tuple[Any, ...]] = {  # name: function, shape of each input without the batch
    "relu": (tf.nn.relu, IMAGE),
    "concatenate": (lambda x, y: tf.concat([x, y], axis=-1), IMAGE, (9, 8, 3)),
    "expand_dims": (lambda x: tf.expand_dims(x, 1), IMAGE),
    "transpose": (lambda x: tf.transpose(x, (0, 3, 1, 2)), IMAGE),
    "batchnorm": (batch_normalization, IMAGE),
    "slice": (lambda x: tf.slice(x, (0, 1, 2, 0), (-1, 4, 5, 3)), IMAGE),
    "strided_slice": (lambda x: x[:, ::-2, 1:-1, -3:], IMAGE),
    "gather": (lambda x: tf.gather(x, [3, 0, 3, 5], axis=1), IMAGE),
    "clip_by_value": (lambda x: tf.clip_by_value(x, -0.5, 0.75), IMAGE),
    "conv2d": (lambda x: tf.nn.conv2d(x, weight(3, 3, 4, 6), 2, "SAME"), IMAGE),
    "conv2d_valid_dilated": (lambda x: tf.nn.conv2d(x, weight(3, 2, 4, 6), 1, "VALID", dilations=2), IMAGE),
    "conv2d_grouped": (lambda x: tf.nn.conv2d(x, weight(3, 3, 2, 6), 1, "SAME"), IMAGE),
    "depthwiseconv2d": (lambda x: tf.nn.depthwise_conv2d(x, weight(3, 3, 4, 2), (1, 2, 2, 1), "SAME"), IMAGE),
    "flatten": (lambda x: tf.reshape(x, (tf.shape(x)[0], -1)), IMAGE),
    "add": (tf.add, IMAGE, (1, 8, 4)),
    "sub": (tf.subtract, IMAGE, (1, 8, 4)),
    "mul": (tf.multiply, IMAGE, (1, 8, 4)),
    "div": (lambda x, y: tf.divide(x, tf.abs(y) + 0.5), IMAGE, (1, 8, 4)),
    "pow": (lambda x, y: tf.pow(tf.abs(x) + 0.5, y), IMAGE, (1, 8, 4)),
    "sqrt": (lambda x: tf.sqrt(tf.abs(x)), IMAGE),
    "tanh": (tf.tanh, IMAGE),
    "sigmoid": (tf.sigmoid, IMAGE),
    "erf": (tf.math.erf, IMAGE),
    "cast": (lambda x: tf.cast(x * 3, tf.int32), IMAGE),
    "pad": (lambda x: tf.pad(x, ((0, 0), (1, 2), (0, 3), (2, 0)), constant_values=0.5), IMAGE),
    "pad_reflect": (lambda x: tf.pad(x, ((0, 0), (1, 2), (3, 0), (0, 0)), "REFLECT"), IMAGE),
    "maxpool": (lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), IMAGE),
    "avgpool": (lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME"), IMAGE),
    "globalavgpool": (keras.layers.GlobalAveragePooling2D(), IMAGE),
    "globalmaxpool": (keras.layers.GlobalMaxPooling2D(), IMAGE),
    "reduce_mean": (lambda x: tf.reduce_mean(x, axis=(1, -1), keepdims=True), IMAGE),
    "reshape": (lambda x: tf.reshape(x, (-1, 6, 12, 4)), IMAGE),
    "softmax": (lambda x: tf.nn.softmax(x, axis=-1), IMAGE),
    "relu6": (lambda x: tf.nn.relu6(4 * x), IMAGE),
}
layers = keras.layers


def images() -> keras.Model:
    """A small U-Net with most layers that compute on images."""
    x = given = keras.Input((16, 12, 3))
    before = []
    for channels in (4, 8):
        x = layers.Conv2D(channels, 3, padding="same")(x)
        x = layers.BatchNormalization()(layers.PReLU(shared_axes=[1, 2])(x))
        before.append(x)
        x = layers.MaxPool2D()(x)
    x = layers.LayerNormalization()(layers.DepthwiseConv2D(3, padding="same")(x))
    for channels, skip in zip((8, 4), before[::-1], strict=True):
        x = layers.Concatenate()([layers.UpSampling2D(interpolation="bilinear")(x), skip])
        x = layers.LeakyReLU()(layers.Conv2D(channels, 2)(layers.ZeroPadding2D(((1, 0), (0, 1)))(x)))
        squeezed = layers.GlobalAveragePooling2D()(x)
        x = x * layers.Reshape((1, 1, channels))(layers.Dense(channels, activation="sigmoid")(squeezed))
    return keras.Model(given, layers.Softmax()(layers.Conv2D(4, 1)(x)))


def sequence() -> keras.Model:
    """One-dimensional convolutions, which TensorFlow computes as two-dimensional ones."""
    x = given = keras.Input((20, 6))
    x = layers.Conv1D(8, 3, padding="causal", activation="relu")(x)
    x = layers.Add()([x, layers.Conv1D(8, 3, padding="same")(x)])
    x = layers.LayerNormalization()(layers.MaxPool1D()(layers.BatchNormalization()(x)))
    return keras.Model(given, layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


def small(path: Path, build: Callable[[], keras.Model], optimised: bool = True) -> runner.Sample:
    """Recipe of a model of few weights; not `optimised`, tf2onnx leaves all its transposes and TensorFlow's nodes."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    model = build()
    for weights in model.weights:
        if np.std(weights.numpy()) == 0:
            weights.assign(weights.numpy() + 0.1 * np.abs(generator.standard_normal(weights.shape)))
    x = generator.standard_normal((BATCH, *model.inputs[0].shape[1:])).astype(np.float32)
    signature = [tf.TensorSpec((None, *x.shape[1:]), tf.float32, name="x")]
    optimise = optimizer.optimize_graph
    try:
        if not optimised:
            optimizer.optimize_graph = lambda graph, *args, **kwargs: graph
        tf2onnx.convert.from_keras(model, input_signature=signature, opset=OPSET, output_path=str(path))
    finally:
        optimizer.optimize_graph = optimise
    return runner.Sample({"x": x}, [model(x, training=False).numpy()])


SMALL: dict[str, runner.Recipe] = {
    f"keras_{build.__name__}{'' if optimised else '_literal'}": partial(small, build=build, optimised=optimised)
    for build in (images, sequence)
    for optimised in (True, False)
}
"""Those in `tests/data`."""

RECIPES = (
    MODELS
    | SMALL
    | {
        f"tensorflow_op_{name}": partial(operator, function=function, shapes=shapes)
        for name, (function, *shapes) in OPERATORS.items()
    }
)

if __name__ == "__main__":
    sys.exit(runner.main("tensorflow", RECIPES, __doc__))
