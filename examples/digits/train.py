"""Trains a digits classifier in Keras and exports it with tf2onnx.

Writes three files into ``--out`` (this folder by default):

* ``digits.onnx``: the trained network, opset 17, input ``image`` of shape ``(batch, 8, 8, 1)`` and dtype float32 with
  grey values 0 to 16 (TensorFlow's channels-last layout), output ``probability`` of shape ``(batch, 10)``.
* ``digits_test.npz``: the images and labels held out from training: ``image`` ``(450, 8, 8, 1)`` uint8, ``label``
  ``(450,)`` uint8.
* ``digits.json``: Keras's results on these images: the accuracy, every predicted digit, and the probabilities of the
  first images.

The run is seeded and gives the same weights every time. ``nox -s train_digits`` creates its environment from
``scripts/zoo/constraints-tensorflow.txt`` and runs it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import keras
import numpy as np
import tensorflow as tf
import tf2onnx
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = 0
EPOCHS = 40
OPSET = 17
IMAGES_WITH_PROBABILITIES = 16


def build() -> keras.Model:
    """Returns the untrained network: about 33 thousand weights, every layer channels-last.

    It has the layers that make Keras files hard to import: "same" padding that is asymmetric at stride 2, batch
    normalization, depthwise convolution, and a flatten of a channels-last tensor before the last layers.
    """
    image = keras.Input((8, 8, 1), name="image")
    x = layers.Rescaling(1 / 16)(image)
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = layers.ReLU(max_value=6)(layers.BatchNormalization()(x))
    x = layers.Conv2D(32, 1)(x)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Dropout(0.3)(layers.Flatten()(x))
    x = layers.Dense(64, activation="relu")(x)
    return keras.Model(image, layers.Dense(10, activation="softmax", name="probability")(x), name="digits")


def write(path: Path, content: Callable[[Path], object]) -> None:
    """Writes a file beside ``path`` and renames it, so that an interrupted run leaves no incomplete file."""

    unfinished = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        content(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def main() -> None:
    """Trains, prints the accuracy on the held-out images and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent, help="folder for the files (default: this one)"
    )
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        digits.images[..., None].astype(np.float32),
        digits.target,
        test_size=450,
        random_state=SEED,
        stratify=digits.target,
    )
    model = build()
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(train_x, train_y, batch_size=64, epochs=EPOCHS, verbose=2)

    probability = model.predict(test_x, batch_size=len(test_x), verbose=0)
    prediction = probability.argmax(axis=1)
    accuracy = float((prediction == test_y).mean())
    print(f"test accuracy {accuracy:.4f} ({int((prediction == test_y).sum())} of {len(test_y)})")

    signature = [tf.TensorSpec((None, 8, 8, 1), tf.float32, name="image")]
    infer = tf.function(lambda image: {"probability": model(image, training=False)}, input_signature=signature)
    proto, _ = tf2onnx.convert.from_function(infer, input_signature=signature, opset=OPSET)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"

    measured = {
        "accuracy": accuracy,
        "prediction": prediction.tolist(),
        "probability": probability[:IMAGES_WITH_PROBABILITIES].tolist(),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__, "tf2onnx": tf2onnx.__version__},
    }
    write(out / "digits.onnx", lambda path: path.write_bytes(proto.SerializeToString()))
    write(out / "digits.json", lambda path: path.write_text(json.dumps(measured) + "\n"))
    held_out = {"image": test_x.astype(np.uint8), "label": test_y.astype(np.uint8)}
    write(out / "digits_test.npz", lambda path: np.savez_compressed(path, **held_out))
    print(f"wrote digits.onnx, digits.json and digits_test.npz to {out}")


if __name__ == "__main__":
    main()
