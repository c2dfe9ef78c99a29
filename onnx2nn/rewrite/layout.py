"""Rules: reshapes and transposes that are one function of torch's, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnx2nn.optable.row import OWN
from onnx2nn.rewrite.facts import Facts
from onnx2nn.rewrite.patterns import Match, parse
from onnx2nn.rewrite.rule import New, Rule, Sample

_MAX_ELEMENTS = 1 << 22
"""Values of declared sizes above this are not made for a comparison; the rule then does not apply."""


def _declared(match: Match, facts: Facts) -> Sample:
    """The sample of a rule that compares at the sizes of the file, which the constants of the nodes fit."""
    return {"x": facts.shape(match["x"]) or ()}


def _fits(match: Match, facts: Facts) -> bool:
    shape = facts.shape(match["x"])
    return shape is not None and np.prod(shape, dtype=float) <= _MAX_ELEMENTS


# ---- rearrangements: split some dimensions, permute, join


def _factors(match: Match, facts: Facts) -> list[int | None]:
    """Returns the shape between, None for what only a run tells."""
    return [None if size is None or size < 1 else size for size in facts.ints(match["split"]) or []]


def _pixels(first: int, second: int, operator: str) -> Build:
    """Builds a pixel shuffle whose factor stands at two places of the shape between."""

    def build(match: Match, facts: Facts) -> New | None:
        sizes = _factors(match, facts)
        if len(sizes) != 6 or sizes[first] is None or sizes[first] != sizes[second]:
            return None
        return New(f"{OWN}::{operator}", (match["x"], match["split"], match["join"]), {"factor": sizes[first]})

    return build


Build = Callable[[Match, Facts], "New | None"]


def _joined(*places: tuple[int, ...]) -> Callable[[Match, Facts], Sample]:
    """The sample whose dimensions are products of those of the shape between, of small ones where that is open."""

    def sample(match: Match, facts: Facts) -> Sample:
        sizes = [size or 2 + place % 3 for place, size in enumerate(_factors(match, facts))]
        return {"x": tuple(int(np.prod([sizes[place] for place in group])) for group in places)}

    return sample


def _channel_shuffle(match: Match, facts: Facts) -> New | None:
    sizes, joined = _factors(match, facts), facts.ints(match["join"])
    if len(sizes) < 4 or not sizes[1] or sizes[1] == 1 or joined is None or len(joined) != len(sizes) - 1:
        return None
    channels = sizes[1] * (sizes[2] or 0)
    wanted = [sizes[0], channels or None, *sizes[3:]]
    if any(a and b and a != b for a, b in zip(wanted, (b if b and b > 0 else None for b in joined), strict=True)):
        return None  # heads of an attention, for one
    return New(f"{OWN}::ChannelShuffle", (match["x"], match["split"], match["join"]), {"groups": sizes[1]})


def _channel_sample(match: Match, facts: Facts) -> Sample:
    count = len(_factors(match, facts))
    return _joined((0,), (1, 2), *((place,) for place in range(3, count)))(match, facts)


def _swapped(match: Match, facts: Facts) -> New | None:
    """The last two dimensions swapped, written with all dimensions before them as one."""
    rank = facts.rank(match["x"])
    target = facts.ints(match["target"])
    if rank is None or rank < 3 or not _fits(match, facts) or (target is not None and len(target) != rank):
        return None
    return New("Transpose", (match["x"],), {"perm": [*range(rank - 2), rank - 1, rank - 2]})


def _split_first(match: Match, facts: Facts) -> New | None:
    """A swap of the last two dimensions behind which the first is split: it is split before as well."""
    shape, target = facts.shape(match["x"]), facts.ints(match["target"])
    if shape is None or len(shape) != 3 or target is None or len(target) != 4 or not _fits(match, facts):
        return None
    if target[2:] != [shape[2], shape[1]] or None in target or 0 in target:
        return None
    split = New("Reshape", (match["x"], np.array([*target[:2], shape[1], shape[2]])))
    return New("Transpose", (split,), {"perm": [0, 1, 3, 2]})


def _repeated(match: Match, facts: Facts) -> New | None:
    """Every head several times in a row, as grouped attention needs it."""
    axes, sizes = facts.ints(match["unsqueeze"].inputs[1]), facts.ints(match["sizes"])
    if axes != [2] or sizes is None or len(sizes) != 5 or not sizes[2] or not _fits(match, facts):
        return None
    target = facts.ints(match["target"])
    if target is not None and len(target) != 4:
        return None
    return New(f"{OWN}::RepeatInterleave", (match["x"],), {"repeats": sizes[2], "axis": 1})


def _repeated_sample(match: Match, facts: Facts) -> Sample:
    """The sizes to which it is expanded, where the file does not say those of `x`."""
    shape, sizes = facts.shape(match["x"]) or (), facts.ints(match["sizes"]) or []
    if match["x"].shape is None and len(sizes) == len(shape) + 1:
        shape = tuple(
            size if size and size > 0 else old for size, old in zip([*sizes[:2], *sizes[3:]], shape, strict=True)
        )
    return {"x": shape}


def _repeated_and_swapped(match: Match, facts: Facts) -> New | None:
    """The same of keys whose last two dimensions are swapped, with all dimensions before them as one."""
    repeated = _repeated(match, facts)
    return repeated and New("Transpose", (repeated,), {"perm": [0, 1, 3, 2]})


# ---- what cancels


def _one_transpose(match: Match, facts: Facts) -> New | None:
    first, second = (list(match[name].attributes["perm"].as_ints()) for name in ("inner", "outer"))
    perm = [first[axis] for axis in second]
    return New("Identity", (match["x"],)) if perm == sorted(perm) else New("Transpose", (match["x"],), {"perm": perm})


def _permuted_sample(match: Match, facts: Facts) -> Sample:
    return {"x": (2, 3, 4, 5, 6, 7)[: len(match["inner"].attributes["perm"].as_ints())]}


def _one_reshape(match: Match, facts: Facts) -> New | None:
    """A 0 in the target would be a size of the shape between."""
    target = facts.array(match["target"])
    if target is None or (target == 0).any() or not _fits(match, facts):
        return None
    return New("Reshape", (match["x"], match["target"]))


def _reshaped_sample(match: Match, facts: Facts) -> Sample:
    """As many elements as the target has, where sizes of `x` are open; the shape between is of no matter."""
    shape, target = facts.shape(match["x"]) or (), facts.array(match["target"])
    count = 1 if target is None else int(np.prod(target[target > 0]))
    if target is not None and (np.prod(shape) % count or (-1 not in target and np.prod(shape) != count)):
        shape = (*[1] * (len(shape) - 1), count * (2 if -1 in target else 1))
    sample: dict[str, Any] = {"x": shape}
    if "between" in match and facts.array(match["between"]) is None:
        sample["between"] = np.array([-1])
    return sample


def _same_order(match: Match, facts: Facts) -> New | None:
    """All elements picked in their own order, which is how torch's dynamo exporter writes `as_strided`."""
    indices, target = facts.array(match["indices"]), facts.ints(match["target"])
    shape = match["x"].shape
    if indices is None or target != [-1] or shape is None or not shape.is_static() or not _fits(match, facts):
        return None
    if indices.size != np.prod(shape.numpy()) or (indices.ravel() != np.arange(indices.size)).any():
        return None
    return New("Reshape", (match["x"], np.array(indices.shape, np.int64)))


def _without_new_axis(match: Match, facts: Facts) -> New | None:
    """A dimension of size 1 that is put in, moved by a transpose and taken out."""
    added, removed = (facts.ints(match[name].inputs[1]) for name in ("unsqueeze", "squeeze"))
    perm = list(match["transpose"].attributes["perm"].as_ints())
    if not added or not removed or len(added) != 1 or len(removed) != 1 or added[0] is None or removed[0] is None:
        return None
    axis, place = added[0] % len(perm), removed[0] % len(perm)
    if perm[place] != axis:
        return None
    rest = [size - (size > axis) for size in perm if size != axis]
    return New("Transpose", (match["x"],), {"perm": rest})


def _new_axis_sample(match: Match, facts: Facts) -> Sample:
    return {"x": (2, 3, 4, 5, 6, 7)[: len(match["transpose"].attributes["perm"].as_ints()) - 1]}


_PIXELS = "Reshape(Transpose(Reshape(x, split), perm={}), join)"
_EXPANDED = "Expand((unsqueeze := Unsqueeze(x, _)), sizes)"

RULES = (
    Rule(
        "PixelShuffle",
        parse(_PIXELS.format([0, 1, 4, 2, 5, 3])),
        _pixels(2, 3, "PixelShuffle"),
        _joined((0,), (1, 2, 3), (4,), (5,)),
    ),
    Rule(
        "PixelUnshuffle",
        parse(_PIXELS.format([0, 1, 3, 5, 2, 4])),
        _pixels(3, 5, "PixelUnshuffle"),
        _joined((0,), (1,), (2, 3), (4, 5)),
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
        _repeated_and_swapped,
        _repeated_sample,
    ),
    Rule("transpose", parse("Reshape(Transpose(Reshape(x, _), perm=[0, 2, 1]), target)"), _swapped, _declared),
    Rule("transpose", parse("Reshape(Transpose(x, perm=[0, 2, 1]), target)"), _split_first, _declared),
    Rule(
        "repeat_interleave",
        parse(f"Reshape({_EXPANDED}, target)"),
        _repeated,
        _repeated_sample,
    ),
    Rule("transposes", parse("(outer := Transpose((inner := Transpose(x))))"), _one_transpose, _permuted_sample),
    Rule(
        "reshapes",
        parse("Reshape(Reshape(x, between) | Flatten(x) | Squeeze(x, ...), target)"),
        _one_reshape,
        _reshaped_sample,
    ),
    Rule("as_strided", parse("Gather(Reshape(x, target), indices)"), _same_order, _declared),
    Rule(
        "transpose",
        parse("(squeeze := Squeeze((transpose := Transpose((unsqueeze := Unsqueeze(x, _)))), _))"),
        _without_new_axis,
        _new_axis_sample,
    ),
)
