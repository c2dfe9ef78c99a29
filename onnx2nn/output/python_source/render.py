"""The text of classes: their names, constructors and forwards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import nn

from onnx2nn.fx.blocks.value_hints import class_name_of
from onnx2nn.importing.regions import Path
from onnx2nn.output.python_source.class_bodies import Kind
from onnx2nn.output.python_source.expressions import (
    Attribute,
    Call,
    Collection,
    Expression,
    Hole,
    Modules,
    New,
    Text,
    Value,
    inline,
    is_writable,
    lines,
    literal,
    modules,
    substitute,
)
from onnx2nn.output.python_source.steps import make_steps
from onnx2nn.output.python_source.value_names import MEMBERS, TAKEN, ValueNames, unique_name


def class_names(kinds: list[Kind], known: Mapping[Path, str], others: Iterable[str] = ()) -> list[str]:
    """Returns a name for each class: the author's where the file has it, else a name from the path of an instance.

    Args:
        kinds: the classes.
        known: the author's names, by the path of an instance.
        others: names that are taken.
    """
    reserved = {*TAKEN, *others, "WEIGHTS", "FROZEN", "load_model"}
    names: dict[int, str] = {}
    for kind in [kinds[-1], *kinds[:-1]]:
        name = known.get(kind.paths[0], "")
        if not is_writable(name) or name.startswith("__") or hasattr(nn, name):  # `__x__2` is another name in a class
            name = class_name_of(kind.paths[0])
        taken = {*names.values(), *reserved}
        number, wanted = 2, name
        while name in taken:
            name = f"{wanted}{number}"
            number += 1
        names[kind.number] = name
    return [names[kind.number] for kind in kinds]


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
            taken = {*found.values(), *TAKEN, *self.members, *MEMBERS}
            found[column] = unique_name(hint, taken)
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
            elif isinstance(known, Call):
                inner += lines("", known, "", 8)
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
        naming = ValueNames(self.kind, make_steps(calls, outputs, self.kind, self._lengths()))
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


def _result_type(expression: Expression, types: Mapping[int, str]) -> str:
    if isinstance(expression, Collection) and expression.brackets == "()":
        parts = [_result_type(item, types) for item in expression.items]
        return f"tuple[{', '.join(parts) or '()'}]" if len(parts) <= 4 else f"tuple[{parts[0]}, ...]"
    if isinstance(expression, Collection):
        return "list[Tensor]"
    return types.get(expression.index, "Tensor") if isinstance(expression, Value) else "Tensor"
