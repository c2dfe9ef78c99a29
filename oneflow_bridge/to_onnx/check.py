"""Compares an exported file with the OneFlow model it came from."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from oneflow_bridge.runtime import error_text, import_oneflow
from oneflow_bridge.to_onnx.abort_guards import refusing_aborts
from oneflow_bridge.to_onnx.arguments import Arguments, leaves
from oneflow_bridge.to_onnx.output_differences import OutputDifference, difference
from oneflow_bridge.to_onnx.rounding import judged, run_doubled
from oneflow_bridge.to_onnx.tensor_values import NO_CPU_KERNEL
from onnx2nn.errors import InputError, MissingDependencyError, Onnx2nnError, VerificationError
from onnx2nn.ground.pass_times import timed
from onnx2nn.optable.registry import TABLE


def why_not(model: Any, lowered: ir.Model) -> str | None:
    """Returns the reason why an export cannot be compared with its model, None where it can."""
    flow = import_oneflow()
    if not isinstance(model, (flow.nn.Module, flow.nn.Graph)):
        return "a saved job has no model to run."
    if lowered.meta.get("unmapped"):
        return "the file holds ops without an ONNX form."
    rows = {node.op_type: TABLE.newest(node.domain, node.op_type) for node in lowered.graph}
    drawn = sorted(name for name, row in rows.items() if row is not None and row.random)
    if drawn:
        return f"the model draws random numbers ({', '.join(drawn)})."
    fused = sorted(set(lowered.meta.get("oneflow_ops", ())) & NO_CPU_KERNEL)
    if fused and not flow.cuda.is_available():
        return f"OneFlow has no CPU kernel for {', '.join(fused)}."
    return None


@timed("verification")
def compare(
    model: Any, arguments: Arguments, axes: Mapping[tuple[int, int], str], path: Path
) -> list[OutputDifference]:
    """Runs the file and the model on the example, and at other sizes of its dynamic dimensions.

    Args:
        model: an `oneflow.nn.Module` or `Graph`.
        arguments: the example inputs.
        axes: (position of the input, axis) → dimension name; sizes that were never traced are tried.
        path: the ONNX file.

    Returns:
        Every output's difference, for each size.

    Raises:
        VerificationError: an output differs by more than its tolerance, and rounding does not explain it.
    """
    runner = _runner(path)
    found = []
    for resized in _sizes(arguments, axes):
        expected = [tensor.numpy() for tensor in leaves(run_model(model, resized))]
        feeds = {n: np.ascontiguousarray(t.numpy()) for n, t in zip(resized.names, resized.leaves(), strict=True)}
        names, actual = runner(feeds)
        measured = [difference(*columns) for columns in zip(names, expected, actual, strict=True)]
        if not all(output.ok for output in measured):
            doubled = functools.partial(run_doubled, model, resized, run_model)
            measured = judged(measured, path, feeds, (expected, actual), doubled)
        found += measured
    wrong = [d for d in found if not d.ok]
    if wrong:
        raise VerificationError(
            f"ONNX Runtime and OneFlow differ in {len(wrong)} of {len(found)} outputs; nothing was written. "
            f"{'; '.join(map(str, wrong[:5]))}. Export with check=False to look at the file."
        )
    return found


def _sizes(arguments: Arguments, axes: Mapping[tuple[int, int], str]) -> list[Arguments]:
    """Returns the example, and one larger by 2 in each dynamic dimension: a size that was not traced.

    A size of 1 was traced as 2. It shows remainders n % k, which may be the same in the traces, for k = 2 as well where
    they are at n and n + 1.
    """
    if not axes:
        return [arguments]
    tensors = arguments.leaves()
    return [arguments, arguments.resized({key: max(tensors[key[0]].shape[key[1]], 2) + 2 for key in axes})]


def run_model(model: Any, arguments: Arguments) -> Any:
    """The model's outputs, computed eagerly; a graph's `build` is called on its modules, without a compile.

    Raises:
        InputError: OneFlow cannot run the model.
    """
    flow = import_oneflow()
    try:
        with flow.no_grad(), refusing_aborts():
            if isinstance(model, flow.nn.Graph):
                return type(model).build(_EagerGraph(model), *arguments.args, **arguments.kwargs)
            return model(*arguments.args, **arguments.kwargs)
    except Onnx2nnError:
        raise
    except Exception as error:  # OneFlow and ONNX Runtime raise errors of many classes
        raise InputError(
            f"OneFlow traces the model but cannot run it, so the export cannot be checked: {error_text(error)}. "
            "Export with check=False to write it unchecked."
        ) from error


class _EagerGraph:
    """Stands for a graph when its `build` is called eagerly: its modules in place of their graph proxies."""

    def __init__(self, graph: Any):
        self._graph = graph

    def __getattr__(self, name: str) -> Any:
        graph = self._graph
        if name in graph._blocks:
            return graph._blocks[name].to(import_oneflow().nn.Module)
        if name in graph.__dict__:
            return graph.__dict__[name]
        attribute = getattr(type(graph), name)
        return functools.partial(attribute, self) if callable(attribute) else attribute


def _runner(path: Path):  # type: ignore[no-untyped-def]
    """A function from inputs to output names and arrays: ONNX Runtime, or onnx.reference for kernels it lacks."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            "check=True needs ONNX Runtime: pip install onnxruntime (or pass check=False)."
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # OneFlow and ONNX Runtime raise errors of many classes
        if "NOT_IMPLEMENTED" in str(error) or "Could not find an implementation" in str(error):
            return _reference(path)
        raise VerificationError(f"ONNX Runtime does not load the exported model: {error}") from error
    names = [output.name for output in session.get_outputs()]

    def run(feeds: dict[str, np.ndarray]) -> tuple[list[str], list[np.ndarray]]:
        try:
            return names, session.run(names, feeds)
        except Exception as error:  # OneFlow and ONNX Runtime raise errors of many classes
            shapes = {name: list(array.shape) for name, array in feeds.items()}
            raise VerificationError(f"ONNX Runtime fails on the exported model with {shapes}: {error}") from error

    return run


def run_file(path: Path, feeds: Mapping[str, np.ndarray]) -> tuple[list[str], list[np.ndarray]]:
    """Output names and values of an ONNX file, by ONNX Runtime, or onnx.reference for kernels it lacks.

    Raises:
        VerificationError: the file does not load or does not run.
    """
    names, values = _runner(path)(dict(feeds))
    return list(names), list(values)


def _reference(path: Path):  # type: ignore[no-untyped-def]
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load(str(path)))
    return lambda feeds: (evaluator.output_names, evaluator.run(None, feeds))


__all__ = ["OutputDifference", "compare", "difference", "run_file", "run_model", "why_not"]
