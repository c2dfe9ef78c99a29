"""The two files of an NCNN model: layers in `.param`, a line each, and their weights in `.bin`, one behind the other.

Which weights a layer has, and in which order, only NCNN's code says (`Layer::load_model` of each layer). A weight that
may be stored in several types has a tag in front of it (`ModelBin::load` of type 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnx2nn.errors import NcnnError

FLOATS = b"\0\0\0\0"
"""The tag of float32."""
INT8 = (0x000D4B38).to_bytes(4, "little")
"""The tag of int8, whose bytes are filled up to a multiple of four."""


@dataclass
class Layer:
    """A line of a `.param` file.

    Attributes:
        kind: the layer's type.
        name: its name.
        inputs: the names of the values that it reads.
        outputs: those of its results.
        options: its parameters by number, as they are written.
        weights: its weights in the `.bin` file, float32, each flat; with a tag or without.
    """

    kind: str
    name: str
    inputs: list[str]
    outputs: list[str]
    options: dict[int, str]
    weights: list[tuple[bool, np.ndarray]]

    def number(self, option: int, default: int = 0) -> int:
        """Returns an integer parameter."""
        return int(self.options.get(option, default))


def _convolution(layer: Layer) -> list[tuple[bool, int]]:
    return [] if layer.number(19) else [(True, layer.number(6)), (False, layer.number(5) * layer.number(0))]


def _deconvolution(layer: Layer) -> list[tuple[bool, int]]:
    return [] if layer.number(28) else [(True, layer.number(6)), (False, layer.number(5) * layer.number(0))]


def _gemm(layer: Layer) -> list[tuple[bool, int]]:
    m, n, k = layer.number(7), layer.number(8), layer.number(9)
    added = {-1: 0, 0: 1, 1: m, 2: m, 3: m * n, 4: n}[layer.number(10)]
    return [(True, layer.number(4) * m * k), (True, layer.number(5) * n * k), (True, layer.number(6) * added)]


def _recurrent(gates: int, biases: int) -> Callable[[Layer], list[tuple[bool, int]]]:
    def weights(layer: Layer) -> list[tuple[bool, int]]:
        directions, outputs = 1 + (layer.number(2) == 2), layer.number(0)
        hidden = layer.number(3, outputs) if gates == 4 else outputs
        sizes = [layer.number(1), biases * hidden * directions, gates * hidden * outputs * directions]
        return [(True, size) for size in (*sizes, (hidden != outputs) * hidden * outputs * directions)]

    return weights


def _attention(layer: Layer) -> list[tuple[bool, int]]:
    size, weight = layer.number(0), layer.number(2)
    queries = weight // size
    weights = [weight, size * layer.number(3, size), size * layer.number(4, size), weight]
    pairs = zip(weights, [size, size, size, queries], strict=True)
    return [part for weight, bias in pairs for part in ((True, weight), (False, bias))]


def _memory(layer: Layer) -> list[tuple[bool, int]]:
    sizes = [layer.number(option) or 1 for option in (0, 1, 11, 2)]
    return [(not layer.number(21, 1), math.prod(sizes))]


def _norm(size: int, affine: int, count: int) -> Callable[[Layer], list[tuple[bool, int]]]:
    return lambda layer: [(False, layer.number(size) * layer.number(affine, 1))] * count


_WEIGHTS: dict[str, Callable[[Layer], list[tuple[bool, int]]]] = {
    **dict.fromkeys(("Convolution", "Convolution1D", "Convolution3D"), _convolution),
    **dict.fromkeys(("ConvolutionDepthWise", "ConvolutionDepthWise1D", "ConvolutionDepthWise3D"), _convolution),
    **dict.fromkeys(("Deconvolution", "Deconvolution1D", "DeconvolutionDepthWise"), _deconvolution),
    "InnerProduct": lambda layer: [(True, layer.number(2)), (False, layer.number(1) * layer.number(0))],
    "Embed": lambda layer: [(True, layer.number(3)), (False, layer.number(2) * layer.number(0))],
    "Gemm": _gemm,
    "LSTM": _recurrent(4, 4),
    "GRU": _recurrent(3, 4),
    "RNN": _recurrent(1, 1),
    "MultiHeadAttention": _attention,
    "MemoryData": _memory,
    "LayerNorm": _norm(0, 2, 2),
    "InstanceNorm": _norm(0, 2, 2),
    "RMSNorm": _norm(0, 2, 1),
    "GroupNorm": _norm(1, 3, 2),
    "BatchNorm": lambda layer: [(False, layer.number(0))] * 4,
    "Scale": lambda layer: [(False, layer.number(0)), (False, layer.number(1) * layer.number(0))],
    "Bias": lambda layer: [(False, layer.number(0))],
    "PReLU": lambda layer: [(False, layer.number(0))],
    "Padding": lambda layer: [(False, layer.number(6))],
}
"""Layer type → whether each of its weights has a tag, and its number of elements; other types have none."""


def read(param: Path, weights: Path) -> list[Layer]:
    """Returns the layers of a model in float32.

    Raises:
        NcnnError: a layer has weights that are not known here: the file is longer or shorter than those that are.
    """
    layers, data, at = [], weights.read_bytes(), 0
    for line in param.read_text().splitlines()[2:]:
        kind, name, inputs, outputs, *rest = line.split()
        values, end = rest[: int(inputs)], int(inputs) + int(outputs)
        options = dict(text.split("=", 1) for text in rest[end:])
        layer = Layer(kind, name, values, rest[int(inputs) : end], {int(k): v for k, v in options.items()}, [])
        for tagged, count in _WEIGHTS.get(kind, lambda _: [])(layer):
            if not count:
                continue
            start = at + 4 * tagged
            if data[at:start].strip(b"\0") or start + 4 * count > len(data):
                raise NcnnError("The weights of this layer are not known", [f"{name}: {kind}"])
            layer.weights.append((tagged, np.frombuffer(data, "<f4", count, start)))
            at = start + 4 * count
        layers.append(layer)
    if at != len(data):
        kinds = sorted({layer.kind for layer in layers} - _WEIGHTS.keys())
        raise NcnnError("One of these layers has weights that are not known", kinds)
    return layers


def write(layers: Sequence[Layer], param: Path, weights: Path) -> None:
    """Writes layers as the two files; int8 weights with their tag."""
    values = {value for layer in layers for value in layer.outputs}
    lines = ["7767517", f"{len(layers)} {len(values)}"]
    with weights.open("wb") as file:
        for layer in layers:
            options = [f"{key}={value}" for key, value in layer.options.items()]
            counts = [str(len(layer.inputs)), str(len(layer.outputs))]
            lines.append(" ".join([layer.kind, layer.name, *counts, *layer.inputs, *layer.outputs, *options]))
            for tagged, array in layer.weights:
                data = array.tobytes()
                tag = INT8 if array.dtype == np.int8 else FLOATS
                file.write(tag * tagged + data + b"\0" * (-len(data) % 4))
    param.write_text("\n".join(lines) + "\n")
