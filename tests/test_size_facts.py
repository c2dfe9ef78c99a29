"""What is proven of sizes holds at all points of a grid; floats computed from sizes round as numpy's do."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from onnx2nn.sizes import facts as facts_module
from onnx2nn.sizes import reals
from onnx2nn.sizes.conditions import (
    Condition,
    at_least_zero,
    at_most,
    conjunction,
    disjunction,
    equal,
    is_not_zero,
    is_zero,
    less,
    negation,
    unequal,
)
from onnx2nn.sizes.expression import MAX_DIMENSION, Symbol, bounds, multiply, of_symbol, subtract, truncated_divide
from onnx2nn.sizes.facts import Facts
from onnx2nn.sizes.points import families
from onnx2nn.sizes.selection import absolute, broadcast, choose, maximum, minimum
from onnx2nn.sizes.solving import direction, fulfilled, solutions
from onnx2nn.sizes.substitution import evaluated
from tests.budgets import processor_time_below
from tests.size_expressions import (
    Tree,
    Undefined,
    as_given,
    built,
    computed,
    conditions,
    grid,
    inside,
    made_symbols,
    numbers,
)

RULES = settings(database=None, derandomize=True, max_examples=400)

GRID = (-5, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 39, 1000)

_BOUNDS = ((0, MAX_DIMENSION), (1, MAX_DIMENSION), (0, 9), (-5, 7), (2, 6), (0, None))
_INTERVALS = st.lists(st.sampled_from(_BOUNDS), min_size=2, max_size=2)
_CONSTANTS = st.integers(-6, 12).map(lambda value: ("int", value))
_LINEAR = st.tuples(
    st.sampled_from(["==", "<=", "<", "!="]),
    st.sampled_from(
        [("symbol", 0), ("symbol", 1), ("*", ("int", 3), ("symbol", 0)), ("+", ("symbol", 0), ("symbol", 1))]
    ),
    st.one_of(_CONSTANTS, st.just(("symbol", 1)), st.tuples(st.just("+"), st.just(("symbol", 1)), _CONSTANTS)),
)
_SOLVED = st.tuples(
    st.sampled_from(["==", "<="]),
    st.tuples(st.sampled_from(["//", "trunc"]), st.just(("symbol", 0)), st.integers(2, 4).map(lambda b: ("int", b))),
    _CONSTANTS,
)


def _joined(pairs: list[tuple[int, int]], shared: list[int], factor: int) -> Tree:
    """Returns `n * m == factor * c * (n // c) * d * (m // d)` of pairs `n, c`, with shared factors on both sides."""
    left: Tree = ("int", 1)
    right: Tree = ("int", factor)
    for symbol, divisor in pairs:
        left = ("*", left, ("symbol", symbol))
        right = ("*", right, ("*", ("int", divisor), ("//", ("symbol", symbol), ("int", divisor))))
    for symbol in shared:
        left, right = ("*", left, ("symbol", symbol)), ("*", right, ("symbol", symbol))
    return ("==", left, right)


_MULTIPLES = st.builds(
    _joined,
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6)), min_size=1, max_size=3),
    st.lists(st.integers(0, 1), max_size=1),
    st.sampled_from([1, 1, 1, 2]),
)
_ASSUMPTIONS = st.lists(st.one_of(_LINEAR, _LINEAR, _SOLVED, _MULTIPLES, conditions(2, 3)), max_size=3)


def _value(tree: Tree, point: Any) -> Any:
    """Returns the value of a tree, None where it is not defined."""
    try:
        return computed(tree, point)
    except Undefined:
        return None


def _assumed(assumptions: list[Tree], intervals: Any) -> tuple[list[Symbol], Facts, list[Any]]:
    """Returns symbols, what the assumptions say of them, and the points of the grid at which all assumptions hold."""
    symbols, facts = made_symbols(intervals), Facts()
    points = [point for point in grid(intervals, GRID) if all(_value(tree, point) for tree in assumptions)]
    try:
        possible = all([facts.assume(built(tree, symbols)) for tree in assumptions])
    except ZeroDivisionError:
        reject()
    assert possible or not points, f"{assumptions} hold at {points[:3]}"
    return symbols, facts, points


_TERMS = st.one_of(
    st.sampled_from([("symbol", 0), ("symbol", 1)]),
    st.tuples(st.just("*"), st.integers(1, 4).map(lambda factor: ("int", factor)), st.just(("symbol", 0))),
    _CONSTANTS,
)
_EXTREMES = st.tuples(st.sampled_from(["min", "max"]), st.lists(_TERMS, min_size=3, max_size=5)).map(
    lambda drawn: functools.reduce(lambda tree, term: (drawn[0], tree, term), drawn[1])
)
"""Minima and maxima of more than two numbers, several of which one bound of a symbol may decide."""

_decided = {True: 0, False: 0, None: 0}


@settings(RULES, max_examples=600)
@given(
    st.one_of(_LINEAR, _SOLVED, conditions(2, 4), st.tuples(st.just("or"), _LINEAR, _LINEAR)),
    st.one_of(st.lists(_LINEAR, min_size=1, max_size=3), _ASSUMPTIONS),
    _INTERVALS,
)
def check_decisions(tree: Tree, assumptions: list[Tree], intervals: Any) -> None:
    symbols, facts, points = _assumed(assumptions, intervals)
    try:
        condition = built(tree, symbols)
        truth = facts.decide(condition)
    except ZeroDivisionError:
        assert all(_value(tree, point) is None for point in points)
        return
    if isinstance(condition, Condition):
        _decided[truth] += 1
    for point in points:
        expected = _value(tree, point)
        if expected is not None and truth is not None:
            assert truth == expected, (
                f"{condition!r} at {point} under {facts.assumed}, {facts.intervals}, {facts.values}"
            )


def test_what_is_decided_holds_where_the_assumptions_do() -> None:
    _decided.update(dict.fromkeys(_decided, 0))
    check_decisions()
    assert min(_decided[True], _decided[False]) >= 8, f"too little is decided: {_decided}"


@RULES
@given(numbers(2), _ASSUMPTIONS, _INTERVALS)
def test_bounds_and_settled_numbers_hold_where_the_assumptions_do(
    tree: Tree, assumptions: list[Tree], intervals: Any
) -> None:
    _check_settled(tree, assumptions, intervals)


@RULES
@given(_EXTREMES, st.tuples(st.just("<="), _CONSTANTS, st.just(("symbol", 0))), _INTERVALS)
def test_settled_extremes_hold_where_the_assumption_does(tree: Tree, assumption: Tree, intervals: Any) -> None:
    _check_settled(tree, [assumption], intervals)


def _check_settled(tree: Tree, assumptions: list[Tree], intervals: Any) -> None:
    symbols, facts, points = _assumed(assumptions, intervals)
    try:
        number = built(tree, symbols)
        settled = facts.settled(number)
    except ZeroDivisionError:
        assert all(_value(tree, point) is None for point in points)
        return
    known = [facts.bounds(number), facts.bounds(settled)]
    for point in points:
        expected = _value(tree, point)
        if expected is None:
            continue
        assert evaluated(settled, as_given(symbols, point)) == expected, f"{number!r} and {settled!r} at {point}"
        for least, most in known:
            assert least is None or least <= expected, f"{number!r} at {point}"
            assert most is None or expected <= most, f"{number!r} at {point}"


_QUOTIENTS = st.tuples(
    st.sampled_from(["//", "%", "trunc"]),
    st.tuples(st.just("*"), numbers(2, 2, ["broadcast"]), st.integers(1, 24).map(lambda value: ("int", value))),
    st.one_of(st.integers(1, 12).map(lambda value: ("int", value)), st.just(("symbol", 0)), st.just(("symbol", 1))),
)
_rewritten = {"multiples": 0, "changed": 0}


@settings(RULES, max_examples=120)
@given(
    st.lists(_MULTIPLES, min_size=1, max_size=2),
    _QUOTIENTS,
    st.lists(st.sampled_from([(1, MAX_DIMENSION), (1, 40), (0, 40), (-40, 40)]), min_size=2, max_size=2),
)
def check_multiples(assumptions: list[Tree], tree: Tree, intervals: Any) -> None:
    symbols, facts = made_symbols(intervals), Facts()
    points = [
        point
        for point in grid(intervals, (-24, -4, 0, 1, 2, 3, 4, 6, 7, 8, 12, 24, 30))
        if all(_value(tree, point) for tree in assumptions)
    ]
    possible = all([facts.assume(built(tree, symbols)) for tree in assumptions])
    assert possible or not points
    try:
        number = built(tree, symbols)
    except ZeroDivisionError:
        reject()
    divisors = {atom: divisor for atom, divisor in facts.multiples.items() if divisor > 1}
    settled = facts.settled(number)
    _rewritten["multiples"] += bool(divisors)
    _rewritten["changed"] += bool(divisors) and settled is not number
    for point in points:
        for symbol, value in zip(symbols, point, strict=True):
            assert value % divisors.get(symbol, 1) == 0, f"{symbol} at {point} under {facts.assumed}"
        expected = _value(tree, point)
        if expected is not None:
            assert evaluated(settled, as_given(symbols, point)) == expected, f"{number!r} and {settled!r} at {point}"


def test_multiples_that_an_equation_tells_are_multiples_at_all_its_points() -> None:
    _rewritten.update(dict.fromkeys(_rewritten, 0))
    check_multiples()
    assert _rewritten["multiples"] >= 30
    assert _rewritten["changed"] >= 5, f"too little is rewritten: {_rewritten}"


def test_quotients_of_multiples_have_one_form() -> None:
    b, h, w = _symbols("b", "h", "w")
    facts = Facts()
    assert facts.assume(equal(h * w, 16 * (h // 4) * (w // 4)))
    assert facts.settled(16 * b * (h // 4) * (w // 4) // (h * w)) is b
    assert facts.settled(4 * (h // 4)) is h
    assert facts.settled(2 * (h // 4)) is h // 2
    assert facts.settled(h % 4) == 0
    assert facts.same(h * (w // 4), w * (h // 4))
    assert facts.assume(is_zero(h - 6 * (h // 6)))
    assert facts.settled(4 * (h // 12)) is h // 3


def test_halves_of_a_size_are_no_more_than_twice_its_quarters() -> None:
    """Their difference is above -1, and an integer."""
    (n,) = _symbols("n")
    facts = Facts()
    assert facts.decide(at_least_zero(2 * ((n + 3) // 4) - (n + 1) // 2)) is True
    assert facts.decide(at_least_zero(2 * ((n + 3) // 4) - (n + 2) // 2)) is None
    assert facts.decide(at_least_zero(3 * ((n + 5) // 6) - (n + 1) // 2)) is True


def test_a_product_that_may_be_zero_tells_no_multiples() -> None:
    """`3 * 0 == 16 * 0 * 0` holds, and 3 is no multiple of 4, until the other size is known to be positive."""
    n, m = of_symbol(Symbol("n")), of_symbol(Symbol("m"))
    facts = Facts()
    assert facts.assume(equal(n * m, 16 * (n // 4) * (m // 4)))
    assert facts.settled(n % 4) != 0
    assert facts.assume(at_least_zero(n - 1))
    assert facts.assume(at_least_zero(m - 1))
    assert facts.settled(n % 4) == 0


@RULES
@given(numbers(2), st.lists(st.tuples(st.integers(-5, 9), st.integers(0, 9)), min_size=2, max_size=2))
def test_bounds_hold_where_symbols_are_narrowed(tree: Tree, spans: Any) -> None:
    symbols, facts = made_symbols([(None, None)] * 2), Facts()
    try:
        number = built(tree, symbols)
    except ZeroDivisionError:
        reject()
    facts.bounds(number)  # what was known before is not kept
    for symbol, (least, width) in zip(symbols, spans, strict=True):
        facts.narrow(symbol, (least, least + width))
    least, most = facts.bounds(number)
    for point in itertools.product(*(range(least, least + width + 1) for least, width in spans)):
        expected = _value(tree, point)
        if expected is not None:
            assert least is None or least <= expected, f"{number!r} at {point}"
            assert most is None or expected <= most, f"{number!r} at {point}"


_found = {"solved": 0, "directed": 0}


@RULES
@given(st.one_of(conditions(1, 4, ("broadcast",)), _SOLVED), st.integers(-4, 6), st.integers(0, 30))
def check_solutions(tree: Tree, least: int, width: int) -> None:
    symbols = made_symbols([(least, least + width)])
    try:
        condition = built(tree, symbols)
    except ZeroDivisionError:
        reject()
    if not isinstance(condition, Condition):
        return
    found = solutions(condition, symbols[0], (least, least + width))
    if found is None:
        return
    _found["solved"] += 1
    first, last = found
    assert first is not None and last is not None
    for value in range(least, least + width + 1):
        expected = _value(tree, (value,))
        assert expected is None or expected == (first <= value <= last), f"{condition!r} at {value}: {found}"


def test_solutions_are_all_sizes_that_fulfil_a_condition() -> None:
    _found["solved"] = 0
    check_solutions()
    assert _found["solved"] >= 25


@RULES
@given(numbers(2, 5, ("broadcast",)), _INTERVALS)
def check_directions(tree: Tree, intervals: Any) -> None:
    symbols = made_symbols(intervals)
    try:
        number = built(tree, symbols)
    except ZeroDivisionError:
        reject()
    way = direction(number, symbols[0])
    if way is None:
        return
    _found["directed"] += way != 0
    for other in sorted({inside(value, intervals[1]) for value in GRID}):
        column = [_value(tree, point) for point in grid([intervals[0], (other, other)], GRID)]
        values = [value for value in column if value is not None]
        steps = {(b > a) - (b < a) for a, b in itertools.pairwise(values)}
        assert steps <= {0, way}, f"{number!r} goes {way}"


def test_directions_are_those_of_the_values() -> None:
    _found["directed"] = 0
    check_directions()
    assert _found["directed"] >= 100


@pytest.mark.parametrize(
    ("make", "first", "last"),
    [
        (lambda n: at_least_zero(n - 3), 3, None),
        (lambda n: at_least_zero(9 - n), 0, 9),
        (lambda n: is_zero(n // 4 - 3), 12, 15),
        (lambda n: is_zero(20 - n * 2), 10, 10),
        (lambda n: is_zero(choose(is_zero(n), 10, n * 10) - n * 10), 1, None),
        (lambda n: is_zero(choose(is_zero(n), 10, n * 10) - choose(is_zero(n), 32, n) * 10), 1, None),
        (lambda n: at_least_zero(choose(at_least_zero(n - 5), n - 7, 2 - n)), None, None),
        (lambda n: at_least_zero(choose(at_least_zero(n - 5), 9 - n, n - 2)), 2, 9),
        (lambda n: is_zero(choose(is_zero(n - 3), 1, 0)), None, None),
        (lambda n: is_zero(choose(is_not_zero(n), 1, 0)), 0, 0),
        (lambda n: is_not_zero(n), 1, None),
    ],
)
def test_sizes_without_an_upper_bound_are_solved(
    make: Callable[[Any], Any], first: int | None, last: int | None
) -> None:
    """Where they have a gap, there is no answer."""
    symbol = Symbol("n", 0, None)
    wanted = None if first is None else (first, last)
    assert solutions(make(of_symbol(symbol)), symbol, (0, None)) == wanted


@pytest.mark.parametrize(
    "make",
    [lambda n: at_least_zero((1 << 40) - n), lambda n: at_least_zero(n - (1 << 40)), lambda n: is_zero(n - (1 << 40))],
)
def test_nothing_is_said_of_sizes_beyond_those_that_are_tried(make: Callable[[Any], Any]) -> None:
    symbol = Symbol("n", 0, None)
    found = solutions(make(of_symbol(symbol)), symbol, (0, None))
    assert found is None
    facts = Facts()
    assert facts.assume(make(of_symbol(symbol)))
    assert facts.bounds(of_symbol(symbol)) == (0, None)


def test_a_symbol_without_a_lower_bound_is_not_solved() -> None:
    symbol = Symbol("n", None, 9)
    n = of_symbol(symbol)
    condition = at_most(n, 5)
    assert isinstance(condition, Condition)
    assert solutions(condition, symbol, symbol.interval) is None
    facts = Facts()
    facts.assume(at_most(n, 5))
    assert facts.bounds(n)[0] is None
    assert facts.decide(at_most(n, 6)) is True


def _symbols(*names: str) -> list[Any]:
    return [of_symbol(Symbol(name, 1)) for name in names]


@pytest.mark.parametrize(
    ("assumed", "proven"),
    [
        (lambda n, m: True, lambda n, m: at_most(n // 2, n)),
        (lambda n, m: True, lambda n, m: less(n - n // 4 * 4, 4)),
        (lambda n, m: True, lambda n, m: at_most(minimum(n, m), maximum(n, m))),
        (lambda n, m: True, lambda n, m: at_most(truncated_divide(n - 40, 8), n)),
        (lambda n, m: True, lambda n, m: at_least_zero(absolute(n - m))),
        (lambda n, m: True, lambda n, m: at_most(choose(less(n, m), n, m), m)),
        (lambda n, m: at_most(n, 5), lambda n, m: at_least_zero(5 - n)),
        (lambda n, m: equal(n, m), lambda n, m: at_most(n // 3, m)),
        (lambda n, m: at_most(n, m), lambda n, m: at_most(n, m + 3)),
        (lambda n, m: conjunction((equal(n, m), at_most(m, 7))), lambda n, m: at_most(n, 7)),
        (lambda n, m: conjunction((at_most(m, 7), equal(n, m))), lambda n, m: at_most(n, 7)),
        (lambda n, m: conjunction((at_least_zero(m - 4), equal(n, m + 2))), lambda n, m: at_least_zero(n - 6)),
        (lambda n, m: conjunction((at_most(m * n, 9), equal(n, m))), lambda n, m: at_most(n * n, 9)),
    ],
)
def test_what_must_be_decided_is(assumed: Callable[..., Any], proven: Callable[..., Any]) -> None:
    n, m = _symbols("n", "m")
    facts = Facts()
    assert facts.assume(assumed(n, m))
    assert facts.decide(proven(n, m)) is True
    assert facts.decide(negation(proven(n, m))) is False
    assert Facts(facts).decide(proven(n, m)) is True


@pytest.mark.parametrize(
    "contradictory",
    [
        lambda n, m: (at_most(n, 5), at_least_zero(n - 9)),
        lambda n, m: (equal(n, m), at_most(m, 5), at_least_zero(n - 9)),
        lambda n, m: (at_most(m, 5), at_least_zero(n - 9), equal(n, m)),
        lambda n, m: (equal(n, 4), equal(n, 5)),
        lambda n, m: (conjunction((at_most(n, 5), at_least_zero(n + m - 99))), equal(m, 3)),
    ],
)
def test_assumptions_that_contradict_each_other_are_refused(contradictory: Callable[..., Any]) -> None:
    facts = Facts()
    assert not all([facts.assume(condition) for condition in contradictory(*_symbols("n", "m"))])


def test_facts_of_a_part_of_a_program_do_not_reach_the_whole() -> None:
    n, m = _symbols("n", "m")
    outer = Facts()
    inner = Facts(outer)
    inner.assume(at_most(n, 5))
    inner.assume(at_most(n, m))
    assert inner.decide(at_most(n, 6)) is True
    assert outer.decide(at_most(n, 6)) is None
    assert outer.decide(at_most(n, m)) is None


def _nested(n: Any, m: Any, depth: int) -> Any:
    size = n
    for k in range(depth):
        size = maximum(minimum(size + m // (k + 2), n * (k + 1)), m - k) + choose(less(size, m), n // 3, size // 2)
    return size


ADVERSARIAL: dict[str, Callable[[Any, Any], Any]] = {
    "nested extremes": lambda n, m: at_least_zero(_nested(n, m, 40) - n * m),
    "a long minimum": lambda n, m: at_least_zero(minimum(*(n * k + m // k for k in range(1, 60))) - n * m // 7),
    "a long equation": lambda n, m: equal(
        minimum(*(n * k + m // k for k in range(1, 40))), maximum(*(n // k + m * k for k in range(1, 40)))
    ),
    "many conditions": lambda n, m: disjunction(
        conjunction((less(n % k, m), unequal(n // k, m // 3))) for k in range(2, 30)
    ),
    "shared quotients": lambda n, m: at_least_zero(_nested(n, m, 12) * _nested(m, n, 12) - n),
}


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_a_proof_takes_a_limited_time(kind: str) -> None:
    n, m = _symbols("n", "m")
    facts = Facts()
    for k in range(2, 12):
        facts.assume(at_most(n // k, m * k))
    condition = ADVERSARIAL[kind](n, m)
    with processor_time_below(2):
        truth = facts.decide(condition)
    assert truth is None or fulfilled(condition, dict.fromkeys(condition.symbols, 5)) == truth


def _sums_of_a_proof(monkeypatch: pytest.MonkeyPatch, assumptions: int) -> int:
    n, m, h, w = _symbols("n", "m", "h", "w")
    facts = Facts()
    for k in range(assumptions):
        facts.assume(at_most(n // (k + 2) * m, (h + k) // 2 * w))
    kept = n * (h // 8) * (w // 8)
    taken = choose(is_zero(kept), n, kept)
    sums = []
    with monkeypatch.context() as patch:
        patch.setattr(facts_module, "subtract", lambda a, b: sums.append((a, b)) or subtract(a, b))
        assert facts.decide(is_zero(taken * ((h // 8 + 1) // 2))) is None
    return len(sums)


def test_a_proof_compares_with_the_assumptions_that_share_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _sums_of_a_proof(monkeypatch, 40) == _sums_of_a_proof(monkeypatch, 2)


def test_an_assumption_that_shares_a_product_is_used_in_a_proof() -> None:
    n, m, h = _symbols("n", "m", "h")
    facts = Facts()
    facts.assume(at_most(n * m + 3, h // 2))
    assert facts.decide(less(n * m, h // 2 - 2)) is True
    assert facts.decide(less(h // 2 - 2, n * m)) is False
    assert facts.decide(less(n * m, h // 2 - 3)) is None


def test_a_case_in_which_a_divisor_is_zero_proves_nothing() -> None:
    """The divisor is at least 1: no case with 0 occurs, but a case distinction need not find that out."""
    n, m = of_symbol(Symbol("n")), of_symbol(Symbol("m"))
    divisor = maximum(1000 % maximum(n, 1), 1)
    condition = at_most(m // divisor * divisor, m)
    assert Facts().decide(condition) is not False
    assert Facts().decide(at_most(m, m // divisor * divisor)) is None


def test_nothing_is_known_of_a_number_that_divides_by_zero() -> None:
    """It is computed for no sizes that are left, and other numbers of the same symbols are known."""
    n, m = of_symbol(Symbol("n", 0, None)), of_symbol(Symbol("m"))
    facts = Facts()
    assert facts.assume(equal(n, 0))
    assert facts.settled(n + 3) == 3
    for number in (m % n, m // n, 4 // (4 * n) + m, choose(less(m, 5), 8 // n, 1)):
        assert facts.settled(number) is number
        condition = at_most(number + m * m, 7)
        assert facts.decide(condition) is None
        assert facts.assume(condition)
        assert facts.decide(condition)
    assert facts.settled(n * m) == 0


def test_a_choice_between_numbers_that_are_equal_there_is_no_choice() -> None:
    n, m = _symbols("n", "m")
    assert choose(equal(n, m), n * 3, m * 3) is m * 3
    assert choose(unequal(n, m), n * 3 + 1, m * 3 + 1) is n * 3 + 1
    assert choose(equal(n, m), n, m + 1) is not m + 1
    assert choose(True, n, m) is n
    assert choose(False, n, m) is m
    assert bounds(choose(less(n, m), 3, 9)) == (3, 9)
    assert broadcast(n, 1) is n
    assert broadcast(n, 7) == 7


def test_bounds_of_products_beyond_floats_are_exact() -> None:
    whole: Any = 1
    for k in range(40):
        whole = whole * of_symbol(Symbol(f"n{k}"))
    assert bounds(whole) == (0, MAX_DIMENSION**40)
    assert bounds(whole * of_symbol(Symbol("k", 1, None))) == (0, None)
    assert bounds(multiply(whole, -1)) == (-(MAX_DIMENSION**40), 0)


@RULES
@given(_ASSUMPTIONS, _INTERVALS)
def test_sample_points_lie_within_the_bounds(assumptions: list[Tree], intervals: Any) -> None:
    symbols = made_symbols(intervals)
    try:
        needed = [built(tree, symbols) for tree in assumptions]
    except ZeroDivisionError:
        reject()
    needed = [condition for condition in needed if isinstance(condition, Condition)]
    for points in families(symbols, intervals, needed):
        assert len(points) == 3
        for point in points:
            assert set(point) == set(symbols)
            for symbol, (least, most) in zip(symbols, intervals, strict=True):
                assert (least is None or point[symbol] >= least) and (most is None or point[symbol] <= most)
            if len(needed) == 1 and len(needed[0].symbols) == 1:
                (symbol,) = needed[0].symbols
                found = solutions(needed[0], symbol, intervals[symbols.index(symbol)])
                if found is not None and (found[1] is None or found[0] <= found[1]):  # type: ignore[operator]  # a first value is known
                    assert fulfilled(needed[0], point), f"{needed[0]!r} at {point}"


_NEAR = [*range(1, 40), *(base + k for base in (1 << 22, 1 << 23, 1 << 24) for k in range(-9, 10))]
_INTEGERS = st.one_of(st.integers(1, 1 << 25), st.sampled_from(_NEAR))
_DIVISORS = st.one_of(st.integers(1, 4000), _INTEGERS)


@settings(RULES, max_examples=1500)
@given(_INTEGERS, _DIVISORS, st.integers(-3, 3), st.booleans(), st.booleans())
def test_whole_parts_of_rounded_quotients_are_those_of_the_exact_ones(
    a: int, b: int, near: int, multiple: bool, below: bool
) -> None:
    a = max(a // b, 1) * b + near if multiple else a  # next to an integer, where rounding may reach it
    a = -a if below else a
    quotient, exact = np.float32(a) / np.float32(b), Fraction(a, b)
    if reals.is_exact(a, 24):
        assert int(np.float32(a)) == a
    if reals.keeps_whole_part(a, b, 24):
        assert np.floor(quotient) == math.floor(exact)
        assert np.ceil(quotient) == math.ceil(exact)
    if reals.keeps_whole_part(a * 2, b, 24):
        assert np.round(quotient) == round(exact)


def test_the_conditions_of_exact_floats_are_no_wider_than_floats() -> None:
    n = of_symbol(Symbol("n"))
    assert reals.is_exact((1 << 24) - 1, 24) is True
    assert int(np.float32((1 << 24) + 1)) != (1 << 24) + 1
    assert reals.is_exact((1 << 24) + 1, 24) is False
    assert reals.keeps_whole_part((1 << 25) - 1, 2, 24) is False
    assert reals.keeps_whole_part(n, 3, 24) is at_most(n, (1 << 24) - 4)
    assert [reals.is_power_of_two(number) for number in (1, 2, 64, 0, -2, 6, n)] == [True] * 3 + [False] * 4
    facts = Facts()
    facts.assume(reals.within(n, 9))
    assert facts.bounds(n) == (0, 9)


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("factor", [0.5, 0.1, 0.3, 1 / 3, 2 / 3, 0.7, 1.1, 1.5, 4.0, 0.0625, 3.14159, 1e-3])
def test_the_whole_part_of_a_rounded_product_is_numpys(factor: float, dtype: str, up: bool) -> None:
    kind = np.dtype(dtype).type
    found = reals.whole_part(float(kind(factor)), dtype, up)
    if found is None:
        assert factor not in (0.5, 1.5, 4.0, 0.0625)
        return
    a, b, limit = found
    for n in (*range(300), *range(1, limit, 997), limit - 1, limit):
        expected = (math.ceil if up else math.floor)(kind(n) * kind(factor))
        assert (-(-n * a // b) if up else n * a // b) == expected, f"{n} * {factor}"


@pytest.mark.parametrize("given_", [(0.5, "float16"), (-0.5, "float32"), (float(1 << 16), "float32"), (0.0, "float32")])
def test_other_factors_have_no_whole_part(given_: tuple[float, str]) -> None:
    assert reals.whole_part(*given_, False) is None
