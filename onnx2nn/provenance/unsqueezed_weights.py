"""Gives weights their keys into which the exporter inserted dimensions, as `self.weight[:, None, None]` does.

Likewise vectors whose view has further dimensions, as `self.gamma.view(1, -1, 1, 1)`.

Likewise those that are the whole weight under another name, as `self.positions[:, :n]` with all n of its rows, or the
product with the `value` of `torch.addcmul`, which is 1.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx2nn.provenance import exporter_metadata
from onnx2nn.provenance.weight_keys import WeightKeys, array_of, is_fresh

_UNSQUEEZED = re.compile(r"unsqueeze(_\d+)?")
"""Names of the results of Tensor.unsqueeze."""

_UNCHANGED = re.compile(r"(unsqueeze|alias|clone)(_\d+)?")
"""Names of the results of calls that keep all elements in their order and remove no dimension."""

_VIEW = re.compile(r"view(_\d+)?")
"""Names of the results of Tensor.view and Tensor.reshape."""

_TRANSPOSED = re.compile(r"(transpose|t|numpy_t)(_\d+)?")
"""Names of the results of calls that transpose a matrix."""

_PERMUTED = re.compile(r"permute(_\d+)?")
"""Names of the results of `matrix.T`, and of other permutations of dimensions."""

_PLAIN = "kwargs = {})"
"""The end of the note of a call without arguments by name."""

_VALUE = re.compile(r"value(_cast)?(_\d+)?")
"""Names of the factor of a product and of its cast, as the exporter writes `torch.addcmul`."""

_REARRANGED = re.compile(f"{_UNCHANGED.pattern}|{_VIEW.pattern}")
"""Names of the results of calls that keep all elements in their order."""

_SIZES = re.compile(r"val_\d+")
"""Names of the exporter's own values; beside results of such calls alone they are axes and sizes."""


def restore_unsqueezed(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that is a weight with further dimensions of 1 by the weight and an Unsqueeze of it."""
    name, noted = _without_call(folded)
    key = only_source(keys, noted)
    viewed = _VIEW.fullmatch(name) is not None and all(map(_SIZES.fullmatch, noted - {key}))
    itself = name in keys.called and keys.called[name].key == key
    if key is None or not (viewed or itself or _UNCHANGED.fullmatch(name)):
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


def share_viewed(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that has the elements of a weight that is used as it is too by a view of the weight.

    The elements are those of the weight by the names of the calls between them, and by their values.
    """
    if not keys.unfold or folded.name in keys.author.names:
        return
    name, noted = _without_call(folded)
    found = noted & keys.author.names
    key = next(iter(found)) if len(found) == 1 else None
    if key is None:
        return
    weight, values = keys.graph.initializers[key], array_of(folded)
    if keys.author.moved.get(key) == "transposed":
        if values.ndim == 2 and not is_fresh(values) and _transposes(name, noted - found):
            _share_transposed(keys, folded, weight)
        return
    calls = [name, *(call for call in noted - found if not _SIZES.fullmatch(call))]
    if all(map(_REARRANGED.fullmatch, calls)) and np.array_equal(values.ravel(), array_of(weight).ravel()):
        shape = ir.AttrTensor("value", ir.Tensor(np.array(values.shape, np.int64)))
        sizes = ir.Node("", "Constant", [], {"value": shape})
        replace(keys, folded, [sizes, ir.Node("", "Reshape", [weight, sizes.outputs[0]])])
    elif _is_transposed(folded, noted, values) and np.array_equal(values.T, array_of(weight)):
        replace(keys, folded, _transpose(weight))
    elif values.ndim == 2 and not is_fresh(values) and _transposes(name, noted - found):
        _share_transposed(keys, folded, weight)


def _share_transposed(keys: WeightKeys, folded: ir.Value, weight: ir.Value) -> None:
    """Replaces a matrix that was transposed, once or twice, by the weight, as in `F.linear(x, self.weight.t())`."""
    values, own = array_of(folded), array_of(weight)
    if np.array_equal(values, own):
        folded.replace_all_uses_with(weight, replace_graph_outputs=True)
        keys.graph.initializers.pop(folded.name or "")
    elif np.array_equal(values.T, own):
        replace(keys, folded, _transpose(weight))


def restore_transposed(keys: WeightKeys, folded: ir.Value) -> None:
    """Replaces an initializer that is a transposed matrix by the matrix and a Transpose, as for `x @ self.table.mT`."""
    noted = exporter_metadata.folded_from(folded)
    key = only_source(keys, noted)
    if key is not None and keys.unfold and _is_transposed(folded, noted, values := array_of(folded)):
        keys.add(key, np.ascontiguousarray(values.T), f"what the exporter notes that it folded into {folded.name!r}")
        replace(keys, folded, _transpose(keys.graph.initializers[key]))


def _is_transposed(folded: ir.Value, noted: set[str], values: np.ndarray[Any, Any]) -> bool:
    """Returns whether what was folded from one value is a transposed matrix, by the name of the result.

    A permutation of two dimensions transposes where the result is the second factor of products alone; elsewhere it may
    be one of a formula for any dimensions, which leaves these as they are.
    """
    name = folded.name or ""
    if _PERMUTED.fullmatch(name):
        called = all(use.node.op_type == "MatMul" and use.idx == 1 for use in folded.uses())
    else:
        called = _TRANSPOSED.fullmatch(name) is not None
    return called and len(noted) == 1 and values.ndim == 2


def _transposes(name: str, between: set[str]) -> bool:
    """Returns whether a matrix was folded by calls that transpose alone; the exporter transposes a layer's itself."""
    own = _SIZES.fullmatch(name) is not None and bool(between)
    return (own or _TRANSPOSED.fullmatch(name) is not None) and all(map(_TRANSPOSED.fullmatch, between))


def _transpose(matrix: ir.Value) -> list[ir.Node]:
    return [ir.Node("", "Transpose", [matrix], {"perm": ir.AttrInt64s("perm", [1, 0])})]


def only_source(keys: WeightKeys, noted: set[str]) -> str | None:
    """Returns the absent key of the weight that has the elements of an initializer, None where its notes do not say."""
    found = noted & keys.absent
    if len(found) != 1 or not all(map(keys.is_free, found)):
        return None
    same = all(_UNCHANGED.fullmatch(name) or _SIZES.fullmatch(name) for name in noted - found)
    return next(iter(found)) if same else None


def _without_call(folded: ir.Value) -> tuple[str, set[str]]:
    """Returns an initializer's name and those of what it was folded from, without what a call that uses it added.

    Of the first factor of `torch.addcmul` these are the factor's: the exporter multiplied it by a `value` of 1. Of what
    is repeated they are those of the argument: the exporter gave it as many dimensions as there are numbers of repeats.
    """
    name, noted = folded.name or "", exporter_metadata.folded_from(folded)
    repeated = _repeated(folded)
    if repeated in noted:
        ones = sum(size == 1 for size in array_of(folded).shape)
        if ones == sum(_UNSQUEEZED.fullmatch(text) is not None for text in noted):  # else it lacked some of them
            return repeated, noted - {repeated}
    values = {text for text in noted if _VALUE.fullmatch(text)}
    uses = [use for use in folded.uses() if use.node.op_type == "Mul" and use.idx == 0] if values else []
    call = exporter_metadata.call_of(uses[0].node) if uses else None
    if call is None or call.target != "aten.addcmul.default" or not exporter_metadata.is_in_call(uses[0].node, _PLAIN):
        return name, noted
    name = call.arguments[1].removeprefix("%")
    return name, noted - values - {name}


def _repeated(folded: ir.Value) -> str:
    """Returns the name of the value that all calls which use an initializer repeat, `""` where they do others."""
    found = set[str]()
    for use in folded.uses():
        call = exporter_metadata.call_of(use.node) if use.node.op_type == "Tile" and use.idx == 0 else None
        found.add(call.arguments[0] if call is not None and call.target == "aten.repeat.default" else "")
    return next(iter(found)).removeprefix("%") if len(found) == 1 else ""


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
    """Replaces an initializer by the result of the last of new nodes, which stand where it is used: none has a name."""
    for number, node in enumerate(made):
        node.outputs[0].name = f"{folded.name}/{node.op_type}{f'_{number}' if number else ''}"
    keys.graph.insert_before(keys.graph[0], made)
    folded.replace_all_uses_with(made[-1].outputs[0], replace_graph_outputs=True)
    keys.graph.initializers.pop(folded.name or "")
