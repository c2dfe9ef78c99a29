"""The text of operators that run as one function: their bodies, and what these need of onnx2nn."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from onnx2nn.table import Row

PACKAGE = __name__.split(".")[0]

_MODULES = frozenset({*sys.stdlib_module_names, "torch", "numpy"})
"""What a file may import: where torch is, numpy is too."""


class ForeignError(Exception):
    """A function needs something that torch is not; the message says what."""


@dataclass
class Inlined:
    """Functions and constants to be written, each behind those that it needs at its definition.

    Attributes:
        imports: modules and the names that are imported of them; "" is the module itself.
        texts: the statements that define a name, by module and name.
        names: the name in the file, by module and name.
    """

    imports: set[tuple[str, str]] = field(default_factory=set)
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Adds the body of an operator.

        Raises:
            ForeignError: it needs more than torch.
        """
        module, name = row.body.__module__, row.body.__name__
        if module == "onnx2nn.ops.text":
            raise ForeignError("works on strings")
        if getattr(importlib.import_module(module), name, None) is not row.body:
            raise ForeignError("is made while onnx2nn runs")
        self._define(module, name)

    def name(self, row: Row) -> str:
        """Returns the name in the file of an operator that was added."""
        return self.names[row.body.__module__, row.body.__name__]

    def text(self) -> str:
        """Returns the functions and constants; formatters leave them as they are."""
        return "\n\n\n".join(["# fmt: off", *self.texts.values(), "# fmt: on"]) if self.texts else ""

    def _define(self, module: str, name: str) -> None:
        """Adds what `name` is in `module`, and all that it needs."""
        if (module, name) in self.names:
            return
        known = _statements(module)
        if name not in known:
            raise ForeignError(f"needs {name} of {module}")
        statement = known[name]
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._import(module, name, statement)
            return
        self.names[module, name] = self._free(name)
        used = _used(statement)
        for other, attribute in sorted(used):
            home = _module_named(other, known.get(other))
            if home and attribute:
                self._define(home, attribute)
                self.names[module, f"{other}.{attribute}"] = self.names[home, attribute]
            elif other in known and other != name:
                self._define(module, other)
        words = {name, *(other for other, _ in used), *(f"{other}.{attribute}" for other, attribute in used)}
        self.texts[module, name] = self._renamed(module, _text(module, statement), words)

    def _import(self, module: str, name: str, statement: ast.Import | ast.ImportFrom) -> None:
        alias = next(alias for alias in statement.names if (alias.asname or alias.name.split(".")[0]) == name)
        whole = isinstance(statement, ast.Import)
        home = alias.name if isinstance(statement, ast.Import) else statement.module or ""
        if not whole and home.split(".")[0] == PACKAGE and alias.asname is None:
            self._define(home, name)
            self.names[module, name] = self.names[home, name]
            return
        if home.split(".")[0] not in _MODULES:
            raise ForeignError(f"needs {home.split('.')[0]}")
        self.names[module, name] = name
        asname = f" as {alias.asname}" if alias.asname else ""
        self.imports.add((f"{home}{asname}", "") if whole else (home, f"{alias.name}{asname}"))

    def _free(self, name: str) -> str:
        """Returns a name that nothing else in the file has."""
        stem = name if name[:1].isupper() or name.isupper() else f"onnx_{name.strip('_')}"
        number, free = 2, stem
        while free in self.names.values():
            free, number = f"{stem}_{number}", number + 1
        return free

    def _renamed(self, module: str, text: str, words: set[str]) -> str:
        for word in sorted(words, key=len, reverse=True):
            new = self.names.get((module, word), word)
            if new != word:  # but not as the name of an argument
                text = re.sub(rf"(?<![\w.\"']){re.escape(word)}\b(?!=[^=])", new, text)
        return text


@functools.cache
def _source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


@functools.cache
def _statements(module: str) -> dict[str, Any]:
    """Returns the statements of a module by the names that they define."""
    return dict(_defined(ast.parse(_source(module)).body))


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield statement.name, statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name.split(".")[0], statement) for alias in statement.names)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
                yield from ((name, statement) for name in names)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement


def _module_named(name: str, statement: Any) -> str:
    """Returns the module of this package that `statement` imports as `name`, `""` where that is no module."""
    if not isinstance(statement, ast.ImportFrom) or (statement.module or "").split(".")[0] != PACKAGE:
        return ""
    full = f"{statement.module}.{name}"
    return full if full in sys.modules else ""


def _used(statement: Any) -> set[tuple[str, str]]:
    """Returns the names that a statement reads of its module, each with the attribute that it reads of it or `""`."""
    statement = _undecorated(statement)
    nodes = list(ast.walk(statement))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    attributes = {
        node.value: node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id not in own]
    return {(node.id, attributes.get(node, "")) for node in names}


def _is_row(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "op"


def _undecorated(statement: Any) -> Any:
    """Returns a statement without the decorators that put it into the op table."""
    if isinstance(statement, ast.FunctionDef):
        return ast.FunctionDef(
            **{**vars(statement), "decorator_list": [d for d in statement.decorator_list if not _is_row(d)]}
        )
    return statement


def _text(module: str, statement: Any) -> str:
    lines = _source(module).splitlines()
    decorators = [d for d in getattr(statement, "decorator_list", []) if not _is_row(d)]
    kept = ["\n".join(lines[d.lineno - 1 : d.end_lineno]) for d in decorators]
    return "\n".join([*kept, *lines[statement.lineno - 1 : statement.end_lineno]])
