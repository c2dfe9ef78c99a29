"""How each operator's axes, attributes and inputs change when its data are channels first instead of channels last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.registry import TABLE
from onnx2nn.rewrite.patterns import attribute_of, tensor_of
from onnx2nn.rewrite.value_facts import ValueFacts


def to_channels_first(rank: int) -> list[int]:
    """Returns the permutation from channels last to channels first."""
    return [0, rank - 1, *range(1, rank - 1)] if rank > 2 else list(range(rank))


def to_channels_last(rank: int) -> list[int]:
    """Returns the permutation from channels first to channels last."""
    return [0, *range(2, rank), 1] if rank > 2 else list(range(rank))


@dataclass
class ChannelsFirstForm:
    """The changes that turn a node on channels last into an equivalent node on channels first.

    Attributes:
        data: positions of the inputs that are transposed.
        inputs: new values of other inputs, by position.
        reordered: sample values of shape inputs that are known at run time only, by position. Their elements, one for
            each dimension of the output, are reordered by a Gather.
        attributes: new values of attributes.
        output_rank: the rank of the outputs.
        outputs: whether the outputs are transposed. They are not where a reduction removes the channels.
        sample_sizes: required sizes of the sample's dimensions, by axis.
        bools: positions of the inputs whose dtype is bool.
    """

    data: Sequence[int] = (0,)
    inputs: Mapping[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    reordered: Mapping[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    output_rank: int = 0
    outputs: bool = True
    sample_sizes: Mapping[int, int] = field(default_factory=dict)
    bools: Sequence[int] = ()


FormOf = Callable[[ir.Node, int, ValueFacts, Mapping[ir.Value, int]], "ChannelsFirstForm | None"]
"""A function of a node, the rank of its first input, the facts, and the ranks of values.

It returns the node's channels-first form, None where the node has none.
"""

SAMPLE_SIZES = (2, 3, 4, 5, 6, 7, 8)
"""Sizes of a sample's dimensions, all different, so that exchanged dimensions show."""


def _elementwise(
    node: ir.Node, rank: int, facts: ValueFacts, ranks: Mapping[ir.Value, int]
) -> ChannelsFirstForm | None:
    """Returns the form of an elementwise operator with broadcasting."""
    data, sizes = [], dict[int, int]()
    for position, value in enumerate(node.inputs):
        if value is None:
            continue
        shape = facts.constant_shape(value) if tensor_of(value) is not None else None
        if shape is not None:
            if len(shape) > rank:
                return None
            sizes |= {rank - len(shape) + axis: size for axis, size in enumerate(shape) if size != 1}
        if shape is None and ranks.get(value) not in (0, rank):
            return None
        if (shape is None and ranks[value]) or (shape is not None and any(size != 1 for size in shape)):
            data.append(position)
    logical = "logical" in TABLE.traits_of(node.op_type)
    bools = (0,) if node.op_type == "Where" else range(len(node.inputs)) if logical else ()
    return ChannelsFirstForm(data, output_rank=rank, sample_sizes=sizes, bools=bools)


def _axis(default: int | None, since: int = 1) -> FormOf:
    """Returns the form function of operators along one axis; before opset `since` the attribute had another meaning."""

    def form(node: ir.Node, rank: int, facts: ValueFacts, ranks: Mapping[ir.Value, int]) -> ChannelsFirstForm | None:
        axis = attribute_of(node, "axis", default)
        if axis is None or facts.opsets.get("", 1) < since:
            return None
        changed, sizes = {"axis": to_channels_first(rank).index(axis % rank)}, dict[int, int]()
        if node.op_type == "Concat":
            if any(value is None or ranks.get(value) != rank for value in node.inputs):
                return None
            for value in node.inputs:
                shape = facts.constant_shape(value) if tensor_of(value) is not None else None
                sizes |= {} if shape is None else {a: size for a, size in enumerate(shape) if a != axis % rank}
            return ChannelsFirstForm(range(len(node.inputs)), attributes=changed, output_rank=rank, sample_sizes=sizes)
        if node.op_type == "Split":
            parts = attribute_of(node, "split", None) or (facts.array(node.inputs[1]) if len(node.inputs) > 1 else None)
            if len(node.inputs) > 1 and parts is None:
                return None
            sizes = {axis % rank: 2 * len(node.outputs) if parts is None else int(sum(parts))}
        if node.op_type == "Gather":
            places = facts.array(node.inputs[1])
            if places is None or places.ndim != 1 or not places.size:
                return None
            sizes = {axis % rank: int(max(places.max() + 1, -places.min()))}
        return ChannelsFirstForm(attributes=changed, output_rank=rank, sample_sizes=sizes)

    return form


def _axes(node: ir.Node, rank: int, facts: ValueFacts, ranks: Mapping[ir.Value, int]) -> ChannelsFirstForm | None:
    """Returns the form of a reduction, an ArgMax, an ArgMin or a Squeeze."""
    axes = [attribute_of(node, "axis", 0)] if node.op_type.startswith("Arg") else facts.axes(node)
    if not axes or len(set(axes)) < len(axes):
        return None
    axes = [axis % rank for axis in axes]
    moved = sorted(to_channels_first(rank).index(axis) for axis in axes)
    keeps_dims = node.op_type != "Squeeze" and bool(attribute_of(node, "keepdims", 1))
    sizes = dict.fromkeys(axes, 1) if node.op_type == "Squeeze" else {}
    after = rank if keeps_dims else rank - len(axes)
    form = ChannelsFirstForm(output_rank=after, outputs=True, sample_sizes=sizes)
    if node.op_type.startswith("Arg"):
        form.attributes = {"axis": moved[0]}
    elif "axes" in node.attributes:
        form.attributes = {"axes": moved}
    else:
        form.inputs = {1: np.array(moved, np.int64)}
    if keeps_dims:
        return form
    rest = [axis for axis in to_channels_first(rank) if axis not in axes]
    form.outputs = rest != sorted(rest)
    return form if not form.outputs or rest == [sorted(rest)[i] for i in to_channels_first(after)] else None


def _unsqueeze(node: ir.Node, rank: int, facts: ValueFacts, ranks: Mapping[ir.Value, int]) -> ChannelsFirstForm | None:
    """Returns the form of an Unsqueeze between the first and the last dimension."""
    axes = facts.axes(node)
    after = rank + len(axes or ())
    if not axes or rank < 3 or any(axis % after in (0, after - 1) for axis in axes):
        return None
    moved = sorted(to_channels_first(after).index(axis % after) for axis in axes)
    if "axes" in node.attributes:
        return ChannelsFirstForm(attributes={"axes": moved}, output_rank=after)
    return ChannelsFirstForm(inputs={1: np.array(moved, np.int64)}, output_rank=after)


def _reshape(node: ir.Node, rank: int, facts: ValueFacts, ranks: Mapping[ir.Value, int]) -> ChannelsFirstForm | None:
    """Returns the form of a Reshape that inserts spatial dimensions of 1, as squeeze-and-excitation blocks do."""
    target, known = facts.ints(node.inputs[1]), facts.array(node.inputs[1])
    if rank != 2 or target is None or len(target) < 3 or set(target[1:-1]) != {1} or not target[-1]:
        return None
    order, sizes = to_channels_first(len(target)), {1: target[-1]} if target[-1] > 0 else {}
    if known is not None:
        return ChannelsFirstForm(
            data=(), inputs={1: known[order].astype(np.int64)}, output_rank=len(target), sample_sizes=sizes
        )
    sample = np.array([SAMPLE_SIZES[0], *target[1:]], np.int64)
    return (
        ChannelsFirstForm(data=(), reordered={1: sample}, output_rank=len(target), sample_sizes=sizes)
        if target[0] is None
        else None
    )


def _pad(node: ir.Node, rank: int, facts: ValueFacts, ranks: Mapping[ir.Value, int]) -> ChannelsFirstForm | None:
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        return None
    pads = attribute_of(node, "pads", None) or (facts.array(node.inputs[1]) if len(node.inputs) > 1 else None)
    if pads is None or len(pads) != 2 * rank:
        return None
    order = to_channels_first(rank)
    moved = [int(pads[half * rank + axis]) for half in (0, 1) for axis in order]
    sizes = {axis: 2 + abs(int(pads[axis])) + abs(int(pads[rank + axis])) for axis in range(rank)}
    if "pads" in node.attributes:
        return ChannelsFirstForm(attributes={"pads": moved}, output_rank=rank, sample_sizes=sizes)
    return ChannelsFirstForm(inputs={1: np.array(moved, np.int64)}, output_rank=rank, sample_sizes=sizes)


def _slice(node: ir.Node, rank: int, facts: ValueFacts, ranks: Mapping[ir.Value, int]) -> ChannelsFirstForm | None:
    """Returns the form of a Slice: its axes change, its bounds stay."""
    if len(node.inputs) < 3:
        axes = attribute_of(node, "axes", None) or range(len(attribute_of(node, "starts", ())))
        return ChannelsFirstForm(
            attributes={"axes": [to_channels_first(rank).index(a % rank) for a in axes]}, output_rank=rank
        )
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        given = facts.array(node.inputs[3])
    else:
        count = len(facts.ints(node.inputs[1]) or ())
        given = np.arange(count) if count else None
    if given is None:
        return None
    bounds = [facts.array(value) for value in node.inputs[1:3]]
    if any(bound is None for bound in bounds) or any(facts.array(v) is None for v in node.inputs[3:] if v is not None):
        return None
    moved = np.array([to_channels_first(rank).index(int(axis) % rank) for axis in given], np.int64)
    pairs = zip(given, *(bound for bound in bounds if bound is not None), strict=True)
    sizes = {
        int(axis) % rank: 2 + max(abs(int(b)) for b in (s, e, 0) if abs(int(b)) < _UNBOUNDED) for axis, s, e in pairs
    }
    return ChannelsFirstForm(inputs={3: moved}, output_rank=rank, sample_sizes=sizes)


_UNBOUNDED = 1000
"""A Slice's bound of at least this magnitude means the end of the dimension."""


def _sizes(*positions: int) -> FormOf:
    """Returns the form function of operators whose inputs at `positions` hold one element for each dimension."""

    def form(node: ir.Node, rank: int, facts: ValueFacts, ranks: Mapping[ir.Value, int]) -> ChannelsFirstForm | None:
        if "axes" in node.attributes:
            return None
        moved = {}
        for position in positions:
            value = node.inputs[position] if position < len(node.inputs) else None
            array = facts.array(value)
            if value is None or (array is not None and not array.size):
                continue
            if array is None or array.ndim != 1 or array.size % rank:
                return None
            moved[position] = np.concatenate(
                [part[to_channels_first(rank)] for part in np.split(array, array.size // rank)]
            )
        return ChannelsFirstForm(inputs=moved, output_rank=rank) if moved else None

    return form


def _quantized(node: ir.Node, rank: int, facts: ValueFacts, ranks: Mapping[ir.Value, int]) -> ChannelsFirstForm | None:
    """Returns the form of a quantising node with a scalar scale and zero point."""
    scales = [facts.constant_shape(value) for value in node.inputs[1:] if value is not None]
    return (
        ChannelsFirstForm(output_rank=rank)
        if all(shape is not None and not any(s != 1 for s in shape) for shape in scales)
        else None
    )


FORMS: dict[str, FormOf] = {
    **dict.fromkeys(("ArgMax", "ArgMin", "Squeeze"), _axes),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _axis(-1, since=13)),
    "Unsqueeze": _unsqueeze,
    "Concat": _axis(None),
    "Split": _axis(0),
    "Gather": _axis(0),
    "Reshape": _reshape,
    "Pad": _pad,
    "Slice": _slice,
    "Resize": _sizes(1, 2, 3),
    "Upsample": _sizes(1),
    "Tile": _sizes(1),
    "QuantizeLinear": _quantized,
    "DequantizeLinear": _quantized,
}
"""Operators with an axis, or an element for each dimension, in an input or an attribute → their form function."""


def is_elementwise(node: ir.Node) -> bool:
    """Returns whether a node computes each element of its output from the elements at the same position."""
    return not node.domain and "elementwise" in TABLE.traits_of(node.op_type)


def form_of(node: ir.Node) -> FormOf | None:
    """Returns the form function of a node, None for an operator that has one order of dimensions only."""
    if is_elementwise(node):
        return _elementwise
    if node.domain:
        return None
    return _axes if "reduction" in TABLE.traits_of(node.op_type) else FORMS.get(node.op_type)
