"""Ops that place or split a tensor among devices: on one device they are identities."""

from __future__ import annotations

import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit


@emit(
    *("identity", "identity_buffer", "pinned_identity", "amp_white_identity", "amp_black_identity", "to_contiguous"),
    *("hierarchical_parallel_cast", "parallel_cast", "copy", "copy_h2d", "copy_d2h", "nvtx_start", "nvtx_end"),
    ignore="grad_mode grad_nd_sbp sbp_parallel grad_sbp_parallel buffer_size mark_prefix",
)
def identity(g: Builder, in_: ir.Value) -> ir.Value:
    """The input itself."""
    return in_


@emit("cast_to_static_shape")
def cast_to_static_shape(g: Builder, input: ir.Value) -> ir.Value:
    """The input itself."""
    return input


@emit("hierarchical_parallel_cast_like")
def identity_like(g: Builder, in_: ir.Value, like: ir.Value) -> ir.Value:
    """The input itself; `like` only gives a placement."""
    return in_


@emit("tuple_identity")
def tuple_identity(g: Builder, in_: list) -> dict[str, list[ir.Value]]:
    """All inputs."""
    return {"out": list(in_)}


@emit("distribute_clone")
def distribute_clone(g: Builder, in_: ir.Value) -> dict[str, list[ir.Value]]:
    """The input, once for each device."""
    return {"out": [in_] * len(g.job_outputs())}


@emit("distribute_add")
def distribute_add(g: Builder, in_: list) -> ir.Value:
    """The sum of the devices' parts."""
    total = in_[0]
    for part in in_[1:]:
        total = g.Add(total, part)
    return total


@emit("distribute_concat")
def distribute_concat(g: Builder, in_: list, *, axis: int) -> ir.Value:
    """The devices' parts concatenated."""
    return in_[0] if len(in_) == 1 else g.Concat(*in_, axis=axis)


@emit("distribute_split")
def distribute_split(g: Builder, in_: ir.Value, *, axis: int) -> dict[str, list[ir.Value]]:
    """One part for each device."""
    sizes = [g.static(g.sizes(value)[axis], "the part of a device") for value in g.job_outputs()]
    return {"out": list(g.Split(in_, sizes, axis))}
