"""The inputs of a model (names, dtypes, shapes), and seeded examples of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import InputError
from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.row import Lookup, Row

MOST_ELEMENTS = 1 << 26
"""Of all inputs that are generated at sizes of our choice."""


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.

    Attributes:
        name: as in the file.
        dtype: element type; None where the input is not a tensor (a sequence, an optional).
        shape: a number for a fixed dimension, a name (`""` where the file gives none) for a dynamic one;
            None where the rank is unknown.
        limit: for an input of indices, one more than the largest valid index.
        choices: for an integer scalar, the constants with which the model compares it, such as sampling rates.
    """

    name: str
    dtype: ir.DataType | None
    shape: tuple[int | str, ...] | None
    limit: int | None = None
    choices: tuple[int, ...] = ()

    @property
    def is_dynamic(self) -> bool:
        """Whether the rank is unknown or a dimension is dynamic."""
        return self.shape is None or any(isinstance(size, str) for size in self.shape)

    def __str__(self) -> str:
        shape = "unknown rank" if self.shape is None else "[" + ", ".join(str(size or "?") for size in self.shape) + "]"
        return f"{self.name}: {self.dtype.name.lower() if self.dtype is not None else 'not a tensor'} {shape}"


def input_specs(model: ir.Model) -> list[InputSpec]:
    """List the inputs that a caller must give, in the graph's order; inputs with an initializer are left out."""
    initializers = model.graph.initializers
    return [_spec(value) for value in model.graph.inputs if value.name not in initializers]


InputShapes = Mapping[str, Sequence["int | str | None"]]
"""Input name → sizes, names of dynamic dimensions, or None for dynamic dimensions without a name."""


def chosen_shapes(model: ir.Model, given: InputShapes) -> dict[str, list[int | str | None]]:
    """Returns the caller's `input_shapes` as plain Python values.

    Raises:
        InputError: an unknown input, another rank than the file's, or a value that is no shape.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"input_shapes={given!r}: give a mapping of input names to shapes.")
    inputs = {value.name: value for value in model.graph.inputs}
    chosen = {}
    for name, dims in given.items():
        if name not in inputs:
            raise InputError(f"input_shapes names {name!r}. The model's inputs are {', '.join(map(repr, inputs))}.")
        chosen[name] = _chosen_shape(name, dims)
        declared = inputs[name].shape
        if declared is not None and len(declared) != len(chosen[name]):
            raise InputError(
                f"input_shapes gives {name!r} {len(chosen[name])} dimensions. The input has {len(declared)} dimensions."
            )
    return chosen


def _chosen_shape(name: str, dims: Any) -> list[int | str | None]:
    try:
        if not isinstance(dims, str):
            return [_chosen_size(dim) for dim in dims]
    except TypeError:
        pass
    raise InputError(
        f"input_shapes has {dims!r} for {name!r}: give a list of sizes, names of dynamic dimensions, and None."
    )


def _chosen_size(dim: Any) -> int | str | None:
    if dim is None or isinstance(dim, str):
        return dim
    if isinstance(dim, bool) or (size := operator.index(dim)) < 0:
        raise TypeError
    return size


def input_dimensions(
    model: ir.Model, overrides: Mapping[str, Sequence[int | str | None]]
) -> dict[str, list[int | str] | None]:
    """Returns the dimensions of every input; an override of a named dimension holds for all dimensions of that name."""
    named: dict[int | str, int | str] = {}
    result = {}
    for value in model.graph.inputs:
        override = overrides.get(value.name or "")
        dims, declared = _declared(value, override), _declared(value, None)
        if override is not None and dims and declared and len(dims) == len(declared):
            named |= {old: new for old, new in zip(declared, dims, strict=True) if isinstance(old, str)}
        result[value.name or ""] = dims
    return {
        name: dims and [named.get(d, d) if isinstance(d, str) else d for d in dims] for name, dims in result.items()
    }


def _declared(value: ir.Value, override: Sequence[int | str | None] | None) -> list[int | str] | None:
    """Returns an input's dimensions, dynamic ones as names; None for an unknown rank or a value that is no tensor."""
    if not isinstance(value.type, (ir.TensorType, type(None))):
        return None
    dims: Iterable[Any] | None = override if override is not None else value.shape
    if dims is None:
        return None
    known = [_dimension(dim) for dim in dims]
    return [f"{value.name}:{index}" if dim == "" else dim for index, dim in enumerate(known)]


_NO_NAMES = frozenset({"?", "*", "-1", "None", "unknown"})
"""Exporters' placeholders for unknown sizes, such as Paddle's; two dimensions with one of them may differ."""


def _dimension(dim: ir.SymbolicDim | int | str | None) -> int | str:
    """Returns a size, or the name of a dynamic dimension, `""` where it has none."""
    plain = dim.value if isinstance(dim, ir.SymbolicDim) else dim
    if isinstance(plain, int) and plain >= 0:
        return plain
    return plain if isinstance(plain, str) and plain not in _NO_NAMES else ""


def specs_of(module: Any) -> list[InputSpec]:
    """List the inputs of an imported module, like `input_specs` for its file.

    Dimensions that `input_shapes` fixed or made dynamic at import are as chosen there.

    Raises:
        InputError: the module does not come from `onnx2nn.load`.
    """
    signature = getattr(module, "meta", {}).get("onnx2nn", {}).get("signature")
    if signature is None:
        raise InputError("The module has no record of its ONNX file's inputs. Give a module of onnx2nn.load.")
    return [
        InputSpec(**{**spec, "dtype": None if spec["dtype"] is None else ir.DataType[spec["dtype"]]})
        for spec in signature
    ]


def dynamic_axes(module: Any) -> dict[str, dict[int, str]]:
    """Returns axis → name of the dynamic dimensions of each input of an imported module, nothing for another module."""
    if "signature" not in getattr(module, "meta", {}).get("onnx2nn", {}):
        return {}
    return {
        spec.name: {
            axis: size or f"{spec.name}_{axis}" for axis, size in enumerate(spec.shape or ()) if isinstance(size, str)
        }
        for spec in specs_of(module)
    }


def _spec(value: ir.Value) -> InputSpec:
    shape: tuple[int | str, ...] | None = None
    if value.shape is not None:
        shape = tuple(map(_dimension, value.shape))
    dtype = value.dtype if isinstance(value.type, ir.TensorType) else None
    scalar = dtype is not None and dtype.is_integer() and shape in ((), (1,))
    return InputSpec(value.name or "", dtype, shape, _index_limit(value), _choices(value) if scalar else ())


def _readers(value: ir.Value, changed: bool = False) -> Iterator[tuple[ir.Node, int]]:
    """Yields the nodes that a value's elements reach, and the position among each node's inputs.

    Args:
        value: an input, or what is computed of one.
        changed: whether the elements may change on the way, each by itself.
    """
    seen: set[ir.Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        for node, position in current.uses():
            yield node, position
            traits = TABLE.traits_of(node.op_type)
            preserving = node.op_type == "Cast" or "value_preserving" in traits
            if (preserving and position == 0) or (changed and "elementwise" in traits):
                stack.extend(node.outputs)


def _index_limit(value: ir.Value) -> int | None:
    """Returns the rows of the smallest table that an input indexes (token, position and segment embeddings)."""
    limits: list[int] = []
    for node, position in _readers(value):
        limits += _rows_indexed(node, position)
        if node.op_type == "Add":  # Keras 3 adds the number of rows to negative indices
            added = {number for other in node.inputs for number in _numbers(other)}
            readers = _readers(node.outputs[0], changed=True) if added else ()
            limits += [rows for reader, place in readers for rows in _rows_indexed(reader, place) if rows in added]
    return min(limits, default=None)


def _rows_indexed(node: ir.Node, position: int) -> list[int]:
    """Returns the rows of the tables that a node indexes by the input at `position`."""
    row = TABLE.newest(node.domain, node.op_type)
    if row is None:
        return []
    indexed = [lookup for lookup in row.lookups if lookup.indices == row.input_name(position)]
    return [rows for lookup in indexed if (rows := _rows(node, row, lookup)) is not None and rows]


def _numbers(value: ir.Value | None) -> list[int]:
    """Returns the integer in a constant, none for any other value."""
    constant = None if value is None else ir.convenience.get_const_tensor(value)
    whole = constant is not None and constant.dtype.is_integer() and constant.size == 1
    return [int(constant.numpy().item())] if constant is not None and whole else []


def _rows(node: ir.Node, row: Row, lookup: Lookup) -> int | None:
    """Returns the number of rows of the table of a lookup, None where the file does not say it."""
    position = [*row.inputs].index(lookup.table)
    table = node.inputs[position] if position < len(node.inputs) else None
    shape = None if table is None else table.shape
    axis = node.attributes.get_int(lookup.axis, row.attributes[lookup.axis]) if lookup.axis else 0
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return size if isinstance(size, int) else None


def _choices(value: ir.Value) -> tuple[int, ...]:
    """Returns the constants with which an input is compared."""
    compared = [other for node, _ in _readers(value) if node.op_type == "Equal" for other in node.inputs]
    return tuple(dict.fromkeys(number for other in compared for number in _numbers(other)))


def resolve_shapes(
    specs: Sequence[InputSpec], input_shapes: Mapping[str, Sequence[int]] | None = None, *, batch: int = 1
) -> dict[str, tuple[int, ...]]:
    """Chooses a shape for every input.

    Args:
        specs: the model's inputs.
        input_shapes: sizes given by the caller, by input name; the other sizes are the file's.
        batch: size of a dynamic first dimension that the caller leaves out.

    Returns:
        Input name → sizes. Dimensions with the same name in the file get the same size.

    Raises:
        InputError: an unknown name, a wrong rank, a size that contradicts the file, or a missing size.
    """
    given = fixed_shapes(specs, input_shapes)
    sizes = _named_sizes(specs, given)
    return {spec.name: given[spec.name] if spec.name in given else _complete(spec, sizes, batch) for spec in specs}


def fixed_shapes(
    specs: Sequence[InputSpec], input_shapes: Mapping[str, Sequence[int]] | None
) -> dict[str, tuple[int, ...]]:
    """Adds the shapes that follow from the caller's: dimensions with one name have one size.

    Raises:
        InputError: as `check_shapes`.
    """
    given = check_shapes(specs, input_shapes)
    sizes = _named_sizes(specs, given)
    for spec in specs:
        if spec.name not in given and spec.is_dynamic and spec.shape is not None:
            shape = [sizes.get(size) if isinstance(size, str) else size for size in spec.shape]
            known = [size for size in shape if size is not None]
            if len(known) == len(shape):
                given[spec.name] = tuple(known)
    return given


def _named_sizes(specs: Sequence[InputSpec], given: Mapping[str, Sequence[int]]) -> dict[str, int]:
    return {
        name: size
        for spec in specs
        if spec.name in given and spec.shape is not None
        for name, size in zip(spec.shape, given[spec.name], strict=True)
        if isinstance(name, str) and name
    }


def check_shapes(
    specs: Sequence[InputSpec], input_shapes: Mapping[str, Sequence[int]] | None
) -> dict[str, tuple[int, ...]]:
    """Checks the caller's shapes against the file.

    Raises:
        InputError: an unknown name, a wrong rank, or a size that contradicts the file.
    """
    by_name = {spec.name: spec for spec in specs}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, sizes in (input_shapes or {}).items():
        if name not in by_name:
            raise InputError(f"The model has no input {name!r}. Its inputs are {_listed(specs)}.")
        spec = by_name[name]
        if any(isinstance(size, str) or size < 0 for size in sizes):
            raise InputError(f"The shape {sizes!r} of input {name!r} is no list of sizes. Give integers from 0 on.")
        if spec.shape is not None:
            if len(spec.shape) != len(sizes):
                raise InputError(
                    f"Input {name!r} has {len(spec.shape)} dimensions, but {len(sizes)} were given "
                    f"({','.join(map(str, sizes))}). The file says {spec}."
                )
            for axis, (wanted, size) in enumerate(zip(spec.shape, sizes, strict=True)):
                if isinstance(wanted, int) and wanted != size:
                    raise InputError(
                        f"Dimension {axis} of input {name!r} is fixed at {wanted} in the file, but {size} was given. "
                        "The option dynamic frees it."
                    )
        shapes[name] = tuple(sizes)
    return shapes


def _not_a_tensor(spec: InputSpec) -> InputError:
    return InputError(f"Input {spec.name!r} is not a tensor, so no example can be generated. Give the inputs.")


def _complete(spec: InputSpec, sizes: Mapping[str, int], batch: int) -> tuple[int, ...]:
    if spec.dtype is None and spec.shape is None:
        raise _not_a_tensor(spec)
    if spec.shape is None:
        raise InputError(
            f"The file does not say the shape of input {spec.name!r}. Give it, such as {spec.name}:1,3,224,224."
        )
    completed: list[int] = []
    for axis, size in enumerate(spec.shape):
        if isinstance(size, int):
            completed.append(size)
        elif size in sizes:
            completed.append(sizes[size])
        elif axis == 0:
            completed.append(batch)
        else:
            example = ",".join(str(known if isinstance(known, int) else "N") for known in spec.shape)
            raise InputError(f"Input {spec} has dynamic dimensions. Give all sizes: {spec.name}:{example}.")
    return tuple(completed)


def _listed(specs: Iterable[InputSpec]) -> str:
    return "; ".join(str(spec) for spec in specs) or "none"


def example_inputs(
    specs: Sequence[InputSpec], shapes: Mapping[str, Sequence[int]], *, seed: int = 0
) -> dict[str, np.ndarray]:
    """Makes one seeded array for every input.

    Floats are standard normal. Integers are small and not negative; indices are below the size of their table. Inputs
    named as masks are ones. uint8 and int8 (images, quantised values) use their whole range.

    Raises:
        InputError: an input is not a tensor.
    """
    return {
        spec.name: _example(spec, tuple(shapes[spec.name]), np.random.default_rng([seed, index]))
        for index, spec in enumerate(specs)
    }


def _example(spec: InputSpec, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if spec.dtype is None or spec.dtype == ir.DataType.UNDEFINED:
        raise _not_a_tensor(spec)
    if spec.dtype == ir.DataType.STRING:
        words = np.array(["a", "b", "onnx", "Tensor", ""], dtype=object)
        return np.asarray(words[rng.integers(0, len(words), shape)], dtype=object)  # a scalar would be a str
    dtype = spec.dtype.numpy()
    if spec.dtype == ir.DataType.BOOL:
        return np.ones(shape, dtype) if _is_mask(spec) else rng.integers(0, 2, shape).astype(dtype)
    if spec.dtype.is_integer() or spec.limit is not None:  # Keras gives an Embedding floats
        return _integers(spec, shape, rng).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    numbers = np.asarray(rng.standard_normal(shape))
    return (np.abs(numbers) if spec.dtype == ir.DataType.FLOAT8E8M0 else numbers).astype(dtype)  # it has no sign


def _integers(spec: InputSpec, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    assert spec.dtype is not None
    if spec.limit is not None:
        return np.asarray(rng.integers(0, max(spec.limit, 1), shape))
    if spec.choices and math.prod(shape) == 1:
        return np.asarray(rng.choice(spec.choices, shape))
    if _is_mask(spec) or (math.prod(shape) == 1 and spec.dtype not in (ir.DataType.UINT8, ir.DataType.INT8)):
        return np.ones(shape, np.int64)  # a scalar is a length, a count or an axis more often than an index
    if spec.dtype == ir.DataType.UINT8:
        return np.asarray(rng.integers(0, 256, shape))
    if spec.dtype == ir.DataType.INT8:
        return np.asarray(rng.integers(-128, 128, shape))
    return np.asarray(rng.integers(0, min(10, 2 ** (spec.dtype.bitwidth - 1)), shape))


def _is_mask(spec: InputSpec) -> bool:
    return "mask" in spec.name.lower()
