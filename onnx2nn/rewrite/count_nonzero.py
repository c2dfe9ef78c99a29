"""A rule for counting the true elements of a mask, as torch's dynamo exporter does for `x[mask] = values`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx2nn.rewrite.patterns import Match, parse
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts


def _count(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the count as the size of NonZero's output.

    The exporter also uses the NonZero itself, as indices. With one origin, both have the same data-dependent size.
    """
    attributes = match["sum"].attributes
    plain = all(attributes[name].value == default for name, default in _DEFAULTS.items() if name in attributes)
    if not plain or match["mask"].dtype != ir.DataType.BOOL or facts.ints(match["target"]) != [-1]:
        return None
    return NewNode("Shape", (NewNode("NonZero", (match["mask"],)),), {"start": 1})


_DEFAULTS = {"keepdims": 1, "noop_with_empty_axes": 0}
"""Attributes of a ReduceSum over all elements."""


def _mask_sample(match: Match, facts: ValueFacts) -> Sample:
    return {"mask": np.array([[True, False, True], [False, False, True]])}


RULES = (Rule("count_nonzero", parse("(sum := ReduceSum(Cast(Reshape(mask, target), to=7)))"), _count, _mask_sample),)
