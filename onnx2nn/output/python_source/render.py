"""The text of classes: names for values and arguments, short expressions folded together, lines that fit."""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Collection as Names
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from onnx2nn.control_flow import CONTROL_FLOW
from onnx2nn.ground.naming import identifier
from onnx2nn.output.python_source.expressions import (
    Attribute,
    Call,
    Collection,
    Expression,
    Hole,
    Modules,
    New,
    Subscript,
    Text,
    Value,
    inline,
    lines,
    literal,
    modules,
    substitute,
    values,
)
from onnx2nn.output.python_source.kinds import Kind
from onnx2nn.output.python_source.program import Path, is_attribute

RESERVED = frozenset({"self", "torch", "nn", "F", "Tensor", "Path", "OrderedDict", "load_file", "math", "operator"})
RESERVED |= {"getattr", "float", "super", "abs", "max", "min", "round", "int", "bool"}  # functions that a forward calls
RESERVED |= {"Any", "Callable", "Sequence", *(kind.__name__ for kind in CONTROL_FLOW)}
_TAKEN = RESERVED | frozenset(keyword.kwlist) | frozenset(dir(builtins))
_MEMBERS = frozenset(dir(nn.Module())) | frozenset(vars(nn.Module()))
_LONGEST_NAME = 22
_FOLDED, _WHOLE = 56, 68
"""Longest expression that is folded into another one; longest result of folding."""


def class_names(kinds: list[Kind], known: Mapping[Path, str], others: Iterable[str] = ()) -> list[str]:
    """Returns a name for each class: the author's where the file has it, else a name from the path of an instance.

    Args:
        kinds: the classes.
        known: the author's names, by the path of an instance.
        others: names that are taken.
    """
    reserved = {*_TAKEN, *others, "WEIGHTS", "FROZEN", "load_model"}
    names: dict[int, str] = {}
    for kind in [kinds[-1], *kinds[:-1]]:
        name = known.get(kind.paths[0], "")
        if not is_attribute(name) or hasattr(nn, name):
            name = _name_from_path(kind.paths[0])
        taken = {*names.values(), *reserved}
        number, wanted = 2, name
        while name in taken:
            name = f"{wanted}{number}"
            number += 1
        names[kind.number] = name
    return [names[kind.number] for kind in kinds]


def _name_from_path(path: Path) -> str:
    words = [step for step in path if not step.isdecimal()][-1:] or ["Model"]
    word = words[0].rstrip("0123456789_-")
    above = [step for step in path[:-1] if not step.isdecimal()]
    if len(word) < 3 and above:
        word = f"{above[-1]}_{word}"  # an `f` or a `c`
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss") and path and path[-1] != words[0]:
        word = word[:-1]  # one of the `layers`
    parts = [part for part in re.split(r"[\W_]+", word) if part] or ["Module"]
    return identifier("".join(part[0].upper() + part[1:] for part in parts))


def render(kind: Kind, names: list[str], kinds: list[Kind]) -> str:
    """Returns the text of a class.

    Args:
        kind: the class.
        names: names of all classes.
        kinds: all classes.
    """
    return _Class(kind, names, kinds).text()


class _Class:
    def __init__(self, kind: Kind, names: list[str], kinds: list[Kind]):
        self.kind, self.names, self.kinds = kind, names, kinds
        self.columns = kind.columns()
        self.members = {name.split(".")[0] for _, name, _ in kind.body.init if name}
        self.parameters = self._parameter_names()
        self.kept: dict[str, None] = {}  # parameters that the forward uses

    def _parameter_names(self) -> dict[object, str]:
        """Returns the names of the constructor's arguments, by their values in the instances."""
        found: dict[object, str] = {}
        for column in self.kind.parameters():
            hints = [hint for hint, other in zip(self.kind.hints, self.columns, strict=True) if other == column]
            hint = next((hint for hint in hints if hint not in ("size", "value")), hints[0])
            taken = {*found.values(), *_TAKEN, *self.members, *_MEMBERS}
            found[column] = _unique(hint, taken)
        return found

    def text(self) -> str:
        """Returns the class statement."""
        body = self.kind.body
        forward = self._forward() if body.outputs is not None else []
        base = "nn.Sequential" if body.base == "Sequential" else "nn.Module"
        out = [f"class {self.names[self.kind.number]}({base}):", f'    """{self._where()}"""', ""]
        out += [*(f"    {line}" for line in self._init()), *([""] if forward else []), *forward]
        return "\n".join(out)

    def _where(self) -> str:
        paths = [re.sub(r"[^\w.-]", "_", ".".join(path)) or "The whole model" for path in self.kind.paths]
        count = len(paths)
        while count > 1 and len(_listing(paths, count)) > 78:
            count -= 1
        return f"{_listing(paths, count)}."

    def _init(self) -> list[str]:
        types = {column: _type(column) for column in self.parameters}
        arguments = [f"{name}: {types[column]}" for column, name in self.parameters.items()]
        out = _definition("__init__", ["self", *arguments], "None", 4)
        inner: list[str] = []
        for what, name, expression in self.kind.body.init:
            known = self._known(expression, forward=False)
            if what == "base":
                assert isinstance(known, Call)
                inner += lines("", Call(Text("super().__init__"), known.args), "", 8)
            elif what == "attribute":
                inner += lines(f"self.{name} = ", known, "", 8)
            elif what in ("module", "parameter"):
                register = "self.add_module" if what == "module" else "self.register_parameter"
                inner += lines("", Call(Text(register), (Text(literal(name)), known)), "", 8)
            elif what == "buffer":
                assert isinstance(known, Call)
                inner += lines("", Call(known.function, (Text(literal(name)), *known.args), known.kwargs), "", 8)
            else:
                assert isinstance(known, Collection)
                inner += lines(f"{inline(known.items[0])} = ", known.items[1], "", 8)
        inner += [f"self.{name} = {name}" for name in self.kept]
        if self.kind.body.base != "Sequential":
            inner.insert(0, "super().__init__()")
        return [*out, *(f"    {line}" for line in inner)]

    def _known(self, expression: Expression, *, forward: bool) -> Expression:
        """Returns an expression with the numbers of this class in place of its holes."""

        def known(part: Expression) -> Expression | None:
            if isinstance(part, Hole):
                return self._number(part.index, forward)
            if isinstance(part, New):
                child = self.kinds[part.kind]
                own = self.columns[part.first : part.first + part.count]
                first = child.parameters().values()
                return Call(
                    Text(self.names[part.kind]),
                    tuple(self._number(part.first + index, forward) for index in first) if own else (),
                )
            if isinstance(part, Modules):
                return modules(part.kind, [(name, substitute(item, known)) for name, item in part.items])
            return None

        return substitute(expression, known)

    def _number(self, index: int, forward: bool) -> Expression:
        column = self.columns[index]
        name = self.parameters.get(column)
        if name is None:
            return Text(literal(column[0][1]))
        if forward:
            self.kept[name] = None
            return Attribute(Text("self"), name)
        return Text(name)

    def _forward(self) -> list[str]:
        body = self.kind.body
        calls = [(results, self._known(call, forward=True)) for results, call in body.calls]
        assert body.outputs is not None
        outputs = self._known(body.outputs, forward=True)
        calls = _collect(calls, outputs, self.kind)
        naming = _Naming(self.kind, _fold(_loops(calls, outputs, self._lengths()), outputs))
        arguments = [f"{naming.of[index]}: {self.kind.types[index]}" for index in range(body.arguments)]
        result = _result_type(naming.final, self.kind.types)
        out = [f"    {line}" for line in _definition("forward", ["self", *arguments], result, 4)]
        for step in naming.steps():
            out += [f"        {line}" for line in step]
        return out

    def _lengths(self) -> dict[str, int]:
        """Returns how many modules each list of this class holds."""
        lists = [(name, expression) for _, name, expression in self.kind.body.init if isinstance(expression, Modules)]
        return {f"self.{name}": len(expression.items) for name, expression in lists}


def _listing(paths: list[str], count: int) -> str:
    return ", ".join(paths[:count]) + (f" and {len(paths) - count} more" if count < len(paths) else "")


def _definition(name: str, arguments: list[str], result: str, indent: int) -> list[str]:
    whole = f"def {name}({', '.join(arguments)}) -> {result}:"
    if indent + len(whole) <= 88:
        return [whole]
    together = ", ".join(arguments)
    if indent + 4 + len(together) <= 88:
        return [f"def {name}(", f"    {together}", f") -> {result}:"]
    return [f"def {name}(", *(f"    {argument}," for argument in arguments), f") -> {result}:"]


def _type(column: object) -> str:
    assert isinstance(column, tuple)
    kinds = {kind for kind, _ in column}
    names = ["float" if float in kinds else "int"] if kinds & {int, float} else []
    if tuple in kinds:
        names.append("tuple[int, ...]")
    return " | ".join(names)


def _unique(name: str, taken: Names[str]) -> str:
    """Returns `name` in lower case, not too long and not among `taken`."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier(name)).lower()
    if len(name) > _LONGEST_NAME:
        words = [word for word in name.split("_") if not word.isdecimal() and word]
        name = identifier("_".join(words[-2:])[-_LONGEST_NAME:].lstrip("_"))
    if name in _TAKEN and f"{name}_" not in taken:
        return f"{name}_"
    wanted, number = name, 2
    while name in taken:
        name = f"{wanted}{number}"
        number += 1
    return name


def _result_type(expression: Expression, types: Mapping[int, str]) -> str:
    if isinstance(expression, Collection) and expression.brackets == "()":
        parts = [_result_type(item, types) for item in expression.items]
        return f"tuple[{', '.join(parts)}]" if len(parts) <= 4 else f"tuple[{parts[0]}, ...]"
    if isinstance(expression, Collection):
        return "list[Tensor]"
    return types.get(expression.index, "Tensor") if isinstance(expression, Value) else "Tensor"


@dataclass(frozen=True)
class Step:
    """One statement of a forward: the values that it assigns, the expression, and the list of modules of a loop."""

    results: tuple[int, ...]
    expression: Expression
    loop: Expression | None = None
    start: int = -1  # the value that the loop updates


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
        while True:
            whole = substitute(expression, lambda part: inside.get(part.index) if isinstance(part, Value) else None)
            if not inside or len(_estimate(whole)) <= _WHOLE:
                return whole
            longest = max(inside, key=lambda index: len(_estimate(inside[index])))
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
    return inline(substitute(expression, lambda part: Text("somevalue") if isinstance(part, Value) else None))


def _called(expression: Expression) -> str | None:
    """Returns the name of the layer whose result an expression reshapes."""
    while isinstance(expression, Call) and isinstance(expression.function, Attribute):
        inner = expression.function.value
        if not isinstance(inner, Call):
            return expression.function.name if inner == Text("self") else None
        expression = inner
    return None


class _Naming:
    """Names for the values of a forward: `x` for the value that passes from call to call, others by their origin."""

    def __init__(self, kind: Kind, steps: list[Step]):
        *self.body, last = steps
        self.final = last.expression
        self.kind = kind
        self.of: dict[int, str] = {}
        self.last_use: dict[int, int] = {}
        for number, step in enumerate([*self.body, Step((), self.final)]):
            self.last_use |= dict.fromkeys([*values(step.expression), *values(step.loop or Text(""))], number)
        self._name_arguments()
        for number, step in enumerate(self.body):
            self._name(number, step)

    def _name_arguments(self) -> None:
        root = not self.kind.paths[0]
        for index in range(self.kind.body.arguments):
            name = self.kind.names[index]
            if root:
                self.of[index] = f"{name}_" if name in RESERVED else name
                continue
            self.of[index] = "x" if index == self.kind.main else _unique(name, {*self.of.values(), *_TAKEN, "x"})

    def _name(self, number: int, step: Step) -> None:
        if step.loop is not None:
            self.of[step.results[0]] = self.of[step.start]
            return
        lasting = [index for index, last in self.last_use.items() if last > number and index in self.of]
        live = {self.of[index] for index in lasting}
        others = [i for i in lasting if i >= self.kind.body.arguments and self.kind.types[i] == "Tensor"]
        main = self.kind.types.get(step.results[0]) == "Tensor" and not others if len(step.results) == 1 else False
        for result in step.results:
            name = "x" if main and "x" not in live else _called(step.expression) or self.kind.names[result]
            self.of[result] = _unique(name, {*live, *_TAKEN})
            live.add(self.of[result])

    def steps(self) -> Iterable[list[str]]:
        """Yields the lines of each statement."""
        for step in self.body:
            expression = self._named(step.expression)
            names = ", ".join(self.of[result] for result in step.results)
            if step.loop is not None:
                loop = self._named(step.loop)
                module = self._module_name(loop)
                assert isinstance(expression, Call)
                inner = lines(f"{names} = ", Call(Text(module), expression.args, expression.kwargs), "", 12)
                yield [f"for {module} in {inline(loop)}:", *(f"    {line}" for line in inner)]
            elif inline(expression) != names:
                yield lines(f"{names} = " if names else "", expression, "", 8)
        final = self._named(self.final)
        whole = ", ".join(map(inline, final.items)) if isinstance(final, Collection) else ""
        bare = isinstance(final, Collection) and final.brackets == "()" and len(final.items) > 1 and len(whole) <= 73
        yield [f"return {whole}"] if bare else lines("return ", final, "", 8)

    def _named(self, expression: Expression) -> Expression:
        return substitute(expression, lambda part: Text(self.of[part.index]) if isinstance(part, Value) else None)

    def _module_name(self, loop: Expression) -> str:
        text = re.sub(r"\[[^]]*\]$", "", inline(loop)).rsplit(".", 1)[-1]
        name = text[:-1] if len(text) > 3 and text.endswith("s") and not text.endswith("ss") else text
        return _unique(identifier(name), {*self.of.values(), *_TAKEN})
