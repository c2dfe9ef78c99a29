"""Graphs of OneFlow ops: an `onnx_ir` graph whose nodes are the user ops of a compiled job (domain `oneflow`).

Each node names its inputs and outputs as OneFlow's op definition does; every value has an element type and a shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnx2nn.errors import ModelFileError

DOMAIN = "oneflow"
"""The node domain of OneFlow's user ops, in the graphs read here and in files written with unmapped ops."""


OPERANDS = "operands"


RESULTS = "results"
"""Node attributes: the name of each input and output in OneFlow's op definition, in the order of the node."""


VARYING = "varying"
"""Key of `node.meta`: the attributes that differ between traces, their varying entries replaced by dimension names."""


DIMENSIONS = "dimensions"
"""Key of `model.meta`: the `Dimensions` of the model."""


_NUMBERS = "Float Double Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64 Float16 BFloat16 Bool Complex64 Complex128"


DTYPES = {f"k{name}": ir.DataType[name.upper()] for name in _NUMBERS.split()} | {"kChar": ir.DataType.INT8}
"""OneFlow data type name → ONNX element type."""


@dataclass
class Dimensions:
    """The sizes that varied between traces, by name.

    Attributes:
        symbols: the caller's dimension names → their size in each trace.
        sizes: every dimension name, also the caller's → its size in each trace.
    """

    symbols: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self):
        self.sizes.update(self.symbols)
        self._names = {sizes: name for name, sizes in self.sizes.items()}

    def entry(self, sizes: Sequence[int]) -> int | str:
        """The size where all traces agree, else the name of the dimension.

        A dimension proportional to one of the caller's is called `7*batch`; any other gets a number.
        """
        sizes = tuple(sizes)
        if len(set(sizes)) == 1:
            return sizes[0]
        if sizes not in self._names:
            name = next(
                (f"{factor}*{symbol}" for symbol, base in self.symbols.items() if (factor := _ratio(sizes, base))),
                f"size_{len(self.sizes)}",
            )
            self._names[sizes] = name
            self.sizes[name] = sizes
        return self._names[sizes]


def _ratio(sizes: tuple[int, ...], base: tuple[int, ...]) -> int | None:
    """k where sizes == k * base with an integer k, else None."""
    factor = sizes[0] // base[0]
    return factor if all(size == factor * b for size, b in zip(sizes, base, strict=True)) and factor else None


def op_node(
    op_type: str,
    operands: Sequence[tuple[str, ir.Value]],
    results: Sequence[tuple[str, ir.Value]],
    attributes: Mapping[str, Any],
    name: str,
) -> ir.Node:
    """Returns a node of a OneFlow op.

    Args:
        op_type: user op type name.
        operands: inputs with the names that OneFlow's op definition gives them.
        results: outputs with theirs.
        attributes: attributes as Python values.
        name: the node's name.
    """
    written = [attribute(key, value) for key, value in attributes.items()]
    written.append(ir.AttrStrings(OPERANDS, [key for key, _ in operands]))
    written.append(ir.AttrStrings(RESULTS, [key for key, _ in results]))
    inputs, outputs = ([value for _, value in named] for named in (operands, results))
    return ir.Node(DOMAIN, op_type, inputs, written, outputs=outputs, name=name)


def distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Returns unique names: a repeated or taken name gets a number appended."""
    found: list[str] = []
    known = set(taken)
    for base in names:
        name, number = base, 0
        while name in known:
            number += 1
            name = f"{base}_{number}"
        known.add(name)
        found.append(name)
    return found


def attribute(name: str, value: Any) -> ir.Attr:
    """Returns the attribute for a Python value; an empty list becomes a list of integers."""
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, (bool, int)):
        return ir.AttrInt64(name, int(value))
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    if value and isinstance(value[0], str):
        return ir.AttrStrings(name, value)
    if value and isinstance(value[0], float):
        return ir.AttrFloat32s(name, value)
    if value and isinstance(value[0], list):
        return ir.AttrString(name, str(value))
    return ir.AttrInt64s(name, [int(v) for v in value])


def sizes_of(value: ir.Value) -> list[int | str]:
    """The shape of a value: sizes, and names where they are dynamic.

    Raises:
        ModelFileError: the shape is not known.
    """
    if value.shape is None:
        raise ModelFileError(f"The job holds no shape for {value.name}.")
    return [d if isinstance(d, int) else str(d.value) for d in value.shape]


def type_of(value: ir.Value) -> ir.TensorType:
    """The element type of a value.

    Raises:
        ModelFileError: it is not known.
    """
    if value.dtype is None:
        raise ModelFileError(f"The job holds no element type for {value.name}.")
    return ir.TensorType(value.dtype)
