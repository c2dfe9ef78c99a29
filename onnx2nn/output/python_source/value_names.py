"""Names for the values and arguments of a class of the source, and the statements with these names."""

from __future__ import annotations

import builtins
import itertools
import keyword
import re
import string
from collections import Counter
from collections.abc import Collection as Names
from collections.abc import Container, Iterable, Iterator

from torch import nn

from onnx2nn.control_flow import CONTROL_FLOW
from onnx2nn.ground.naming import identifier
from onnx2nn.layers import LAYERS
from onnx2nn.output.python_source.class_bodies import Kind
from onnx2nn.output.python_source.expressions import (
    Attribute,
    Call,
    Collection,
    Expression,
    Text,
    Value,
    inline,
    lines,
    substitute,
    values,
)
from onnx2nn.output.python_source.steps import Step
from onnx2nn.searches import SEARCHES

RESERVED = frozenset({"self", "torch", "nn", "F", "Tensor", "Path", "OrderedDict", "load_file", "math", "operator"})
RESERVED |= {"getattr", "float", "super", "abs", "max", "min", "round", "int", "bool"}  # functions that a forward calls
RESERVED |= {"Any", "Callable", "Sequence"}
RESERVED |= {kind.__name__ for kinds in (CONTROL_FLOW, SEARCHES, LAYERS) for kind in kinds}
TAKEN = RESERVED | frozenset(keyword.kwlist) | frozenset(dir(builtins))
MEMBERS = frozenset(dir(nn.Module())) | frozenset(vars(nn.Module()))
_LONGEST_NAME = 22
_MOST_DIGITS = 9
"""Digits of a number that a name gets, at most."""


def unique_name(name: str, taken: Names[str]) -> str:
    """Returns `name` in lower case, not too long and not among `taken`."""
    name = _short(name, taken)
    numbered = (f"{name}{number}" for number in itertools.count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def _short(name: str, taken: Container[str]) -> str:
    """Returns a name in lower case and not too long, with an underscore where it is one of Python's or the module's."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier(name)).lower()
    if len(name) > _LONGEST_NAME:
        words = [word for word in name.split("_") if not word.isdecimal() and word]
        name = identifier("_".join(words[-2:])[-_LONGEST_NAME:].lstrip("_"))
    return f"{name}_" if name in TAKEN and f"{name}_" not in taken else name


class _Live:
    """The names of the values that a later statement uses, and when each value is used last.

    A name is given out with the lowest number that is free, in a time that does not depend on how many are not.
    """

    def __init__(self) -> None:
        self.tensors = 0
        self._count = Counter[str]()
        self._first: dict[str, int] = {}  # below these numbers no name is free
        self._ends: dict[int, list[tuple[str, bool]]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._count or name in TAKEN

    def unique(self, name: str) -> str:
        """Returns a name that no value has, for one that is added next."""
        name = _short(name, self)
        if name not in self:
            return name
        number = next(number for number in itertools.count(self._first.get(name, 2)) if f"{name}{number}" not in self)
        self._first[name] = number + 1
        return f"{name}{number}"

    def add(self, name: str, end: int, *, tensor: bool) -> None:
        """Adds a value.

        Args:
            name: its name.
            end: the statement at which it is used last.
            tensor: whether it is a tensor that the forward computes.
        """
        self._count[name] += 1
        self.tensors += tensor
        self._ends.setdefault(end, []).append((name, tensor))

    def end(self, number: int) -> None:
        """Removes the values that are used last at a statement: its results may have their names."""
        for name, tensor in self._ends.pop(number, ()):
            self.tensors -= tensor
            self._count[name] -= 1
            if not self._count[name]:
                del self._count[name]
                for wanted, free in _numbers(name):
                    self._first[wanted] = min(free, self._first.get(wanted, 2))


def _numbers(name: str) -> Iterator[tuple[str, int]]:
    """Yields the names and numbers of which a name may be made: `("x1", 2)` and `("x", 12)` for `x12`."""
    digits = len(name) - len(name.rstrip(string.digits))
    for end in range(1, min(digits, _MOST_DIGITS) + 1):
        if name[-end] != "0" and (number := int(name[-end:])) > 1:
            yield name[:-end], number


def _called(expression: Expression) -> str | None:
    """Returns the name of the layer whose result an expression reshapes."""
    while isinstance(expression, Call) and isinstance(expression.function, Attribute):
        inner = expression.function.value
        if not isinstance(inner, Call):
            return expression.function.name if inner == Text("self") else None
        expression = inner
    return None


class ValueNames:
    """Names for the values of a forward: `x` for the value that passes from call to call, others by their origin."""

    def __init__(self, kind: Kind, steps: list[Step]):
        *self.body, last = steps
        self.final = last.expression
        self.kind = kind
        self.of: dict[int, str] = {}
        self.last_use: dict[int, int] = {}
        for number, step in enumerate([*self.body, Step((), self.final)]):
            self.last_use |= dict.fromkeys([*values(step.expression), *values(step.loop or Text(""))], number)
        self._live = _Live()
        self._name_arguments()
        for number, step in enumerate(self.body):
            self._live.end(number)
            self._name(number, step)

    def _name_arguments(self) -> None:
        root = not self.kind.paths[0]
        taken = _Live()
        taken.add("x", 0, tensor=False)
        for index in range(self.kind.body.arguments):
            name = self.kind.names[index]
            if root:
                name = f"{name}_" if name in RESERVED else name
            else:
                name = "x" if index == self.kind.main else taken.unique(name)
            taken.add(name, 0, tensor=False)
            self._keep(index, name, 0)

    def _keep(self, index: int, name: str, number: int) -> None:
        """Gives a value a name, up to its last use: at statement `number` or a later one."""
        self.of[index] = name
        tensor = index >= self.kind.body.arguments and self.kind.types.get(index) == "Tensor"
        self._live.add(name, max(self.last_use.get(index, 0), number), tensor=tensor)

    def _name(self, number: int, step: Step) -> None:
        if step.loop is not None:
            self._keep(step.results[0], self.of[step.start], number + 1)
            return
        alone = len(step.results) == 1 and not self._live.tensors
        main = alone and self.kind.types.get(step.results[0]) == "Tensor" and "x" not in self._live
        for result in step.results:
            name = "x" if main else _called(step.expression) or self.kind.names[result]
            self._keep(result, self._live.unique(name), number + 1)

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
        return unique_name(identifier(name), {*self.of.values(), *TAKEN})
