"""Compiles an `oneflow.nn` module or graph into jobs, without a plan, a runtime or a kernel.

OneFlow ends the process on some inputs instead of raising; what is known to do so is refused here, before the call.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx.guards import refusing_aborts
from oneflow_bridge.to_onnx.job import distinct, read_job
from onnx2nn.errors import InputError, ModelFileError, Onnx2nnError

Dynamic = bool | Mapping[str | int, Mapping[int, str]] | None
"""`True`: axis 0 of every input is `batch`; else input name or position → {axis: dimension name}."""

_BLOCK = "model"


@dataclass
class CompiledJob:
    """Everything that an export needs, detached from the model's Python code.

    Attributes:
        jobs: `Job` protos with the shape of every tensor; more than one where dimensions are dynamic.
        weights: variable name → tensor or array.
        symbols: dynamic dimension name → its size in each job.
        input_names: graph input names, in the order of the job's arguments.
        output_names: graph output names, in the order of the job's results; None numbers them.
        scope: prefix of the job's op names that is left out.
    """

    jobs: list[Any]
    weights: dict[str, Any]
    symbols: dict[str, tuple[int, ...]] = field(default_factory=dict)
    input_names: list[str] | None = None
    output_names: list[str] | None = None
    scope: str = ""

    def graph(self) -> ir.Model:
        """The job as a graph of OneFlow ops (see `oneflow_bridge.to_onnx.job.read_job`)."""
        return read_job(
            self.jobs,
            self.weights,
            symbols=self.symbols,
            input_names=self.input_names,
            output_names=self.output_names,
            scope=self.scope,
        )

    def save(self, folder: str | Path) -> None:
        """Writes `job.<i>.pb` (serialized protos), `weights.npz` and `job.json` into a folder that is created."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for index, job in enumerate(self.jobs):
            (folder / f"job.{index}.pb").write_bytes(job.SerializeToString())
        arrays: dict[str, Any] = {name: _array(weight) for name, weight in self.weights.items()}
        np.savez(folder / "weights.npz", **arrays)
        names = {k: getattr(self, k) for k in ("symbols", "input_names", "output_names", "scope")}
        (folder / "job.json").write_text(json.dumps({"jobs": len(self.jobs), **names}, indent=1))

    @classmethod
    def load(cls, folder: str | Path) -> CompiledJob:
        """Reads what `save` wrote.

        Raises:
            ModelFileError: the folder does not hold a saved job.
        """
        folder = Path(folder)
        try:
            names = json.loads((folder / "job.json").read_text())
            jobs = [parse_job((folder / f"job.{i}.pb").read_bytes()) for i in range(names.pop("jobs"))]
            with np.load(folder / "weights.npz", allow_pickle=False) as stored:
                weights = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, KeyError) as error:
            raise ModelFileError(f"{folder} does not hold a saved job: {error}") from error
        symbols = {name: tuple(sizes) for name, sizes in names.pop("symbols").items()}
        return cls(jobs, weights, symbols, **names)


def parse_job(serialized: bytes) -> Any:
    """A job proto from its serialized form.

    Raises:
        ModelFileError: the bytes are not a job.
    """
    import_oneflow()
    from google.protobuf.message import DecodeError
    from oneflow.core.job import job_pb2

    job = job_pb2.Job()
    try:
        job.ParseFromString(serialized)
    except DecodeError as error:
        raise ModelFileError(f"These bytes are not a serialized OneFlow job: {error}") from error
    return job


def compile_job(
    model: Any,
    example_inputs: Any = (),
    *,
    dynamic: Dynamic = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> CompiledJob:
    """Traces a model into its job, once, or once more for each dynamic dimension.

    Args:
        model: an `oneflow.nn.Module` in eval mode, or an `oneflow.nn.Graph` without optimizer, built or not.
        example_inputs: a tensor or array, a sequence of positional arguments or a dict of keyword arguments.
        dynamic: which input dimensions are symbolic, see `Dynamic`.
        input_names: names of the inputs; by default those of the parameters of `forward` or `build`.
        output_names: names of the outputs; by default the keys of a returned dict, else `output`, `output_0` ...
            Default names that a weight or another value has get a number behind them.

    Returns:
        The job or jobs with their weights and names.

    Raises:
        InputError: the model or an input cannot be traced; the text says why.
    """
    flow = import_oneflow()
    arguments = Arguments.of(model, example_inputs, input_names)
    sizes = _trace_sizes(arguments, dynamic)
    if isinstance(model, flow.nn.Graph):
        compiled = _compile_graph(model, arguments, sizes)
    elif isinstance(model, flow.nn.Module):
        compiled = _compile_module(model, arguments, sizes)
    else:
        raise InputError(f"A OneFlow nn.Module or nn.Graph can be exported, not a {type(model).__name__}.")
    if input_names is None and compiled.input_names is not None:
        compiled.input_names = distinct(compiled.input_names, compiled.weights)
    if output_names is not None:
        compiled.output_names = list(output_names)
    elif compiled.output_names is not None:
        compiled.output_names = distinct(compiled.output_names, [*compiled.weights, *(compiled.input_names or ())])
    return compiled


@dataclass
class Arguments:
    """Example inputs: positional and keyword arguments, and the tensors among them by name, in the job's order."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: list[str]

    @classmethod
    def of(cls, model: Any, example_inputs: Any, names: Sequence[str] | None = None) -> Arguments:
        """Sorts out what the caller passed; arrays become tensors.

        Raises:
            InputError: an argument is empty or not made of tensors, or the number of names does not fit.
        """
        inputs = _tensors(example_inputs)
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
        if not isinstance(args, (tuple, list)):
            args = (args,)
        found = cls(tuple(args), kwargs, [])
        found.names = list(names) if names is not None else distinct(_argument_names(model, found))
        leaves = found.leaves()
        if len(found.names) != len(leaves) or len(set(found.names)) != len(leaves):
            raise InputError(f"{len(leaves)} input tensors were given and {len(found.names)} names: {found.names}.")
        for name, leaf in zip(found.names, leaves, strict=True):
            if 0 in leaf.shape:
                raise InputError(
                    f"Input {name} has shape {list(leaf.shape)}: OneFlow cannot compile empty inputs. Pass an example "
                    "with at least one element."
                )
        return found

    def leaves(self) -> list[Any]:
        """The tensors, in the order in which OneFlow numbers them."""
        return list(leaves((self.args, self.kwargs)))

    def resized(self, sizes: Mapping[tuple[int, int], int]) -> Arguments:
        """The same arguments with dimensions of other sizes; contents are repeated or cut.

        Args:
            sizes: (position of the tensor, axis) → size.
        """
        count = iter(range(len(self.names)))

        def resize(leaf: Any) -> Any:
            position = next(count)
            for (of, axis), size in sizes.items():
                if of == position and size != leaf.shape[axis]:
                    leaf = _resize(leaf, axis, size)
            return leaf

        args, kwargs = _map((self.args, self.kwargs), resize)
        return Arguments(args, kwargs, self.names)


def dynamic_axes(arguments: Arguments, dynamic: Dynamic) -> dict[tuple[int, int], str]:
    """(position of the tensor, axis) → dimension name.

    Raises:
        InputError: `dynamic` names an input or an axis that does not exist, or one name has two sizes.
    """
    leaves = arguments.leaves()
    if dynamic is None or dynamic is False:
        return {}
    if dynamic is True:
        return {(i, 0): "batch" for i, leaf in enumerate(leaves) if leaf.ndim}
    axes = {}
    for key, named in dynamic.items():
        if key not in arguments.names and key not in range(len(leaves)):
            raise InputError(f"dynamic names the input {key!r}; the inputs are {arguments.names}.")
        position = key if isinstance(key, int) else arguments.names.index(key)
        for axis, name in named.items():
            rank = leaves[position].ndim
            if not -rank <= axis < rank:
                raise InputError(
                    f"dynamic names axis {axis} of {arguments.names[position]}, which has {rank} dimensions."
                )
            axes[position, axis % rank] = name
    return axes


def _trace_sizes(arguments: Arguments, dynamic: Dynamic) -> list[tuple[dict[str, int], Arguments]]:
    """One entry a trace: the size of each dimension name, and the arguments of those sizes.

    The first has the example's sizes (at least 2: a size of 1 would broadcast), each other one dimension one larger.
    """
    axes = dynamic_axes(arguments, dynamic)
    leaves = arguments.leaves()
    base: dict[str, int] = {}
    for (position, axis), name in axes.items():
        size = max(leaves[position].shape[axis], 2)
        if base.setdefault(name, size) != size:
            raise InputError(f"The dimension {name!r} has size {base[name]} in one input and {size} in another.")
    traces = [base, *({**base, name: base[name] + 1} for name in base)]
    return [(sizes, arguments.resized({key: sizes[name] for key, name in axes.items()})) for sizes in traces]


def _compile_module(module: Any, arguments: Arguments, sizes: list[tuple[dict[str, int], Arguments]]) -> CompiledJob:
    flow = import_oneflow()
    _refuse_training({"": module})

    class ModuleGraph(flow.nn.Graph):  # type: ignore[misc, name-defined]  # oneflow has no types
        def __init__(self):
            super().__init__()
            setattr(self, _BLOCK, module)

        def build(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(self, _BLOCK)(*args, **kwargs)

    return _trace_all(ModuleGraph, {_BLOCK: module}, arguments, sizes)


def _compile_graph(graph: Any, arguments: Arguments, sizes: list[tuple[dict[str, int], Arguments]]) -> CompiledJob:
    flow = import_oneflow()
    blocks = {name: block.to(flow.nn.Module) for name, block in graph._blocks.items()}
    if graph._opts:
        raise InputError("The graph has an optimizer: its job holds the backward pass. Export a graph without one.")
    _refuse_training(blocks)
    if graph._full_job_proto is not None and len(sizes) == 1:
        weights = {**_weights(blocks), **_free_tensors(graph, graph._full_job_proto)}
        outputs = _output_names(graph._eager_outputs_buffer[0][0])
        return _compiled([graph._full_job_proto], weights, {}, arguments, outputs, blocks)
    return _trace_all(lambda: _clone(graph, blocks), blocks, arguments, sizes)


def _refuse_training(blocks: Mapping[str, Any]) -> None:
    training = [
        ".".join(filter(None, (block, name))) or type(module).__name__
        for block, module in blocks.items()
        for name, sub in module.named_modules()
        if sub.training
    ]
    if training:
        raise InputError(
            f"The model is in training mode ({', '.join(training[:3])}{' ...' if len(training) > 3 else ''}): its job "
            "would hold dropout and batch statistics. Call model.eval() first."
        )


def _clone(graph: Any, blocks: Mapping[str, Any]) -> Any:
    """A graph of the same class and attributes that was not built: a graph can be built only once."""
    flow = import_oneflow()
    clone = object.__new__(type(graph))
    flow.nn.Graph.__init__(clone)
    own = set(clone.__dict__)
    for name, value in graph.__dict__.items():
        if name not in own:
            setattr(clone, name, value)
    for name, module in blocks.items():
        setattr(clone, name, module)
    clone.config = graph.config
    return clone


def _trace_all(
    new_graph: Callable[[], Any],
    blocks: Mapping[str, Any],
    arguments: Arguments,
    sizes: list[tuple[dict[str, int], Arguments]],
) -> CompiledJob:
    jobs: list[Any] = []
    weights: dict[str, Any] = {}
    names = None
    with _tensor_attributes_as_buffers(list(blocks.values())):
        for of_dimensions, resized in sizes:
            job, found, outputs = _trace(new_graph, resized, of_dimensions)
            jobs.append(job)
            weights = weights or {**_weights(blocks), **found}
            names = names or _output_names(outputs)
    symbols = {name: tuple(of_dimensions[name] for of_dimensions, _ in sizes) for name in sizes[0][0]}
    return _compiled(jobs, weights, symbols, arguments, names, blocks)


def _compiled(
    jobs: list[Any],
    weights: dict[str, Any],
    symbols: dict[str, tuple[int, ...]],
    arguments: Arguments,
    output_names: list[str] | None,
    blocks: Mapping[str, Any],
) -> CompiledJob:
    """With one module in the graph its own names are kept, with several each has its attribute's name in front."""
    scope = f"{next(iter(blocks))}." if len(blocks) == 1 else ""
    weights = {name.removeprefix(scope): weight for name, weight in weights.items()}
    return CompiledJob(jobs, weights, symbols, list(arguments.names), output_names, scope)


def _trace(
    new_graph: Callable[[], Any], arguments: Arguments, of_dimensions: Mapping[str, int]
) -> tuple[Any, dict[str, Any], Any]:
    """One job, the values of the tensors that are no module's state, and the outputs as the model returned them."""
    _forget_names()
    graph = new_graph()
    try:
        with refusing_aborts(), _constants_as_variables() as constants:
            job, outputs = graph.build_graph(*arguments.args, **arguments.kwargs)
    except Onnx2nnError:
        raise
    except Exception as error:
        sizes = f" with {dict(of_dimensions)}" if of_dimensions else ""
        shapes = ", ".join(f"{n}: {list(t.shape)}" for n, t in zip(arguments.names, arguments.leaves(), strict=True))
        raise InputError(f"OneFlow could not trace the model{sizes} (inputs {shapes}): {last_line(error)}") from error
    return job, {**constants, **_free_tensors(graph, job)}, outputs


def _forget_names() -> None:
    """Lets OneFlow forget what the tensors of earlier traces were called.

    It finds the name of a tensor by the address at which it lies, and forgets names only when it compiles a graph. A
    free tensor that lies where a weight of an earlier trace was, which is gone, would be taken for that weight: OneFlow
    ends the process, or reads another weight of that name.
    """
    flow = import_oneflow()

    class Smallest(flow.nn.Graph):  # type: ignore[misc, name-defined]  # oneflow has no types
        def build(self, x: Any) -> Any:
            return x + 1

    graph = Smallest()
    graph.build_graph(flow.zeros(1))
    graph.finish_complie_and_init_runtime()


def last_line(error: Exception) -> str:
    """What an exception of OneFlow's says, without the stack and the colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[-1].startswith("Error Type:"):  # OneFlow's own: what it found comes first, then its C++ stack
        return lines[0]
    return lines[-1] if lines else type(error).__name__


def _weights(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Every parameter and buffer under every path that reaches it; the job uses the first path it meets."""
    found = {}
    for block, module in blocks.items():
        for path, sub in module.named_modules():
            for name, tensor in (*sub._parameters.items(), *sub._buffers.items()):
                if tensor is not None:
                    found[".".join(filter(None, (block, path, name)))] = _local(tensor)
    return found


def _local(tensor: Any) -> Any:
    """The whole of a global tensor, gathered on every rank; a local tensor as it is."""
    if not tensor.is_global:
        return tensor
    flow = import_oneflow()
    rank = len(tensor.placement.ranks.shape) if hasattr(tensor.placement.ranks, "shape") else 1
    return tensor.to_global(sbp=[flow.sbp.broadcast] * rank).to_local()


def _free_tensors(graph: Any, job: Any) -> dict[str, Any]:
    """Values of tensors that the trace met and that are neither state nor made by it: known after a full compile only.

    Compiling also keeps a second trace of the same tensor from ending the process ("blob_desc Must be non NULL").
    """
    names = [
        op.name for op in job.net.op if op.WhichOneof("op_type") == "variable_conf" and "FreeEagerTensor" in op.name
    ]
    if not names:
        return {}
    if not graph._is_compiled:
        _refuse_uncompilable(job, names)
        graph.finish_complie_and_init_runtime()
    state = graph.state_dict()
    return {name: _local(state[name]) for name in names}


def _refuse_uncompilable(job: Any, names: list[str]) -> None:
    """A failed compile poisons the process: the next one aborts. So refuse where the CPU has no kernel."""
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
def _tensor_attributes_as_buffers(modules: Sequence[Any]) -> Iterator[None]:
    """Plain tensor attributes are buffers meanwhile, so that the job names them and their values are known."""
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
def _constants_as_variables() -> Iterator[dict[str, Any]]:
    """Tensors that the model makes from Python or numpy data while it is traced enter the job under a known name."""
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


def _argument_names(model: Any, arguments: Arguments) -> list[str]:
    """Parameter names of `forward` or `build`; the parts of a nested argument are numbered."""
    function = getattr(model, "forward", None) if not hasattr(model, "build") else model.build
    try:
        parameters = list(inspect.signature(function).parameters.values()) if function is not None else []
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = []
    for position, value in enumerate(arguments.args):
        name = positional[position] if position < len(positional) else f"input_{position}"
        names += _leaf_names(value, name)
    for name, value in arguments.kwargs.items():
        names += _leaf_names(value, name)
    return names


def _output_names(outputs: Any) -> list[str] | None:
    """Keys of the dicts that the model returned; None where it returned tensors only."""
    if isinstance(outputs, tuple) and len(outputs) == 1:
        outputs = outputs[0]
    if not isinstance(outputs, dict):
        return None
    return [name for key, value in outputs.items() for name in _leaf_names(value, str(key))]


def _leaf_names(value: Any, name: str) -> list[str]:
    count = len(list(leaves(value)))
    return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]


def leaves(value: Any) -> Iterator[Any]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return type(value)((k, _map(v, function)) for k, v in value.items())
    if isinstance(value, (tuple, list)):
        return type(value)(_map(v, function) for v in value)
    return value if value is None else function(value)


def _tensors(value: Any) -> Any:
    flow = import_oneflow()

    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, flow.Tensor):
            return leaf
        if isinstance(leaf, (np.ndarray, np.generic)):
            return flow.tensor(np.asarray(leaf))
        raise InputError(
            f"An example input is a {type(leaf).__name__}: a OneFlow graph takes tensors (and None) only. Fix other "
            "values in the model, or in a wrapper around it."
        )

    return _map(value, tensor)


def _resize(tensor: Any, axis: int, size: int) -> Any:
    """The tensor with its slices along `axis` repeated in turn, or cut, to `size`."""
    flow = import_oneflow()
    array = np.take(tensor.numpy(), np.arange(size) % tensor.shape[axis], axis=axis)
    return flow.tensor(array)


def _array(weight: Any) -> np.ndarray:
    return weight if isinstance(weight, np.ndarray) else weight.detach().numpy()
