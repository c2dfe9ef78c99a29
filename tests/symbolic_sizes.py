"""The `Sizes` of tests of shape rules: it notes what a rule requires."""

from __future__ import annotations

from onnx2nn.fx.shape_rules.rule import Sizes
from onnx2nn.fx.trace_errors import ShapeMismatch
from onnx2nn.sizes.conditions import Truth, equal
from onnx2nn.sizes.expression import Number
from onnx2nn.sizes.facts import Facts


class RecordedSizes(Sizes):
    """Decides by facts, and notes the conditions that a rule requires.

    Attributes:
        facts: what is known; a required condition is known from then on.
        conditions: the required conditions that are not proven, in order.
    """

    def __init__(self) -> None:
        self.facts = Facts()
        self.conditions: list[Truth] = []

    def decide(self, condition: Truth) -> bool | None:
        return self.facts.decide(condition)

    def require(self, condition: Truth, reason: str) -> None:
        decided = self.decide(condition)
        if decided is False:
            raise ShapeMismatch(reason, [])
        if decided is None:
            self.facts.assume(condition)
            self.conditions.append(condition)

    def equal(self, a: Number, b: Number, reason: str) -> Number:
        self.require(equal(a, b), reason)
        return a if isinstance(a, int) else b
