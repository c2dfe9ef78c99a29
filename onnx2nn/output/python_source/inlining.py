"""The source of operators that run as one function: their bodies, with the functions of onnx2nn that these call."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx2nn.optable.revisions import Revision
from onnx2nn.optable.row import Row
from onnx2nn.output.python_source.expressions import literal

PACKAGE = __name__.split(".")[0]

_MODULES = frozenset({*sys.stdlib_module_names, "torch", "numpy"})
"""Packages that a file may import; every installation of torch has numpy."""


class ForeignError(Exception):
    """A function needs more than torch; the message names it, as the end of a sentence."""


@dataclass
class Inlined:
    """Functions and constants to be written, each after the names that its definition needs.

    Attributes:
        imports: modules and the names that are imported of them; "" is the module itself.
        texts: the statements that define a name, by module and name.
        names: the name in the file, by module and name.
        functions: the name in the file, by function.
    """

    imports: set[tuple[str, str]] = field(default_factory=set)
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    functions: dict[Callable[..., Any], str] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Adds the body of an operator.

        Raises:
            ForeignError: it needs more than torch.
        """
        if row.body.__module__ == "onnx2nn.ops.text":
            raise ForeignError("works on strings")
        self._function(row.body, row.operator.lower())

    def name(self, row: Row) -> str:
        """Returns the name in the file of an operator that was added."""
        return self.functions[row.body]

    def text(self) -> str:
        """Returns the functions and constants, marked so that formatters do not change them."""
        if not self.texts:
            return ""
        head = "# fmt: off\n# ruff: noqa: B009, C408, RUF100"  # the rules that it follows are this package's
        return "\n\n\n".join([head, *self.texts.values(), "# fmt: on"])

    def _function(self, function: Callable[..., Any], name: str) -> str:
        """Adds a function and returns its name in the file; a function made by another one is named `name`."""
        if function not in self.functions:
            if isinstance(function, Revision):
                return self._define_revision(function)
            module, own = function.__module__, getattr(function, "__name__", "")
            if getattr(importlib.import_module(module), own, None) is function:
                self._define(module, own)
                self.functions[function] = self.names[module, own]
            else:
                self.functions[function] = self._free(name)
                self._define_inner(function)
        return self.functions[function]

    def _define_revision(self, revision: Revision) -> str:
        name = self.functions[revision] = self._free(revision.__name__)
        self.texts[revision.__module__, name] = revision.source(name, self._function(revision.newer, name))
        return name

    def _define(self, module: str, name: str) -> None:
        """Adds the definition of `name` in `module`, with all definitions that it needs."""
        if (module, name) in self.names:
            return
        value = getattr(importlib.import_module(module), name, None)
        if isinstance(value, Revision):
            self.names[module, name] = self._function(value, name)
            return
        known = _statements(module)
        if name not in known:
            raise ForeignError(f"needs {name} of {module}")
        statement = known[name]
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._import(module, name, statement)
            return
        self.names[module, name] = self._free(name)
        words = {name: self.names[module, name], **self._needs(module, _used(statement) - {(name, "")})}
        self.texts[module, name] = _renamed(_text(_source(module), statement), words)

    def _needs(self, module: str, used: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Adds the definitions of names of a module; returns their names in the file."""
        known, words = _statements(module), {}
        for name, attribute in sorted(used):
            home = _module_named(name, known.get(name))
            if home and attribute:
                self._define(home, attribute)
                words[f"{name}.{attribute}"] = self.names[home, attribute]
            elif name in known:
                self._define(module, name)
                words[name] = self.names[module, name]
        return words

    def _define_inner(self, function: Any) -> None:
        """Adds a function that another one made, with the values of its closure."""
        source = textwrap.dedent(inspect.getsource(function.__code__))
        statement = _parsed(source)
        held = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        used = {(name, attribute) for name, attribute in _used(statement) if name not in held}
        words = {statement.name: self.functions[function], **self._needs(function.__module__, used)}
        for name, cell in held.items():
            value = cell.cell_contents
            words[name] = self._function(value, name) if callable(value) else _written(name, value)
        self.texts[function.__module__, self.functions[function]] = _renamed(_text(source, statement), words)

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
        stem = name if name.isupper() or name[:1].isupper() else f"onnx_{name.strip('_')}"
        taken, number, free = {*self.names.values(), *self.functions.values()}, 2, stem
        while free in taken:
            free, number = f"{stem}_{number}", number + 1
        return free


def _renamed(text: str, words: Mapping[str, str]) -> str:
    """Returns a text with names replaced, except names of keyword arguments."""
    changed = sorted((word for word in words if words[word] != word), key=len, reverse=True)
    if not changed:
        return text
    pattern = rf"(?<![\w.\"'])({'|'.join(map(re.escape, changed))})\b(?!=[^=])"
    return re.sub(pattern, lambda found: words[found[1]], text)


def _parsed(source: str) -> ast.FunctionDef:
    try:
        (statement,) = ast.parse(source).body
    except (SyntaxError, ValueError):
        statement = ast.Pass()
    if not isinstance(statement, ast.FunctionDef):
        raise ForeignError("is an expression inside another function")
    return statement


def _written(name: str, value: Any) -> str:
    if not isinstance(value, (int, float, str, type(None))):
        raise ForeignError(f"is made with {name}, a {type(value).__name__}")
    return literal(value)


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
    """Returns the module of this package that `statement` imports as `name`, `""` for any other import."""
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


def _text(source: str, statement: Any) -> str:
    lines = source.splitlines()
    decorators = [d for d in getattr(statement, "decorator_list", []) if not _is_row(d)]
    kept = ["@" + ast.unparse(d) for d in decorators]
    return "\n".join([*kept, *lines[statement.lineno - 1 : statement.end_lineno]])
