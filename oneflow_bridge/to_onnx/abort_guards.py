"""Guards around calls on which OneFlow 0.9 ends the process (measured): each is rewritten, or raises an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from oneflow_bridge.runtime import import_oneflow
from onnx2nn.errors import InputError

Call = Callable[..., Any]


@contextlib.contextmanager
def refusing_aborts() -> Iterator[None]:
    """Inside this context such calls raise `InputError`, in a trace and in an eager run."""
    flow = import_oneflow()
    from oneflow.nn.graph.proxy import ProxyParameterDict, ProxyParameterList

    guards = [
        *((owner, "matmul", _matmul) for owner in (flow, flow._C, flow.Tensor)),
        *((flow.Tensor, "__matmul__", _matmul), (flow, "topk", _topk), (flow.Tensor, "topk", _topk)),
        *((flow.Tensor, "to", _to), (flow._C, "gather", _gather), (flow._C, "embedding", _gather)),
        *((owner, "floor_divide", _floor_divide) for owner in (flow, flow._C, flow.Tensor)),
        (flow.Tensor, "__floordiv__", _floor_divide),
        *((owner, "index_select", _index_select) for owner in (flow, flow._C, flow.Tensor)),
        (ProxyParameterList, "__iter__", _each),
        *((ProxyParameterDict, "values", _values), (ProxyParameterDict, "items", _items)),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in guards if hasattr(owner, name)]
    for owner, name, guard in guards:
        if hasattr(owner, name):
            setattr(owner, name, guard(getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _matmul(call: Call) -> Call:
    def checked(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        ranks = (getattr(a, "ndim", 2), getattr(b, "ndim", 2))
        if 1 in ranks and max(ranks) > 2:
            raise InputError(
                f"OneFlow cannot multiply tensors of {ranks[0]} and {ranks[1]} dimensions: unsqueeze the 1-D one."
            )
        return call(a, b, *args, **kwargs)

    return checked


def _floor_divide(call: Call) -> Call:
    def checked(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        shapes = [tuple(x.shape) for x in (a, b) if hasattr(x, "shape")]
        if len(set(shapes)) > 1:
            raise InputError(f"OneFlow's floor_divide takes two tensors of one shape, not of {shapes[0]}, {shapes[1]}.")
        return call(a, b, *args, **kwargs)

    return checked


def _topk(call: Call) -> Call:
    def checked(x: Any, k: int, *args: Any, **kwargs: Any) -> Any:
        if k < 1:
            raise InputError(f"OneFlow cannot compute topk with k={k}: k must be at least 1.")
        return call(x, k, *args, **kwargs)

    return checked


def _to(call: Call) -> Call:
    def checked(x: Any, *args: Any, **kwargs: Any) -> Any:
        if any("cuda" in str(a) for a in (*args, *kwargs.values())) and not import_oneflow().cuda.is_available():
            raise InputError(
                "The model moves a tensor to cuda, which this machine does not have; build the model on the CPU."
            )
        return call(x, *args, **kwargs)

    return checked


def _gather(call: Call) -> Call:
    def checked(x: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        axis = kwargs.get("axis", 0)
        _check_indices(indices, x.shape[axis] if isinstance(axis, int) else None)
        return call(x, indices, *args, **kwargs)

    return checked


def _index_select(call: Call) -> Call:
    def checked(x: Any, dim: int, index: Any, *args: Any, **kwargs: Any) -> Any:
        _check_indices(index, x.shape[dim])
        return call(x, dim, index, *args, **kwargs)

    return checked


def _check_indices(indices: Any, size: int | None) -> None:
    """Raises for indices outside 0 to size - 1; lazy tensors of a trace have no values to check."""
    if size is None or indices.is_lazy or indices.is_global or not indices.nelement():
        return
    with import_oneflow()._oneflow_internal.lazy_mode.guard(False):  # a tensor with values may be read while tracing
        values = indices.numpy()
    lowest, highest = int(values.min()), int(values.max())
    if lowest < 0 or highest >= size:
        raise InputError(
            f"The model looks up the indices {lowest} to {highest} in {size} rows; OneFlow takes 0 to {size - 1}."
        )


# In a trace, iteration would give OneFlow's proxies of parameters, which functions do not take; an index gives the
# parameter itself.


def _each(call: Call) -> Call:
    return lambda parameters: (parameters[index] for index in range(len(parameters)))


def _values(call: Call) -> Call:
    return lambda parameters: [parameters[key] for key in parameters]


def _items(call: Call) -> Call:
    return lambda parameters: [(key, parameters[key]) for key in parameters]
