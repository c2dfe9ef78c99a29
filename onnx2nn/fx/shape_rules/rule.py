"""What a shape rule is, what it may ask of the importer, and the registry of rules.

A rule has the parameters of its torch function, behind one for `Sizes`. Tensors arrive as specs of known rank, symbolic
numbers as `Size` (or `Condition`), everything else as it is. It returns the spec of the result, or a tuple of specs
where the function has several; it raises `Uncovered` for calls that it does not cover: these run on meta tensors
instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import Truth
from onnx2nn.sizes.expression import Number

Result = Spec | tuple[Any, ...]
"""The result of a rule: a spec, or a (nested) tuple of specs."""

Rule = Callable[..., Result]
R = TypeVar("R", bound=Rule)

RULES: dict[Any, Callable[..., Result | None]] = {}
"""The registered rules, by function or name of a tensor method; they return None for calls that are not covered."""


class Uncovered(Exception):
    """A rule does not cover a call; it is raised inside of rules only."""


class Sizes(ABC):
    """What a rule may ask about sizes.

    Attributes:
        open_rank: whether nothing in the program depends on how many dimensions the result of the call has.
    """

    open_rank: bool = False

    @abstractmethod
    def decide(self, condition: Truth) -> bool | None:
        """Returns the truth of a condition for all sizes, None where it is not proven."""

    @abstractmethod
    def require(self, condition: Truth, reason: str) -> None:
        """Notes that the call fails where a condition is false: a guard checks it, unless it is proven.

        Raises:
            ShapeMismatch: it is proven to be false.
        """

    def allow_parts(self, count: Number) -> None:  # noqa: B027  # only a program has a limit
        """Checks the number of tensors that a call makes of one.

        Raises:
            TraceError: they are more than a program may have; the call is left to run time.
        """

    @abstractmethod
    def equal(self, a: Number, b: Number, reason: str) -> Number:
        """Requires two numbers to be equal; returns the one of which more is known.

        Raises:
            ShapeMismatch: they are proven to differ.
        """


def rule(*targets: Any) -> Callable[[R], R]:
    """Registers a rule for functions and names of tensor methods; other rules may call it as it is written.

    Raises:
        ValueError: a target has a rule already.
    """

    def register(function: R) -> R:
        @wraps(function)
        def covering(*args: Any, **kwargs: Any) -> Result | None:
            try:
                return function(*args, **kwargs)
            except Uncovered:
                return None
            except TypeError as error:
                # Arguments that do not fit the parameters: the error comes from no frame below this one.
                if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                    return None
                raise

        for target in targets:
            if target in RULES:
                raise ValueError(f"{target!r} has a shape rule already")
            RULES[target] = covering
        return function

    return register


def rule_of_ranks(make: Callable[[int], Rule], *functions: Any) -> None:
    """Registers rules of functions for one, two and three spatial dimensions.

    Args:
        make: makes the rule for a number of spatial dimensions.
        functions: the functions, in the order of the number of their spatial dimensions.
    """
    for rank, function in enumerate(functions, 1):
        rule(function)(make(rank))
