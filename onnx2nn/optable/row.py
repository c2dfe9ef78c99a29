"""The op table: one row for each form an ONNX operator has had, its meaning a plain Python function.

A row's function takes a namespace `F` (`torch`, or OneFlow behind torch's names), then the operator's inputs in schema
order, then its attributes as keyword-only parameters with the schema's defaults::

    @op("Gemm", 7)
    def gemm(F, A, B, C=None, *, alpha=1.0, beta=1.0, transA=0, transB=0): ...

It is callable on real tensors. A row is valid from its revision (`since`) until the next row of the same operator.
Keyword-only parameters that start with an underscore are not attributes but facts about the node, see `FACTS`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from onnx2nn.optable.traits import Trait


class Typed(NamedTuple):
    """What a row's `host` returns where the result's dtype is not that of its first input."""

    array: Any
    dtype: np.dtype[Any]


class FloatForm(NamedTuple):
    """The operator of ai.onnx that does on floats what a quantised one does on integers.

    The quantised operator takes each operand `x` with `x_scale` and `x_zero_point`; the scale without an operand is the
    result's.

    Attributes:
        operator: its name; it has the same attributes.
        weight_axis: the axis of a constant second operand along which its scales lie.
    """

    operator: str
    weight_axis: int = 1


class NeedsValues(Exception):
    """A body asks for numbers that are known only at run time; its node then runs as one call on real values."""


OWN = "onnx2nn"
"""Domain of the operators that no ONNX operator is, see `ops/raised.py`; no file holds them."""

REQUIRED: Any = inspect.Parameter.empty
"""Stands for "no default" in `Row.inputs` and `Row.attributes`."""

FACTS = ("_outputs", "_types", "_output_types", "_producer")
"""What a body may ask about its node.

`_outputs`: how many outputs the node declares; `_types`: element type names of the inputs (`"INT4"`, None where
unknown), `_output_types`: those of the outputs. They matter where torch's dtype says less than ONNX's. `_producer`: the
file's producer_name, for what it means by an operator where the standard and its test data contradict each other.
"""

Call = Literal["inline", "opaque", "packed", "subgraph"]
"""How a node stands in a module.

`inline`: the calls that its body makes are recorded one by one. `opaque`: one call that runs on real values, for the
body loops over data or returns shapes that depend on data. `packed`: one call too, so that its weights stay packed;
shapes and dtypes of its results follow from those of its inputs. `subgraph`: an attribute is a graph, which the body
takes as a callable.
"""

HINTS = frozenset({"consumed_inputs"})
"""Attributes of opsets 1 to 5 that say how memory may be reused; no row has them."""


def has_values(F: Any, *tensors: Any) -> bool:
    """Whether a body can read the elements of all `tensors` (None has none to read).

    It cannot while they are traced: by an import, or by torch.export and torch.compile in a call at run time.
    """
    compiler = getattr(F, "compiler", None)
    tracing = compiler is not None and compiler.is_compiling()
    return not tracing and all(tensor is None or isinstance(tensor, F.Tensor) for tensor in tensors)


def is_always(dimension: Any, size: int) -> bool:
    """Whether a dimension has this size; one that an import knows at several sample points has it at each of them."""
    return all(value == size for value in getattr(dimension, "values", (dimension,)))


@dataclass(frozen=True)
class Row:
    """One form of one operator.

    Attributes:
        domain: `""` for ai.onnx.
        operator: ONNX operator name.
        since: the revision from which the signature and the meaning hold.
        body: `body(F, *inputs, **attributes)`; returns one value, or a tuple where the operator has several outputs.
        static: inputs that must be known as Python values (numbers or nested lists) when the body runs.
        counts: those of `static` that hold sizes: where data give them, they are symbolic numbers, never negative.
        numbers: inputs that arrive as a Python number where they are one known number (0-D), else as tensors.
        host: the operator on numpy object arrays, of Python and symbolic numbers or of strings; same signature without
            `F`. An object array it returns has the dtype of its first input (bools are bool), `Typed` says another.
        reads_shape: only the shape of its input matters: `host` gets the tensor itself and reads its `shape`.
        call: how a node of the operator stands in a module, see `Call`.
        random: two calls with equal inputs differ, so that it is never evaluated at import.
        results: of a row that is called at run time, always or where data decide what should be static:
            `results(F, *inputs, **attributes)` gives shape and dtype of each tensor that comes of it; a size that
            depends on data is a name, equal names are equal sizes.
        traits: what is true of the operator, see `Trait`.
        sized_by: the input that gives the size of the result, or where it ends.
        float_form: of a quantised operator: the one that does the same on floats.
        custom_op: torch.export, torch.compile and torch.jit.trace keep the node as one call, for its body reads values;
            it has `results`.
    """

    domain: str
    operator: str
    since: int
    body: Callable[..., Any]
    static: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    host: Callable[..., Any] | None = None
    reads_shape: bool = False
    call: Call = "inline"
    random: bool = False
    results: Callable[..., Sequence[tuple[Sequence[Any], Any]]] | None = None
    custom_op: bool = False
    counts: frozenset[str] = frozenset()
    traits: frozenset[Trait] = frozenset()
    sized_by: str = ""
    float_form: FloatForm | None = None

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.body)

    @functools.cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        return list(self._signature.parameters.values())[1:]

    @functools.cached_property
    def inputs(self) -> dict[str, Any]:
        """Input names in order with their defaults (`REQUIRED` or None); a variadic one has the default `REQUIRED`."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {p.name: p.default for p in self._parameters if p.kind in kinds}

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.inputs)

    @functools.cached_property
    def needed(self) -> tuple[tuple[int, str], ...]:
        """Positions and names of the inputs that must be there."""
        last = len(self.inputs) - 1
        return tuple(
            (position, name)
            for position, (name, default) in enumerate(self.inputs.items())
            if default is REQUIRED and not (self.variadic and position == last)
        )

    @functools.cached_property
    def size_position(self) -> int | None:
        """The position of the input `sized_by`."""
        return self._names.index(self.sized_by) if self.sized_by else None

    @functools.cached_property
    def variadic(self) -> bool:
        """Whether the last input takes any number of values."""
        return any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in self._parameters)

    @functools.cached_property
    def attributes(self) -> dict[str, Any]:
        """Attribute names with their defaults; `REQUIRED` where the schema has none and demands one."""
        keywords = (p for p in self._parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)
        return {p.name: p.default for p in keywords if not p.name.startswith("_")}

    @functools.cached_property
    def demanded(self) -> tuple[str, ...]:
        """Names of the attributes that must be there."""
        return tuple(name for name, default in self.attributes.items() if default is REQUIRED)

    @functools.cached_property
    def any_attribute(self) -> bool:
        """Whether the body takes attributes of every name."""
        return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self._parameters)

    @functools.cached_property
    def facts(self) -> tuple[str, ...]:
        """The names out of `FACTS` that the body asks for."""
        return tuple(p.name for p in self._parameters if p.name in FACTS)

    @functools.cached_property
    def several(self) -> bool:
        """Whether the body gives a tuple, however few outputs a node has; it is annotated so."""
        return str(self._signature.return_annotation).startswith("tuple")

    @functools.cached_property
    def host_takes_dtype(self) -> bool:
        """Whether `host` asks for the numpy dtype of the first input (`_dtype`): its numbers do not tell it."""
        return self.host is not None and "_dtype" in inspect.signature(self.host).parameters

    def run(self, F: Any, *inputs: Any, **attributes: Any) -> Any:
        """Evaluates the row on real values: `host` where there are strings (numpy object arrays) among them."""
        if self.host is None or self.reads_shape or not any(isinstance(value, np.ndarray) for value in inputs):
            return self.body(F, *inputs, **attributes)
        arrays = (None if value is None else np.asarray(value).astype(object) for value in inputs)
        try:
            results = self.host(*arrays, **attributes)
        except NeedsValues:
            return self.body(F, *inputs, **attributes)
        if isinstance(results, tuple) and not isinstance(results, Typed):
            return tuple(self._value(F, array) for array in results)
        return self._value(F, results)

    @staticmethod
    def _value(F: Any, array: Any) -> Any:
        if isinstance(array, Typed):
            array = np.asarray(array.array).astype(array.dtype)
        return array if array.dtype == object else F.from_numpy(array)

    def input_name(self, position: int) -> str:
        """Returns the name of the input at `position`; a variadic name serves all positions from its own on."""
        names = self._names
        return names[min(position, len(names) - 1)]

    def __str__(self) -> str:
        return f"{self.domain + '::' if self.domain else ''}{self.operator}-{self.since}"
