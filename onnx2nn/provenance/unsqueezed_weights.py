"""Gives weights their keys into which the exporter inserted dimensions, as `self.weight[:, None, None]` does."""

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

_AXES = re.compile(r"val_\d+")
"""Names of the exporter's own values; beside results of unsqueeze alone they are axes."""


def restore_unsqueezed(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that is a weight with further dimensions of 1 by the weight and an Unsqueeze of it."""
    noted = exporter_metadata.folded_from(folded)
    found = noted & keys.absent
    others = {folded.name or "", *noted} - found
    if len(found) != 1 or not _UNSQUEEZED.fullmatch(folded.name or "") or not all(map(keys.is_free, found)):
        return
    if not all(_UNSQUEEZED.fullmatch(name) or _AXES.fullmatch(name) for name in others):
        return
    array, (key,) = array_of(folded), found
    places = inserted(array.shape, others)
    if places is None:
        return
    if array.ndim - len(places) == 1:
        keys.rename(folded, key, "what the exporter notes that it folded", "unsqueezed")
    elif keys.unfold:
        keys.add(key, array.squeeze(places), f"what the exporter notes that it folded into {folded.name!r}")
        replace(keys, folded, unsqueeze(keys.graph.initializers[key], places))


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
    axes = ir.Node("", "Constant", [], {"value": ir.AttrTensor("value", ir.tensor(np.array(places, np.int64)))})
    return [axes, ir.Node("", "Unsqueeze", [weight, axes.outputs[0]])]


def replace(keys: WeightKeys, folded: ir.Value, made: list[ir.Node]) -> None:
    """Replaces an initializer by the result of the last of new nodes."""
    for number, node in enumerate(made):
        node.name = node.outputs[0].name = f"{folded.name}/{node.op_type}{f'_{number}' if number else ''}"
    keys.graph.insert_before(keys.graph[0], made)
    folded.replace_all_uses_with(made[-1].outputs[0], replace_graph_outputs=True)
    keys.graph.initializers.pop(folded.name or "")
