"""Exports a OneFlow model to an ONNX file."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx import check as checks
from oneflow_bridge.to_onnx.arguments import Arguments, Dynamic, dynamic_axes
from oneflow_bridge.to_onnx.compiled_job import CompiledJob
from oneflow_bridge.to_onnx.lowering import lower
from oneflow_bridge.to_onnx.optimize import optimize as optimized
from oneflow_bridge.to_onnx.raising import raise_ops
from oneflow_bridge.to_onnx.trace import compile_job
from oneflow_bridge.to_onnx.write import write_model
from onnx2nn.errors import InputError, ModelFileError

logger = logging.getLogger(__name__)

OLDEST_OPSET = 9
DEFAULT_OPSET = 17
"""The lowest opset that has LayerNormalization, GridSample and scatter reductions; every runtime of today reads it."""


def export(
    model: Any,
    example_inputs: Any = (),
    path: str | os.PathLike[str] | None = None,
    *,
    opset: int | None = None,
    dynamic: Dynamic = None,
    external_data: bool | None = None,
    optimize: bool = True,
    continue_on_error: bool = False,
    check: bool = True,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    extra_opsets: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Writes a OneFlow model as an ONNX file.

    Args:
        model: an `oneflow.nn.Module` in eval mode, an `oneflow.nn.Graph` without optimizer, or a
            `oneflow_bridge.to_onnx.compiled_job.CompiledJob`.
        example_inputs: a tensor or array, a sequence of positional arguments, or a dict of keyword arguments.
        path: the file to write; None writes no file.
        opset: opset version, 9 to the newest of the installed onnx; None takes 17, or a later one where the model
            needs it.
        dynamic: `True` makes axis 0 of every input the dimension `batch`; a mapping of input name or position to
            {axis: dimension name} names other dimensions. The model is traced once more for each dimension.
        external_data: put weights into `<path>.data`; None does so where the model exceeds protobuf's 2 GB.
        optimize: raise decomposed layers to ONNX operators and simplify the graph.
        continue_on_error: write ops without an ONNX form under the domain `oneflow` instead of raising.
        check: run the written file in ONNX Runtime and compare every output with OneFlow's, with dynamic dimensions
            also at a size that was not traced.
        input_names: names of the inputs; by default those of the parameters of `forward` or `build`.
        output_names: names of the outputs.
        extra_opsets: domain → version of further operator sets that the file declares, for what a runtime puts in place
            of the operators of `continue_on_error`.

    Returns:
        The model; with external data its large tensors refer to the file.

    Raises:
        InputError: an argument does not fit the model, or the model cannot be traced.
        UnsupportedModelError: ops that have no ONNX form, all of them; nothing is written.
        VerificationError: ONNX Runtime's outputs differ; nothing is written.
        ModelFileError: the file cannot be written, or the job is inconsistent.
    """
    _check_options(opset, path, external_data)
    _check_opsets(extra_opsets or {})
    if isinstance(model, CompiledJob):
        compiled = _renamed(model, input_names, output_names)
    else:
        compiled = compile_job(
            model, example_inputs, dynamic=dynamic, input_names=input_names, output_names=output_names
        )
    lowered = to_onnx(compiled, opset=opset, optimize=optimize, continue_on_error=continue_on_error)
    lowered.opset_imports.update(extra_opsets or {})
    for problem in lowered.meta["unmapped"]:
        logger.warning("written as a custom operator: %s", problem)
    verify = _verification(model, example_inputs, dynamic, input_names, lowered) if check else None
    if not _writes():
        path = None
    return write_model(lowered, path, external_data=external_data, verify=verify)


def _writes() -> bool:
    """Among several processes of one job, only the first writes."""
    return bool(import_oneflow().env.get_rank() == 0)


def to_onnx(
    compiled: CompiledJob, *, opset: int | None = None, optimize: bool = True, continue_on_error: bool = False
) -> ir.Model:
    """The ONNX model of a job, in memory; its weights are read when they are written.

    Raises:
        UnsupportedModelError: ops that have no ONNX form, all of them.
    """
    graph = compiled.graph()
    if optimize:
        raise_ops(graph)
    model = lower(graph, opset or DEFAULT_OPSET, later=opset is None, continue_on_error=continue_on_error)
    return optimized(model) if optimize else model


def _check_options(opset: int | None, path: str | os.PathLike[str] | None, external_data: bool | None) -> None:
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not OLDEST_OPSET <= opset <= newest:
        raise InputError(f"opset {opset} cannot be written; choose {OLDEST_OPSET} to {newest}.")
    if path is None:
        if external_data:
            raise InputError("external_data=True needs a path; pass path=.")
        return
    folder = Path(path).resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or Path(path).is_dir():
        raise ModelFileError(
            f"{path} cannot be written: {folder} is not a writable folder, or the path itself is a folder."
        )


def _check_opsets(extra: Mapping[str, int]) -> None:
    for domain, version in extra.items():
        if domain in ("", "ai.onnx"):
            raise InputError("extra_opsets names the domain of ONNX itself; give its version as opset.")
        if version < 1:
            raise InputError(f"extra_opsets: version {version} of {domain!r} is below 1.")


def _renamed(
    compiled: CompiledJob, input_names: Sequence[str] | None, output_names: Sequence[str] | None
) -> CompiledJob:
    return dataclasses.replace(
        compiled,
        input_names=compiled.input_names if input_names is None else list(input_names),
        output_names=compiled.output_names if output_names is None else list(output_names),
    )


def _verification(
    model: Any, example_inputs: Any, dynamic: Dynamic, input_names: Sequence[str] | None, lowered: ir.Model
) -> Callable[[Path], None] | None:
    """Returns the comparison of the written file with OneFlow; None, with a warning, where one side cannot run."""
    reason = checks.why_not(model, lowered)
    if reason:
        logger.warning("not checked against ONNX Runtime: %s", reason)
        return None
    arguments = Arguments.of(model, example_inputs, input_names)
    axes = dynamic_axes(arguments, dynamic)
    arguments.names = [value.name or "" for value in lowered.graph.inputs]

    def verify(written: Path) -> None:
        report = checks.compare(model, arguments, axes, written)
        logger.info("checked against ONNX Runtime: %s", report)

    return verify
