"""Rules for sequences of Reshape and Transpose nodes that equal one function of torch's, or that cancel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from onnx2nn.importing.placement import declared_scope
from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.patterns import NODES, Match, attribute_of, parse
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule, Sample
from onnx2nn.rewrite.value_facts import ValueFacts

_MAX_ELEMENTS = 1 << 22
"""Elements of the largest sample at declared sizes. A rule does not apply to larger values."""


def _declared_sample(match: Match, facts: ValueFacts) -> Sample:
    """Returns a sample at the file's sizes, for rules whose nodes hold constants that accept no other sizes."""
    return {"x": facts.shape(match["x"]) or ()}


def _is_small(match: Match, facts: ValueFacts) -> bool:
    shape = facts.shape(match["x"])
    return shape is not None and np.prod(shape, dtype=float) <= _MAX_ELEMENTS


# Rearrangements: split some dimensions, permute, merge.


def _split_shape(match: Match, facts: ValueFacts) -> list[int | None]:
    """Returns the target of the first Reshape, None for each size that is known at run time only."""
    return [None if size is None or size < 1 else size for size in facts.ints(match["split"]) or []]


def _merges(sizes: Sequence[int | None], groups: Iterable[Sequence[int]], joined: Sequence[int | None] | None) -> bool:
    """Returns whether a Reshape's target may be that of dimensions that are merged: of `groups` of split `sizes`."""
    if joined is None:
        return True  # computed, and the comparison shows whether it is
    merged = [_product([sizes[place] for place in group]) for group in groups]
    known = [size if size is not None and size > 0 else None for size in joined]
    return len(merged) == len(known) and all(None in (a, b) or a == b for a, b in zip(merged, known, strict=True))


def _product(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def _pixel_shuffle(first: int, second: int, groups: Sequence[Sequence[int]], operator: str) -> Build:
    """Returns a builder of a pixel shuffle.

    Args:
        first: where its factor is in the target of the first Reshape.
        second: where it is too.
        groups: the positions there that the last Reshape merges.
        operator: what is built.
    """

    def build(match: Match, facts: ValueFacts) -> NewNode | None:
        sizes = _split_shape(match, facts)
        if len(sizes) != 6 or sizes[first] is None or sizes[first] != sizes[second]:
            return None
        if not _merges(sizes, groups, facts.ints(match["join"])):
            return None  # blocks of an image that stay apart, as a local attention takes them
        return NewNode(f"{OWN}::{operator}", (match["x"], match["split"], match["join"]), {"factor": sizes[first]})

    return build


Build = Callable[[Match, ValueFacts], "NewNode | None"]


def _merged_sample(*places: tuple[int, ...]) -> Callable[[Match, ValueFacts], Sample]:
    """Returns a function that makes the sample before the first Reshape.

    Args:
        *places: for each dimension of `x`, the positions in the first Reshape's target that it is split into. Dynamic
            sizes there become small ones.
    """

    def sample(match: Match, facts: ValueFacts) -> Sample:
        sizes = [size or 2 + place % 3 for place, size in enumerate(_split_shape(match, facts))]
        return {"x": tuple(int(np.prod([sizes[place] for place in group])) for group in places)}

    return sample


def _channel_shuffle(match: Match, facts: ValueFacts) -> NewNode | None:
    sizes, joined = _split_shape(match, facts), facts.ints(match["join"])
    if len(sizes) < 4 or not sizes[1] or joined is None or len(joined) != len(sizes) - 1:
        return None
    if 1 in sizes[1:3]:
        return None  # nothing changes its place: the only head of an attention, beside the positions
    shape = facts.declared(match["x"]) or joined
    if len(shape) != len(joined):
        return None
    if len(sizes) == 4 and not any(size and size > 0 for size in (sizes[2], joined[1], shape[1])):
        return None  # heads of an attention, which are merged with what follows them
    groups = ((0,), (1, 2), *((place,) for place in range(3, len(sizes))))
    if not _merges(sizes, groups, joined):
        return None  # the sizes are merged in another way, as the heads of an attention are
    return NewNode(f"{OWN}::ChannelShuffle", (match["x"], match["split"], match["join"]), {"groups": sizes[1]})


def _channel_sample(match: Match, facts: ValueFacts) -> Sample:
    count = len(_split_shape(match, facts))
    return _merged_sample((0,), (1, 2), *((place,) for place in range(3, count)))(match, facts)


def _swap_of_last_two(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the transpose of the last two dimensions; the exporter merged all dimensions before them into one."""
    rank = facts.rank(match["x"])
    target = facts.ints(match["target"])
    if rank is None or rank < 3 or not _is_small(match, facts) or (target is not None and len(target) != rank):
        return None
    return NewNode("Transpose", (match["x"],), {"perm": [*range(rank - 2), rank - 1, rank - 2]})


def _swap_then_split(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a transpose of the last two dimensions after a split of the first one; in the file the split follows."""
    shape, target = facts.declared(match["x"]), facts.ints(match["target"])
    if shape is None or len(shape) != 3 or target is None or len(target) != 4 or not _is_small(match, facts):
        return None
    if None in shape[1:] or target[2:] != [shape[2], shape[1]] or None in target or 0 in target:
        return None
    split = NewNode("Reshape", (match["x"], np.array([*target[:2], shape[1], shape[2]])))
    return NewNode("Transpose", (split,), {"perm": [0, 1, 3, 2]})


def _repeated(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the repetition of each head, `(N, heads, length, size)`, as grouped-query attention needs it."""
    axes, sizes = facts.ints(match["unsqueeze"].inputs[1]), facts.ints(match["sizes"])
    if axes != [2] or sizes is None or len(sizes) != 5 or not sizes[2] or not _is_small(match, facts):
        return None
    target = facts.ints(match["target"])
    if target is not None and len(target) != 4:
        return None
    return NewNode(f"{OWN}::RepeatInterleave", (match["x"],), {"repeats": sizes[2], "axis": 1})


def _repeated_sample(match: Match, facts: ValueFacts) -> Sample:
    """Returns a sample of the Expand's sizes where the file does not declare the shape of `x`."""
    shape, sizes = facts.shape(match["x"]) or (), facts.ints(match["sizes"]) or []
    if match["x"].shape is None and len(sizes) == len(shape) + 1:
        shape = tuple(
            size if size and size > 0 else old for size, old in zip([*sizes[:2], *sizes[3:]], shape, strict=True)
        )
    return {"x": shape}


def _repeated_transposed(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the same repetition, then a transpose of the last two dimensions; the exporter merged the others."""
    repeated = _repeated(match, facts)
    return repeated and NewNode("Transpose", (repeated,), {"perm": [0, 1, 3, 2]})


# Nodes that cancel or combine.


def _combined_transpose(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the product of two permutations, an Identity where they cancel."""
    first, second = (list(match[name].attributes["perm"].as_ints()) for name in ("inner", "outer"))
    perm = [first[axis] for axis in second]
    return (
        NewNode("Identity", (match["x"],))
        if perm == sorted(perm)
        else NewNode("Transpose", (match["x"],), {"perm": perm})
    )


def _transposes_sample(match: Match, facts: ValueFacts) -> Sample:
    return {"x": (2, 3, 4, 5, 6, 7)[: len(match["inner"].attributes["perm"].as_ints())]}


def _combined_reshape(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the second reshape alone. A 0 in its target would copy a size of the intermediate shape.

    The reshape that concatenates the directions of a recurrent layer stays, as a part of the layer. So does one with
    which a module ends, or that is a module: its result has this shape.
    """
    second, first = map(declared_scope, match[NODES])
    if first is not None and second is not None and first != second:
        return None
    target = facts.array(match["target"])
    if target is None or (target == 0).any() or not _is_small(match, facts):
        return None
    before = match["x"].producer()
    layer = (
        before.inputs[0].producer()
        if before is not None and before.op_type == "Transpose" and before.inputs[0]
        else None
    )
    if layer is not None and "recurrent" in facts.table.traits_of(layer.op_type):
        return None
    return NewNode("Reshape", (match["x"], match["target"]))


def _reshapes_sample(match: Match, facts: ValueFacts) -> Sample:
    """Returns a sample with as many elements as the target, where sizes of `x` are dynamic.

    The intermediate shape does not affect the result.
    """
    shape, target = facts.shape(match["x"]) or (), facts.array(match["target"])
    count = 1 if target is None else int(np.prod(target[target > 0]))
    if target is not None and (np.prod(shape) % count or (-1 not in target and np.prod(shape) != count)):
        shape = (*[1] * (len(shape) - 1), count * (2 if -1 in target else 1))
    sample: dict[str, Any] = {"x": shape}
    if "between" in match and facts.array(match["between"]) is None:
        sample["between"] = np.array([-1])
    return sample


def _identity_gather(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds a Reshape from a Gather of all elements in their order: torch's dynamo exporter writes `as_strided` so."""
    indices, target = facts.array(match["indices"]), facts.ints(match["target"])
    shape = match["x"].shape
    if indices is None or target != [-1] or shape is None or not shape.is_static() or not _is_small(match, facts):
        return None
    if indices.size != np.prod(shape.numpy()) or (indices.ravel() != np.arange(indices.size)).any():
        return None
    return NewNode("Reshape", (match["x"], np.array(indices.shape, np.int64)))


def _without_new_axis(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the transpose without a dimension of size 1 that is inserted before it and removed after it."""
    added, removed = (facts.ints(match[name].inputs[1]) for name in ("unsqueeze", "squeeze"))
    perm = list(match["transpose"].attributes["perm"].as_ints())
    if not added or not removed or len(added) != 1 or len(removed) != 1 or added[0] is None or removed[0] is None:
        return None
    axis, place = added[0] % len(perm), removed[0] % len(perm)
    if perm[place] != axis:
        return None
    rest = [size - (size > axis) for size in perm if size != axis]
    return NewNode("Transpose", (match["x"],), {"perm": rest})


def _new_axis_sample(match: Match, facts: ValueFacts) -> Sample:
    return {"x": (2, 3, 4, 5, 6, 7)[: len(match["transpose"].attributes["perm"].as_ints()) - 1]}


def _pool_of_sequence(match: Match, facts: ValueFacts) -> NewNode | None:
    """Builds the pool over one dimension that torch's dynamo exporter writes as one over two, of which one is new."""
    axes = [sorted(axis % 4 for axis in facts.axes(match[name]) or ()) for name in ("unsqueeze", "mean", "squeeze")]
    if match["x"].shape is None or match["x"].shape.rank() != 3 or not attribute_of(match["mean"], "keepdims", 1):
        return None
    return NewNode("GlobalAveragePool", (match["x"],)) if axes == [[2], [2, 3], [2]] else None


def _sequence_sample(match: Match, facts: ValueFacts) -> Sample:
    return {"x": (2, 3, 5)}


POOLS = (
    Rule(
        "GlobalAveragePool",
        parse("(squeeze := Squeeze((mean := ReduceMean((unsqueeze := Unsqueeze(x, ...)), ...)), ...))"),
        _pool_of_sequence,
        _sequence_sample,
    ),
)
"""Rules that come before those that combine a Squeeze with what follows it."""

_PIXELS = "Reshape(Transpose(Reshape(x, split), perm={}), join)"
"""Torch's newer exporter also reshapes images of any rank to images, before PixelUnshuffle."""

_EXPANDED = "Expand((unsqueeze := Unsqueeze(x, _)), sizes)"

RULES = (
    Rule(
        "PixelShuffle",
        parse(_PIXELS.format([0, 1, 4, 2, 5, 3])),
        _pixel_shuffle(2, 3, ((0,), (1,), (4, 2), (5, 3)), "PixelShuffle"),
        _merged_sample((0,), (1, 2, 3), (4,), (5,)),
    ),
    *(
        Rule(
            "PixelUnshuffle",
            parse(pixels.format([0, 1, 3, 5, 2, 4])),
            _pixel_shuffle(3, 5, ((0,), (1, 3, 5), (2,), (4,)), "PixelUnshuffle"),
            _merged_sample((0,), (1,), (2, 3), (4, 5)),
        )
        for pixels in (_PIXELS.replace("x,", "Reshape(x, _),"), _PIXELS)
    ),
    *(
        Rule(
            "ChannelShuffle",
            parse(f"Reshape(Transpose(Reshape(x, split), perm={perm}), join)"),
            _channel_shuffle,
            _channel_sample,
        )
        for perm in ([0, 2, 1, 3], [0, 2, 1, 3, 4], [0, 2, 1, 3, 4, 5])
    ),
    Rule(
        "repeat_interleave",
        parse(f"Reshape(Transpose(Reshape({_EXPANDED}, _), perm=[0, 2, 1]), target)"),
        _repeated_transposed,
        _repeated_sample,
    ),
    Rule(
        "transpose",
        parse("Reshape(Transpose(Reshape(x, _), perm=[0, 2, 1]), target)"),
        _swap_of_last_two,
        _declared_sample,
    ),
    Rule("transpose", parse("Reshape(Transpose(x, perm=[0, 2, 1]), target)"), _swap_then_split, _declared_sample),
    Rule(
        "repeat_interleave",
        parse(f"Reshape({_EXPANDED}, target)"),
        _repeated,
        _repeated_sample,
    ),
    Rule("transposes", parse("(outer := Transpose((inner := Transpose(x))))"), _combined_transpose, _transposes_sample),
    Rule(
        "reshapes",
        parse("Reshape(Reshape(x, between) | Flatten(x) | Squeeze(x, ...), target)"),
        _combined_reshape,
        _reshapes_sample,
    ),
    Rule("as_strided", parse("Gather(Reshape(x, target), indices)"), _identity_gather, _declared_sample),
    Rule(
        "transpose",
        parse("(squeeze := Squeeze((transpose := Transpose((unsqueeze := Unsqueeze(x, _)))), _))"),
        _without_new_axis,
        _new_axis_sample,
    ),
)
