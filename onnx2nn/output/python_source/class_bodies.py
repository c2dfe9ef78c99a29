"""Classes of the source: the structure of each, and the instances that share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onnx2nn.importing.regions import Path
from onnx2nn.output.python_source.expressions import Expression


@dataclass(frozen=True)
class Body:
    """The structure of a class, its modules and its forward; equal structures are one class.

    Attributes:
        base: the class that they derive from.
        init: statements that make the modules: kind, name, expression.
        arguments: number of arguments of the forward.
        calls: the forward's calls: numbers of the values that they return, and the expression.
        outputs: result of the forward; None for a class without one.
    """

    base: str
    init: tuple[tuple[str, str, Expression], ...]
    arguments: int
    calls: tuple[tuple[tuple[int, ...], Expression], ...]
    outputs: Expression | None


@dataclass(eq=False)
class Kind:
    """A class to be written.

    Attributes:
        body: its structure.
        number: its place among the classes.
        paths: where its instances are.
        holes: for each instance the numbers in its structure.
        hints: a name for each of these numbers.
        names: names for the values of its forward, from the first instance.
        types: annotations of the values.
        main: the argument that goes from part to part, -1 where several inputs of the model keep their names.
    """

    body: Body
    number: int
    hints: list[str]
    names: dict[int, str]
    types: dict[int, str]
    main: int
    paths: list[Path] = field(default_factory=list)
    holes: list[list[Any]] = field(default_factory=list)

    def columns(self) -> list[tuple[Any, ...]]:
        """Returns for each hole its values in all instances, with their types: 1, 1.0 and True differ."""
        return [tuple((type(value), value) for value in column) for column in zip(*self.holes, strict=True)]

    def parameters(self) -> dict[tuple[Any, ...], int]:
        """Returns the holes that differ between the instances, equal ones once: their values, the first's number."""
        found: dict[tuple[Any, ...], int] = {}
        for index, column in enumerate(self.columns()):
            if len(set(column)) > 1:
                found.setdefault(column, index)
        return found
