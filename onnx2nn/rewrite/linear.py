"""Rules: a product or convolution and the bias that the exporter adds apart."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx2nn.rewrite.facts import Facts
from onnx2nn.rewrite.patterns import Match, parse
from onnx2nn.rewrite.rule import New, Rule, Sample
from onnx2nn.table import OWN


def _linear(match: Match, facts: Facts) -> New | None:
    weight, bias = match["weight"], match["bias"]
    shape, size = facts.constant_shape(weight), facts.constant_shape(bias)
    if (
        shape is None
        or size is None
        or len(shape) != 2
        or size != shape[1:]
        or facts.constant_shape(match["x"]) is not None
    ):
        return None
    return (
        New(f"{OWN}::Linear", (match["x"], weight, bias)) if facts.is_float(weight) and facts.is_float(bias) else None
    )


def _linear_sample(match: Match, facts: Facts) -> Sample:
    return {"x": (2, 3, 4), "weight": (4, 5), "bias": (5,)}


def _conv(match: Match, facts: Facts) -> New | None:
    """The bias has one number a channel and nothing along the other dimensions."""
    conv, weight, bias = match["conv"], match["weight"], match["bias"]
    shape, size = facts.constant_shape(weight), facts.constant_shape(bias)
    if shape is None or size is None or len(shape) < 3 or not facts.is_float(weight):
        return None
    channels = _channels(conv, shape)
    wanted = (1, channels, *[1] * (len(shape) - 2))
    if size not in (wanted, wanted[1:]):
        return None
    bias = New("Reshape", (bias, np.array([-1])))
    return New(conv.op_type, (match["x"], weight, bias), dict(conv.attributes))


def _conv_sample(match: Match, facts: Facts) -> Sample:
    shape = facts.constant_shape(match["weight"]) or ()
    group = match["conv"].attributes["group"].as_int() if "group" in match["conv"].attributes else 1
    channels = shape[1] * group if match["conv"].op_type == "Conv" else shape[0]
    kernel = [(size - 1) * step + 3 for size, step in zip(shape[2:], _dilations(match["conv"], shape), strict=True)]
    return {"x": (1, channels, *kernel), "weight": shape, "bias": facts.constant_shape(match["bias"]) or ()}


def _dilations(conv: ir.Node, shape: tuple[int, ...]) -> list[int]:
    return list(conv.attributes["dilations"].as_ints()) if "dilations" in conv.attributes else [1] * (len(shape) - 2)


def _channels(conv: ir.Node, weight: tuple[int, ...]) -> int:
    if conv.op_type == "Conv":
        return weight[0]
    return weight[1] * (conv.attributes["group"].as_int() if "group" in conv.attributes else 1)


RULES = (
    Rule("Linear", parse("MatMul(x, weight) + bias"), _linear, _linear_sample),
    Rule("Conv", parse("(conv := Conv(x, weight)) + bias"), _conv, _conv_sample),
    Rule("ConvTranspose", parse("(conv := ConvTranspose(x, weight)) + bias"), _conv, _conv_sample),
)
