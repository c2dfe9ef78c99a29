"""Gives weights their keys into which the exporter inserted dimensions, as `self.weight[:, None, None]` does.

Likewise vectors whose view has further dimensions, as `self.gamma.view(1, -1, 1, 1)`.

Likewise those that are the whole weight under another name, as `self.positions[:, :n]` with all n of its rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.weight_keys import WeightKeys, array_of

_UNSQUEEZED = re.compile(r"unsqueeze(_\d+)?")
"""Names of the results of Tensor.unsqueeze."""

_UNCHANGED = re.compile(r"(unsqueeze|alias|clone)(_\d+)?")
"""Names of the results of calls that keep all elements in their order and remove no dimension."""

_VIEW = re.compile(r"view(_\d+)?")
"""Names of the results of Tensor.view and Tensor.reshape."""

_SIZES = re.compile(r"val_\d+")
"""Names of the exporter's own values; beside results of such calls alone they are axes and sizes."""


def restore_unsqueezed(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that is a weight with further dimensions of 1 by the weight and an Unsqueeze of it."""
    key, name = only_source(keys, folded), folded.name or ""
    noted = exporter_metadata.folded_from(folded)
    viewed = _VIEW.fullmatch(name) is not None and all(map(_SIZES.fullmatch, noted - {key}))
    if key is None or not (viewed or _UNCHANGED.fullmatch(name)):
        return
    array = array_of(folded)
    places = _around_vector(array.shape) if viewed else inserted(array.shape, {name, *noted})
    if places is None:
        return
    if not places or array.ndim - len(places) == 1:
        keys.rename(folded, key, "what the exporter notes that it folded", "unsqueezed" if places else "")
    elif keys.unfold:
        keys.add(key, array.squeeze(places), f"what the exporter notes that it folded into {folded.name!r}")
        replace(keys, folded, unsqueeze(keys.graph.initializers[key], places))


def only_source(keys: WeightKeys, folded: ir.Value) -> str | None:
    """Returns the absent key of the weight whose elements an initializer has, None where the notes do not say that."""
    noted = exporter_metadata.folded_from(folded)
    found = noted & keys.absent
    if len(found) != 1 or not all(map(keys.is_free, found)):
        return None
    same = all(_UNCHANGED.fullmatch(name) or _SIZES.fullmatch(name) for name in noted - found)
    return next(iter(found)) if same else None


def _around_vector(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the dimensions of 1 of what is seen as the view of a vector: several, and a single other one.

    No note has the shape that was viewed. A view with fewer may be one of a matrix, or of a row with dimensions of 1.
    """
    ones = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return ones if 1 < len(ones) == len(shape) - 1 else None


def inserted(shape: tuple[int, ...], names: Iterable[str]) -> tuple[int, ...] | None:
    """Returns the dimensions of 1 that calls with some of these names inserted; None where that leaves a choice."""
    count = sum(_UNSQUEEZED.fullmatch(name) is not None for name in names)
    choices = [*itertools.combinations([axis for axis, size in enumerate(shape) if size == 1], count)]
    left = {tuple(size for axis, size in enumerate(shape) if axis not in choice) for choice in choices}
    return choices[0] if len(left) == 1 else None


def unsqueeze(weight: ir.Value, places: tuple[int, ...]) -> list[ir.Node]:
    """Returns nodes of which the last one inserts dimensions into a weight; none for no dimensions."""
    if not places:
        return []
    axes = ir.Node("", "Constant", [], {"value": ir.AttrTensor("value", ir.Tensor(np.array(places, np.int64)))})
    return [axes, ir.Node("", "Unsqueeze", [weight, axes.outputs[0]])]


def replace(keys: WeightKeys, folded: ir.Value, made: list[ir.Node]) -> None:
    """Replaces an initializer by the result of the last of new nodes."""
    for number, node in enumerate(made):
        node.name = node.outputs[0].name = f"{folded.name}/{node.op_type}{f'_{number}' if number else ''}"
    keys.graph.insert_before(keys.graph[0], made)
    folded.replace_all_uses_with(made[-1].outputs[0], replace_graph_outputs=True)
    keys.graph.initializers.pop(folded.name or "")
