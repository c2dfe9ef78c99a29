"""Rules: what is read and written through masks."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx2nn.rewrite.facts import Facts
from onnx2nn.rewrite.patterns import Match, parse
from onnx2nn.rewrite.rule import New, Rule, Sample


def _places(match: Match, facts: Facts) -> New | None:
    """The count of what is true as the number of its places, so that it is known to be that of the elements there.

    Torch's dynamo exporter writes `x[mask] = values` with both.
    """
    attributes = match["sum"].attributes
    whole = all(attributes[name].value == wanted for name, wanted in _WHOLE.items() if name in attributes)
    if not whole or match["mask"].dtype != ir.DataType.BOOL or facts.ints(match["target"]) != [-1]:
        return None
    return New("Shape", (New("NonZero", (match["mask"],)),), {"start": 1})


_WHOLE = {"keepdims": 1, "noop_with_empty_axes": 0}


def _mask_sample(match: Match, facts: Facts) -> Sample:
    return {"mask": np.array([[True, False, True], [False, False, True]])}


RULES = (Rule("count_nonzero", parse("(sum := ReduceSum(Cast(Reshape(mask, target), to=7)))"), _places, _mask_sample),)
