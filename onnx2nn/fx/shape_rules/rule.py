"""What a shape rule is, what it may ask of the importer, and the registry of rules.

A rule has the parameters of its torch function, behind one for `Sizes`. Tensors arrive as specs of known rank, symbolic
numbers as `Size` (or `Condition`), everything else as it is. It returns the spec of the result, or a tuple of specs
where the function has several; it raises `Uncovered` for calls that it does not cover: these run on meta tensors
instead.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TypeVar

from onnx2nn.fx.values.spec import Spec
from onnx2nn.ground.module_index import modules_by_name
from onnx2nn.sizes.conditions import Truth
from onnx2nn.sizes.expression import Number

Result = Spec | tuple[Any, ...]
"""The result of a rule: a spec, or a (nested) tuple of specs."""

Rule = Callable[..., Result]
R = TypeVar("R", bound=Rule)

Covering = Callable[..., Result | None]
"""A registered rule; it returns None for calls that are not covered."""

_PACKAGE = "onnx2nn.fx.shape_rules"


class Rules(MutableMapping[Any, Covering]):
    """The registered rules, by function or name of a tensor method.

    The modules that may have the rule of a function are imported at the first question about it; who iterates gets all
    rules.
    """

    def __init__(self) -> None:
        self._registered: dict[Any, Covering] = {}

    def of(self, target: Any) -> Covering | None:
        """Returns the rule of a function or of a method by its name, None where there is none."""
        found = self._registered.get(target)
        if found is None:
            _import_rules(_index().get(name_of(target)))
            found = self._registered.get(target)
        return found

    def __getitem__(self, target: Any) -> Covering:
        found = self.of(target)
        if found is None:
            raise KeyError(target)
        return found

    def __setitem__(self, target: Any, covering: Covering) -> None:
        if target in self._registered:
            raise ValueError(f"{target!r} has a shape rule already")
        self._registered[target] = covering

    def __delitem__(self, target: Any) -> None:
        del self._registered[target]

    def __iter__(self) -> Iterator[Any]:
        _import_rules(None)
        return iter(self._registered)

    def __len__(self) -> int:
        return sum(1 for _ in self)


RULES = Rules()


def name_of(target: Any) -> str:
    """Returns the name of a function, or the name of a method that it is itself; several functions may have one."""
    return target if isinstance(target, str) else getattr(target, "__name__", "")


@functools.cache
def _index() -> dict[str, tuple[str, ...]]:
    """Returns the modules with rules of functions of a name, by the name, as far as `functions.json` has them."""
    return modules_by_name(_PACKAGE, "functions.json")


@functools.cache
def _import_rules(modules: tuple[str, ...] | None) -> None:
    """Imports some modules of rules; all, where it is None: a rule that the index does not know yet, or no rule."""
    if modules is None:
        modules = tuple(module.name for module in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__))
    for module in modules:
        importlib.import_module(f"{_PACKAGE}.{module}")


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
        @functools.wraps(function)
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
