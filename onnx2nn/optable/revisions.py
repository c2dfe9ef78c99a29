"""Older revisions of operators as data: each is described by its differences from a newer one.

    gemm_1 = revision(gemm, 1, required=["C"], unused={"broadcast": 0})
    slice_1 = revision(slice_, 1, without=["steps"], as_attributes=["starts", "ends", "axes"])

The body of such a row calls the newer one. Its signature is derived from the newer one's, and the tests compare it with
the schema like every other. A revision that computes something else is a function of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.row import REQUIRED, Lookup, Row

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_VARIADIC = inspect.Parameter.VAR_POSITIONAL


@dataclasses.dataclass(frozen=True, eq=False)
class Revision:
    """A function of an older revision that calls that of a newer one: a row's body, `on_shape_values` or `results`.

    Attributes:
        newer: the function that is called.
        since: the older revision.
        without: inputs (the last ones), attributes and facts that the older revision lacks; the newer one's defaults
            hold.
        fixed: attributes that the older revision lacks, with their value where it is not the newer one's default.
        required: inputs and attributes that are optional in the newer revision alone.
        defaults: attributes with another default.
        unused: attributes that the newer revision lacks and that change no result, with their defaults.
        as_attributes: inputs of the newer revision that are attributes of the older one.
        renamed: the older revision's names, by the newer ones.
        arrays: whether `as_attributes` are passed as numpy arrays, the form of a `on_shape_values`'s inputs.
    """

    newer: Callable[..., Any]
    since: int
    without: Sequence[str] = ()
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    required: Sequence[str] = ()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unused: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    as_attributes: Sequence[str] = ()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    arrays: bool = False
    __name__: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        name = self.newer.__name__
        object.__setattr__(self, "__name__", f"{name.rstrip('0123456789').rstrip('_')}_{self.since}")
        object.__setattr__(self, "__module__", self.newer.__module__)
        object.__setattr__(self, "__doc__", f"As `{name}`, a newer revision.")

    def __call__(self, *inputs: Any, **attributes: Any) -> Any:
        """Calls the newer function, with the older revision's inputs and attributes in its terms."""
        given = {name: value for name, value in attributes.items() if name not in self.unused}
        for name, older in self.renamed.items():
            if older in given:
                given[name] = given.pop(older)
        given = {**self.fixed, **self.defaults, **given}
        for name in self.as_attributes:
            if given.get(name) is not None:
                given[name] = self._as_input(given[name])
        return self.newer(*inputs, **given)

    def _as_input(self, value: Any) -> Any:
        if self.arrays:
            return np.array(value, dtype=object)
        return list(value) if isinstance(value, (list, tuple)) else value

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        """The newer function's signature with the differences applied; attributes are sorted, facts come last."""
        newer = inspect.signature(self.newer)
        inputs, attributes = [], []
        for name, value in self.unused.items():
            kind = type(value).__name__
            attributes.append(inspect.Parameter(name, _KEYWORD, default=value, annotation=kind))
        for name, parameter in newer.parameters.items():
            if name in self.without or name in self.fixed:
                continue
            default = REQUIRED if name in self.required else self.defaults.get(name, parameter.default)
            parameter = parameter.replace(name=self.renamed.get(name, name), default=default)
            if name in self.defaults and parameter.annotation in ("float", "int", "str"):
                parameter = parameter.replace(annotation=type(default).__name__)
            if name in self.as_attributes or parameter.kind is _KEYWORD:
                attributes.append(parameter.replace(kind=_KEYWORD))
            elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                inputs.append(parameter)
        attributes.sort(key=lambda parameter: (parameter.name.startswith("_"), parameter.name))
        return newer.replace(parameters=[*inputs, *attributes])

    def source(self, name: str, newer: str) -> str:
        """Returns the source of a plain function that computes the same.

        Args:
            name: of the function.
            newer: name of the newer function in the same file.
        """
        plain = [p.replace(annotation=REQUIRED) for p in self.__signature__.parameters.values()]
        passed = [f"*{p.name}" if p.kind is _VARIADIC else p.name for p in plain if p.kind is not _KEYWORD]
        newer_names = {older: name for name, older in self.renamed.items()}
        attributes = [p.name for p in plain if p.kind is _KEYWORD and p.name not in self.unused]
        passed += [f"{newer_names.get(attribute, attribute)}={attribute}" for attribute in attributes]
        passed += [f"{attribute}={value!r}" for attribute, value in self.fixed.items()]
        return f"def {name}{inspect.Signature(plain)}:\n    return {newer}({', '.join(passed)})"


def revision(
    newer: Callable[..., Any],
    since: int,
    *,
    domain: str | None = None,
    operator: str | None = None,
    options: Mapping[str, Any] | None = None,
    **differences: Any,
) -> Revision:
    """Adds the row of an older revision and returns its body, from which further revisions may be derived.

    Args:
        newer: body of the newer row.
        since: the older revision.
        domain: the operator's older domain; None for the newer one's.
        operator: its older name; None for the newer one's.
        options: fields of the row that differ from the newer row's.
        **differences: as in `Revision`.
    """
    row = TABLE.row_of(newer)
    body = Revision(newer, since, **differences)
    names: dict[str, Any] = {"domain": row.domain if domain is None else domain, "operator": operator or row.operator}
    fields = {**_inherited(row, body), **(options or {})}
    TABLE.add(dataclasses.replace(row, **names, since=since, body=body, **fields))
    return body


def _inherited(row: Row, body: Revision) -> dict[str, Any]:
    """Returns the newer row's fields that name or take inputs, translated to the older revision."""
    gone = {*body.without, *body.as_attributes}
    inputs = {
        field: frozenset(body.renamed.get(name, name) for name in getattr(row, field) if name not in gone)
        for field in ("static", "numbers", "counts", "buffers", "weights")
    }
    sized_by = "" if row.sized_by in gone else body.renamed.get(row.sized_by, row.sized_by)
    lookups = tuple(
        Lookup(*(body.renamed.get(name, name) for name in lookup)) for lookup in row.lookups if gone.isdisjoint(lookup)
    )
    choices = tuple(choice for choice in row.choices if choice.attribute not in {*body.without, *body.fixed})
    translates = body.fixed or body.defaults or body.unused or body.as_attributes or body.renamed
    called_late = inputs["static"] or row.call == "opaque" or row.custom_op
    on_shape_values, results = row.on_shape_values, row.results if called_late else None
    if translates:
        on_shape_values = on_shape_values and dataclasses.replace(body, newer=on_shape_values, arrays=True)
        results = results and dataclasses.replace(body, newer=results)
    return {
        **inputs,
        "on_shape_values": on_shape_values,
        "results": results,
        "sized_by": sized_by,
        "lookups": lookups,
        "choices": choices,
    }
