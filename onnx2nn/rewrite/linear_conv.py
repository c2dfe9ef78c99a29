"""Rules for a matrix product or convolution with its bias in a separate Add, or its padding in a separate Pad."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.patterns import Match, parse
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample, flat
from onnx2nn.rewrite.value_facts import ValueFacts


def _linear(match: Match, facts: ValueFacts) -> NewNode | None:
    weight, bias = match["weight"], match["bias"]
    shape, size = facts.constant_shape(weight), facts.constant_shape(bias)
    if shape is None or size is None or len(shape) != 2 or size != shape[1:]:
        return None
    return (
        NewNode(f"{OWN}::Linear", (match["x"], weight, bias))
        if facts.is_float(weight) and facts.is_float(bias)
        else None
    )


def _linear_sample(match: Match, facts: ValueFacts) -> Sample:
    return {"x": (2, 3, 4), "weight": (4, 5), "bias": (5,)}


def _conv(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a convolution with bias. The added constant must have the shape `(1, C, 1, ...)` or `(C, 1, ...)`."""
    conv, weight, bias = match["conv"], match["weight"], match["bias"]
    shape, size = facts.constant_shape(weight), facts.constant_shape(bias)
    if shape is None or size is None or len(shape) < 3 or not facts.is_float(weight):
        return None
    channels = _channels(conv, shape)
    wanted = (1, channels, *[1] * (len(shape) - 2))
    if size not in (wanted, wanted[1:]):
        return None
    return NewNode(conv.op_type, (match["x"], weight, flat(bias)), dict(conv.attributes))


def _conv_sample(match: Match, facts: ValueFacts) -> Sample:
    """Returns sample inputs with two channels in each group: the operator has no attribute for their number.

    Two groups stand for any number of them: a depthwise convolution has hundreds, and torch computes each by a call.
    """
    conv, shape = match["conv"], facts.constant_shape(match["weight"]) or ()
    channels = 2 * min(_groups(conv), _REPEATS["group"])
    sizes = [(size - 1) * step + 3 for size, step in zip(shape[2:], _dilations(conv, shape), strict=True)]
    sample: dict[str, Any] = {"x": (1, channels, *sizes), "weight": (channels, 2, *shape[2:])}
    if "own" in match:
        sample["own"] = (channels,)
    bias = facts.constant_shape(match.get("bias"))
    if bias is not None:
        axis = 0 if len(bias) == 1 else len(bias) - len(shape) + 1
        sample["bias"] = (*bias[:axis], channels, *bias[axis + 1 :])
    return sample


def _dilations(conv: ir.Node, shape: tuple[int, ...]) -> list[int]:
    return list(conv.attributes["dilations"].as_ints()) if "dilations" in conv.attributes else [1] * (len(shape) - 2)


def _channels(conv: ir.Node, weight: tuple[int, ...]) -> int:
    if conv.op_type == "Conv":
        return weight[0]
    return weight[1] * _groups(conv)


def _groups(conv: ir.Node) -> int:
    return conv.attributes["group"].as_int() if "group" in conv.attributes else 1


def _padded(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a convolution with the zeros of a Pad in its own `pads`.

    The sums must be equal at both ends of a dimension, as in `nn.Conv2d`'s `padding`.
    """
    conv, pad = match["conv"], match["pad"]
    mode = pad.attributes["mode"].as_string() if "mode" in pad.attributes else "constant"
    automatic = conv.attributes["auto_pad"].as_string() if "auto_pad" in conv.attributes else "NOTSET"
    shape, pads = facts.constant_shape(match["weight"]), _pads(pad, facts)
    if mode != "constant" or automatic != "NOTSET" or shape is None or pads is None or len(pads) != 2 * len(shape):
        return None
    own = list(conv.attributes["pads"].as_ints()) if "pads" in conv.attributes else [0] * (len(pads) - 4)
    rank = len(shape)
    total = [more + less for more, less in zip([*pads[2:rank], *pads[rank + 2 :]], own, strict=True)]
    if any(pads[:2] + pads[rank : rank + 2]) or min(pads) < 0 or total[: rank - 2] != total[rank - 2 :]:
        return None
    attributes = {**conv.attributes, "pads": ir.AttrInt64s("pads", total)}
    return NewNode("Conv", (match["x"], *conv.inputs[1:]), attributes)


def _pads(pad: ir.Node, facts: ValueFacts) -> list[int] | None:
    """Returns the pads at each end of each dimension, None where they are unknown or not filled with zeros."""

    if "pads" in pad.attributes:
        value = pad.attributes["value"].as_float() if "value" in pad.attributes else 0.0
        return list(pad.attributes["pads"].as_ints()) if value == 0 else None
    fill = facts.number(pad.inputs[2]) if len(pad.inputs) > 2 and pad.inputs[2] is not None else 0.0
    pads = facts.array(pad.inputs[1]) if len(pad.inputs) > 1 else None
    if pads is None or fill != 0 or (len(pad.inputs) > 3 and pad.inputs[3] is not None):
        return None
    return [int(size) for size in pads]


_PAD = "(pad := Pad(x, ...))"
_PADDED = f"(conv := Conv({_PAD}, weight)) | (conv := Conv({_PAD}, weight, own))"
_REPEATS = {"group": 2}

RULES = (
    Rule("pads", parse(_PADDED), _padded, _conv_sample, repeats=_REPEATS, one_layer=True),
    Rule("Linear", parse("MatMul(x, weight) + bias"), _linear, _linear_sample, one_layer=True),
    *(
        Rule(name, parse(f"(conv := {name}(x, weight)) + bias"), _conv, _conv_sample, repeats=_REPEATS, one_layer=True)
        for name in ("Conv", "ConvTranspose")
    ),
)
