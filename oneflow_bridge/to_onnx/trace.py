"""Traces a `oneflow.nn` module or graph into jobs, without a plan, a runtime or a kernel.

OneFlow ends the process on some inputs instead of raising an error. Those inputs are refused before the call.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oneflow_bridge.runtime import error_text, import_oneflow
from oneflow_bridge.to_onnx.abort_guards import refusing_aborts
from oneflow_bridge.to_onnx.arguments import Arguments, Dynamic, Sizes, leaf_names, trace_sizes
from oneflow_bridge.to_onnx.compiled_job import CompiledJob
from oneflow_bridge.to_onnx.job import distinct
from oneflow_bridge.to_onnx.job_reader import read_ops
from oneflow_bridge.to_onnx.module_types import proxies_of_their_types, proxies_with_hooks
from oneflow_bridge.to_onnx.tensor_values import (
    compile_everywhere,
    constants_as_variables,
    free_tensors,
    state_of,
    tensor_attributes_as_buffers,
)
from onnx2nn.errors import InputError, Onnx2nnError
from onnx2nn.ground.pass_times import timed

_BLOCK = "model"

_NEEDS_VALUES = ("in eager mode", "only eager", "nn.graph.build", "lazy tensor")
"""Parts of OneFlow's messages about calls that need the values of a tensor, which a job does not have."""


@timed("tracing")
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
            A number is appended to a default name that another value has.

    Returns:
        The job or jobs with their weights and names.

    Raises:
        InputError: the model or an input cannot be traced; the text says why.
    """
    flow = import_oneflow()
    arguments = Arguments.of(model, example_inputs, input_names)
    sizes = trace_sizes(arguments, dynamic)
    if isinstance(model, flow.nn.Graph):
        compiled = _compile_graph(model, arguments, sizes)
    elif isinstance(model, flow.nn.Module):
        compiled = _compile_module(model, arguments, sizes)
    else:
        raise InputError(
            f"A {type(model).__name__} cannot be exported; pass an oneflow.nn.Module or an oneflow.nn.Graph."
        )
    if input_names is None and compiled.input_names is not None:
        compiled.input_names = distinct(compiled.input_names, compiled.weights)
    if output_names is not None:
        compiled.output_names = list(output_names)
    elif compiled.output_names is not None:
        compiled.output_names = distinct(compiled.output_names, [*compiled.weights, *(compiled.input_names or ())])
    return compiled


def _compile_module(module: Any, arguments: Arguments, sizes: list[list[Sizes]]) -> CompiledJob:
    flow = import_oneflow()
    _refuse_training({"": module})

    class ModuleGraph(flow.nn.Graph):  # type: ignore[misc, name-defined]  # oneflow has no types
        def __init__(self):
            super().__init__()
            setattr(self, _BLOCK, module)

        def build(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(self, _BLOCK)(*args, **kwargs)

    return _trace_all(ModuleGraph, {_BLOCK: module}, arguments, sizes)


def _compile_graph(graph: Any, arguments: Arguments, sizes: list[list[Sizes]]) -> CompiledJob:
    flow = import_oneflow()
    blocks = {name: block.to(flow.nn.Module) for name, block in graph._blocks.items()}
    if graph._opts:
        raise InputError("The graph has an optimizer: its job holds the backward pass. Export a graph without one.")
    _refuse_training(blocks)
    if graph._full_job_proto is not None and len(sizes) == 1:
        weights = {**state_of(blocks), **free_tensors(graph, graph._full_job_proto)}
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
    """Returns an unbuilt graph of the same class and attributes, because a graph can be built only once."""
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
    sizes: list[list[Sizes]],
) -> CompiledJob:
    jobs: list[Any] = []
    weights: dict[str, Any] = {}
    names = None
    traced: list[dict[str, int]] = []
    with tensor_attributes_as_buffers(list(blocks.values())):
        for attempts in sizes:
            of_dimensions, (job, found, outputs) = _first_trace(new_graph, attempts)
            traced.append(of_dimensions)
            jobs.append(job)
            _refuse_other_constants(weights, {n: found[n] for n in found.keys() & read_ops(job)}, of_dimensions)
            weights = weights or {**state_of(blocks), **found}
            names = names or _output_names(outputs)
    symbols = {name: tuple(of_dimensions[name] for of_dimensions in traced) for name in traced[0]}
    return _compiled(jobs, weights, symbols, arguments, names, blocks)


def _first_trace(
    new_graph: Callable[[], Any], attempts: Sequence[Sizes]
) -> tuple[dict[str, int], tuple[Any, dict[str, Any], Any]]:
    """Returns the first sizes at which OneFlow traces the model, and the trace."""
    *others, (last, resized) = attempts
    for of_dimensions, larger in others:
        with contextlib.suppress(InputError):
            return of_dimensions, _trace(new_graph, larger, of_dimensions)
    return last, _trace(new_graph, resized, last)


def _refuse_other_constants(first: Mapping[str, Any], found: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Refuses tensors made from numbers that differ from those of the first trace: the file would hold the first's."""
    for name in first.keys() & found.keys():
        one, other = first[name].numpy(), found[name].numpy()
        if one.shape != other.shape or one.tobytes() != other.tobytes():
            raise InputError(
                f"The model makes a tensor from Python's or numpy's numbers (shape {list(one.shape)}) that are others "
                f"with {dict(sizes)}: a job holds no calculation of them. Compute the tensor from the sizes with "
                "OneFlow's functions, as flow.arange(x.shape[1]), or export with that dimension fixed."
            )


def _compiled(
    jobs: list[Any],
    weights: dict[str, Any],
    symbols: dict[str, tuple[int, ...]],
    arguments: Arguments,
    output_names: list[str] | None,
    blocks: Mapping[str, Any],
) -> CompiledJob:
    """Returns the result of a trace; a single module's attribute name is removed from the weights' names."""
    scope = f"{next(iter(blocks))}." if len(blocks) == 1 else ""
    weights = {name.removeprefix(scope): weight for name, weight in weights.items()}
    return CompiledJob(jobs, weights, symbols, list(arguments.names), output_names, scope)


def _trace(
    new_graph: Callable[[], Any], arguments: Arguments, of_dimensions: Mapping[str, int]
) -> tuple[Any, dict[str, Any], Any]:
    """Returns one job, the values of tensors that are not module state, and the outputs that the model returned."""
    _forget_names()
    graph = new_graph()
    try:
        with refusing_aborts(), proxies_of_their_types(), proxies_with_hooks(), constants_as_variables() as constants:
            job, outputs = graph.build_graph(*arguments.args, **arguments.kwargs)
    except Onnx2nnError:
        raise
    except Exception as error:  # OneFlow has no common class of errors
        sizes = f" with {dict(of_dimensions)}" if of_dimensions else ""
        shapes = ", ".join(f"{n}: {list(t.shape)}" for n, t in zip(arguments.names, arguments.leaves(), strict=True))
        text = error_text(error)
        raise InputError(
            f"OneFlow could not trace the model{sizes} (inputs {shapes}){_place_of(error)}: {text}{_advice(text)}"
        ) from error
    return job, {**constants, **free_tensors(graph, job)}, outputs


def _place_of(error: Exception) -> str:
    """Returns the line of the model's own code at which a trace failed, as far as there is one."""
    libraries = (str(Path(import_oneflow().__file__).parent), str(Path(__file__).parent))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(libraries)]
    if not frames or not frames[-1].line:
        return ""
    last = frames[-1]
    return f" at {Path(last.filename).name}, line {last.lineno}, in {last.name}: `{last.line}`"


def _advice(text: str) -> str:
    if not any(part in text.lower() for part in _NEEDS_VALUES):
        return ""
    return (
        " The values of a tensor decide what is computed there, and a job has no values. Leave that part out of the "
        "exported model, or write it with results of a fixed shape, as flow.where instead of a mask or a branch."
    )


def _forget_names() -> None:
    """Clears OneFlow's names for the tensors of earlier traces, by compiling a graph.

    OneFlow looks up a tensor's name by its memory address and clears the names only when it compiles a graph. A new
    free tensor at the address of a freed weight would get that weight's name: OneFlow then ends the process, or reads
    another weight of that name.
    """
    flow = import_oneflow()

    class Smallest(flow.nn.Graph):  # type: ignore[misc, name-defined]  # oneflow has no types
        def build(self, x: Any) -> Any:
            return x + 1

    graph = Smallest()
    graph.build_graph(flow.zeros(1))
    compile_everywhere(graph)


def _output_names(outputs: Any) -> list[str] | None:
    """Keys of the dicts that the model returned; None where it returned tensors only."""
    if isinstance(outputs, tuple) and len(outputs) == 1:
        outputs = outputs[0]
    if not isinstance(outputs, dict):
        return None
    return [name for key, value in outputs.items() for name in leaf_names(value, str(key))]
