"""The op table: every row by domain, operator and revision, and how rows get into it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import types
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx2nn.ground.module_index import modules_by_name
from onnx2nn.ground.naming import identifier
from onnx2nn.optable.row import Choice, Row
from onnx2nn.optable.traits import Trait

_FAMILIES = "onnx2nn.ops"
"""The package of the families; that of ONNX Runtime's operators, `contrib`, lies in it."""


class Table:
    """Rows by domain, operator and revision.

    A family of rows is imported at the first question about one of its operators; who iterates gets all rows.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[Row]] = {}
        self._found: dict[tuple[str, str, int], Row | None] = {}  # results of `find`: networks repeat operators
        self._of_bodies: dict[Callable[..., Any], Row] = {}
        self._traits: dict[tuple[str, str], frozenset[Trait]] = {}  # results of `traits_of`

    def add(self, row: Row) -> None:
        """Adds `row`; a row of the same operator and revision is replaced."""
        rows = [other for other in self._rows.get((row.domain, row.operator), []) if other.since != row.since]
        self._rows[row.domain, row.operator] = sorted([*rows, row], key=lambda r: r.since)
        self._of_bodies[row.body] = row
        self._found.clear()
        self._traits.clear()

    def remove(self, row: Row) -> None:
        """Removes `row`."""
        self._rows[row.domain, row.operator].remove(row)
        self._found.clear()
        self._traits.clear()

    def find(self, domain: str, operator: str, version: int) -> Row | None:
        """Returns the row that defines `operator` in opset `version` of `domain`, None where there is none."""
        try:
            return self._found[domain, operator, version]
        except KeyError:
            rows = self._of(domain, operator)
            index = bisect_right([row.since for row in rows], version)
            row = self._found[domain, operator, version] = rows[index - 1] if index else None
            return row

    def newest(self, domain: str, operator: str) -> Row | None:
        """Returns the newest row of an operator, None where it has no rows."""
        return next(reversed(self._of(domain, operator)), None)

    def traits_of(self, operator: str, domain: str = "") -> frozenset[Trait]:
        """Returns the traits of an operator, none where it has no rows."""
        try:
            return self._traits[domain, operator]
        except KeyError:
            row = self.newest(domain, operator) if (domain, operator) in self else None
            found = self._traits[domain, operator] = frozenset() if row is None else row.traits
            return found

    def row_of(self, body: Callable[..., Any]) -> Row:
        """Returns the row that was added with `body`, the last one where there are several."""
        return self._of_bodies[body]

    def revisions(self, domain: str, operator: str) -> list[Row]:
        """Returns all rows of an operator, oldest first."""
        return list(self._of(domain, operator))

    def names(self) -> set[tuple[str, str]]:
        """Returns domain and name of all operators, without importing their families."""
        return {*self._rows, *_index()}

    def complete(self) -> None:
        """Imports all families."""
        _import_families(_FAMILIES)

    def _of(self, domain: str, operator: str) -> list[Row]:
        families = _index().get((domain, operator))
        if families is None and (domain, operator) not in self._rows:
            self.complete()  # a row that the index does not know yet, or no row
        for family in families or ():
            _import_family(family)
        return self._rows.get((domain, operator), [])

    def __contains__(self, name: tuple[str, str]) -> bool:
        """Whether there is an operator of this domain and name."""
        return name in self._rows or name in _index()

    def __iter__(self) -> Iterator[Row]:
        self.complete()
        return (row for key in sorted(self._rows) for row in self._rows[key])


TABLE = Table()


def name_of(row: Row) -> str:
    """Returns the Python name of `row`: `Softmax` for the newest revision, `Softmax_1`, `com_microsoft__BiasGelu`."""
    newest = TABLE.revisions(row.domain, row.operator)[-1].since == row.since
    domain = f"{identifier(row.domain)}__" if row.domain else ""
    return f"{domain}{row.operator}" if newest else f"{domain}{row.operator}_{row.since}"


def op(
    operator: str,
    since: int,
    *,
    domain: str = "",
    static: Sequence[str] = (),
    numbers: Sequence[str] = (),
    counts: Sequence[str] = (),
    buffers: Sequence[str] = (),
    weights: Sequence[str] = (),
    traits: Iterable[Trait] = (),
    choices: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
    **fields: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes the decorated function the row of `operator` from revision `since` on; the other arguments are `Row`'s."""

    def add(body: Callable[..., Any]) -> Callable[..., Any]:
        given: dict[str, Iterable[str]] = {"static": static, "numbers": numbers, "counts": counts}
        given |= {"buffers": buffers, "weights": weights, "traits": traits}
        sets: dict[str, Any] = {name: frozenset(items) for name, items in given.items()}
        strings = tuple(Choice(name, tuple(values)) for name, values in choices.items())
        TABLE.add(Row(domain, operator, since, body, choices=strings, **sets, **fields))
        return body

    return add


def at_run_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` in a form that a body may call on traced values: one recorded call, whose result is no tensor.

    For operators that compute strings in one part and tensor arithmetic in the other.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        tracer = next((arg.tracer for arg in args if hasattr(arg, "tracer")), None)
        return function(*args) if tracer is None else tracer.call_opaque(call, args, {}, None)

    return call


@contextlib.contextmanager
def _undo(row: Row, hidden: list[Row]) -> Iterator[Row]:
    try:
        yield row
    finally:
        TABLE.remove(row)
        for old in hidden:
            TABLE.add(old)


def register(
    domain: str, operator: str, since: int = 1, *, opaque: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], contextlib.AbstractContextManager[Row]]:
    """Adds a row from outside: `onnx2nn.register("my.domain", "MyOp")(body)`.

    Args:
        domain: operator domain as it stands in the file, `""` for ai.onnx.
        operator: operator name.
        since: the first opset version of the domain that the body serves.
        opaque: the body loops over data or returns data-dependent shapes: a node becomes one call on real values, like
            that of a row with `call="opaque"`.
        **options: `static`, `random`, `on_shape_values` and the other fields of a `Row`.

    Returns:
        A function that takes the body and returns a context manager. The end of a `with` block undoes the registration;
        without `with` the registration stays.
    """

    def add(body: Callable[..., Any]) -> contextlib.AbstractContextManager[Row]:
        TABLE.complete()  # a family that is imported later would replace the row
        hidden = [row for row in TABLE.revisions(domain, operator) if row.since == since]
        if opaque:
            options["call"] = "opaque"
        if "host" in options:  # the name of `on_shape_values` in version 0.1
            options["on_shape_values"] = options.pop("host")
        op(operator, since, domain=domain, **options)(body)
        row = TABLE.find(domain, operator, since)
        assert row is not None
        return _undo(row, hidden)

    return add


@functools.cache
def _index() -> dict[tuple[str, str], tuple[str, ...]]:
    """Returns the families that have rows of an operator, by its domain and name, as far as `families.json` has them.

    scripts/tables.py writes the file. What it lacks is found too, but only after an import of all families.
    """
    index: dict[tuple[str, str], tuple[str, ...]] = {}
    for name, families in modules_by_name("onnx2nn.optable", "families.json").items():
        domain, _, operator = name.rpartition(".")
        index[domain, operator] = families
    return index


@functools.cache  # every look-up of a row asks for it
def _import_family(family: str) -> None:
    importlib.import_module(f"{_FAMILIES}.{family}")


@functools.cache
def _import_families(package: str) -> None:
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
        if module.ispkg:
            _import_families(module.name)


def row_named(name: str) -> Row | None:
    """Returns the row whose function has this name (see `name_of`), None where there is none."""
    of_domain = name.rpartition("__")[2]
    operators = (of_domain, of_domain.rpartition("_")[0])  # the second one where the name ends with a revision
    candidates = (TABLE.revisions(*key) for key in TABLE.names() if key[1] in operators)
    return next((row for rows in candidates for row in rows if name_of(row) == name), None)


def name_function(function: Any, row: Row, module: str) -> None:
    """Gives `function`, which calls a row, its name in `module` and a docstring."""
    function.__name__ = function.__qualname__ = name_of(row)
    function.__module__ = module
    function.__doc__ = f"{row}: {row.body.__doc__ or 'see the ONNX specification.'}"
