"""The statements of a forward: calls on growing lists and in series become loops, short expressions are folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from onnx2nn.output.python_source.class_bodies import Kind
from onnx2nn.output.python_source.expressions import (
    Attribute,
    Call,
    Collection,
    Expression,
    Subscript,
    Text,
    Value,
    inline,
    substitute,
    values,
)

_FOLDED, _WHOLE = 56, 68
"""Longest expression that is folded into another one; longest result of folding."""


@dataclass(frozen=True)
class Step:
    """One statement of a forward: the values that it assigns, the expression, and the list of modules of a loop."""

    results: tuple[int, ...]
    expression: Expression
    loop: Expression | None = None
    start: int = -1  # the value that the loop updates


def make_steps(
    calls: list[tuple[tuple[int, ...], Expression]], outputs: Expression, kind: Kind, lengths: Mapping[str, int]
) -> list[Step]:
    """Returns the statements of a forward; the last one is its result.

    Args:
        calls: the forward's calls, each with the numbers of its results.
        outputs: the forward's result.
        kind: the class, which gets the names of new values.
        lengths: number of modules by the list that holds them, `"self.blocks"`.
    """
    return _fold(_loops(_collect(calls, outputs, kind), outputs, lengths), outputs)


def _collect(
    calls: list[tuple[tuple[int, ...], Expression]], outputs: Expression, kind: Kind
) -> list[tuple[tuple[int, ...], Expression]]:
    """Rewrites calls on growing lists, each with the result before it appended, as calls on one list."""
    uses = Counter(index for _, call in calls for index in values(call))
    uses.update(values(outputs))
    joined = [_joined(call) for _, call in calls]
    places = [number for number, items in enumerate(joined) if items is not None]
    run = places[:1]
    for number in places[1:]:
        before = calls[run[-1]][0]
        if len(before) != 1 or joined[number] != (*(joined[run[-1]] or ()), Value(before[0])):
            break
        run.append(number)
    if len(run) < 4 or any(uses[calls[number][0][0]] != len(run) - 1 - i for i, number in enumerate(run[:-1])):
        return calls
    new = max([*kind.names, *(index for results, _ in calls for index in results)]) + 1
    kind.names[new], kind.types[new] = "features", "list[Tensor]"
    result: list[tuple[tuple[int, ...], Expression]] = []
    for number, (results, call) in enumerate(calls):
        items = joined[number] if number in run else None
        if items is None:
            result.append((results, call))
            continue
        if number == run[0]:
            result.append(((new,), Collection("[]", items)))
        assert isinstance(call, Call)
        call = Call(call.function, (Value(new), *call.args[1:]), call.kwargs)
        last = number == run[-1]
        result.append((results, call) if last else ((), Call(Attribute(Value(new), "append"), (call,))))
    return result


def _joined(call: Expression) -> tuple[Expression, ...] | None:
    """Returns the values in the list that is a call's first argument; None for other calls."""
    first = call.args[0] if isinstance(call, Call) and call.args else None
    if not isinstance(call, Call) or not isinstance(first, Collection) or len(first.items) < 2:
        return None
    takes_lists = first.brackets == "[]" or call.function == Text("torch.cat")
    return first.items if takes_lists and all(isinstance(item, Value) for item in first.items) else None


def _loops(
    calls: list[tuple[tuple[int, ...], Expression]], outputs: Expression, lengths: Mapping[str, int]
) -> list[Step]:
    """Returns the calls as steps; calls of a list's modules, each on the result of the one before, are a loop."""
    steps: list[Step] = []
    uses = Counter(index for _, call in calls for index in values(call))
    uses.update(values(outputs))
    position = 0
    while position < len(calls):
        end = position + 1
        while end < len(calls) and _follows(calls[end - 1], calls[end], uses):
            end += 1
        results, call = calls[position]
        if end - position < 3 and end - position != _whole(call, lengths):
            steps.append(Step(results, call))
            end = position + 1
        else:
            steps += _loop(calls[position:end], lengths)
        position = end
    return steps


def _whole(call: Expression, lengths: Mapping[str, int]) -> int:
    """Returns the length of the list whose first module is called, 0 for other calls."""
    listed = _listed(call)
    count = lengths.get(inline(listed[0]), 0) if listed is not None and listed[1] == 0 else 0
    return count if count > 1 else 0


def _listed(call: Expression) -> tuple[Expression, int] | None:
    """Returns the list and the number of the module that is called."""
    if isinstance(call, Call) and isinstance(call.function, Subscript) and isinstance(call.function.index, Text):
        number = call.function.index.text
        return (call.function.value, int(number)) if number.isdecimal() else None
    return None


def _changed(one: Expression, other: Expression) -> list[int] | None:
    """Returns the positions of the arguments in which two calls differ."""
    if not isinstance(one, Call) or not isinstance(other, Call) or one.kwargs != other.kwargs:
        return None
    if len(one.args) != len(other.args):
        return None
    return [i for i, (a, b) in enumerate(zip(one.args, other.args, strict=True)) if a != b]


def _follows(
    before: tuple[tuple[int, ...], Expression], after: tuple[tuple[int, ...], Expression], uses: Mapping[int, int]
) -> bool:
    one, other = _listed(before[1]), _listed(after[1])
    if one is None or other is None or one[0] != other[0] or other[1] != one[1] + 1 or len(before[0]) != 1:
        return False
    changed = _changed(before[1], after[1])
    if changed is None or len(changed) != 1 or len(after[0]) != 1 or uses[before[0][0]] != 1:
        return False
    assert isinstance(before[1], Call) and isinstance(after[1], Call)
    return after[1].args[changed[0]] == Value(before[0][0]) and isinstance(before[1].args[changed[0]], Value)


def _loop(calls: list[tuple[tuple[int, ...], Expression]], lengths: Mapping[str, int]) -> list[Step]:
    first, second, last = calls[0][1], calls[1][1], calls[-1]
    listed, changed = _listed(first), _changed(first, second)
    assert listed is not None and changed is not None and isinstance(first, Call)
    over, start = listed
    if start != 0 or len(calls) != lengths.get(inline(over)):
        over = Subscript(over, Text(f"{start or ''}:{start + len(calls)}"))
    (position,) = changed
    around = calls[0][0][0]
    args = tuple(Value(around) if i == position else arg for i, arg in enumerate(first.args))
    begin = first.args[position]
    return [Step((around,), begin), Step(last[0], Call(Text("?"), args, first.kwargs), over, around)]


_VALUE = "somevalue"
"""A name of a value, as long as most are."""


def _fold(steps: list[Step], outputs: Expression) -> list[Step]:
    """Puts short expressions that are used once into the expression that uses them; the last step is the result."""
    uses = Counter(index for step in steps for index in values(step.expression) * (2 if step.loop is not None else 1))
    uses.update(values(outputs))
    around = {step.start for step in steps if step.loop is not None}
    folded: dict[int, Expression] = {}
    kept: list[Step] = []

    def assemble(expression: Expression) -> Expression:
        """Returns an expression with its values folded in; a value that makes it too long becomes a step of its own."""
        inside = {index: folded.pop(index) for index in values(expression) if index in folded}
        lengths = {index: len(_estimate(part)) for index, part in inside.items()}
        waiting = sorted(reversed(inside), key=lengths.__getitem__)  # the longest is the last
        while True:
            whole = substitute(expression, lambda part: inside.get(part.index) if isinstance(part, Value) else None)
            excess = len(_estimate(whole)) - _WHOLE
            if not inside or excess <= 0:
                return whole
            while inside and excess > 0:  # a value in its place, without brackets around it, saves so much at most
                longest = waiting.pop()
                excess -= max(lengths[longest] + len("()") - len(_VALUE), 0)
                kept.append(Step((longest,), inside.pop(longest)))

    for step in steps:
        expression = assemble(step.expression)
        single = len(step.results) == 1 and uses[step.results[0]] == 1 and step.results[0] not in around
        if step.loop is None and single and len(_estimate(expression)) <= _FOLDED and not isinstance(expression, Value):
            folded[step.results[0]] = expression
        else:
            kept.append(Step(step.results, expression, step.loop, step.start))
    final = assemble(outputs)
    if kept and isinstance(final, Value) and kept[-1].results == (final.index,) and kept[-1].loop is None:
        final = kept.pop().expression
    return [*kept, Step((), final)]


def _estimate(expression: Expression) -> str:
    return inline(substitute(expression, lambda part: Text(_VALUE) if isinstance(part, Value) else None))
