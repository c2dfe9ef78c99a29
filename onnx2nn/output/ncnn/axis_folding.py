"""Rewrites a graph such that no tensor has more axes than NCNN's, which have four.

Attention in windows, heads of packed queries, keys and values, and relative positions are computed with five, six and
more axes. Their elements stay in the same order here, in views of at most four axes: a reshape is nothing, a
permutation is one or a few swaps of merged axes, a range of an axis is a range in a view (before, axis, behind), and
what is computed elementwise is computed in any view. A slice with a step is a pooling with a window of one element. The
module for NCNN is compared afterwards.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F

from onnx2nn.fx.blocks.activations import ACTIVATIONS
from onnx2nn.fx.shape_rules.elementwise import ELEMENTWISE
from onnx2nn.output.ncnn.axis_groups import around, joint_views, swaps
from onnx2nn.output.ncnn.picks import Pick, makes_parts, picks_of
from onnx2nn.output.ncnn.views import RESHAPES, Views

AXES = 4
"""The most that NCNN's tensors have."""

_ELEMENTWISE_LAYERS = tuple({kind for function, kind in ACTIVATIONS.items() if function in ELEMENTWISE})


def fold_axes(module: fx.GraphModule, tensors: Sequence[torch.Tensor]) -> fx.GraphModule:
    """Returns a copy that computes the same with at most four axes, as far as it can, for inputs of these sizes.

    Slices with steps, `unbind` and `stack` are replaced too, whatever the number of axes. A call that has no form with
    four axes stays as it is.
    """
    result = fx.GraphModule(module, copy.deepcopy(module.graph))
    with torch.no_grad():
        ShapeProp(result).propagate(*tensors)
    views = Views(result.graph)
    for node in list(result.graph.nodes):
        _fold(result, views, node)
    result.graph.eliminate_dead_code()
    result.recompile()
    return result


def _fold(module: fx.GraphModule, views: Views, node: Any) -> None:
    rewrite, views.origin = _rewrite(module, views, node), node
    with views.graph.inserting_before(node):
        new = rewrite(views, node) if rewrite is not None else None
        if new is not None and len(views.sizes[node]) <= AXES:
            node.replace_all_uses_with(views.of(new, views.sizes[node]))
        elif new is not None:
            views.stored[node] = new
        elif not makes_parts(node):
            for source in [source for source in node.all_input_nodes if source in views.stored]:
                sizes = views.sizes[source]
                node.replace_input_with(source, views.call("reshape", views.base(source), sizes, sizes=sizes))


_Rewrite = Callable[[Views, Any], fx.Node | None]


def _rewrite(module: fx.GraphModule, views: Views, node: Any) -> _Rewrite | None:
    """Returns the function that rewrites a node with too many axes, or one that NCNN has no layer for; else None."""
    if node not in views.sizes or node.op not in ("call_function", "call_method", "call_module"):
        return None
    folded = any(source in views.stored for source in node.all_input_nodes)
    if node.op == "call_module":
        return _on_layer(module.get_submodule(str(node.target))) if folded else None
    wide = len(views.sizes[node]) > AXES
    for targets, rewrite in _MOVEMENTS:
        if node.target in targets:
            return rewrite if wide or folded or _is_unknown(views, node) else None
    if not folded and not _is_unknown(views, node):
        return None
    return next((rewrite for targets, rewrite in _COMPUTATIONS if node.target in targets), None)


def _is_unknown(views: Views, node: Any) -> bool:
    """Returns whether NCNN has no layer for a movement of elements, however few axes there are.

    It does not concatenate along the batch: an axis of one element in front may be that.
    """
    if node.target in _CONCATENATIONS:
        parts = [views.sizes[part] for part in node.args[0]]
        return _argument(node, 1, "dim", 0) % len(parts[0]) == 0 and all(sizes[0] == 1 for sizes in parts)
    if node.target in _STACKS or (node.args and isinstance(node.args[0], fx.Node) and node.args[0].target in _UNBINDS):
        return True
    return any(pick.step > 1 for pick in _picks(views, node) or ())


def _reshaped(views: Views, node: Any) -> fx.Node | None:
    return views.base(node.args[0]) if isinstance(node.args[0], fx.Node) else None


def _permuted(views: Views, node: Any) -> fx.Node | None:
    source, sizes = node.args[0], views.sizes[node.args[0]]
    distinct = torch.empty([axis + 2 for axis in range(len(sizes))], device="meta")
    call = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
    order = [size - 2 for size in call(distinct, *node.args[1:], **node.kwargs).shape]
    new = views.base(source)
    for view, swap in swaps(sizes, order):
        new = views.call("permute", views.of(new, view), *swap, sizes=[view[axis] for axis in swap])
    return new


def _picked(views: Views, node: Any) -> fx.Node | None:
    """Takes one range after the other; the axes that a step goes along are next to each other in images."""
    picks = _picks(views, node)
    if picks is None:
        return None
    source = _source_of_part(node)
    new, sizes = views.base(source), list(views.sizes[source])
    for pick in picks:
        if (pick.start, pick.step, pick.count) != (0, 1, sizes[pick.axis]):
            new = _taken(views, new, sizes, pick)
            sizes[pick.axis] = pick.count
    return new


def _taken(views: Views, node: Any, sizes: Sequence[int], pick: Pick) -> fx.Node:
    """Takes one range of an axis in the view (before, axis, behind)."""
    before, length, behind = around(sizes, pick.axis, pick.axis)
    extent = length
    if pick.start or pick.count == 1 or pick.count != -(-length // pick.step):
        extent = (pick.count - 1) * pick.step + 1
        view, cut = views.of(node, (before, length, behind)), slice(pick.start, pick.start + extent)
        node = views.call(operator.getitem, view, (slice(None), cut), sizes=(before, extent, behind))
    if pick.step == 1 or pick.count == 1:
        return node
    image = (1, before, extent, behind)
    return views.call(F.max_pool2d, views.of(node, image), 1, (pick.step, 1), sizes=(1, before, pick.count, behind))


def _picks(views: Views, node: Any) -> list[Pick] | None:
    source = _source_of_part(node)
    return picks_of(node, views.sizes[source]) if source in views.sizes else None


def _source_of_part(node: Any) -> Any:
    """Returns the tensor that a call takes a range of: for a part, that of the call which made all parts."""
    source = node.args[0]
    return source.args[0] if isinstance(source, fx.Node) and makes_parts(source) else source


def _expanded(views: Views, node: Any) -> fx.Node | None:
    return _repeated(views, node.args[0], views.sizes[node])


def _repeated(views: Views, node: Any, result: Sequence[int]) -> fx.Node:
    """Repeats a tensor along its axes of one element to the sizes `result`."""
    sizes = [1] * (len(result) - len(views.sizes[node])) + list(views.sizes[node])
    new = views.base(node)
    for axis, size in enumerate(result):
        if sizes[axis] != size:
            before, _, behind = around(sizes, axis, axis)
            new = views.call("repeat", views.of(new, (before, 1, behind)), 1, size, 1, sizes=(before, size, behind))
            sizes[axis] = size
    return new


def _stacked(views: Views, node: Any) -> fx.Node | None:
    axis = _argument(node, 1, "dim", 0) % len(views.sizes[node])
    return _joined(views, node.args[0], [1] * len(node.args[0]), axis, views.sizes[node])


def _concatenated(views: Views, node: Any) -> fx.Node | None:
    axis = _argument(node, 1, "dim", 0) % len(views.sizes[node])
    return _joined(views, node.args[0], [views.sizes[part][axis] for part in node.args[0]], axis, views.sizes[node])


def _joined(views: Views, parts: Any, lengths: Sequence[int], axis: int, result: Sequence[int]) -> fx.Node:
    before, length, behind = around(result, axis, axis)
    members = [views.of(part, (before, size, behind)) for part, size in zip(parts, lengths, strict=True)]
    return views.call(torch.cat, members, 1, sizes=(before, length, behind))


def _elementwise(views: Views, node: Any) -> fx.Node | None:
    result = views.sizes[node]
    operands = [value for value in node.all_input_nodes if value in views.sizes]
    sizes = joint_views([views.sizes[value] for value in operands], result)
    bases = {value: views.base(value) for value in operands}
    stored = {views.sizes[base] for base in bases.values()}
    if len(stored) == 1 and all(views.sizes[value] == result for value in operands):
        new, shape = bases, stored.pop()
    elif len(sizes[0]) > AXES:
        new = {value: views.of(_repeated(views, value, result), (math.prod(result),)) for value in operands}
        shape = (math.prod(result),)
    else:
        new = {value: views.of(value, view) for value, view in zip(operands, sizes, strict=True)}
        shape = tuple(max(column) for column in zip(*sizes, strict=True))
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda value: new.get(value, value))
    return views.call(node.target, *args, sizes=shape, **kwargs)


def _along_axes(views: Views, node: Any) -> fx.Node | None:
    """A softmax along an axis, or a reduction of axes that are next to each other."""
    sizes, given = views.sizes[node.args[0]], _argument(node, 1, "dim", None)
    axes = sorted(axis % len(sizes) for axis in ([given] if isinstance(given, int) else given or ()))
    if not axes or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    view = around(sizes, axes[0], axes[-1])
    kept = view if views.sizes[node] == sizes and node.target in _SOFTMAX else (view[0], view[2])
    return views.call(node.target, views.of(node.args[0], view), 1, sizes=kept)


def _product(views: Views, node: Any) -> fx.Node | None:
    """Matrices in as many pairs as there are on both sides."""
    left, right = (views.sizes[value] for value in node.args)
    if len(right) > 2 and left[:-2] != right[:-2]:
        return None
    if len(right) == 2:
        rows = math.prod(left[:-1])
        new = views.of(node.args[0], (rows, left[-1]))
        return views.call(node.target, new, node.args[1], sizes=(rows, right[-1]))
    count = math.prod(left[:-2])
    pairs = [views.of(value, (count, *sizes[-2:])) for value, sizes in zip(node.args, (left, right), strict=True)]
    return views.call(node.target, *pairs, sizes=(count, left[-2], right[-1]))


def _attention(views: Views, node: Any) -> fx.Node | None:
    """Queries, keys, values and the mask with all that is before their matrices as one axis."""
    operands = node.all_input_nodes
    before = {views.sizes[value][:-2] for value in operands}
    if len(before) != 1:
        return None
    count = math.prod(before.pop())
    new = {value: views.of(value, (1, count, *views.sizes[value][-2:])) for value in operands}
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda value: new[value])
    return views.call(node.target, *args, sizes=(1, count, *views.sizes[node][-2:]), **kwargs)


def _on_layer(layer: nn.Module) -> _Rewrite | None:
    """Returns the function that rewrites a call of a layer which computes rows, or elements, apart."""
    if isinstance(layer, _ELEMENTWISE_LAYERS):
        return lambda views, node: views.layer(node.target, views.base(node.args[0]))
    if isinstance(layer, nn.Linear):
        axes = 1
    elif isinstance(layer, nn.LayerNorm):
        axes = len(layer.normalized_shape)
    else:
        return None

    def by_rows(views: Views, node: Any) -> fx.Node:
        sizes = views.sizes[node.args[0]]
        rows = math.prod(sizes[: len(sizes) - axes])
        new = views.of(node.args[0], (rows, *sizes[len(sizes) - axes :]))
        return views.layer(node.target, new, (rows, *views.sizes[node][len(sizes) - axes :]))

    return by_rows


def _argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


_UNBINDS = {"unbind", torch.unbind}
_STACKS = {torch.stack}
_CONCATENATIONS = {torch.cat, torch.concat}
_SOFTMAX = {"softmax", "log_softmax", torch.softmax, torch.log_softmax, F.softmax, F.log_softmax}
_REDUCTIONS = {"mean", "sum", "amax", "amin", torch.mean, torch.sum, torch.amax, torch.amin}

_MOVEMENTS: tuple[tuple[Any, _Rewrite], ...] = (
    (RESHAPES, _reshaped),
    ({"permute", "transpose", "swapaxes", "movedim", torch.permute, torch.transpose, torch.movedim}, _permuted),
    ({operator.getitem, "select", "narrow"}, _picked),
    ({"expand", "expand_as", "broadcast_to", torch.broadcast_to}, _expanded),
    (_STACKS, _stacked),
)
"""Calls that move elements. They are rewritten where they make or take more than four axes."""

_COMPUTATIONS: tuple[tuple[Any, _Rewrite], ...] = (
    (_CONCATENATIONS, _concatenated),
    (_SOFTMAX | _REDUCTIONS, _along_axes),
    ({torch.matmul, operator.matmul, "matmul", torch.bmm, "bmm"}, _product),
    ({F.scaled_dot_product_attention}, _attention),
    (ELEMENTWISE, _elementwise),
)
"""Calls that compute. They are rewritten where an operand is: five axes of its own may be those of a volume."""
