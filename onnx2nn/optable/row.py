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
import keyword
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from onnx2nn.errors import OperatorError
from onnx2nn.optable.traits import Trait

TensorAttribute = Any
"""Annotates attributes that are a tensor of the file."""


class Typed(NamedTuple):
    """A result of a row's `on_shape_values` whose dtype is not that of the first input."""

    array: Any
    dtype: np.dtype[Any]


class Counted(str):
    """The name of a size that data decide, in a row's `results`, with the largest value that it may have.

    Attributes:
        most: the largest value, a number or a symbolic number.
    """

    most: Any

    def __new__(cls, name: str, most: Any) -> Counted:
        """Returns the name with its largest value."""
        counted = super().__new__(cls, name)
        counted.most = most
        return counted


class Lookup(NamedTuple):
    """An input of indices and the table whose rows they number.

    Attributes:
        indices: the name of the input.
        table: the name of the input that holds the rows.
        axis: the name of the attribute that holds the table's axis; by default it is the first.
    """

    indices: str
    table: str
    axis: str = ""


class Choice(NamedTuple):
    """An attribute that is one of a few strings.

    Attributes:
        attribute: its name.
        values: the strings.
    """

    attribute: str
    values: tuple[str, ...]


class FloatForm(NamedTuple):
    """The float operator of ai.onnx that corresponds to a quantised operator.

    The quantised operator takes each operand `x` with `x_scale` and `x_zero_point`. A scale without an operand is that
    of the result.

    Attributes:
        operator: its name; it has the same attributes.
        weight_axis: the axis of a constant second operand along which its scales lie.
    """

    operator: str
    weight_axis: int = 1


class NeedsValues(Exception):
    """A body asks for numbers that are known only at run time; its node then runs as one call on real values."""


OWN = "onnx2nn"
"""Domain of this project's own operators (`ops/raised.py`), for which ONNX has none; no file holds them."""

REQUIRED: Any = inspect.Parameter.empty
"""Stands for "no default" in `Row.inputs` and `Row.attributes`."""

FACTS = (
    "_outputs", "_types", "_output_types", "_producer", "_image_pixels", "_at_run_time", "_open_rank", "_leading_ones",
)  # fmt: skip
"""Facts about its node that a body may request.

`_outputs`: how many outputs the node declares; `_types`: element type names of the inputs (`"INT4"`, None where
unknown), `_output_types`: those of the outputs. They matter where torch's dtype says less than ONNX's. `_producer`: the
file's producer_name, which decides the meaning where the standard and its test data contradict each other.
`_image_pixels`: `Limits.image_pixels`, where it is not the default. `_at_run_time`: True where an input behind the
first, other than `bias`, is no constant of the file. `_open_rank`: True where nothing in the model depends on how many
dimensions the outputs have, `_leading_ones`: on how many dimensions of size 1 are in front of them.
"""

FLAGS = frozenset(
    [
        "across_channels",
        "align_corners",
        "allowzero",
        "antialias",
        "ceil_mode",
        "center_point_box",
        "count_include_pad",
        "detect_negative",
        "detect_positive",
        "early_stopping",
        "exclude_outside",
        "exclusive",
        "fmod",
        "input_as_shape",
        "input_forget",
        "inverse",
        "is_bidirectional",
        "is_case_sensitive",
        "is_causal",
        "keepdims",
        "largest",
        "layout",
        "linear_before_reset",
        "noop_with_empty_axes",
        "normalize_variance",
        "normalized",
        "onesided",
        "output_sequence",
        "periodic",
        "positive",
        "reverse",
        "saturate",
        "select_last_index",
        "sorted",
        "storage_order",
        "training_mode",
        "transA",
        "transB",
        "transBatchA",
        "transBatchB",
        "unidirectional",
        "upper",
        "zeros",
        "do_rotary",
        "interleaved",
        "rotary_interleaved",
    ]
)
"""Attributes that are 0 or 1 in each operator that has them; ONNX Runtime reads other numbers both ways."""

Call = Literal["inline", "opaque", "packed", "subgraph"]
"""The form of a node in a module.

`inline`: the calls in its body are recorded one by one. `opaque`: one call on real values, because the body loops over
data or returns data-dependent shapes. `packed`: also one call, so that its weights stay packed; shapes and dtypes of
its results follow from those of its inputs. `subgraph`: an attribute is a graph; the body takes it as a callable.
"""

HINTS = frozenset({"consumed_inputs"})
"""Attributes of opsets 1 to 5 with hints for the reuse of memory; no row has them."""


def has_values(F: Any, *tensors: Any) -> bool:
    """Whether a body can read the elements of all `tensors` (None has none to read).

    It cannot while they are traced: by an import, or by torch.export and torch.compile in a call at run time. Nor has a
    tensor on torch's meta device elements. In torch.jit.trace it has those of the example, which decide nothing.
    """
    compiler = getattr(F, "compiler", None)
    if compiler is not None and (compiler.is_compiling() or F.jit.is_tracing()):
        return False
    for tensor in tensors:  # a loop, as each call of an operator on integers asks
        if tensor is not None and (not isinstance(tensor, F.Tensor) or getattr(tensor, "is_meta", False)):
            return False
    return True


def in_onnx_export() -> bool:
    """Whether torch.onnx.export runs, whose file has what ONNX Runtime computes."""
    exporter = sys.modules.get("torch.onnx")  # torch imports it when it is used
    if exporter is None:
        return False
    # In a branch of torch.cond the function below says False. The module is imported, not looked up: torch imports it
    # too while torch.compile reads this, whose guard would say that there was none.
    from torch.onnx._internal.exporter import _flags  # here: most processes never need it

    return bool(getattr(_flags, "_is_onnx_exporting", False) or exporter.is_in_onnx_export())


def _schema_name(name: str) -> str:
    bare = name.removesuffix("_")
    return bare if keyword.iskeyword(bare) else name


@dataclass(frozen=True, eq=False)
class Row:
    """One form of one operator.

    Attributes:
        domain: `""` for ai.onnx.
        operator: ONNX operator name.
        since: the revision from which the signature and the meaning hold.
        body: `body(F, *inputs, **attributes)`; returns one value, or a tuple where the operator has several outputs.
        static: inputs that must be known as Python values (numbers or nested lists) when the body runs.
        counts: inputs in `static` that hold sizes; data-dependent ones become symbolic numbers that are never negative.
        numbers: inputs that are passed as a Python number where they are one known number (0-D), else as tensors.
        on_shape_values: the operator on shape values: numpy object arrays of Python numbers, symbolic numbers or
            strings, with the body's signature without `F`. A resulting object array has the dtype of
            `typed_by` (bools are bool); `Typed` states another dtype.
        reads_shape: whether the operator reads its input's shape alone; `on_shape_values` then takes the tensor itself.
        call: the form of the operator's nodes in a module, see `Call`.
        random: whether two calls with equal inputs differ; such a row is never evaluated at import.
        results: for a row that is called at run time, always or where an input in `static` is data-dependent:
            `results(F, *inputs, **attributes)` returns shape and dtype of each result. A data-dependent size is a name;
            equal names are equal sizes.
        traits: properties of the operator, see `Trait`.
        sized_by: the input that holds the size of the result, or its end.
        typed_by: the input whose dtype the results of `on_shape_values` have; the first one if left out.
        buffers: inputs of which torch has no gradient; constants of the file that are given there are no parameters.
        weights: inputs that a layer would hold; constants stay what they are beside static inputs that sizes decide, so
            that the body gives no symbolic number to their methods.
        lookups: inputs of indices, with the tables that they index; examples of such inputs stay inside the tables.
        choices: attributes that are one of a few strings; another one is refused at the import, whatever `call` is.
        float_form: of a quantised operator: the corresponding float operator.
        custom_op: whether torch.export, torch.compile and torch.jit.trace keep the node as one call, because its body
            reads values; requires `results`.
    """

    domain: str
    operator: str
    since: int
    body: Callable[..., Any]
    static: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    on_shape_values: Callable[..., Any] | None = None
    reads_shape: bool = False
    call: Call = "inline"
    random: bool = False
    results: Callable[..., Sequence[tuple[Sequence[Any], Any]]] | None = None
    custom_op: bool = False
    counts: frozenset[str] = frozenset()
    traits: frozenset[Trait] = frozenset()
    sized_by: str = ""
    typed_by: str = ""
    buffers: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()
    lookups: tuple[Lookup, ...] = ()
    choices: tuple[Choice, ...] = ()
    float_form: FloatForm | None = None

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.body)

    @functools.cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        return list(self._signature.parameters.values())[1:]

    @functools.cached_property
    def inputs(self) -> dict[str, Any]:
        """Input names in order with their defaults (`REQUIRED` or None); a variadic one has the default `REQUIRED`.

        A name that is a keyword of Python has an underscore behind it in the body, `global_`.
        """
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {_schema_name(p.name): p.default for p in self._parameters if p.kind in kinds}

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.inputs)

    @functools.cached_property
    def needed(self) -> tuple[tuple[int, str], ...]:
        """Positions and names of the required inputs."""
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
    def type_position(self) -> int:
        """The position of the input `typed_by`."""
        return self._names.index(self.typed_by) if self.typed_by else 0

    def is_static(self, position: int) -> bool:
        """Returns whether an input is in `static`."""
        return position < len(self._names) and self._names[position] in self.static

    @functools.cached_property
    def variadic(self) -> bool:
        """Whether the last input takes any number of values."""
        return any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in self._parameters)

    @functools.cached_property
    def attributes(self) -> dict[str, Any]:
        """Attribute names with their defaults; `REQUIRED` for required attributes."""
        keywords = (p for p in self._parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)
        return {p.name: p.default for p in keywords if not p.name.startswith("_")}

    @functools.cached_property
    def annotations(self) -> dict[str, str]:
        """The annotation of each attribute, without `| None`; `""` where there is none."""
        annotations = {p.name: p.annotation for p in self._parameters if p.name in self.attributes}
        return {
            name: kind.removesuffix(" | None") if isinstance(kind, str) else "" for name, kind in annotations.items()
        }

    @functools.cached_property
    def demanded(self) -> tuple[str, ...]:
        """Names of the required attributes."""
        return tuple(name for name, default in self.attributes.items() if default is REQUIRED)

    @functools.cached_property
    def any_attribute(self) -> bool:
        """Whether the body takes attributes of every name."""
        return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self._parameters)

    @functools.cached_property
    def facts(self) -> tuple[str, ...]:
        """The names in `FACTS` that the body requests."""
        return tuple(p.name for p in self._parameters if p.name in FACTS)

    @functools.cached_property
    def several(self) -> bool:
        """Whether the body returns a tuple even for a node of one output, by its return annotation."""
        return str(self._signature.return_annotation).startswith("tuple")

    @functools.cached_property
    def takes_dtype(self) -> bool:
        """Whether `on_shape_values` takes the dtype of the first input (`_dtype`), which object arrays do not have."""
        return self.on_shape_values is not None and "_dtype" in inspect.signature(self.on_shape_values).parameters

    def refuse_unknown(self, attributes: Mapping[str, Any]) -> None:
        """Checks the attributes in `choices`, and those in `FLAGS`.

        Raises:
            OperatorError: one of them has a value that the operator does not define.
        """
        for name in FLAGS.intersection(attributes):
            if name in self.attributes and attributes[name] not in (0, 1):
                raise OperatorError(f"{name}={attributes[name]!r} is none of 0, 1.")
        for name, values in self.choices:
            if attributes.get(name, values[0]) not in values:
                raise OperatorError(f"{name}={attributes[name]!r} is none of {', '.join(values)}.")

    def run(self, F: Any, *inputs: Any, **attributes: Any) -> Any:
        """Evaluates the row on real values, by `on_shape_values` where an input is an object array (of strings)."""
        if (
            self.on_shape_values is None
            or self.reads_shape
            or not any(isinstance(value, np.ndarray) for value in inputs)
        ):
            return self.body(F, *inputs, **attributes)
        arrays = (None if value is None else np.asarray(value).astype(object) for value in inputs)
        try:
            results = self.on_shape_values(*arrays, **attributes)
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
        """Returns the name of the input at `position`; all positions from a variadic input on have its name."""
        names = self._names
        return names[min(position, len(names) - 1)]

    def __str__(self) -> str:
        return f"{self.domain + '::' if self.domain else ''}{self.operator}-{self.since}"
