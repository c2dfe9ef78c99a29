"""Size expressions: a normal form evaluates like the expression it came from, is printed and shared as such."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from onnx2nn.fx.values.failed_sizes import holds, operations_of
from onnx2nn.sizes import conditions, expression
from onnx2nn.sizes.conditions import (
    at_least_zero,
    at_most,
    conjunction,
    disjunction,
    equal,
    is_zero,
    less,
    negation,
    unequal,
)
from onnx2nn.sizes.expression import (
    Size,
    Symbol,
    bounds,
    factored,
    floor_divide,
    multiply,
    of_symbol,
    truncated_divide,
)
from onnx2nn.sizes.facts import Facts
from onnx2nn.sizes.linear import linear, slope
from onnx2nn.sizes.printing import code_of
from onnx2nn.sizes.rendering import Rendering
from onnx2nn.sizes.selection import absolute, broadcast, choose, maximum, minimum, parted
from onnx2nn.sizes.substitution import evaluated, replaced
from tests.size_expressions import (
    INTERVALS,
    VALUES,
    Tree,
    Undefined,
    as_given,
    broadcast_size,
    built,
    computed,
    inside,
    made_symbols,
    numbers,
    truncated,
)
from tests.size_expressions import (
    conditions as trees_of_conditions,
)

RULES = settings(database=None, derandomize=True, max_examples=300)

MANY = 2000
"""Operations within each other: more than Python calls functions within each other."""

_INTERVALS = st.lists(st.sampled_from(INTERVALS), min_size=3, max_size=3)
_POINTS = st.lists(st.tuples(*[st.sampled_from(VALUES)] * 3), min_size=8, max_size=8)
_TREES = st.one_of(numbers(3), trees_of_conditions(3))


def _made(tree: Tree, intervals: Any, points: Any) -> tuple[list[Symbol], Any, list[tuple[tuple[int, ...], Any]]]:
    """Returns symbols, the normal form, and the points at which the tree is defined, with its values there."""
    symbols = made_symbols(intervals)
    found = []
    for point in {tuple(map(inside, point, intervals)): None for point in points}:
        try:
            found.append((point, computed(tree, point)))
        except Undefined:
            continue
    try:
        return symbols, built(tree, symbols), found
    except ZeroDivisionError:
        assert not found, "a divisor that is 0 nowhere"
        reject()


@RULES
@given(_TREES, _INTERVALS, _POINTS)
def test_a_normal_form_evaluates_like_the_expression_it_came_from(tree: Tree, intervals: Any, points: Any) -> None:
    symbols, value, expected = _made(tree, intervals, points)
    for point, number in expected:
        assert evaluated(value, as_given(symbols, point)) == number, f"{value!r} at {point}"


@RULES
@given(_TREES, _INTERVALS, _POINTS, st.permutations(range(3)))
def test_symbols_may_be_replaced_one_after_the_other(tree: Tree, intervals: Any, points: Any, order: Any) -> None:
    symbols, value, expected = _made(tree, intervals, points)
    for point, number in expected:
        left = value
        for k in order:
            left = replaced(left, {symbols[k]: point[k]})
            assert symbols[k] not in getattr(left, "symbols", ())
        assert isinstance(left, int)
        assert left == number, f"{value!r} at {point}"


@RULES
@given(_TREES, numbers(2, 4), _INTERVALS, _POINTS)
def test_a_symbol_may_be_replaced_by_an_expression(tree: Tree, other: Tree, intervals: Any, points: Any) -> None:
    intervals = [(None, None), *intervals[:2]]  # what takes its place may be any number
    symbols, value, _ = _made(tree, intervals, points)
    for point in points:
        point = tuple(map(inside, point, intervals))
        try:
            first = computed(other, point[1:])
            number = computed(tree, (first, *point[1:]))
        except Undefined:
            continue
        changed = replaced(value, {symbols[0]: built(other, symbols[1:])})
        assert evaluated(changed, as_given(symbols[1:], point[1:])) == number, f"{value!r} and {changed!r} at {point}"


def _check_interval(tree: Tree, intervals: Any, points: Any) -> None:
    _, value, expected = _made(tree, intervals, points)
    least, most = bounds(value)
    for point, number in expected:
        assert least is None or least <= number, f"{value!r} at {point}"
        assert most is None or number <= most, f"{value!r} at {point}"


@RULES
@given(numbers(3), _INTERVALS, _POINTS)
def test_a_value_lies_within_the_interval(tree: Tree, intervals: Any, points: Any) -> None:
    _check_interval(tree, intervals, points)


_REMAINDERS = st.recursive(
    st.one_of(st.just(("symbol", 0)), st.just(("symbol", 1)), st.integers(-9, 9).map(lambda value: ("int", value))),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-"), inner, inner),
        st.tuples(st.sampled_from(("%", "//", "fmod")), inner, st.integers(1, 5).map(lambda value: ("int", value))),
    ),
    max_leaves=6,
)


@settings(RULES, max_examples=1000)
@given(_REMAINDERS, _INTERVALS, _POINTS)
def test_a_sum_of_remainders_lies_within_the_interval(tree: Tree, intervals: Any, points: Any) -> None:
    _check_interval(tree, intervals, points)


@RULES
@given(numbers(2), numbers(2), numbers(2), st.sampled_from([-3, -1, 1, 2]), st.booleans(), _INTERVALS, _POINTS)
def test_a_choice_by_what_a_number_is_multiplied_with_or_added_to(
    tree: Tree, there: Tree, elsewhere: Tree, factor: int, unequal_: bool, intervals: Any, points: Any
) -> None:
    choice = ("where", ("!=" if unequal_ else "==", tree, ("int", 0)), there, elsewhere)
    product, total = (("*", ("*", tree, ("int", factor)), choice), ("+", ("*", tree, ("int", factor)), choice))
    symbols, value, expected = _made(product, intervals, points)
    for point, number in expected:
        assert evaluated(value, as_given(symbols, point)) == number, f"{value!r} at {point}"
    symbols, value, expected = _made(total, intervals, points)
    parts = parted(value)
    for point, number in expected if parts is not None else ():
        condition, a, b = (evaluated(part, as_given(symbols, point)) for part in parts)
        assert (a if condition else b) == number, f"{value!r} at {point}"


@RULES
@given(_TREES, _INTERVALS, _POINTS)
def test_the_printed_code_computes_the_value(tree: Tree, intervals: Any, points: Any) -> None:
    symbols, value, expected = _made(tree, intervals, points)
    functions = {"min": min, "max": max, "trunc": truncated, "broadcast": broadcast_size, "__builtins__": {}}
    wanted: list[tuple[Any, Callable[[int], Any]]] = [(value, lambda number: number)]
    if isinstance(value, Size):  # where signs and comparisons are turned round
        wanted += [(-value, lambda number: -number), (value * -3, lambda number: number * -3)]
        wanted += [
            (at_least_zero(value), lambda number: number >= 0),
            (at_least_zero(-value), lambda number: number <= 0),
        ]
        wanted += [(at_least_zero(7 - value), lambda number: number <= 7), (is_zero(value), lambda number: number == 0)]
    for made, of in wanted:
        code = compile(code_of(made), "", "eval")
        for point, number in expected:
            names = {symbol.name: size for symbol, size in zip(symbols, point, strict=True)}
            assert eval(code, functions, names) == of(number), f"{made!r} at {point}"


@RULES
@given(trees_of_conditions(3), _INTERVALS, _POINTS)
def test_the_listed_operations_compute_the_condition(tree: Tree, intervals: Any, points: Any) -> None:
    """Those that name the size for which a call failed."""
    symbols, value, expected = _made(tree, intervals, points)
    if isinstance(value, bool):
        return
    places = {symbol: ("x", axis) for axis, symbol in enumerate(symbols)}
    operations = pickle.loads(pickle.dumps(operations_of(value, places)))
    for point, truth in expected:
        sizes = {("x", axis): size for axis, size in enumerate(point)}
        try:
            found = holds(operations, sizes)
        except ZeroDivisionError:  # of a quotient that is not chosen
            continue
        assert found == truth, f"{value!r} at {point}"


@RULES
@given(trees_of_conditions(3), _INTERVALS, _POINTS)
def test_the_negation_holds_where_the_condition_does_not(tree: Tree, intervals: Any, points: Any) -> None:
    symbols, value, expected = _made(tree, intervals, points)
    opposite = negation(value)
    assert negation(opposite) is value
    for point, truth in expected:
        assert evaluated(opposite, as_given(symbols, point)) == (not truth), f"{value!r} and {opposite!r} at {point}"


@RULES
@given(numbers(3), _INTERVALS, _POINTS)
def test_a_number_is_the_product_of_its_common_factor_and_the_rest(tree: Tree, intervals: Any, points: Any) -> None:
    symbols, value, expected = _made(tree, intervals, points)
    common, rest = factored(value)
    for point, number in expected:
        first, second = (evaluated(part, as_given(symbols, point)) for part in (common, rest))
        assert first * second == number, f"{value!r}, {common!r} and {rest!r} at {point}"


@RULES
@given(numbers(3), st.integers(-3, 3).filter(bool), st.integers(-9, 9), st.integers(1, 3), _INTERVALS, _POINTS)
def test_sizes_with_one_slope_differ_linearly(
    tree: Tree, factor: int, summand: int, common: int, intervals: Any, points: Any
) -> None:
    symbols, value, expected = _made(tree, intervals, points)
    if not isinstance(value, Size):
        reject()
    one, other = value * factor + summand, value * common + 1
    if not isinstance(one, Size) or not isinstance(other, Size):
        reject()
    assert slope(one) == slope(other)
    a, b, c = linear(one, other)
    for point, _ in expected:
        number, of = (evaluated(size, as_given(symbols, point)) for size in (one, other))
        assert (a * of + b) == number * c and c > 0, f"{one!r} of {other!r} at {point}"


def _n(name: str = "n", least: int | None = 0, most: int | None = expression.MAX_DIMENSION) -> Any:
    return of_symbol(Symbol(name, least, most))


def test_a_common_factor_is_taken_out() -> None:
    b, w, h = _n("b"), _n("w"), _n("h")
    assert factored(b * w * h - b * w) == (b * w, h - 1)
    assert factored(b * w) == (1, b * w)
    assert factored(b + 1) == (1, b + 1)
    assert factored(12) == (1, 12)


def test_a_comparison_keeps_its_sign() -> None:
    n = _n()
    condition = at_least_zero(5 - n)
    assert repr(condition) == "n <= 5"
    assert [evaluated(condition, {n.terms[0][0][0]: size}) for size in (4, 5, 6)] == [True, True, False]
    assert repr(at_least_zero(n - 5)) == "n >= 5"
    assert repr(at_least_zero(7 - n * 2)) == "n <= 3"


def test_an_equation_with_a_minimum_or_a_broadcast_is_one_of_their_numbers() -> None:
    n, m = _n(), _n("m")
    for a, b, text in (
        (n, minimum(n, 64), "n <= 64"),
        (n * 32, minimum(n, 64) * 32, "n <= 64"),
        (n + 3, minimum(n + 3, m, 64), "n <= 61 and m >= n + 3"),
        (64, maximum(n, 64), "n <= 64"),
        (n, broadcast(n, m), "m == 1 or n == m"),
    ):
        assert repr(equal(a, b)) == text
        assert equal(a, b) is equal(b, a)
        assert negation(equal(a, b)) is unequal(a, b)


def test_a_condition_that_follows_from_another_is_left_out() -> None:
    n, m = _n("n"), _n("m")
    assert equal(minimum(n, 64), 64) is at_least_zero(n - 64) and equal(maximum(n, 64), 64) is at_most(n, 64)
    assert equal(minimum(n, 64), 1) is equal(n, 1) and equal(maximum(n, 3), 5) is equal(n, 5)
    assert disjunction([equal(n, 1), at_most(n, 64)]) is at_most(n, 64)
    assert conjunction([equal(n, 1), at_most(n, 64)]) is equal(n, 1)
    assert disjunction([at_least_zero(n - 3), at_least_zero(n - 5)]) is at_least_zero(n - 3)
    assert conjunction([at_least_zero(n - 3), at_least_zero(n - 5), equal(m, 0)]) is conjunction(
        [at_least_zero(n - 5), equal(m, 0)]
    )


def test_what_is_known_decides_a_minimum() -> None:
    n, m, facts = _n(), _n("m"), Facts()
    quotient = minimum(n, 64) * m % n
    assert facts.assume(at_most(n, 64))
    assert facts.settled(minimum(n, 64)) is n
    assert facts.settled(maximum(n, 70)) == 70
    assert facts.decide(is_zero(quotient))


@pytest.mark.parametrize(
    ("choice", "extreme"),
    [
        (lambda n, m: choose(less(1, n), 1, n), lambda n, m: minimum(n, 1)),
        (lambda n, m: choose(at_most(n, m), n, m), lambda n, m: minimum(n, m)),
        (lambda n, m: choose(less(n, m), n, m), lambda n, m: minimum(n, m)),
        (lambda n, m: choose(less(n, m), m, n), lambda n, m: maximum(n, m)),
        (lambda n, m: choose(at_most(3, n), n * 2, 5), lambda n, m: maximum(n * 2, 5)),
        (lambda n, m: choose(at_most(3, n), 5, n * 2), lambda n, m: minimum(n * 2, 5)),
    ],
)
def test_the_smaller_or_larger_of_two_numbers_that_are_compared(choice: Any, extreme: Any) -> None:
    n, m = (of_symbol(Symbol(name)) for name in "nm")
    assert choice(n, m) is extreme(n, m)


@pytest.mark.parametrize(
    "choice",
    [
        lambda n, m: choose(less(2, n), 1, n),
        lambda n, m: choose(less(n, m), n + 2, m),
        lambda n, m: choose(at_most(3, n), n * 2, 3),
        lambda n, m: choose(at_most(3, n), n * 2, 7),
    ],
)
def test_other_choices_between_numbers_are_no_extremes(choice: Any) -> None:
    n, m = (of_symbol(Symbol(name)) for name in "nm")
    assert "if" in repr(choice(n, m))


def test_a_bound_decides_which_way_a_quotient_is_rounded() -> None:
    n, facts = _n(), Facts()
    quotient = truncated_divide(n - 400, 2)
    assert facts.settled(quotient) is quotient
    assert facts.assume(at_most(400, n))
    assert facts.settled(quotient) is (n - 400) // 2


def test_a_remainder_is_smaller_than_its_divisor() -> None:
    n, m = _n("n"), _n("m")
    assert bounds(n % 3) == (0, 2)
    assert bounds(5 - 2 * ((n + m) % 4)) == (-1, 5)
    assert bounds((n // 2 + m) % 2 + (m + 1) % 5) == (0, 5)
    assert truncated_divide(3 - n % 3, 3) is (3 - n % 3) // 3


def test_a_number_times_whether_it_is_not_0_is_itself() -> None:
    n, m = _n("n"), _n("m")
    pads = (3 - n % 3) % 3
    assert pads * choose(equal(pads, 0), 0, 1) is pads
    assert choose(unequal(n, 0), m, 7) * n is n * m
    assert "if" in repr(choose(equal(n, 0), 0, 1) * m)


def test_a_number_with_one_choice_is_a_choice() -> None:
    n, m = _n("n"), _n("m")
    pads = n % 3
    condition = equal(pads, 0)
    assert parted(choose(condition, 9, 0) - pads + 4) == (condition, 13, 4 - pads)
    assert parted(choose(unequal(n, 0), 9, m) + n) == (unequal(n, 0), n + 9, m)
    assert parted(n) is None and parted(choose(condition, 9, 0) + choose(at_most(n, m), 3, 5)) is None


def test_one_of_two_conditions_holds_where_the_other_does_not() -> None:
    n, m, facts = _n("n"), _n("m"), Facts()
    assert facts.decide(disjunction([equal(n % 3, 0), at_most(1, n % 3)]))
    assert facts.decide(disjunction([at_most(n, m), at_most(m, n + 2)]))
    assert facts.decide(disjunction([equal(n % 3, 0), at_most(2, n % 3)])) is None


def test_a_size_that_stands_for_0_is_told_apart() -> None:
    """Reshape's 0 stands for a dimension of its input: files of torch's older exporter have dozens of such choices."""
    n, facts = _n(), Facts()
    filled = choose(equal(n, 0), 4, n)
    assert facts.decide(at_most(1, filled))
    assert facts.decide(equal(n * n % filled, 0))
    assert facts.decide(equal(n * n // filled, n))
    assert facts.decide(equal(filled, 0)) is False
    assert facts.decide(at_most(4, filled)) is None


def test_a_sign_is_printed_before_a_whole_quotient_or_remainder() -> None:
    n, m = _n("n"), _n("m", 1)
    assert repr(-(n // 3)) == "-(n // 3)"
    assert repr((n // 3) * (n // 2) * -1) == "-(n // 3 * (n // 2))"
    assert repr(n * -2) == "-2 * n"
    assert repr(at_least_zero((-n) % m)) == "(-n) % m >= 0"


@pytest.mark.parametrize(
    "make",
    [
        lambda n, m: (n + m) * (n - m) + m * m - n * n,
        lambda n, m: (n * 3 + m) // 3 - m // 3 - n,
        lambda n, m: n // 2 // 3 - n // 6,
        lambda n, m: (n // 2 + 3) // 5 - (n + 6) // 10,
        lambda n, m: (n * 31) // 32 - n + (n + 31) // 32,
        lambda n, m: -(-n // 32) - (n + 31) // 32,
        lambda n, m: (n * 2 + m * 2 + 1) // 3 - n - m + (n + m + 1) // 3,
        lambda n, m: (n * m) // m - n,
        lambda n, m: maximum(n, m) - maximum(m, n),
        lambda n, m: maximum(n + 1, m + 1) - maximum(n, m) - 1,
        lambda n, m: maximum(n + m, n + m * 2, 3 - n) - maximum(n + m * 2, 3 - n, n + m),
        lambda n, m: minimum(n * 2 - m, n - m * 2) - minimum(n - m * 2, n * 2 - m),
        lambda n, m: maximum(maximum(n, m * 3 - 4), 7) - maximum(n, maximum(m * 3 - 4, 7)),
        lambda n, m: maximum(maximum(n, m * 2) + 1, n * 3 + 1) - maximum(n, m * 2, n * 3) - 1,
        lambda n, m: maximum(maximum(n, m * 2) + 4, n * 3 + 1) - maximum(n + 4, m * 2 + 4, n * 3 + 1),
        lambda n, m: absolute(n - m) - absolute(m - n),
        lambda n, m: minimum(n, 64) + maximum(-64, -n),
        lambda n, m: maximum(-minimum(n, 8) + 3, m - n) - maximum(3 - n, -5, m - n),
        lambda n, m: broadcast(n, -maximum(-1, -n)) - n,
        lambda n, m: broadcast(n, broadcast(m, 1, n)) - broadcast(m, n),
        lambda n, m: truncated_divide(n * -1, 3) + n // 3,
        lambda n, m: truncated_divide(n * 6 - m * 3, 3) - n * 2 + m,
        lambda n, m: 100 // -maximum(n, 1) - -100 // maximum(n, 1),
        lambda n, m: truncated_divide(m, -maximum(n, 1)) + m // maximum(n, 1),
        lambda n, m: choose(equal(n, 0), n * m + 3, 3) - 3,
        lambda n, m: choose(equal(n, m), n * m, n * n) - n * n,
    ],
)
def test_equal_expressions_are_one(make: Callable[[Any, Any], Any]) -> None:
    difference = make(_n("n", 1), _n("m", 1))
    assert isinstance(difference, int), f"{difference!r}"
    assert difference == 0


def test_equal_conditions_are_one() -> None:
    n, m = _n("n"), _n("m")
    assert less(n, m) is at_most(n + 1, m)
    assert less(n * 2, m * 2 - 1) is less(n, m)
    assert equal(n, m) is equal(m * 3, n * 3)
    assert equal(n * 2, 7) is False


def test_expressions_are_freed() -> None:
    tables: tuple[Any, ...] = (expression._atoms, expression._sizes, conditions._conditions)
    gc.collect()
    before = [len(table) for table in tables]
    known = [set(table) for table in tables]
    n = _n()
    facts = Facts()
    kept: list[Any] = [maximum(n // k, n % 7, k) + choose(less(n, k), n // 3, 4) for k in range(2, 60)]
    facts.decide(less(kept[5], n))
    assert all(len(table) > size + 50 for table, size in zip(tables[:2], before, strict=False))
    assert len(tables[2]) > before[2]
    del n, facts, kept
    gc.collect()
    # Not their numbers: what other tests made may be freed in between.
    assert [set(table) - others for table, others in zip(tables, known, strict=True)] == [set()] * len(tables)


DEEP: dict[str, Callable[[Any, Any], Any]] = {
    "quotients": lambda size, n: floor_divide(size + 1, 2) + n,
    "remainders": lambda size, n: (size + 1) % 7 + n,
    "extremes": lambda size, n: maximum(minimum(size * 2, 1000 - n), n * 3) - n,
    "truncated": lambda size, n: truncated_divide(size - 9, 2) + n,
    "choices": lambda size, n: choose(less(size, 50), size + n, size - n * 2),
    "products": lambda size, n: multiply(size, n % 3 + 1) // 2 + 1,
    "broadcasts": lambda size, n: maximum(broadcast(size + n, 1, size + n) - n, 1) * 1,
}


@pytest.mark.parametrize("kind", DEEP)
def test_operations_may_lie_deep_within_each_other(kind: str) -> None:
    n = _n("n", 0, 40)
    size, step = n, DEEP[kind]
    for _ in range(MANY):
        size = step(size, n)
    (symbol,) = n.symbols
    expected = 7
    for _ in range(MANY):
        expected = step(expected, 7)
    assert evaluated(size, {symbol: 7}) == expected
    assert _Values().of(size) == expected
    operations = pickle.loads(pickle.dumps(operations_of(less(size, expected), {symbol: ("x", 0)})))
    assert holds(operations, {("x", 0): 7}) is False
    assert "n" in repr(size)
    assert replaced(size, {symbol: n}) is size
    facts = Facts()
    facts.narrow(symbol, (3, 9))
    facts.bounds(size)
    assert facts.decide(at_least_zero(size - size)) is True
    facts.decide(less(size, 10**9))


class _Values(Rendering[Any]):
    """Computes numbers and truths for one value of every symbol."""

    def known(self, number: int) -> Any:
        return number

    def symbol(self, symbol: Symbol) -> Any:
        return 7

    def negative(self, a: Any) -> Any:
        return -a

    def infix(self, operator: str, a: Any, b: Any) -> Any:
        return eval(f"a {operator} b", {"a": a, "b": b})

    def call(self, kind: str, operands: list[Any]) -> Any:
        functions: dict[str, Callable[..., Any]] = {
            "min": min,
            "max": max,
            "trunc": truncated,
            "broadcast": broadcast_size,
        }
        return functions[kind](*operands)

    def choice(self, condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b
