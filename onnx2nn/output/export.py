"""Writes an imported module as ONNX again, with the names and the dynamic dimensions of its original file."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import InputError, VerificationError, first_line
from onnx2nn.ground.atomic_files import check_writable
from onnx2nn.ground.extras import require
from onnx2nn.ground.pass_times import timed
from onnx2nn.ground.quiet import quiet
from onnx2nn.importing import inputs as model_inputs
from onnx2nn.output import wide_traces
from onnx2nn.output.checked_sizes import refused_sizes, tied
from onnx2nn.output.exported_nodes import SOURCE, clean, unused
from onnx2nn.output.file_comparison import compare_file
from onnx2nn.output.quantised_weights import quantise
from onnx2nn.output.save import endless, failed_node, held_parts, one_sided, unchecked
from onnx2nn.output.trace_examples import Run, runs_of
from onnx2nn.verification.module_runs import inputs_for

if TYPE_CHECKING:
    import torch
    from torch import fx

EXTERNAL_DATA_BYTES = 1 << 30
"""Weights of more bytes are written beside the file; protobuf ends at 2 GiB."""

_WIDENINGS = 6
"""How often larger examples are made where a trace holds for small sizes only."""

_RUNS_OF_PARTS = 6
"""How many more generated sizes a file is compared at that holds parts of its module for the example's."""

_NO_STACK_TRACES = "do_not_emit_stack_traces"
"""The switch by which torch's tracers note no lines of Python."""


def export_onnx(
    module: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    example_inputs: Sequence[np.ndarray | torch.Tensor] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    opset: int | None = None,
) -> str:
    """Writes a module as ONNX, by `torch.onnx.export`.

    Inputs, outputs, dynamic dimensions, nodes and their results keep their names of the original file, weights are
    named by their keys in `state_dict()`. Metadata of nodes name the modules around them and their classes, as torch's
    exporter does, so that importing the result gives the same keys and the same tree of modules again. The graph is not
    optimised: that would fold weights into one another.

    Args:
        module: a module of `onnx2nn.load`, perhaps trained or changed. Pickling loses the names of its nodes: a module
            that was pickled needs `example_inputs`.
        path: of the file, which appears complete or not at all. Weights of more than 1 GiB are written to
            `<path>.data` beside it.
        example_inputs: one array or tensor for each input, to trace the module with; generated if left out.
        dynamic_axes: input name → axis → name of the dynamic dimensions; as in the module's file if left out.
        opset: version of ai.onnx; the exporter's own choice if left out.

    Returns:
        A line that describes the file, also the conditions on sizes that the file, unlike the module, does not check,
        and the If and Loop nodes of which it holds the branch or the iterations of the example.

    Raises:
        InputError: the module accepts no generated inputs, or the file cannot be written.
        MissingDependencyError: torch or onnxscript is not installed.
        VerificationError: torch.onnx.export refuses the module, or its file gives other outputs in ONNX Runtime (if
            that is installed).
    """
    require("onnxscript", extra="export", purpose="torch.onnx.export")
    check_writable(path)
    graph = getattr(_sample(module), "graph", None)
    if graph is None:
        raise InputError("The module is no torch.fx.GraphModule, as onnx2nn.load gives. Use torch.onnx.export for it.")
    known = getattr(module, "meta", {}).get("onnx2nn", {})
    names = known.get("inputs") or [node.target for node in graph.nodes if node.op == "placeholder"]
    axes = model_inputs.dynamic_axes(module) if dynamic_axes is None else {n: dict(a) for n, a in dynamic_axes.items()}
    if example_inputs is not None and (hasattr(example_inputs, "shape") or len(example_inputs) != len(names)):
        raise InputError(f"example_inputs needs a list of one array or tensor for each input: {', '.join(names)}.")
    least: dict[str, int] = {}
    failure: wide_traces.NarrowTrace | None = None
    for _ in range(_WIDENINGS):
        try:
            return _at_some_sizes(module, Path(path), names, axes, opset, runs_of(module, axes, example_inputs, least))
        except wide_traces.NarrowTrace as found:
            before = failure.most if failure is not None and found.is_fixed else {}
            again = next((label for label in found.most if label in before), None)
            if again is not None and (held := _held(_sample(module), found.inputs)):
                raise VerificationError(  # each further size would be fixed too, after a longer trace
                    f"torch.export fixes the dimension {again}, at {before[again]} and at {found.most[again]}{held}. "
                    f"Leave {again} out of dynamic_axes, or save .pth."
                ) from found
            failure, example_inputs = found, None
            least |= {label: 4 * most + 5 for label, most in found.most.items()}
        except InputError as error:  # the module takes no larger sizes
            raise failure or error from None
    assert failure is not None
    raise failure


def _held(module: Any, inputs: Sequence[Any]) -> str:
    """Returns what a trace holds as the example has it, whatever its sizes, as the end of a sentence."""
    from onnx2nn.output.other_values import TEXTS, other_values

    texts = other_values(module, inputs, [TEXTS])
    return one_sided(module) + held_parts(module) + (f"; {texts}" if texts else "")


@timed("example runs")
def _at_some_sizes(
    module: Any,
    path: Path,
    names: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
    opset: int | None,
    runs: Iterator[Run],
) -> str:
    """Exports a trace of one of the first runs; returns a description."""
    first, second = next(runs), next(runs, None)
    if second is None:
        return _export(module, path, names, axes, opset, [first], runs)
    third, *further = itertools.tee(runs, 3)
    try:
        return _export(module, path, names, axes, opset, [first, second], further[0])
    except wide_traces.NarrowTrace:
        raise
    except VerificationError:  # small sizes are special: a layer makes a 1 of them, which broadcasts or counts as fixed
        try:
            return _export(module, path, names, axes, opset, [second, *itertools.islice(third, 1), first], further[1])
        except VerificationError:
            if not _holds_one_side(module, first):
                raise
            return _export(
                module, path, names, {}, opset, [first], iter(())
            )  # at other sizes it would give wrong numbers


def _holds_one_side(module: Any, run: Run) -> bool:
    """Returns whether a file holds a branch or the number of iterations that an example takes."""
    from onnx2nn.output.single_branches import single_branches

    sample = _sample(module)
    return bool(one_sided(module, single_branches(sample, inputs_for(module, run[0]))))


@timed("checks of the trace")
def _export(
    module: Any,
    path: Path,
    names: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
    opset: int | None,
    runs: Sequence[Run],
    further: Iterator[Run],
) -> str:
    """Exports a trace of the first run, compares it with all runs and writes it; returns a description.

    Where it holds parts of the module for the example's sizes, which a few sizes need not show, it is compared at sizes
    near to these, and with some of the `further` runs.
    """
    from onnx2nn.output.scanned_batch import scan_over_batch
    from onnx2nn.output.single_branches import single_branches
    from onnx2nn.unfreeze.vectorised import Vectorised

    outputs = getattr(module, "meta", {}).get("onnx2nn", {}).get("outputs") or []
    _check_outputs(runs[0][1], outputs)
    tensors = inputs_for(module, runs[0][0])
    batch: Sequence[int | None] = [None] * len(names)
    if isinstance(module, Vectorised):
        batch = module.batch_arrangement.inputs
        tensors = [x if axis is None else x.narrow(axis, 0, 1) for x, axis in zip(tensors, batch, strict=True)]
    opened = [
        {axis: label for axis, label in axes.get(name, {}).items() if axis != own} or None
        for name, own in zip(names, batch, strict=True)
    ]
    sample = _sample(module)
    program, captured = _onnx_program(sample, tensors, names, outputs, opened, opset)
    beyond = wide_traces.check_ranges(sample, program.exported_program, opened, tensors)
    lost = one_sided(module, single_branches(sample, tensors))
    # Where it is lost, the line names the nodes that a file holds for the example's sizes.
    refused = {} if lost else refused_sizes(captured, tuple(tensors))
    beyond += wide_traces.unchecked_runs(sample, refused, tensors)
    if lost:
        near = wide_traces.runs_of_sizes(sample, opened, tensors, lambda size: range(size + 1, size + 4))
        beyond += [*near.values(), *itertools.islice(further, _RUNS_OF_PARTS)]
    _name_repeated(program.model.graph, outputs)
    clean(program.model, {node.name: node for node in program.exported_program.graph.nodes})
    quantise(program.model, getattr(sample, "meta", {}).get("onnx2nn", {}).get("steps", {}))
    if isinstance(module, Vectorised):
        batched = [(name, axis) for name, axis in zip(names, batch, strict=True) if axis is not None]
        label = next((axes[name][axis] for name, axis in batched if axis in axes.get(name, ())), "batch")
        scan_over_batch(program.model, batch, module.batch_arrangement.outputs, label)
    version = program.model.graph.opset_imports.get("", 0)
    if opset is not None and version != opset:
        raise VerificationError(f"torch.onnx.export cannot write opset {opset} of this module. Give opset={version}.")
    size = sum(tensor.nbytes for tensor in module.state_dict().values())
    try:
        small = {} if lost else wide_traces.small_runs(sample, opened, tensors)
        compared = _write(program.model, path, size > EXTERNAL_DATA_BYTES, [*runs, *beyond], small)
    except VerificationError as error:
        raise wide_traces.narrow_trace(refused, opened, tensors) or error from None
    count = sum(1 for _ in program.model.graph)
    told = f"ONNX opset {version}, {count} nodes, {_describe(axes)}; {compared}"
    return told + tied(_written_sizes(program.model, axes)) + unchecked(module, axes) + lost


def _onnx_program(
    module: Any,
    tensors: Sequence[Any],
    names: Sequence[str],
    outputs: Sequence[str],
    opened: Sequence[dict[int, str] | None],
    opset: int | None,
) -> tuple[Any, torch.export.ExportedProgram]:
    """Returns the ONNXProgram of a module, and the program that it was made of.

    Args:
        module: the module, of one sample.
        tensors: the example.
        names: of the inputs.
        outputs: the names of the outputs.
        opened: the dynamic axes of each input.
        opset: as for `export_onnx`.

    Raises:
        NarrowTrace: a trace of larger sizes may hold.
        VerificationError: the module cannot be exported.
    """
    import torch

    from onnx2nn.output.other_values import TEXTS, other_values
    from onnx2nn.output.pools_over_time import PoolsOverTime, has_pools_over_time

    pools = PoolsOverTime() if has_pools_over_time(module) else contextlib.nullcontext()
    try:
        with (
            timed("torch.onnx.export"),
            quiet(),
            torch.no_grad(),
            pools,
            _without_stack_traces(),
            wide_traces.captured() as programs,
        ):
            written = torch.onnx.export(
                _traceable(module),
                tuple(tensors),
                input_names=names,
                output_names=_told_apart(outputs) or None,
                dynamic_shapes=(tuple(opened),) if opened else (),
                opset_version=opset,
                dynamo=True,
                optimize=False,
                verbose=False,
                custom_translation_table={
                    torch.ops.aten.sort.stable: _sort_stable,
                    torch.ops.aten.pixel_unshuffle.default: _pixel_unshuffle,
                },
            )
        return written, programs[-1]
    except Exception as error:  # its errors share no base class
        wide_traces.check_refusal(module, str(_innermost(error)), opened, tensors)
        reason = endless(module) or other_values(module, tensors, [TEXTS]) or failed_node(module, error) or _gist(error)
        raise VerificationError(f"torch.onnx.export cannot export the module: {reason}") from error


@contextlib.contextmanager
def _without_stack_traces() -> Iterator[None]:
    """Spares torch the notes which Python lines made each call of its traces.

    They take a fifth of the time of an export, and are lines of torch and of this project, which no file of ours keeps.
    """
    from torch.fx import config

    before = getattr(config, _NO_STACK_TRACES, False)  # torch 2.11 has no such switch, and does not look at it
    setattr(config, _NO_STACK_TRACES, True)
    try:
        yield
    finally:
        setattr(config, _NO_STACK_TRACES, before)


def _told_apart(names: Sequence[str]) -> list[str]:
    """Returns names for the exporter, which takes each once: a file may list one of its values several times."""
    taken = Counter(set(names))
    return [unused(name, taken) if name in names[:index] else name for index, name in enumerate(names)]


def _name_repeated(graph: ir.Graph, names: Sequence[str]) -> None:
    """Makes the outputs that `_told_apart` told apart one value again, of their name."""
    for index, name in enumerate(names):
        if name in names[:index]:
            graph.outputs[index] = graph.outputs[names.index(name)]
            graph.outputs[index].name = name


def _check_outputs(values: Sequence[Any], names: Sequence[str]) -> None:
    """Refuses outputs for which torch.onnx.export writes others: the parts of a sequence, none for an empty optional.

    Raises:
        VerificationError: there are such outputs.
    """
    kinds: dict[str, type] = {"sequences": list, "empty optionals": type(None)}
    for kind, type_ in kinds.items():
        found = [repr(name) for name, value in zip(names, values, strict=False) if isinstance(value, type_)]
        if found:
            raise VerificationError(
                f"torch.onnx.export writes tensors alone as outputs, no {kind}, as of output {', '.join(found)}. Save "
                ".pth or source."
            )


def _sample(module: Any) -> Any:
    """Returns the module of one sample of a vectorised module, any other module as it is."""
    from onnx2nn.unfreeze.vectorised import Vectorised

    return module.one_sample if isinstance(module, Vectorised) else module


def _describe(axes: Mapping[str, Mapping[int, str]]) -> str:
    named = [f"{label} (axis {axis} of {name})" for name, dims in axes.items() for axis, label in dims.items()]
    return f"dynamic dimensions: {', '.join(named) or 'none'}"


def _written_sizes(model: ir.Model, axes: Mapping[str, Mapping[int, str]]) -> list[tuple[str, str]]:
    """Returns the name of each dynamic dimension in a written file, and the one that it was to have."""
    shapes = {value.name: value.shape for value in model.graph.inputs}
    return [
        (str(shape[axis]), label)
        for name, dims in axes.items()
        for axis, label in dims.items()
        if (shape := shapes.get(name)) is not None
    ]


def _traceable(module: Any) -> fx.GraphModule:
    """Returns a copy of the module whose operations carry their node of the original file through the trace."""
    from torch import fx
    from torch.fx import traceback

    from onnx2nn.fx.blocks.flattening import flattened
    from onnx2nn.fx.exporting.exported_program import for_exporter
    from onnx2nn.fx.modules.module_tree import arrange, container

    flat = flattened(module)
    copied = fx.GraphModule(flat, for_exporter(flat, flat.graph))
    for name, parameter in module.named_parameters(remove_duplicate=False):  # a tied weight has several keys
        holder, last = container(copied, name)
        if last not in dict(holder.named_parameters(recurse=False, remove_duplicate=False)):
            holder.register_parameter(last, parameter)
    # A GraphModule made of another one forgets which buffers are in no state_dict.
    outside = dict(module.named_buffers(remove_duplicate=False)).keys() - module.state_dict(keep_vars=True).keys()
    for name, buffer in list(copied.named_buffers(remove_duplicate=False)):
        if name in outside:
            holder, last = container(copied, name)
            holder.register_buffer(last, buffer, persistent=False)
    kinds = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    arrange(copied, *map(dict, kinds))  # the file lists them in this order
    for node in copied.graph.nodes:
        if node.op not in ("placeholder", "get_attr"):  # torch looks these up by name among the notes of its own calls
            notes = {key: node.meta[key] for key in ("onnx", "onnx_outputs", "scopes", "classes") if key in node.meta}
            node.meta["custom"] = {SOURCE: notes}
    known = getattr(module, "meta", {}).get("onnx2nn", {})
    _separate_outputs(copied.graph, known.get("inputs") or (), known.get("outputs") or ())

    def forward(self: fx.GraphModule, *args: Any) -> Any:
        with traceback.preserve_node_meta():
            return fx.Interpreter(self).run(*args)

    type(copied).forward = forward  # type: ignore[method-assign]  # every GraphModule has a class of its own
    return copied.train(module.training)


def _separate_outputs(graph: fx.Graph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Gives inputs, weights and other outputs that are outputs a copy (Identity), as torch gives a value one name.

    Args:
        graph: changed in place.
        inputs: names of the inputs.
        outputs: names of the outputs; a value that has the name itself is not copied.
    """
    output, placeholders = graph.output_node(), (node for node in graph.nodes if node.op == "placeholder")
    names: dict[fx.Node, str] = dict(zip(placeholders, inputs, strict=False))
    names |= {node: str(node.target) for node in graph.nodes if node.op == "get_attr"}
    several = isinstance(output.args[0], tuple)  # a list is one output, a sequence
    values: Any = output.args[0] if several else output.args
    if len(values) != len(outputs):
        return
    with graph.inserting_before(output):
        copied = graph.call_function(_copied_sources, (list(values), list(names), list(names.values()), list(outputs)))
        separate = [graph.call_function(operator.getitem, (copied, place)) for place in range(len(values))]
    output.args = (tuple(separate) if several else separate[0],)


def _copied_sources(values: Sequence[Any], sources: Sequence[Any], names: Sequence[str], outputs: Sequence[str]) -> Any:
    """Returns values with copies of those that are sources: a loop without iterations, or a branch, gives its input."""
    import torch

    known = {id(source): name for source, name in zip(sources, names, strict=True)}
    pairs = zip(values, outputs, strict=True)
    # setdefault: of a value with several names the first output has it
    return [torch.clone(value) if known.setdefault(id(value), name) != name else value for value, name in pairs]


@timed("writing")
def _write(model: ir.Model, path: Path, external: bool, runs: Sequence[Run], small: Mapping[str, Run]) -> str:
    """Writes into a folder beside `path`, compares, then renames; returns a description of the comparison."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem[:100]}.") as folder:
        written = Path(folder) / path.name
        data = f"{path.name}.data" if external else None
        try:
            ir.save(model, written, external_data=data)
            compared = compare_file(written, model, runs, small)
            for name in (data, path.name):
                if name is not None:
                    os.replace(Path(folder) / name, path.parent / name)
        except OSError as error:
            raise InputError(f"Cannot write {path}: {error.strerror or error}") from error
    return compared


def _sort_stable(self: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Writes aten::sort.stable, which the exporter lacks, as TopK of all elements; equal ones are ordered by index."""
    from onnxscript import opset18

    op: Any = opset18  # its types take no tensor of an unknown type
    size = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]))
    return op.TopK(self, size, axis=dim, largest=int(descending), sorted=1)


def _pixel_unshuffle(self: Any, downscale_factor: int) -> Any:
    """Writes the rearrangement of images without the exporter's reshapes of them to images and back."""
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops.core import aten_pixel_unshuffle

    if len(self.shape) != 4:
        return aten_pixel_unshuffle(self, downscale_factor)
    op: Any = opset18
    factor = op.Constant(value_ints=[downscale_factor])
    batch, channels, *image = (op.Shape(self, start=axis, end=axis + 1) for axis in range(4))
    height, width = (op.Div(size, factor) for size in image)
    split = op.Reshape(self, op.Concat(batch, channels, height, factor, width, factor, axis=0))
    joined = op.Mul(channels, op.Mul(factor, factor))
    return op.Reshape(op.Transpose(split, perm=[0, 1, 3, 5, 2, 4]), op.Concat(batch, joined, height, width, axis=0))


def _gist(error: Exception) -> str:
    """Returns the first line of the innermost error, and the next behind a colon: the exporter adds pages of advice."""
    cause = _innermost(error)
    lines = [first_line(cause), *(line.strip() for line in str(cause).splitlines()[1:] if line.strip())]
    return " ".join(lines[: 1 + lines[0].endswith(":")])


def _innermost(error: Exception) -> BaseException:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return cause
