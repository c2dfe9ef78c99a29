"""What becomes of a node's axes where its images are stored channels first instead of channels last, by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.optable.registry import load_rows
from onnx2nn.rewrite.facts import Facts
from onnx2nn.rewrite.patterns import tensor_of


def to_first(rank: int) -> list[int]:
    """Returns the permutation from channels last to channels first."""
    return [0, rank - 1, *range(1, rank - 1)] if rank > 2 else list(range(rank))


def to_last(rank: int) -> list[int]:
    """Returns the permutation from channels first to channels last."""
    return [0, *range(2, rank), 1] if rank > 2 else list(range(rank))


@dataclass
class Turned:
    """How a node looks on channels first.

    Attributes:
        data: positions of the inputs that are turned.
        inputs: other inputs that change, by position.
        reordered: inputs with a number for each dimension of the output that only a run tells, by position, and what
            they are in the sample.
        attributes: those that change.
        ranks: dimensions of the outputs.
        outputs: whether the outputs are turned; they keep their order where the channels are reduced.
        sizes: what the sample's dimensions have to be, by axis.
        bools: positions of the inputs that are truth values.
    """

    data: Sequence[int] = (0,)
    inputs: Mapping[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    reordered: Mapping[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 0
    outputs: bool = True
    sizes: Mapping[int, int] = field(default_factory=dict)
    bools: Sequence[int] = ()


Form = Callable[[ir.Node, int, Facts, Mapping[ir.Value, int]], "Turned | None"]
"""A node, the dimensions of its first input, and of other values → how it looks on channels first; None: it cannot."""

ORDER = (2, 3, 4, 5, 6, 7, 8)


def _each(node: ir.Node, rank: int, facts: Facts, ranks: Mapping[ir.Value, int]) -> Turned | None:
    """A function of each element, or of elements at the same place."""
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
    logical = node.op_type in load_rows().operators("logical")
    bools = (0,) if node.op_type == "Where" else range(len(node.inputs)) if logical else ()
    return Turned(data, ranks=rank, sizes=sizes, bools=bools)


def _axis(default: int | None, since: int = 1) -> Form:
    """Along one axis; before version `since` it meant something else."""

    def form(node: ir.Node, rank: int, facts: Facts, ranks: Mapping[ir.Value, int]) -> Turned | None:
        axis = _attribute(node, "axis", default)
        if axis is None or facts.opsets.get("", 1) < since:
            return None
        turned, sizes = {"axis": to_first(rank).index(axis % rank)}, dict[int, int]()
        if node.op_type == "Concat":
            if any(value is None or ranks.get(value) != rank for value in node.inputs):
                return None
            for value in node.inputs:
                shape = facts.constant_shape(value) if tensor_of(value) is not None else None
                sizes |= {} if shape is None else {a: size for a, size in enumerate(shape) if a != axis % rank}
            return Turned(range(len(node.inputs)), attributes=turned, ranks=rank, sizes=sizes)
        if node.op_type == "Split":
            parts = _attribute(node, "split", None) or (facts.array(node.inputs[1]) if len(node.inputs) > 1 else None)
            if len(node.inputs) > 1 and parts is None:
                return None
            sizes = {axis % rank: 2 * len(node.outputs) if parts is None else int(sum(parts))}
        if node.op_type == "Gather":
            places = facts.array(node.inputs[1])
            if places is None or places.ndim != 1 or not places.size:
                return None
            sizes = {axis % rank: int(max(places.max() + 1, -places.min()))}
        return Turned(attributes=turned, ranks=rank, sizes=sizes)

    return form


def _axes(node: ir.Node, rank: int, facts: Facts, ranks: Mapping[ir.Value, int]) -> Turned | None:
    """Takes axes away, by a reduction or as they are."""
    axes = [_attribute(node, "axis", 0)] if node.op_type.startswith("Arg") else facts.axes(node)
    if not axes or len(set(axes)) < len(axes):
        return None
    axes = [axis % rank for axis in axes]
    moved = sorted(to_first(rank).index(axis) for axis in axes)
    kept = node.op_type != "Squeeze" and bool(_attribute(node, "keepdims", 1))
    sizes = dict.fromkeys(axes, 1) if node.op_type == "Squeeze" else {}
    after = rank if kept else rank - len(axes)
    turned = Turned(ranks=after, outputs=True, sizes=sizes)
    if node.op_type.startswith("Arg"):
        turned.attributes = {"axis": moved[0]}
    elif "axes" in node.attributes:
        turned.attributes = {"axes": moved}
    else:
        turned.inputs = {1: np.array(moved, np.int64)}
    if kept:
        return turned
    rest = [axis for axis in to_first(rank) if axis not in axes]
    turned.outputs = rest != sorted(rest)
    return turned if not turned.outputs or rest == [sorted(rest)[i] for i in to_first(after)] else None


def _unsqueeze(node: ir.Node, rank: int, facts: Facts, ranks: Mapping[ir.Value, int]) -> Turned | None:
    """Puts in dimensions of 1."""
    axes = facts.axes(node)
    after = rank + len(axes or ())
    if not axes or rank < 3 or any(axis % after in (0, after - 1) for axis in axes):
        return None
    moved = sorted(to_first(after).index(axis % after) for axis in axes)
    if "axes" in node.attributes:
        return Turned(attributes={"axes": moved}, ranks=after)
    return Turned(inputs={1: np.array(moved, np.int64)}, ranks=after)


def _reshape(node: ir.Node, rank: int, facts: Facts, ranks: Mapping[ir.Value, int]) -> Turned | None:
    """Puts in height and width of 1, as between a squeeze and its excitation."""
    target, known = facts.ints(node.inputs[1]), facts.array(node.inputs[1])
    if rank != 2 or target is None or len(target) < 3 or set(target[1:-1]) != {1} or not target[-1]:
        return None
    order, sizes = to_first(len(target)), {1: target[-1]} if target[-1] > 0 else {}
    if known is not None:
        return Turned(data=(), inputs={1: known[order].astype(np.int64)}, ranks=len(target), sizes=sizes)
    sample = np.array([ORDER[0], *target[1:]], np.int64)
    return Turned(data=(), reordered={1: sample}, ranks=len(target), sizes=sizes) if target[0] is None else None


def _pad(node: ir.Node, rank: int, facts: Facts, ranks: Mapping[ir.Value, int]) -> Turned | None:
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        return None
    pads = _attribute(node, "pads", None) or (facts.array(node.inputs[1]) if len(node.inputs) > 1 else None)
    if pads is None or len(pads) != 2 * rank:
        return None
    order = to_first(rank)
    moved = [int(pads[half * rank + axis]) for half in (0, 1) for axis in order]
    sizes = {axis: 2 + abs(int(pads[axis])) + abs(int(pads[rank + axis])) for axis in range(rank)}
    if "pads" in node.attributes:
        return Turned(attributes={"pads": moved}, ranks=rank, sizes=sizes)
    return Turned(inputs={1: np.array(moved, np.int64)}, ranks=rank, sizes=sizes)


def _slice(node: ir.Node, rank: int, facts: Facts, ranks: Mapping[ir.Value, int]) -> Turned | None:
    """The axes of its bounds move."""
    if len(node.inputs) < 3:
        axes = _attribute(node, "axes", None) or range(len(_attribute(node, "starts", ())))
        return Turned(attributes={"axes": [to_first(rank).index(a % rank) for a in axes]}, ranks=rank)
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
    moved = np.array([to_first(rank).index(int(axis) % rank) for axis in given], np.int64)
    pairs = zip(given, *(bound for bound in bounds if bound is not None), strict=True)
    sizes = {int(axis) % rank: 2 + max(abs(int(b)) for b in (s, e, 0) if abs(int(b)) < _FAR) for axis, s, e in pairs}
    return Turned(inputs={3: moved}, ranks=rank, sizes=sizes)


_FAR = 1000
"""A bound of a slice that is farther away is its dimension's end."""


def _sizes(*positions: int) -> Form:
    """One number a dimension in these inputs."""

    def form(node: ir.Node, rank: int, facts: Facts, ranks: Mapping[ir.Value, int]) -> Turned | None:
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
            moved[position] = np.concatenate([part[to_first(rank)] for part in np.split(array, array.size // rank)])
        return Turned(inputs=moved, ranks=rank) if moved else None

    return form


def _quantized(node: ir.Node, rank: int, facts: Facts, ranks: Mapping[ir.Value, int]) -> Turned | None:
    """With one scale for all."""
    scales = [facts.constant_shape(value) for value in node.inputs[1:] if value is not None]
    return Turned(ranks=rank) if all(shape is not None and not any(s != 1 for s in shape) for shape in scales) else None


FORMS: dict[str, Form] = {
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
"""Operators with dimensions of which each has its place in an input or an attribute."""


def is_elementwise(node: ir.Node) -> bool:
    """Returns whether a node is a function of each element, or of elements at the same place."""
    return not node.domain and node.op_type in load_rows().operators("elementwise")


def form_of(node: ir.Node) -> Form | None:
    """Returns what becomes of a node's axes, None for an operator whose dimensions have one order only."""
    if is_elementwise(node):
        return _each
    if node.domain:
        return None
    return _axes if node.op_type in load_rows().operators("reduction") else FORMS.get(node.op_type)


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    return node.attributes[name].value if name in node.attributes else default
