"""Judges whether ONNX Runtime and OneFlow differ by rounding, where they differ by more than the tolerance.

Two things must be found. In float64, where rounding hides nothing, the file computes what the model computes. And in
float32 the difference is no larger than the noise: the change of ONNX Runtime's own outputs where the inputs and
weights of the file are moved by units in the last place (ULP).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from oneflow_bridge.runtime import error_text, import_oneflow
from oneflow_bridge.to_onnx.arguments import Arguments, leaves
from oneflow_bridge.to_onnx.double_precision import run_widened
from oneflow_bridge.to_onnx.output_differences import TOLERANCE, OutputDifference, difference
from onnx2nn.errors import Onnx2nnError
from onnx2nn.verification.noise import SMALLEST_WEIGHT, growing_changes, moved_feeds
from onnx2nn.verification.oracle import Oracle
from onnx2nn.verification.value_comparison import differences


def judged(
    found: Sequence[OutputDifference],
    path: Path,
    feeds: Mapping[str, np.ndarray],
    outputs: tuple[Sequence[Any], Sequence[Any]],
    doubled: Callable[[], Sequence[np.ndarray]],
) -> list[OutputDifference]:
    """Returns the differences of one run with the noise of those over the tolerance.

    Args:
        found: the differences, of which some are over their tolerance.
        path: the ONNX file.
        feeds: its inputs.
        outputs: OneFlow's and ONNX Runtime's outputs.
        doubled: runs the OneFlow model in float64.
    """
    names = [output.name for output in found]
    model = onnx.load(str(path))
    problem = _float64_problem(names, model, feeds, doubled)
    apart = differences(names, outputs[1], outputs[0])
    result = list(found)
    oracle, movable = _with_movable_weights(model)
    base = {**feeds, **movable}

    def run(ulps: int, trial: int) -> Sequence[Any] | None:
        try:
            return oracle.run(moved_feeds(base, ulps, trial) if ulps else base)
        except Onnx2nnError:  # a moved input may decide a shape that the model refuses
            return None

    for changes in growing_changes(run, names):
        for index, output in enumerate(result):
            if output.ok:
                continue
            explained = changes.explain(output.name, apart[output.name], output.tolerance * output.scale / 10)
            result[index] = replace(
                output,
                noise=changes.noise(output.name),
                noise_ulps=changes.ulps,
                within_noise=explained and not problem,
                reason=problem,
            )
        if all(output.ok or output.reason for output in result):
            break
    return result


def _float64_problem(
    names: Sequence[str],
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    doubled: Callable[[], Sequence[np.ndarray]],
) -> str:
    """Returns why the file is not known to be right in float64, "" where it is."""
    try:
        expected, actual = doubled(), run_widened(model, feeds)
    except Exception as error:  # OneFlow and onnx.reference raise errors of many classes
        return f"a comparison in float64 is not possible: {error_text(error)}"
    for name, ours, theirs in zip(names, actual, expected, strict=True):
        if np.asarray(ours).dtype != theirs.dtype:
            return f"in float64 {name} has other types: {np.asarray(ours).dtype} and {theirs.dtype}"
        found = difference(name, theirs, np.asarray(ours))
        if not found.relative <= min(found.tolerance, TOLERANCE):
            return f"in float64 {name} differs by {found.difference:.3g} of {found.scale:.3g}"
    return ""


def run_doubled(model: Any, arguments: Arguments, run: Callable[[Any, Arguments], Any]) -> list[np.ndarray]:
    """Returns the outputs of a OneFlow model whose weights and inputs are float64.

    Args:
        model: an `oneflow.nn.Module` or `Graph`; it is copied.
        arguments: the inputs in float32.
        run: runs a model on arguments.
    """
    flow = import_oneflow()
    if isinstance(model, flow.nn.Graph):
        raise NotImplementedError("a graph cannot be copied; export the module that it runs.")
    twin = copy.deepcopy(model).double()
    return [tensor.numpy() for tensor in leaves(run(twin, arguments.doubled()))]


def _with_movable_weights(model: onnx.ModelProto) -> tuple[Oracle, dict[str, np.ndarray]]:
    """Returns an oracle whose float weights are inputs too, and these weights."""
    given = {value.name for value in model.graph.input}
    weights = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.name not in given and tensor.data_type == onnx.TensorProto.FLOAT
    }
    weights = {name: array for name, array in weights.items() if array.size >= SMALLEST_WEIGHT}
    for name, array in weights.items():
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape))
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in weights]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return Oracle(model), weights


__all__ = ["judged", "run_doubled"]
