"""Rules for matrix products between pairs of QuantizeLinear and DequantizeLinear, see `quantised_convolutions`."""

from __future__ import annotations

from onnx2nn.rewrite.patterns import Match, parse
from onnx2nn.rewrite.quantised_convolutions import INPUT, WEIGHT, attribute, is_of_bytes, sample_of_bytes
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts


def _product(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a QLinearMatMul, of which ONNX Runtime makes such products too."""
    w, w_scale = facts.array(match["w"]), facts.array(match["w_scale"])
    if w is None or w_scale is None or w.ndim != 2 or not is_of_bytes(match, facts):
        return None
    is_of_columns = w_scale.size == w.shape[1] and attribute(match["weight"], "axis", 1) in (1, -1)
    if w_scale.size != 1 and not is_of_columns:
        return None
    names = ("x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero")
    return NewNode("QLinearMatMul", tuple(match[name] for name in names))


def _sample(match: Match, facts: ValueFacts) -> Sample:
    w = facts.array(match["w"])
    assert w is not None  # of a match
    return sample_of_bytes(match, (3, w.shape[0]))


RULES = (
    Rule(
        "product of integers",
        parse(f"QuantizeLinear(MatMul({INPUT}, {WEIGHT}), y_scale, y_zero)"),
        _product,
        _sample,
        shared=frozenset({"DequantizeLinear"}),
        rounds=True,
    ),
)
