"""Rules for quantised convolutions: between pairs of QuantizeLinear and DequantizeLinear, and of integers.

A file with such pairs states a computation in floats, which the literal import keeps. ONNX Runtime computes it on
integers, as these rules do for a module that is optimised: the sums are exact then, and the result is another step only
where the float sum lies within its rounding error of the middle between two steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.ground.element_types import BY_NAME, Element
from onnx2nn.ops import integer_convolutions
from onnx2nn.ops.quantized_numbers import limits
from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.patterns import Match, parse, tensor_of
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts

FUSED = f"{OWN}::FusedQLinearConv"

_EIGHT_BITS = ("INT8", "UINT8")


def _convolution(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a FusedQLinearConv; its result saturates where a Relu or Clip in the pattern does."""
    w, w_scale, x_scale = (facts.array(match[name]) for name in ("w", "w_scale", "x_scale"))
    if w is None or w_scale is None or x_scale is None or w.ndim not in (3, 4) or not is_of_bytes(match, facts):
        return None
    if not integer_convolutions.available(facts.F) or not _saturates(match, facts):
        return None
    if w_scale.size not in (1, w.shape[0]) or (w_scale.size > 1 and attribute(match["weight"], "axis", 1) != 0):
        return None
    inputs = [match[name] for name in ("x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero")]
    if "b" in match:
        b_scale = facts.array(match["b_scale"])
        if b_scale is None or not np.array_equal(b_scale.reshape(-1), (x_scale * w_scale).reshape(-1)):
            return None
        inputs.append(match["b"])
    return NewNode(FUSED, tuple(inputs), _attributes(match))


def is_of_bytes(match: Match, facts: ValueFacts) -> bool:
    """Returns whether input, constant weight and result are 8-bit integers, of one scale each but for the weight."""
    w = facts.array(match["w"])
    kinds = [_type_of(match[name]) for name in ("x_zero", "y_zero")]
    if w is None or w.dtype not in (np.int8, np.uint8) or not {kind and kind.name for kind in kinds} <= {*_EIGHT_BITS}:
        return False
    if any(attribute(match[name], "block_size", 0) for name in ("weight", "input")):
        return False
    of_one = (facts.array(match[name]) for name in ("x_scale", "x_zero", "y_scale", "y_zero"))
    return all(array is not None and array.size == 1 for array in of_one)


def _type_of(value: ir.Value) -> ir.DataType | None:
    """Returns the type of a value: a constant's own, as the file need not declare it for the output of a node."""
    tensor = tensor_of(value)
    return value.dtype if tensor is None else tensor.dtype


def _element_of(value: ir.Value) -> Element:
    """Returns the element type of a value for which `is_of_bytes` found one."""
    kind = _type_of(value)
    assert kind is not None
    return BY_NAME[kind.name]


def _fused(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the fused form of a QLinearConv."""
    w = facts.array(match["w"])
    available = integer_convolutions.available(facts.F) and w is not None and w.ndim in (3, 4)
    return NewNode(FUSED, tuple(match["conv"].inputs), _attributes(match)) if available else None


def _attributes(match: Match) -> dict[str, Any]:
    return {attribute.name: attribute.value for attribute in match["conv"].attributes.values()}


def attribute(node: Any, name: str, default: int) -> int:
    """Returns an integer attribute of a node."""
    return node.attributes[name].as_int() if name in node.attributes else default


def _saturates(match: Match, facts: ValueFacts) -> bool:
    """Returns whether the numbers that the result's type holds lie within the limits of a Relu or Clip."""
    scale, zero = facts.number(match["y_scale"]), facts.number(match["y_zero"])
    if scale is None or zero is None or not scale > 0:
        return False
    smallest, largest = ((limit - zero) * scale for limit in limits(_element_of(match["y_zero"])))
    if "relu" in match:
        return smallest >= 0
    if "clip" not in match:
        return True
    # The limit is a float32 of the file, and NumPy below 2 compares it with a float in float64.
    low, high = facts.number(match["low"]), facts.number(match["high"])
    return low is not None and high is not None and low <= smallest and np.float32(largest) <= np.float32(high)


def _sample(match: Match, facts: ValueFacts) -> Sample:
    w = facts.array(match["w"])
    group = attribute(match["conv"], "group", 1)
    dilations = match["conv"].attributes["dilations"].as_ints() if "dilations" in match["conv"].attributes else []
    assert w is not None  # of a match
    sizes = [(kernel - 1) * d + 3 for kernel, d in zip(w.shape[2:], dilations or [1] * (w.ndim - 2), strict=True)]
    return sample_of_bytes(match, (1, w.shape[1] * group, *sizes))


def sample_of_bytes(match: Match, shape: tuple[int, ...]) -> Sample:
    """Returns an input of a shape, of all the numbers that its type holds."""
    element = _element_of(match["x_zero"])
    least, most = limits(element)
    return {"x": np.random.default_rng(0).integers(least, most + 1, shape).astype(element.dtype)}


INPUT = "(input := DequantizeLinear(x, x_scale, x_zero))"
WEIGHT = "(weight := DequantizeLinear(w, w_scale, w_zero))"
_BIAS = "(DequantizeLinear(b, b_scale, ...) | DequantizeLinear(b, b_scale))"
_CONV = f"((conv := Conv({INPUT}, {WEIGHT}, {_BIAS})) | (conv := Conv({INPUT}, {WEIGHT})))"
_ACTIVATED = f"({_CONV} | (relu := Relu({_CONV})) | (clip := Clip({_CONV}, low, high)))"

RULES = (
    Rule(
        "convolution of integers",
        parse(f"QuantizeLinear({_ACTIVATED}, y_scale, y_zero)"),
        _convolution,
        _sample,
        shared=frozenset({"DequantizeLinear"}),
        rounds=True,
    ),
    Rule(
        "fused convolution of integers",
        parse("(conv := QLinearConv(x, x_scale, x_zero, w, ...))"),
        _fused,
        _sample,
        rounds=True,
    ),
)
