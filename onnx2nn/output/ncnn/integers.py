"""Writes an NCNN model with 8-bit integers: weights by output channel, activations by a table of calibration data.

The form is that of ncnn's `ncnn2int8`: a layer's parameter 8, weights of int8, behind the bias the scales of the
weights and that of its input. A layer computes `sum(round(x * s) * w) / (s * v)`, where `s` is its input's scale and
`v` an output channel's; integers are -127 to 127. A Gemm (a linear layer of rows) has parameter 18 and one scale for
all weights; it takes that of each row from the row when it runs. Layers of other types stay in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from onnx2nn.output.ncnn.model_files import Layer

LARGEST = 127
"""The largest integer; -128 is not used."""

BINS = 2048
"""Intervals of a histogram of magnitudes."""

_FEWEST = 64
"""Intervals below the smallest threshold that is tried."""

_SCALES = {"Convolution": 2, "ConvolutionDepthWise": 1, "InnerProduct": 2}
"""Layer type → parameter 8 for scales by output channel, or by group, and one of the input."""


def is_measured(layer: Layer) -> bool:
    """Returns whether a layer computes with integers by a scale of its input; its weights are in the file."""
    return layer.kind in _SCALES and bool(layer.weights)


def is_product(layer: Layer) -> bool:
    """Returns whether a layer multiplies rows by a constant matrix."""
    return layer.kind == "Gemm" and not layer.number(4) and layer.number(5) == 1


def threshold(counts: np.ndarray, largest: float) -> float:
    """Returns the magnitude up to which values keep their differences; larger ones become it.

    It has the least sum of squared errors: a step of `t / 127` adds a twelfth of its square for each value below `t`,
    as rounding errors are taken for evenly distributed, and a value above `t` its distance from it.

    Args:
        counts: the number of magnitudes in each of equal intervals from 0 to `largest`, `(BINS,)`.
        largest: the largest magnitude, positive.
    """
    middles, ends = (np.arange(BINS) + 0.5) * largest / BINS, np.arange(1, BINS + 1) * largest / BINS
    below = np.cumsum(counts)
    # The sum over larger values of (x - t)^2 = x^2 - 2 x t + t^2, by sums from the end.
    count, first, second = (np.append(np.cumsum((counts * middles**power)[::-1])[::-1][1:], 0.0) for power in range(3))
    clipped = second - 2 * ends * first + ends**2 * count
    errors = below * (ends / LARGEST) ** 2 / 12 + clipped
    return float(ends[_FEWEST + np.argmin(errors[_FEWEST:])])


def with_integers(layers: Sequence[Layer], thresholds: Mapping[str, float]) -> list[Layer]:
    """Returns the layers of a model in float32, those with a threshold for their input with integers.

    Args:
        layers: of the model.
        thresholds: the largest magnitude of values by name, see `threshold`; of no layer where it is 0.
    """

    def converted(layer: Layer) -> Layer:
        if is_product(layer):
            return _product(layer)
        largest = thresholds.get(layer.inputs[0], 0) if is_measured(layer) else 0
        return _quantised(layer, largest) if largest > 0 else layer

    return list(map(converted, layers))


def _quantised(layer: Layer, largest: float) -> Layer:
    weight, *bias = (array for _, array in layer.weights)
    channels = layer.number(7) if layer.kind == "ConvolutionDepthWise" else layer.number(0)
    integers, scales = _scaled(weight.reshape(channels, -1))
    weights = [(True, integers), *((False, array) for array in bias)]
    weights += [(False, scales), (False, np.array([LARGEST / largest], np.float32))]
    return dataclasses.replace(layer, options={**layer.options, 8: str(_SCALES[layer.kind])}, weights=weights)


def _product(layer: Layer) -> Layer:
    matrix, *added = (array for _, array in layer.weights)
    if not layer.number(3):
        matrix = matrix.reshape(layer.number(9), layer.number(8)).T
    integers, scale = _scaled(matrix.reshape(1, -1))
    weights = [(True, integers), *((True, array) for array in added), (False, scale)]
    return dataclasses.replace(layer, options={**layer.options, 3: "1", 18: "2"}, weights=weights)


def _scaled(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights as int8, flat, and the scale of each row."""
    most = np.abs(rows).max(1)
    scales = np.where(most > 0, LARGEST / np.where(most > 0, most, 1), 1).astype(np.float32)
    return np.clip(rounded(rows * scales[:, None]), -LARGEST, LARGEST).astype(np.int8).reshape(-1), scales


def rounded(values: np.ndarray) -> np.ndarray:
    """Returns the nearest integers, of two the one farther from 0, as ncnn rounds."""
    return np.trunc(values + np.copysign(np.float32(0.5), values))
