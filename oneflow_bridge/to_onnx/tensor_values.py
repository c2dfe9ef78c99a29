"""The values of the tensors that a job names: state, plain tensor attributes, and constants made in `forward`.

OneFlow names a tensor that is neither parameter nor buffer only in a compiled job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oneflow_bridge.runtime import import_oneflow
from onnx2nn.errors import InputError


def state_of(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every parameter and buffer under each of its paths; the job uses the first path of the trace."""
    found = {}
    for block, module in blocks.items():
        for path, sub in module.named_modules():
            for name, tensor in (*sub._parameters.items(), *sub._buffers.items()):
                if tensor is not None:
                    found[".".join(filter(None, (block, path, name)))] = _local(tensor)
    return found


def _local(tensor: Any) -> Any:
    """Returns a global tensor gathered on every rank; a local tensor as it is."""
    if not tensor.is_global:
        return tensor
    flow = import_oneflow()
    rank = len(tensor.placement.ranks.shape) if hasattr(tensor.placement.ranks, "shape") else 1
    return tensor.to_global(sbp=[flow.sbp.broadcast] * rank).to_local()


def free_tensors(graph: Any, job: Any) -> dict[str, Any]:
    """Returns the values of the job's free tensors, which are neither state nor made in the trace.

    OneFlow knows them only after a full compile.

    Compiling also keeps a second trace of the same tensor from ending the process ("blob_desc Must be non NULL").
    """
    names = [
        op.name for op in job.net.op if op.WhichOneof("op_type") == "variable_conf" and "FreeEagerTensor" in op.name
    ]
    if not names:
        return {}
    if not graph._is_compiled:
        _refuse_uncompilable(job, names)
        compile_everywhere(graph)
    state = graph.state_dict()
    return {name: _local(state[name]) for name in names}


def compile_everywhere(graph: Any) -> None:
    """Compiles a traced graph, and returns when every rank has compiled it.

    A rank that drops its graph ends the graph's actors on the other ranks too. OneFlow ends the process of one that
    does not count them yet ("it != counters_.end()"), which it begins to do at the end of its compile.
    """
    graph.finish_complie_and_init_runtime()
    import_oneflow().comm.barrier()


def _refuse_uncompilable(job: Any, names: list[str]) -> None:
    """Refuses jobs with ops that have no CPU kernel: after a failed compile, the next compile ends the process."""
    fused = sorted({op.user_conf.op_type_name for op in job.net.op if op.user_conf.op_type_name in NO_CPU_KERNEL})
    half = any(d.data_type in _HALF_TYPES for d in job.helper.lbn2logical_blob_desc.values())
    if fused or half:
        raise InputError(
            f"The model uses {len(names)} tensors that are neither parameters nor buffers, whose values need a "
            f"compiled job, and {'the ops ' + ', '.join(fused) if fused else 'half precision'} cannot be compiled on "
            "CPU. Register them with register_buffer."
        )


NO_CPU_KERNEL = frozenset(
    {
        *("layer_norm", "group_norm", "rms_norm", "skip_layer_norm", "fused_matmul_bias", "cublas_fused_mlp"),
        *("fused_scale_mask_softmax", "fused_scale_mask_softmax_dropout", "fused_tril_scale_softmax_mask_scale"),
        *("fused_bias_add_gelu", "fused_bias_add_mask_scale", "fused_scale_tril", "fused_glu", "fused_fast_gelu_mul"),
        *("fused_lstm_cell", "fused_gru_cell", "fused_multi_head_attention_inference", "roi_align", "nms"),
        *("fused_self_attention_query_mul_key_and_value", "fused_bias_add_scale_mask_softmax_dropout"),
        *("cudnn_fused_normalization_add_relu", "normalization_add_relu", "grouped_matmul_bias", "fused_weighted_sum"),
    }
)


_HALF_TYPES = frozenset({9, 11})
"""kFloat16 and kBFloat16 of OneFlow's data_type.proto."""


@contextlib.contextmanager
def tensor_attributes_as_buffers(modules: Sequence[Any]) -> Iterator[None]:
    """Makes plain tensor attributes buffers inside this context, so that the job names them."""
    flow = import_oneflow()
    moved = [
        (sub, name, value)
        for module in modules
        for sub in module.modules()
        for name, value in list(sub.__dict__.items())
        if isinstance(value, flow.Tensor)
    ]
    for sub, name, value in moved:
        del sub.__dict__[name]
        sub._buffers[name] = value
        sub._non_persistent_buffers_set.add(name)
    try:
        yield
    finally:
        for sub, name, value in moved:
            sub._buffers.pop(name, None)
            sub._non_persistent_buffers_set.discard(name)
            sub.__dict__.setdefault(name, value)


@contextlib.contextmanager
def constants_as_variables() -> Iterator[dict[str, Any]]:
    """Records the tensors that the model makes from Python or numpy data in a trace, and names them in the job."""
    flow = import_oneflow()
    from oneflow.framework import graph_build_util

    found: dict[str, Any] = {}

    def recording(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            with flow._oneflow_internal.lazy_mode.guard(False):
                tensor = make(*args, **kwargs)
            if tensor.is_global or tensor.is_lazy or 0 in tensor.shape:
                return tensor
            name = f"constant_{len(found)}"
            found[name] = tensor
            return graph_build_util.build_graph_state(name, tensor, None)

        return made

    makers = {name: getattr(flow, name) for name in ("tensor", "from_numpy")}  # as_tensor calls these
    for name, make in makers.items():
        setattr(flow, name, recording(make))
    try:
        yield found
    finally:
        for name, make in makers.items():
            setattr(flow, name, make)
