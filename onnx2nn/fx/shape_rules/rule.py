"""What a shape rule is, what it may ask of the importer, and the registry of rules.

A rule has the parameters of its torch function, behind one for `Sizes`. Tensors arrive as specs of known rank, symbolic
numbers as `Size` (or `Condition`), everything else as it is. It returns the spec of the result, or a tuple of specs
where the function has several; None for calls that it does not cover: these run on meta tensors instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from onnx2nn.fx.spec import Spec
from onnx2nn.sizes.conditions import Truth
from onnx2nn.sizes.expression import Number

Result = Spec | tuple[Any, ...] | None
"""The result of a rule: a spec, a (nested) tuple of specs, or None."""

Rule = Callable[..., Result]
R = TypeVar("R", bound=Rule)

RULES: dict[Any, Rule] = {}
"""The rules, by function or name of a tensor method."""


class Sizes(ABC):
    """What a rule may ask about sizes."""

    @abstractmethod
    def decide(self, condition: Truth) -> bool | None:
        """Returns the truth of a condition for all sizes, None where it is not proven."""

    @abstractmethod
    def require(self, condition: Truth, reason: str) -> None:
        """Notes that the call fails where a condition is false: a guard checks it, unless it is proven.

        Raises:
            ShapeMismatch: it is proven to be false.
        """

    @abstractmethod
    def equal(self, a: Number, b: Number, reason: str) -> Number:
        """Requires two numbers to be equal; returns the one of which more is known.

        Raises:
            ShapeMismatch: they are proven to differ.
        """


def rule(*targets: Any) -> Callable[[R], R]:
    """Registers a rule for functions and names of tensor methods."""

    def register(function: R) -> R:
        for target in targets:
            RULES[target] = function
        return function

    return register
