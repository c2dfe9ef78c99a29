"""Calls of nn.MultiheadAttention with the batch first, as the author has it, and without transposes around them."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

_SWAPPED = {0: 1, 1: 0, 2: 2, -1: -1, -2: -3, -3: -2}
"""A dimension of a tensor of rank 3 → the same one after its first two have been exchanged."""


def attend_batch_first(graph: fx.Graph, root: nn.Module) -> None:
    """Makes a layer `batch_first` where each of its calls has transposed inputs and a result that is transposed back.

    Exporters make one permutation of the transpose and another one before it, as of an image that became a sequence.

    Calls with masks stay, apart from causal ones, which leave each query a key: with a bool mask and the batch first,
    torch chooses a function in eval mode whose result is NaN where all keys are masked, and which is 0 otherwise.

    Args:
        graph: a recorded program.
        root: the module that holds its layers.
    """
    calls: dict[nn.MultiheadAttention, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_module"):
        layer = root.get_submodule(str(node.target))
        if type(layer) is nn.MultiheadAttention:
            calls.setdefault(layer, []).append(node)
    for layer, nodes in calls.items():
        if all(map(_is_between_transposes, nodes)):
            layer.batch_first = True
            for node in nodes:
                _drop_transposes(node)


def _is_between_transposes(call: fx.Node) -> bool:
    if "key_padding_mask" in call.kwargs or not _is_causal(call.kwargs.get("attn_mask")):
        return False
    if not all(map(_exchanged, call.args)):
        return False
    values = _values(call)
    return values is not None and all(_exchanges(use) or _dimension(use) is not None for use in values.users)


def _is_causal(mask: Any) -> bool:
    """Returns whether a mask leaves each query the keys up to its own; without a mask it has all keys."""
    if mask is None:
        return True
    triangle = mask.op == "call_method" and mask.target == "triu" and tuple(mask.args[1:]) == (1,)
    return triangle and isinstance(mask.args[0], fx.Node) and mask.args[0].target is torch.ones


def _exchanges(node: Any) -> bool:
    """Returns whether a node exchanges the first two dimensions of a tensor."""
    return node.op == "call_method" and node.target == "transpose" and tuple(node.args[1:]) in ((0, 1), (1, 0))


def _exchanged(node: Any) -> tuple[int, ...] | None:
    """Returns the dimensions of a node's input in the order of its result with the first two exchanged.

    None where the node does not exchange dimensions: no result of it is known to have been another way.
    """
    if _exchanges(node):
        return 0, 1, 2
    permutes = node.op == "call_method" and node.target == "permute" and len(node.args) == 4
    dimensions: Any = tuple(node.args[1:]) if permutes else ()
    return (dimensions[1], dimensions[0], dimensions[2]) if sorted(dimensions) == [0, 1, 2] else None


def _dimension(node: fx.Node) -> int | None:
    """Returns which dimension's size a node reads, None where it does something else."""
    read = node.op == "call_method" and node.target == "size" and len(node.args) == 2
    return _SWAPPED.get(node.args[1]) if read else None  # type: ignore[arg-type]  # an int, as the program is recorded


def _reads_shape_or_device(node: fx.Node) -> bool:
    return _dimension(node) is not None or (node.target is getattr and node.args[1] == "device")


def _values(call: fx.Node) -> fx.Node | None:
    """Returns the node that takes the attended values from a call's result, None where more than that is used."""
    (values, *others) = call.users or [None]
    taken = values is not None and not others and values.target is operator.getitem and values.args[1] == 0
    return values if taken else None


def _batch_first(node: fx.Node) -> fx.Node:
    """Returns the value of a node that exchanges dimensions, with the first two of these as they were.

    Of a permutation it is another one of the same tensor, which the program may have already.
    """
    value, order = node.args[0], _exchanged(node)
    assert isinstance(value, fx.Node) and order is not None
    if order == (0, 1, 2):
        return value
    axes: tuple[int, ...]
    method, axes = ("transpose", (1, 2)) if order == (0, 2, 1) else ("permute", order)
    for other in value.users:
        if (other.op, other.target, other.args[1:]) == ("call_method", method, axes) and other < node:
            return other
    with node.graph.inserting_before(node):
        made = node.graph.call_method(method, (value, *axes))
    made.meta = {name: note for name, note in node.meta.items() if name != "onnx_outputs"}
    return made


def _drop_transposes(call: fx.Node) -> None:
    """Gives the call what was transposed, and what it returns to the users of the transposed result."""
    graph, before, values = call.graph, dict.fromkeys(call.all_input_nodes), _values(call)
    assert values is not None
    first = {node: _batch_first(node) for node in before if _exchanged(node) is not None}
    call.args = fx.map_arg(call.args, first.__getitem__)
    names: list[str] = []
    for use in list(values.users):
        if _exchanges(use):
            names += use.meta.get("onnx_outputs", ())
            use.replace_all_uses_with(values)
            graph.erase_node(use)
        else:
            use.args = (values, _dimension(use))
    for node in before:
        for use in [use for use in node.users if node in first and _reads_shape_or_device(use)]:
            use.args = (first[node], _dimension(use) if use.op == "call_method" else use.args[1])
        if not node.users:
            graph.erase_node(node)
    values.meta.pop("onnx_outputs", None)  # the file's value is the transposed one
    if names:
        values.meta["onnx_outputs"] = tuple(names)
