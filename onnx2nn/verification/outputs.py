"""Compares the outputs of an imported module with ONNX Runtime's, on the same seeded inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import onnx_ir as ir

from onnx2nn.errors import InputError, VerificationError, first_line
from onnx2nn.ground.limits import Account, Limits
from onnx2nn.importing import inputs as model_inputs
from onnx2nn.loading import load
from onnx2nn.reading import reader
from onnx2nn.verification.example_runs import example_feeds, fixed_lists
from onnx2nn.verification.float_activations import compared_model
from onnx2nn.verification.module_runs import run_module
from onnx2nn.verification.node_by_node import compare_nodes
from onnx2nn.verification.oracle import Oracle, Stored, stored
from onnx2nn.verification.probe import threads_of
from onnx2nn.verification.value_comparison import EPSILON, OutputComparison, compare


@dataclass
class Verification:
    """The comparisons of one or several runs.

    Attributes:
        oracle: name of the oracle, for example `"ONNX Runtime 1.23.0"`.
        outputs: one comparison an output and run.
        notes: runs that were left out and outputs that were compared with another run's, and why.
    """

    oracle: str
    outputs: list[OutputComparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every output of every run agrees, or is within the model's own noise."""
        return bool(self.outputs) and all(output.ok for output in self.outputs)

    @property
    def verdict(self) -> str:
        """The closing line: `OK` with the criterion that was met, or `MISMATCH` with the outputs that differ."""
        if not self.outputs:
            return "MISMATCH: nothing was compared"
        if self.ok and not all(output.agrees for output in self.outputs):
            worst = max((o for o in self.outputs if not o.agrees), key=lambda output: output.max_difference)
            return (
                f"OK within the model's own noise: {worst.name!r} differs by {worst.max_difference:.3g}, "
                f"values moved by {worst.noise_ulps} ULP change it by {worst.noise:.3g}"
            )
        if self.ok and all(output.below_mse for output in self.outputs):
            return "OK mse < 1e-7"
        if self.ok:
            short = sorted({output.computed_in for output in self.outputs} - {""})
            types = f"{' and '.join(short)}, in which values are computed" if short else "the output's type"
            return f"OK mse < 1e-7, or equal up to the rounding of {types} where its values are large"
        wrong = sorted({output.name for output in self.outputs if not output.ok})
        return f"MISMATCH in {len(wrong)} of {len({o.name for o in self.outputs})} outputs: {', '.join(wrong)}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.outputs), *self.notes, self.verdict])


def verify(
    source: Stored | BinaryIO,
    module: Callable[..., Any] | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    runs: int = 1,
    seed: int = 0,
    follow_links: bool = False,
    limits: Limits | None = None,
) -> Verification:
    """Compares an imported module with ONNX Runtime.

    Where the batch is dynamic and the caller gives no shape, batch sizes 1 and 2 are both compared.

    Args:
        source: the ONNX file: a path, a URL, bytes, a ModelProto or an open binary file.
        module: the module of `onnx2nn.load` for it; loaded here if left out.
        input_shapes: input name → sizes, for inputs with dynamic dimensions.
        inputs: input name → array, used instead of generated ones.
        runs: number of comparisons on different random inputs.
        seed: of the first run's inputs; run `i` uses `seed + i`.
        follow_links: as for `onnx2nn.load`; ONNX Runtime has a rule of its own for links.
        limits: as for `load`.

    Returns:
        The comparison of every output; `.ok` says whether all agree. Outputs that differ are judged node by node: if
        every node agrees within its own noise, they may differ by the model's own noise, which is then reported, or by
        what ONNX Runtime's optimisations change, which `.notes` has.

    Raises:
        InputError: the shapes or inputs given do not fit the model, or `runs` is below 1.
        MissingDependencyError: onnxruntime is not installed.
        ModelFileError: the source is not a readable model.
        UnsupportedModelError: `module` was left out and the model cannot be imported.
        VerificationError: no oracle can run the model.
    """
    source = stored(source, limits)
    with reader.opened(source, follow_links=follow_links, account=Account(limits)) as model:
        specs, short = model_inputs.input_specs(model), short_floats(model)
        threads = threads_of((node.domain, node.op_type) for node in model.graph.all_nodes())
    if module is None:
        module = load(source, input_shapes=fixed_lists(input_shapes), follow_links=follow_links, limits=limits)
    model_file, folder = compared_model(source, module)
    oracle = Oracle(model_file, folder=folder, threads=threads)
    result = Verification(oracle.name)
    for feeds, optional in example_feeds(specs, input_shapes, inputs, runs, seed):
        try:
            expected = oracle.run(feeds)
        except VerificationError as error:
            if not optional:
                raise
            result.notes.append(f"batch size 2 left out: {error}")
            continue
        found = run_module(module, list(feeds.values()))
        adapt = getattr(type(module), "outputs_as_in_file", None)  # a vectorised module adds the batch to some outputs
        found = found if adapt is None else adapt(module, found)
        compare_found = partial(compare, oracle.output_names, found, short=short)
        compared = compare_found(expected)
        if not all(output.ok for output in compared):
            compared = _judged(model_file, folder, module, feeds, expected, compare_found, result.notes)
        result.outputs += compared
    return result


def _judged(
    source: Stored,
    folder: str | None,
    module: Any,
    feeds: Mapping[str, np.ndarray],
    expected: list[Any],
    compare_found: Callable[[list[Any]], list[OutputComparison]],
    notes: list[str],
) -> list[OutputComparison]:
    """Returns the comparisons, within the model's own noise where every node of the module agrees.

    Where that does not explain a difference, and the output is what ONNX Runtime computes without optimisations, they
    are the difference: one of them stores the weights of a ConvTranspose between DequantizeLinear and QuantizeLinear as
    integers, which the file does not; all leave out the roundings between nodes of half precision.
    """
    compared = compare_found(expected)
    try:
        nodes, judge = compare_nodes(source, module, feeds, folder=folder)
    except (InputError, VerificationError) as error:  # a function, a pickled module; the difference stands
        notes.append(f"the model's own noise was not measured: {first_line(error)}")
        return compared
    if not nodes.ok:
        notes.append(f"node by node: {nodes.first}")
        return compared
    if judge.lockstep.drawn:  # each run draws other numbers; there, both runs took the oracle's
        notes.extend(note for note in nodes.notes if note not in notes)
        return nodes.outputs
    judged = judge.judged_outputs(compared, expected)
    if all(output.ok for output in judged):
        return judged
    literal = judge.judged_outputs(compare_found(judge.lockstep.expected), judge.lockstep.expected)
    unoptimised = {output.name: output for output in literal}
    for place, output in enumerate(judged):
        if not output.ok and output.name in unoptimised and unoptimised[output.name].ok:
            judged[place] = unoptimised[output.name]
            notes.append(_changed(output, bool(judge.probe.halves)))
    return judged


def _changed(output: OutputComparison, has_halves: bool) -> str:
    apart = f"{output.max_difference:.3g}" if np.isfinite(output.max_difference) else "infinity or NaN"
    if has_halves:
        return (
            f"ONNX Runtime keeps float32 between nodes whose results are float16, which changes output {output.name!r} "
            f"by {apart}: it was compared with the result with each of them rounded"
        )
    return (
        f"ONNX Runtime's own optimisations change output {output.name!r} by {apart}: it was compared with the result "
        "without them"
    )


def short_floats(model: ir.Model) -> dict[str, str]:
    """Returns for outputs that are computed from short floats the shortest of these types.

    Half precision models often keep inputs and outputs in float32. Weights that are stored in half precision but
    become float32 before use do not count.
    """
    short = {value: kind for value in model.graph.inputs if (kind := _short(value.dtype))}
    varying = set(model.graph.inputs)
    for node in model.graph:
        if varying.isdisjoint(node.inputs) and node.inputs:
            continue
        varying.update(node.outputs)
        cast = node.attributes["to"].as_int() if node.op_type == "Cast" and "to" in node.attributes else None
        kinds = [short.get(value, "") for value in node.inputs if value is not None]
        if cast is not None:
            kinds.append(_short(ir.DataType(cast)))
        else:
            kinds += [_short(value.dtype) for value in node.inputs if value is not None]
        coarsest = max(kinds, key=lambda kind: EPSILON.get(kind, 0.0), default="")
        short.update((value, coarsest) for value in node.outputs if coarsest)
    return {value.name or "": short[value] for value in model.graph.outputs if value in short}


def _short(kind: ir.DataType | None) -> str:
    name = "" if kind is None else kind.name.lower()
    return name if name in ("float16", "bfloat16") else ""
