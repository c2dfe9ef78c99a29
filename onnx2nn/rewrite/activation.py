"""Rules for activations that the exporter wrote as arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.patterns import Match, attribute_of, largest_constant_rank, parse
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts


def _is(operator: str, **attributes: Any) -> Callable[[Match, ValueFacts], NewNode | None]:
    """Returns a builder of `operator(x)`; a Clip in the pattern must have the limits 0 and 6."""

    def build(match: Match, facts: ValueFacts) -> NewNode | None:
        clip = match.get("clip")
        if clip is not None and _limits(clip, facts) != (0.0, 6.0):
            return None
        rank = facts.rank(match["x"])
        if largest_constant_rank(match) > (1 if rank is None else rank):
            return None  # broadcasting against such a constant may raise the rank of the result
        return NewNode(operator, (match["x"],), attributes)

    return build


def any_shape(match: Match, facts: ValueFacts) -> Sample:
    """Returns the sample inputs of an elementwise function."""
    return {"x": (2, 3, 5, 4, 3, 2)[: max(3, largest_constant_rank(match))]}


def _limits(clip: Any, facts: ValueFacts) -> tuple[float | None, float | None]:
    """Returns the limits of a Clip, from its inputs or, before opset 11, its attributes."""
    given = [clip.attributes[name].as_float() if name in clip.attributes else None for name in ("min", "max")]
    for position, value in enumerate(clip.inputs[1:3]):
        given[position] = facts.number(value)
    return given[0], given[1]


def _rules(name: str, texts: Iterator[str] | tuple[str, ...], operator: str, **attributes: Any) -> tuple[Rule, ...]:
    return tuple(Rule(name, parse(text), _is(operator, **attributes), any_shape) for text in texts)


def _halved(factor: str) -> Iterator[str]:
    """Yields the patterns of `x * factor / 2` in every order of evaluation."""
    yield f"(x * {factor}) * 0.5 | (x * {factor}) / 2"
    yield f"x * ({factor} * 0.5 | {factor} / 2)"
    yield f"(x * 0.5 | x / 2) * {factor}"


def _prelu(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a PReLU from Keras's form, `max(x, 0) + slope * min(x, 0)`."""

    channels, rank = facts.channels(match["slope"], match["x"]), facts.rank(match["x"])
    if channels is None or rank is None:
        return None
    slope = NewNode("Reshape", (match["slope"], np.array([channels, *[1] * (rank - 2)])))
    return NewNode("PRelu", (match["x"], NewNode("Neg", (slope,))))


def _prelu_sample(match: Match, facts: ValueFacts) -> Sample:
    shape = facts.constant_shape(match["slope"]) or ()
    return {"x": (2, math.prod(shape), *(4, 5, 3)[: (facts.rank(match["x"]) or 2) - 2]), "slope": shape}


def _glu(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a gated linear unit of the two parts of a Split, which are equal where the number of elements is even."""
    split: ir.Node = match["split"]
    axis = attribute_of(split, "axis", 0)
    given = len(split.inputs) > 1 or "split" in split.attributes  # other parts would not fit, or be broadcast
    if given or len(split.outputs) != 2 or match["gate"] is not split.outputs[1]:
        return None
    return NewNode(f"{OWN}::GLU", (match["x"],), {"axis": axis, "padded": int("num_outputs" in split.attributes)})


def _glu_sample(match: Match, facts: ValueFacts) -> Sample:
    split: ir.Node = match["split"]
    axis = attribute_of(split, "axis", 0)
    shape = [*(facts.shape(match["x"]) or (2, 3, 5, 4)[: max(4, axis + 1)])]
    shape[axis] += shape[axis] % 2
    return {"x": tuple(shape)}


_ERF = "(Erf(x / 1.4142135623730951 | x * 0.7071067811865476) + 1)"
_CUBE = "(x ** 3 | x * (x * x))"
_TANH = f"(Tanh((x + {_CUBE} * 0.044715) * 0.7978845608028654) + 1)"
_FAST_TANH = "(Tanh((x * 0.7978845608028654) * (1 + (x * 0.044715) * x)) + 1)"
_GATE = "(clip := Clip(x + 3, ...))"

RULES = (
    Rule("PReLU", parse("Relu(x) + Relu(-x) * +slope"), _prelu, _prelu_sample),
    *_rules("GELU", _halved(_ERF), "Gelu"),
    *_rules("GELU (tanh)", _halved(_TANH), "Gelu", approximate="tanh"),
    *_rules("GELU (tanh)", _halved(_FAST_TANH), "Gelu", approximate="tanh"),
    *_rules("SiLU", ("x * Sigmoid(x)",), "Swish"),
    Rule("GLU", parse("(split := Split(x, ...)) * Sigmoid(gate)"), _glu, _glu_sample),
    *_rules("Softsign", ("x / (Abs(x) + 1)",), "Softsign"),
    *_rules("Mish", ("x * Tanh(Softplus(x) | Log(Exp(x) + 1))",), "Mish"),
    *_rules("Softplus", ("Where(Greater(x, 20), x, Softplus(x) | Log(Exp(x) + 1))", "Log(Exp(x) + 1)"), "Softplus"),
    *_rules(
        "Hardswish",
        (
            f"x * ({_GATE} / 6 | {_GATE} * 0.16666666666666666)",
            f"(x * {_GATE}) / 6 | (x * {_GATE}) * 0.16666666666666666",
            "x * HardSigmoid(x, alpha=0.1666666716337204)",
        ),
        "HardSwish",
    ),
    *_rules(
        "Hardsigmoid",
        (f"{_GATE} / 6", f"{_GATE} * 0.16666666666666666"),
        "HardSigmoid",
        alpha=0.16666667163372040,
        beta=0.5,
    ),
)
