"""Names for the values and arguments of a class of the source, and the statements with these names."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Collection as Names
from collections.abc import Iterable

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


def unique_name(name: str, taken: Names[str]) -> str:
    """Returns `name` in lower case, not too long and not among `taken`."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier(name)).lower()
    if len(name) > _LONGEST_NAME:
        words = [word for word in name.split("_") if not word.isdecimal() and word]
        name = identifier("_".join(words[-2:])[-_LONGEST_NAME:].lstrip("_"))
    if name in TAKEN and f"{name}_" not in taken:
        return f"{name}_"
    wanted, number = name, 2
    while name in taken:
        name = f"{wanted}{number}"
        number += 1
    return name


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
            self.of[index] = "x" if index == self.kind.main else unique_name(name, {*self.of.values(), *TAKEN, "x"})

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
            self.of[result] = unique_name(name, {*live, *TAKEN})
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
        return unique_name(identifier(name), {*self.of.values(), *TAKEN})
