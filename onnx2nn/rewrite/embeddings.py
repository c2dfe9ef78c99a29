"""A rule for embeddings whose negative indices count from the end, as Keras 3 computes them."""

from __future__ import annotations

import numpy as np

from onnx2nn.rewrite.patterns import Match, attribute_of, parse
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts

_NEGATIVE = "Less(x | Cast(x), 0)"
_FROM_FRONT = f"Cast({_NEGATIVE}) * (x + rows) + x * Cast(Not({_NEGATIVE})) | Where({_NEGATIVE}, x + rows, x)"


def _embedding(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a Gather without what it does itself: it takes negative indices."""
    table, gather = facts.constant_shape(match["table"]), match["gather"]
    if table is None or attribute_of(gather, "axis", 0) or facts.number(match["rows"]) != table[0]:
        return None
    return NewNode("Gather", (match["table"], match["x"]), like=[gather])


def _sample(match: Match, facts: ValueFacts) -> Sample:
    rows = (facts.constant_shape(match["table"]) or (1,))[0]
    return {"x": np.array([[0, rows - 1], [-1, -rows]])}


RULES = (
    Rule(
        "Embedding",
        parse(f"(gather := Gather(table, {_FROM_FRONT} | Cast({_FROM_FRONT})))"),
        _embedding,
        _sample,
        shared=frozenset({"Add", "Cast", "Less", "Mul", "Not", "Where"}),
    ),
)
