"""Windows of a signal, which a Scan cuts one by one, as views of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.importing.control_flow import ScanForm
from onnx2nn.importing.sliding_windows import sliding_windows
from onnx2nn.sizes.conditions import at_least_zero, equal


def window_views(tracer: Tracer, form: ScanForm, axes_in: Sequence[int]) -> list[Any] | None:
    """Records the outputs of a Scan that cuts windows; returns None for any other Scan, and records nothing then.

    Args:
        tracer: the tracer of the graph that has the Scan.
        form: the Scan.
        axes_in: the scanned axis of each scanned value, counted from the first dimension.
    """
    if any(form.directions_in) or any(form.directions_out) or len(form.states) != 1 or len(form.scanned) != 1:
        return None
    (state,), (items,), (over,) = form.states, form.scanned, axes_in
    if not isinstance(state, Tensor) or not isinstance(items, Tensor):
        return None
    rank = len(state.spec.shape or ())
    if state.spec.shape is None or items.spec.shape is None or len(items.spec.shape) != rank + 1:
        return None
    windows = sliding_windows(form.body, len(form.states), rank)
    if windows is None:
        return None
    axis, kept, added = windows
    at = axis + (axis >= over)  # of an item's axis, in all items
    sizes = ((state.spec.shape[axis], kept), (items.spec.shape[at], added))
    if any(isinstance(size, int) and size != expected for size, expected in sizes):
        return None
    tracer.guards.demand(at_least_zero(items.spec.shape[over] - 1), "this Scan needs an item")
    for size, expected in sizes:
        tracer.guards.demand(equal(size, expected), "the size that the file declares in the body of this Scan")

    others = [dim for dim in range(rank) if dim != axis]
    new = _permuted(items, [dim for dim in range(rank + 1) if dim not in (over, at)] + [over, at]).flatten(-2)
    signal = torch.cat([_permuted(state, [*others, axis]), new], -1)
    frames = signal.unfold(-1, kept + added, added)
    order = list(range(rank - 1))
    order.insert(axis, rank)
    outputs = []
    for out in form.axes_out:
        places = list(order)
        places.insert(out % (rank + 1), rank - 1)
        outputs.append(_permuted(frames, places))
    order[axis] = rank - 1
    return [_permuted(signal[..., -kept:], order), *outputs]


def _permuted(tensor: Any, order: list[int]) -> Any:
    return tensor if order == sorted(order) else tensor.permute(order)
