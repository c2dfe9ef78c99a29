"""Guards: conditions on the sizes of inputs that the recorded program relies on, checked before anything runs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from onnx2nn import functional
from onnx2nn.fx.shape_rules.rule import Sizes
from onnx2nn.fx.trace_errors import ShapeMismatch, TraceError
from onnx2nn.fx.values.failed_sizes import misfit, operations_of
from onnx2nn.fx.values.integer_range import IntegerRange
from onnx2nn.sizes.conditions import Condition, Truth, at_most, conjunction, disjunction, equal, is_zero, negation
from onnx2nn.sizes.expression import Number, Size, Symbol, factored, of_symbol, subtract
from onnx2nn.sizes.facts import Facts
from onnx2nn.sizes.intervals import Interval
from onnx2nn.sizes.points import Point, families
from onnx2nn.sizes.rendering import INFIX, Rendering
from onnx2nn.sizes.selection import without_choice
from onnx2nn.sizes.solving import direction, fulfilled

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer
    from onnx2nn.fx.values.symbols import Symbols
    from onnx2nn.fx.values.tensor import Tensor

_LIMITS = tuple((1 << digits) - 1 for digits in (24, 22, 20, 18, 16))
"""The limits of dimensions that are tried where float arithmetic must be exact."""

_BRANCH = "the model takes another branch for these sizes, which the import left out"
_LIMIT = "the file computes with numbers that are not exact for larger sizes"

_HUGE = 1 << 20
"""A limit from here on is left to eager calls: an exported dimension would need it as its declared maximum."""


Choices = Mapping[str, bool]
"""The truths of undecided conditions, by their text; others are proposed by sample sizes."""


class Guard(NamedTuple):
    """A condition that the program relies on.

    Attributes:
        condition: the condition, on dimensions of inputs.
        reason: what it is needed for.
        node: domain, operator and name of the node that needs it, empty where the model as a whole does.
        at_entry: whether the module checks it before it computes anything; otherwise it is checked where data decide
            the sizes, or whether the node runs at all.
        limit: the largest size for which float arithmetic is exact, None for other conditions.
    """

    condition: Condition
    reason: str
    node: tuple[str, ...] = ()
    at_entry: bool = True
    limit: int | None = None

    @property
    def text(self) -> str:
        """The condition as code, and why it is needed."""
        where = f" by node {self.node[2]!r} ({self.node[1]})" if self.node else ""
        return f"{self.condition!r} is needed{where}: {self.reason}"

    def record(self, symbols: Symbols) -> dict[str, Any]:
        """Returns the guard as plain Python values, for the module's `meta`."""
        order = sorted(self.condition.symbols, key=_number)
        return {
            "condition": repr(self.condition),
            "dimensions": {symbol.name: symbols.place_of(symbol) for symbol in order},
            "reason": self.reason,
            "node": self.node[2] if self.node else None,
            "operator": self.node[1] if self.node else None,
            "at_entry": self.at_entry,
        }

    def record_of_failure(self, symbols: Symbols) -> dict[str, Any]:
        """Returns what `failed_sizes` reads of a condition that a call checks itself, as plain Python values."""
        places = {symbol: symbols.place_of(symbol) for symbol in sorted(self.condition.symbols, key=_number)}
        return {
            "operations": operations_of(self.condition, places),
            "text": self.text,
            "dimensions": {symbols.title(symbol): place for symbol, place in places.items()},
        }


class Guards(Sizes):
    """The facts on which one recorded program relies, and their guards.

    Args:
        tracer: records the program.
        outer: the guards of the enclosing program, whose facts hold here too.
        choices: the truths of conditions on which the program's structure depends, where they are not proposed.

    Attributes:
        facts: what is known of sizes.
        found: the guards that the program checks before it computes anything, beside `limits`.
        limits: the dimensions that are limited because float arithmetic must be exact, and the guards.
        relied: the conditions that calls check themselves, on dimensions of inputs; no guard does.
        later: the guards that inner programs check, or this one where data decide a size.
        integers: the numbers that int64 surely holds.
        chosen: the conditions for which the structure of the program was chosen, and their truths.
    """

    def __init__(self, tracer: Tracer, outer: Guards | None, choices: Choices):
        self._tracer = tracer
        self.facts: Facts = Facts(None if outer is None else outer.facts)
        self.found: list[Guard] = []
        self.limits: dict[Symbol, Guard] = {}
        self.relied: list[Guard] = []
        self.later: list[Guard] = []
        self._outer = outer
        self.integers: IntegerRange = IntegerRange(self, None if outer is None else outer.integers)
        self.chosen: list[tuple[Condition, bool]] = [] if outer is None else outer.chosen
        self._choices = choices

    def allow_parts(self, count: Number) -> None:
        """Checks the number of tensors that a call makes of one, see `Sizes`."""
        if isinstance(count, int) and count > self._tracer.limits.sequence_length:
            raise TraceError(f"a sequence of {count} elements, above Limits.sequence_length")

    def decide(self, condition: Truth) -> bool | None:
        """Returns the truth of a condition for all sizes, None where it is not proven."""
        return self.facts.decide(condition)

    def require(self, condition: Truth, reason: str) -> None:
        """Notes a condition that a call checks itself, and guards it where it is an equation, or leaves a single size.

        These restrict the sizes of inputs. Others, such as a dimension that is not 0, are named once the call failed.

        Raises:
            ShapeMismatch: no sizes fulfil it.
        """
        self._require(condition, reason)

    def _require(self, condition: Truth, reason: str, *, is_equation: bool = False) -> None:
        settled = self.facts.settled(condition)
        plain = without_choice(settled)
        open_ = None if plain is True else self._checked(plain, reason)
        if open_ is None:
            return
        single = any(isinstance(self.facts.values.get(symbol), int) for symbol in open_.symbols)
        if is_equation or open_.kind == "==" or plain is not settled or single:
            self._guard(open_, reason)
        elif self._outer is None and all(map(self._tracer.symbols.place_of, open_.symbols)):
            self.relied.append(Guard(open_, reason, self._tracer.meta.get("onnx", ())))

    def demand(self, condition: Truth, reason: str) -> None:
        """Guards a condition that nothing else checks, unless it is proven.

        Raises:
            ShapeMismatch: no sizes fulfil it.
        """
        open_ = self._checked(condition, reason)
        if open_ is not None:
            self._guard(open_, reason)

    def _checked(self, condition: Truth, reason: str) -> Condition | None:
        """Returns a condition that is not proven, without what is disproven in it; it holds from here on."""
        condition = self._open(self.facts.settled(condition))
        if condition is True:
            return None
        if condition is False or not self.facts.assume(condition):
            raise ShapeMismatch(reason if condition is False else f"{reason}: {condition!r} holds for no sizes")
        assert isinstance(condition, Condition)
        return condition

    def _open(self, condition: Truth) -> Truth:
        truth = self.facts.decide(condition, required=True)
        if truth is not None or isinstance(condition, bool):
            return condition if truth is None else truth
        if condition.kind in ("and", "or"):
            return (conjunction if condition.kind == "and" else disjunction)(map(self._open, condition.operands))
        return condition

    def _guard(self, condition: Condition, reason: str) -> None:
        guard = Guard(_as_range(condition, self.facts), reason, self._tracer.meta.get("onnx", ()))
        if _is_of_own_data(condition, self._tracer.symbols):
            self.check_now(guard)
        else:
            self.found.append(guard)

    def lift(self, inner: Guards, chosen: Condition) -> None:
        """Takes over the guards of the program of a branch, which runs where a condition on sizes holds."""
        for guard in [guard for guard in inner.found if not guard.condition.by_data]:
            inner.found.remove(guard)
            condition = disjunction((negation(chosen), guard.condition))
            assert isinstance(condition, Condition)
            self.found.append(guard._replace(condition=condition))

    def equal(self, a: Number, b: Number, reason: str) -> Number:
        """Requires two numbers to be equal; returns the one of which more is known."""
        a, b = self.facts.settled(a), self.facts.settled(b)
        if a is not b and not (isinstance(a, int) and isinstance(b, int) and a == b):
            difference = subtract(a, b)
            common, rest = factored(difference)
            reason = f"{reason} ({a!r} and {b!r})"
            equation = is_zero(rest)
            condition = self.facts.settled(equation)
            if _is_by_data(common) and _is_by_data(condition):
                if not self.facts.decide(is_zero(difference)):
                    self.demand(disjunction((is_zero(common), without_choice(condition))), reason)
            else:  # `b * h == b` is `h == 1`, but for an empty batch, which is refused then
                of_order = isinstance(equation, Condition) and equation.kind != "=="  # `n == min(n, 64)`: `n <= 64`
                self._require(condition, reason, is_equation=of_order)
        return a if isinstance(a, int) or not isinstance(b, int) else b

    def declare(self, tensor: Tensor, place: tuple[str, int], dim: str, known: Guard | None) -> None:
        """Notes that a dimension of an input reads its symbol; guards it where it is no symbol, or one read elsewhere.

        Args:
            tensor: the input.
            place: the input's name and the dimension.
            dim: the dimension's name.
            known: the guard from which the size is known, None where the file says it.
        """
        name, axis = place
        assert tensor.spec.shape is not None
        size, symbols = tensor.spec.shape[axis], self._tracer.symbols
        alone = next(iter(size.symbols)) if isinstance(size, Size) and len(size.symbols) == 1 else None
        if alone is not None and size is of_symbol(alone) and alone not in symbols.inputs:
            symbols.add_input(alone, place, tensor, axis)
            return
        taken = any(symbol.name == dim for symbol in symbols)
        own = Symbol(f"{name}.shape[{axis}]" if taken else dim)
        symbols.add_input(own, place, tensor, axis)
        condition = equal(of_symbol(own), size)
        if isinstance(condition, Condition):
            guard = Guard(condition, "the file gives the dimensions one name") if known is None else known
            self.found.append(guard._replace(condition=condition))

    def limit(self, condition: Truth) -> None:
        """Makes sure that float arithmetic is exact, by a limit on dimensions where it must.

        Raises:
            TraceError: no limit is enough.
        """
        condition = self.facts.settled(condition)
        truth = self.facts.decide(condition)
        if truth:
            return
        if truth is None and isinstance(condition, Condition):
            for most in _LIMITS:
                trial = Facts(self.facts)
                for symbol in condition.symbols:
                    least, known = trial.intervals.get(symbol, symbol.interval)
                    trial.narrow(symbol, (least, most if known is None else min(most, known)))
                if trial.decide(condition):
                    self._restrict(condition, most)
                    return
        raise TraceError("floats computed from sizes that float32 rounds")

    def _restrict(self, condition: Condition, most: int) -> None:
        for symbol in sorted(condition.symbols, key=_number):
            least, known = self.facts.intervals.get(symbol, symbol.interval)
            bound = at_most(of_symbol(symbol), most)
            if (known is not None and known <= most) or not isinstance(bound, Condition):
                continue
            self.facts.narrow(symbol, (least, most))
            guard = Guard(bound, _LIMIT, self._tracer.meta.get("onnx", ()), limit=most)
            if symbol in self._tracer.symbols.own:
                self.check_now(guard)
            else:
                self.limits[symbol] = guard

    def choice(self, condition: Truth) -> bool:
        """Returns the truth of a condition on which the program's structure depends; guarded unless it is proven.

        Raises:
            TraceError: data decide it.
        """
        truth = self.facts.decide(condition)
        if truth is not None:
            return truth
        condition = self.facts.settled(condition)
        assert isinstance(condition, Condition)
        if condition.by_data:
            raise TraceError(f"a branch depends on {condition!r}, which data decide")
        truth = self._choices.get(repr(condition))
        if truth is None:
            truth = self.proposed(condition)
        self.chosen.append((condition, truth))
        self.demand(condition if truth else negation(condition), _BRANCH)
        return truth

    def proposed(self, condition: Condition) -> bool:
        """Returns the truth of a condition at most of the sample sizes."""
        points = next(self.points(condition.symbols))
        return sum(fulfilled(condition, point) for point in points) * 2 > len(points)

    def points(self, symbols: frozenset[Symbol], also: Iterable[Condition] = ()) -> Iterator[list[Point]]:
        """Yields triples of sample sizes, of all symbols that the assumptions mention too.

        Args:
            symbols: the symbols.
            also: conditions that should hold beside the assumptions, if they can.
        """
        known = dict.fromkeys(self._tracer.symbols)
        known |= dict.fromkeys(sorted(symbols - known.keys(), key=lambda symbol: symbol.number))
        values, intervals = self.facts.values, self.facts.intervals
        free = [symbol for symbol in known if symbol not in values]
        bounds: list[Interval] = [intervals.get(symbol, symbol.interval) for symbol in free]
        for points in families(free, bounds, [*self.facts.assumed, *also]):
            for point in points:
                for symbol, value in values.items():
                    point[symbol] = value if isinstance(value, int) else point.get(_only(value), 1)
            yield points

    def listed(self) -> list[Guard]:
        """Returns all guards of the program, and of those in it."""
        return [*self.found, *self.limits.values(), *self.later]

    def record(self) -> None:
        """Records the checks of all guards, in front of everything else that the program computes."""
        if self._outer is not None:
            self._outer.later += [guard._replace(at_entry=False) for guard in self.listed()]
        guards = [*self.found, *self.limits.values()]
        symbols = {symbol for guard in guards for symbol in guard.condition.symbols}
        if not symbols:
            return
        sources = {symbol: self._tracer.symbols.read(symbol).node for symbol in sorted(symbols, key=_number)}
        reads = set(sources.values())
        body = (node for node in self._tracer.graph.nodes if node.op not in ("placeholder", "get_attr"))
        first = next((node for node in body if node not in reads), None)
        if first is not None:
            for node in sources.values():
                if node.op != "placeholder":
                    first.prepend(node)
        with self._tracer.graph.inserting_before(first):
            for guard in guards:
                _check(self._tracer, guard)

    def check_now(self, guard: Guard) -> None:
        """Records a check where nodes are recorded now."""
        self.later.append(guard._replace(at_entry=False))
        _check(self._tracer, guard)


def take_guards(outer: Tracer, inner: Tracer) -> None:
    """Moves the guards of a function's program to the one that calls it: its results may be known without the call."""
    guards, found = outer.guards, inner.guards
    for guard in (*found.found, *found.limits.values()):
        guards.facts.assume(guard.condition)
        if _is_of_own_data(guard.condition, outer.symbols):
            guards.check_now(guard)
        elif guard.limit is None:
            guards.found.append(guard)
        else:
            guards.limits |= dict.fromkeys(guard.condition.symbols, guard)
    found.found.clear()
    found.limits.clear()


def _is_of_own_data(condition: Condition, symbols: Symbols) -> bool:
    """Returns whether a symbol of a condition is read from a result of the program of these symbols."""
    return any(symbol in symbols.own for symbol in condition.symbols)


def _is_by_data(value: Number | Truth) -> bool:
    """Returns whether data decide a size in a number or condition."""
    return isinstance(value, (Size, Condition)) and value.by_data


def node_of(tracer: Tracer, value: Number | Condition) -> Any:
    """Returns a size or condition, of dimensions that a program reads, as a node that is recorded now."""
    return _Nodes(tracer).of(value)


def _check(tracer: Tracer, guard: Guard) -> None:
    """Records a check where nodes are recorded now."""
    symbols = sorted(guard.condition.symbols, key=_number)
    places = [(_escaped(tracer.symbols.title(symbol)), "{}") for symbol in symbols]
    whose = "that data decide" if guard.condition.by_data else "of the inputs"
    message = misfit(whose, _escaped(guard.text), places)
    sizes = [tracer.symbols.read(symbol).node for symbol in symbols]
    truth = node_of(tracer, guard.condition)
    kwargs: dict[str, Any] = {"message": message}
    if guard.condition.by_data:
        kwargs["by_data"] = True
    elif guard.limit is not None and guard.limit >= _HUGE:
        kwargs["limit"] = True
    tracer.create("call_function", functional.onnx2nn__Require, (truth, *sizes), kwargs)


def _escaped(text: str) -> str:
    """Returns a text that `str.format` leaves as it is: names in a file may have braces."""
    return text.replace("{", "{{").replace("}", "}}")


def _number(symbol: Symbol) -> int:
    return symbol.number


def _only(value: Any) -> Any:
    return next(iter(value.symbols))


class _Nodes(Rendering[Any]):
    """Records nodes that compute numbers and conditions from dimensions."""

    def __init__(self, tracer: Tracer):
        self._tracer = tracer

    def known(self, number: int) -> Any:
        return number

    def symbol(self, symbol: Symbol) -> Any:
        return self._tracer.symbols.read(symbol).node

    def infix(self, operator: str, a: Any, b: Any) -> Any:
        return self._tracer.create("call_function", INFIX[operator], (a, b))

    def negative(self, a: Any) -> Any:
        return self._tracer.create("call_function", operator.neg, (a,))

    def call(self, kind: str, operands: list[Any]) -> Any:
        if kind == "trunc":
            a, b = operands
            if isinstance(b, int) and b > 0:
                above, below = (self.infix("//", self.call("max", [n, 0]), b) for n in (a, self.negative(a)))
                return self.infix("-", above, below)
            above = self.infix("//", a, b)
            below = self.negative(self.infix("//", self.negative(a), b))
            return self.choice(self.infix(">=", self.infix("*", a, b), 0), above, below)
        if kind == "broadcast":
            return reduce(lambda a, b: self.choice(self.infix("==", a, 1), b, a), operands)
        function = functional.onnx2nn__SizeMin if kind == "min" else functional.onnx2nn__SizeMax
        return reduce(lambda a, b: self._tracer.create("call_function", function, (a, b)), operands)

    def choice(self, condition: Any, a: Any, b: Any) -> Any:
        return self._tracer.create("call_function", functional.onnx2nn__SizeIf, (condition, a, b))


def _as_range(condition: Condition, facts: Facts) -> Condition:
    """Returns a condition on one size as the range that it leaves, which says more than an equation or a quotient.

    Args:
        condition: an assumed condition.
        facts: the facts that hold with it.
    """
    if len(condition.symbols) > 1 or condition in facts.assumed or condition.kind not in ("==", ">="):
        return condition
    (symbol,), (number,) = condition.symbols, condition.operands
    size, known = of_symbol(symbol), facts.values.get(symbol)
    least, most = (known, known) if isinstance(known, int) else facts.intervals.get(symbol, (None, None))
    plain = condition.kind == ">=" and all(set(monomial) <= {symbol} for monomial, _ in number.terms)
    if plain or least is None or (most is None and condition.kind == "=="):
        return condition
    grows = condition.kind == ">=" and direction(number, symbol) == 1  # it leaves all sizes from the least on
    ends = at_most(least, size), grows or most is None or at_most(size, most)
    solved = equal(size, least) if least == most else conjunction(ends)
    return solved if isinstance(solved, Condition) else condition
