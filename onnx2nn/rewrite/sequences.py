"""Rules for convolutions and pools that an exporter wrote as those of other images.

TensorFlow computes those of sequences with a dimension of one more, and one with a dilation on images of every second,
third, ... pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnx2nn.rewrite.patterns import Match, attribute_of, parse
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts

_LAYERS = ("first", "second")
_SIZES = ("kernel_shape", "strides", "dilations")
"""Attributes with one number for each dimension of an image."""

_ONE_AXIS = {"shape": ir.AttrInt64s("shape", [0, 0, -1])}
"""Attributes of the Reshape-1 that gives a matrix with a kernel of two axes, one of them 1, the other axis alone."""

_REPEATS = {"group": 2}
_UNTURNED = list(range(4))


def _of_sequence(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the layers without the dimension that is inserted before them and removed after them.

    No layer may compute along it: its kernel and its stride there are 1, and it pads nothing.
    """
    layers = [match[name] for name in _LAYERS if name in match]
    added, removed = facts.axes(match["unsqueeze"]), facts.axes(match["squeeze"])
    before, after = (_order(match.get(name)) for name in ("before", "after"))
    if added is None or removed is None or len(added) != 1 or len(removed) != 1 or before is None or after is None:
        return None
    if any(len(_kernel(layer, facts)) != 2 for layer in layers):
        return None
    place = before.index(added[0] % 4)
    if after[removed[0] % 4] != place or place < 2:
        return None
    if any(not _is_plain(layer, _kernel(layer, facts), place - 2) for layer in layers):
        return None
    made: NewNode | ir.Value = _turned(match["x"], before, added[0] % 4)
    for layer in layers:
        made = NewNode(layer.op_type, (made, *_weights(layer)), _attributes(layer, place - 2), like=[layer])
    made = _turned(made, after, place)
    return made if isinstance(made, NewNode) else None


def _order(transpose: ir.Node | None) -> list[int] | None:
    """Returns the order in which a Transpose has the dimensions of an image, None where it is of no image."""
    if transpose is None:
        return _UNTURNED
    order = list(attribute_of(transpose, "perm", ()))
    return order if sorted(order) == _UNTURNED else None


def _turned(value: ir.Value | NewNode, order: Sequence[int], axis: int) -> ir.Value | NewNode:
    """Returns a value with its dimensions in an order of an image's, of which `axis` is left out."""
    rest = [size - (size > axis) for size in order if size != axis]
    return value if rest == sorted(rest) else NewNode("Transpose", (value,), {"perm": rest})


def _kernel(layer: ir.Node, facts: ValueFacts) -> tuple[int, ...]:
    """Returns the sizes of a layer's kernel, none where they are unknown."""
    if layer.op_type == "Conv":
        return (facts.constant_shape(layer.inputs[1]) or ())[2:]
    return tuple(attribute_of(layer, "kernel_shape", ()))


def _is_plain(layer: ir.Node, kernel: Sequence[int], axis: int) -> bool:
    """Returns whether a layer gives each position along an axis of its kernel what is at this position."""
    if kernel[axis] != 1 or any(output.uses() for output in layer.outputs[1:]):
        return False
    strides, pads = attribute_of(layer, "strides", (1, 1)), attribute_of(layer, "pads", (0, 0, 0, 0))
    return strides[axis] == 1 and not pads[axis] and not pads[axis + 2]


def _weights(layer: ir.Node) -> list[ir.Value | NewNode | None]:
    """Returns the inputs of a layer after the first, its matrix without a dimension."""
    if layer.op_type != "Conv":
        return []
    return [NewNode("Reshape", (layer.inputs[1],), _ONE_AXIS, version=1), *layer.inputs[2:]]


def _attributes(layer: ir.Node, axis: int) -> dict[str, Any]:
    """Returns the attributes of a layer without the numbers of one axis of its kernel."""
    kept: dict[str, Any] = dict(layer.attributes)
    for name in (name for name in (*_SIZES, "pads") if name in kept):
        numbers = kept[name].as_ints()
        kept[name] = [number for at, number in enumerate(numbers) if at % 2 != axis]
    return kept


def _sample(match: Match, facts: ValueFacts) -> Sample:
    """Returns sample inputs, of convolutions with two channels in each of at most two groups."""
    layers = {name: match[name] for name in _LAYERS if name in match}
    kernels = [_kernel(layer, facts) for layer in layers.values()]
    sample: dict[str, Any] = {}
    taken = channels = 2 * _groups(next(iter(layers.values())))
    for (name, layer), kernel in zip(layers.items(), kernels, strict=True):
        if layer.op_type == "Conv":
            made = 2 * _groups(layer)
            sample |= {f"{name}_weight": (made, channels // _groups(layer), *kernel), f"{name}_bias": (made,)}
            channels = made
    spans = [
        (size - 1) * step
        for layer, kernel in zip(layers.values(), kernels, strict=True)
        for size, step in zip(kernel, _steps(layer), strict=True)
    ]
    order, added = _order(match.get("before")) or _UNTURNED, facts.axes(match["unsqueeze"]) or [0]
    image = dict(zip(order, (2, taken, 3 + sum(spans), 3 + sum(spans)), strict=True))
    sample["x"] = tuple(image[axis] for axis in _UNTURNED if axis != added[0] % 4)
    return {name: shape for name, shape in sample.items() if name in match}


def _groups(layer: ir.Node) -> int:
    return min(attribute_of(layer, "group", 1), _REPEATS["group"])


def _steps(layer: ir.Node) -> Sequence[int]:
    steps: Sequence[int] = attribute_of(layer, "dilations", (1, 1))
    return steps


_DILATED = """DepthToSpace(Transpose(
    (conv := Conv(Transpose((apart := SpaceToDepth(x)), perm=[1, 0, 2, 3]), weight)), perm=[1, 0, 2, 3]))"""


def _dilated(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the dilated convolution of what is taken apart into images with some of the pixels, and put together."""
    conv, step = match["conv"], attribute_of(match["apart"], "blocksize", 0)
    usual = {"strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0]}
    if any(list(attribute_of(conv, name, value)) != value for name, value in usual.items()):
        return None
    if attribute_of(conv, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") or len(_kernel(conv, facts)) != 2:
        return None
    kept = {name: attribute for name, attribute in conv.attributes.items() if name != "auto_pad"}
    swapped = NewNode("Transpose", (match["x"],), _SWAPPED)
    made = NewNode("Conv", (swapped, match["weight"]), kept | {"dilations": [step, step]}, like=[conv])
    return NewNode("Transpose", (made,), _SWAPPED)


def _dilated_sample(match: Match, facts: ValueFacts) -> Sample:
    conv, step = match["conv"], attribute_of(match["apart"], "blocksize", 0)
    channels, kernel = 2 * _groups(conv), _kernel(conv, facts)
    return {"x": (channels, 2, *(step * (size + 1) for size in kernel)), "weight": (channels, 2, *kernel)}


_SWAPPED = {"perm": [1, 0, 2, 3]}
"""Attributes of the Transpose that swaps the channels with the batch, whose place SpaceToDepth takes pixels to."""

_IMAGE = "((unsqueeze := Unsqueeze(x, ...)) | (before := Transpose((unsqueeze := Unsqueeze(x, ...)))))"


def _conv(source: str, name: str) -> str:
    return f"(({name} := Conv({source}, {name}_weight)) | ({name} := Conv({source}, {name}_weight, {name}_bias)))"


_FIRST = _conv(_IMAGE, "first")
_POOL = f"((first := MaxPool({_IMAGE})) | (first := AveragePool({_IMAGE})))"

RULES = (
    Rule("Conv", parse(_DILATED), _dilated, _dilated_sample, repeats=_REPEATS),
    *(
        Rule(
            name,
            parse(f"(squeeze := Squeeze({layers} | (after := Transpose({layers})), ...))"),
            _of_sequence,
            _sample,
            shared=frozenset({"Unsqueeze", "Transpose"}),
            repeats=_REPEATS,
        )
        for name, layers in (("Conv1d", _conv(_FIRST, "second")), ("Conv1d", _FIRST), ("pool1d", _POOL))
    ),
)
"""Rules that come before those that combine a Squeeze with what follows it."""
