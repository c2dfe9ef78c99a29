"""Tests shape rules against torch: a call at known sizes, and the rule's answer for symbols that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from random import Random
from types import ModuleType
from typing import Any

import torch

from onnx2nn.fx.shape_rules.rule import RULES, Sizes
from onnx2nn.fx.trace_errors import ShapeMismatch, TraceError
from onnx2nn.fx.values.spec import Spec
from onnx2nn.sizes.conditions import Condition, Truth, equal
from onnx2nn.sizes.expression import Number, Symbol, of_symbol
from onnx2nn.sizes.facts import Facts
from onnx2nn.sizes.solving import fulfilled
from onnx2nn.sizes.substitution import evaluated


class RecordedSizes(Sizes):
    """Records what rules require; decides from facts.

    Attributes:
        facts: what is known of sizes.
        conditions: the conditions that were required and are not proven.
    """

    def __init__(self) -> None:
        self.facts = Facts()
        self.conditions: list[Condition] = []

    def decide(self, condition: Truth) -> bool | None:
        return self.facts.decide(condition)

    def require(self, condition: Truth, reason: str) -> None:
        truth = self.decide(condition)
        if truth is False:
            raise ShapeMismatch(reason)
        if truth is None:
            assert isinstance(condition, Condition)
            self.conditions.append(condition)
            self.facts.assume(condition)

    def equal(self, a: Number, b: Number, reason: str) -> Number:
        self.require(equal(a, b), reason)
        return b if isinstance(b, int) else a


Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call, and the named ones."""


class Free(int):
    """A number of a call that may be symbolic."""


class Symbols:
    """Symbols with values, a few of them for each value.

    Args:
        random: decides which sizes are symbolic.

    Attributes:
        point: the values of the symbols.
    """

    def __init__(self, random: Random):
        self.random = random
        self.point: dict[Symbol, int] = {}
        self._made: dict[tuple[int, int], Number] = {}
        self._specs: dict[int, Spec] = {}

    def size(self, value: int, least: int = 0) -> Number:
        """Returns a number that has a value: an int, a symbol, or a number computed from one."""
        way = self.random.randrange(8)
        if way == 0 and value % 2 == 0 and value >= 0:
            return self._symbol(value // 2, 0) * 2
        if way == 1 and value - 1 >= least:
            return self._symbol(value - 1, least) + 1
        return self._symbol(value, least) if way < 5 and value >= least else value

    def _symbol(self, value: int, least: int) -> Number:
        name = f"s{value}_{self.random.randrange(2)}_{least}".replace("-", "m")
        key = (value, hash(name))
        if key not in self._made:
            symbol = Symbol(name, least)
            self.point[symbol] = value
            self._made[key] = of_symbol(symbol)
        return self._made[key]

    def of(self, value: Any) -> Any:
        """Returns an argument with symbolic sizes: tensors as specs, `Free` numbers as sizes."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._specs:  # a tensor in two places has one spec
                self._specs[id(value)] = Spec(tuple(self.size(size) for size in value.shape), value.dtype)
            return self._specs[id(value)]
        if isinstance(value, Free):
            return self.size(int(value), least=self.random.choice((0, -20)) if value >= 0 else -20)
        if isinstance(value, slice):
            return slice(self.of(value.start), self.of(value.stop), value.step)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.of, value))
        return {name: self.of(item) for name, item in value.items()} if isinstance(value, dict) else value


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a tensor without values."""
    return torch.empty(shape, dtype=dtype, device="meta")


def stored(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a tensor of zeros, for functions that check less on the meta device."""
    return torch.zeros(shape, dtype=dtype)


def any_shape(random: Random, rank: int | None = None) -> list[int]:
    """Returns sizes of up to four dimensions."""
    return [random.choice(SIZES) for _ in range(random.randrange(5) if rank is None else rank)]


def any_axis(random: Random, rank: int) -> int:
    """Returns an axis of a tensor, nearly always one that exists."""
    return random.randrange(-rank, rank) if rank and random.random() < 0.95 else 0


SIZES = (0, 1, 1, 2, 3, 4, 5, 6, 8)


def rules_of(*modules: ModuleType) -> list[Any]:
    """Returns the functions and names of methods with a rule in one of the modules."""
    names = {module.__name__ for module in modules}
    return [target for target, rule in RULES.items() if rule.__module__ in names]


def name_of(target: Any) -> str:
    """Returns the name of a function or method, which is the same in every process."""
    return target if isinstance(target, str) else f"function_{target.__name__}"


def _plain(value: Any) -> Any:
    if isinstance(value, Free):
        return int(value)
    if isinstance(value, slice):
        return slice(_plain(value.start), _plain(value.stop), value.step)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return type(value)(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def check_rule(target: Any, call: Callable[[Random], Call]) -> None:
    """Compares a rule with torch on drawn calls, some of which both of them compute.

    Args:
        target: a function, or the name of a tensor method.
        call: draws the arguments of a call.
    """
    assert any([is_covered(random, target, *call(random)) for random in map(Random, range(100))])


def is_covered(random: Random, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Compares a rule with torch on one call; returns whether both gave a result.

    Args:
        random: decides which sizes are symbolic.
        target: a function, or the name of a tensor method.
        args: its arguments, tensors on the meta device; numbers that may be symbolic are `Free`.
        kwargs: its named arguments.
    """
    function: Callable[..., Any] = getattr(torch.Tensor, target) if isinstance(target, str) else target
    symbols, sizes = Symbols(random), RecordedSizes()
    call = f"{target} {args} {kwargs}"
    try:
        expected = _spec(function(*_plain(args), **_plain(kwargs)))
    except Exception:  # torch refuses calls by errors of many classes
        expected = None
    try:
        bound = signature(RULES[target]).bind(sizes, *symbols.of(args), **symbols.of(kwargs))
    except TypeError:
        assert expected is None, f"other parameters: {call}"
        return False
    call += f" as {bound} at {symbols.point}"
    try:
        found = RULES[target](*bound.args, **bound.kwargs)
    except ShapeMismatch:
        assert expected is None, f"refused: {call}"
        return False
    except TraceError:  # the call is left to run time
        return False
    if found is None:
        return False
    holds = [fulfilled(condition, symbols.point) for condition in sizes.conditions]
    if expected is None:
        assert not all(holds), f"torch refuses: {call} {found}"
        return False
    assert all(holds), f"required: {call} {sizes.conditions}"
    assert _at(found, symbols.point) == expected, call
    return True


def _spec(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return tuple(result.shape), result.dtype
    return None if result is None else [_spec(item) for item in result]  # weights that are not asked for are None


def _at(found: Any, point: Mapping[Symbol, int]) -> Any:
    if isinstance(found, Spec):
        assert found.shape is not None
        return tuple(evaluated(size, point) for size in found.shape), found.dtype
    return None if found is None else [_at(item, point) for item in found]
