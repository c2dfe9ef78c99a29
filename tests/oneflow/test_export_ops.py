"""Every op of `export_cases`, at every opset: the file gives OneFlow's numbers, or the export says what it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from oneflow_bridge.to_onnx import check
from oneflow_bridge.to_onnx.arguments import leaves
from oneflow_bridge.to_onnx.compiled_job import CompiledJob
from oneflow_bridge.to_onnx.exporter import OLDEST_OPSET, to_onnx
from oneflow_bridge.to_onnx.lowering.registry import HANDLERS, ROWS, load_families
from oneflow_bridge.to_onnx.trace import compile_job
from oneflow_bridge.to_onnx.write import write_model
from onnx2nn.errors import UnsupportedModelError
from tests.oneflow.export_cases import CASES, Case
from tests.oneflow.harness import module_of

OPSETS = range(OLDEST_OPSET, onnx.defs.onnx_opset_version() + 1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    module, reference, inputs = module_of(case)
    compiled = compile_job(module, inputs)
    assert case.op in _ops(compiled), "the call no longer makes the op that it is here for"
    expected = None
    if case.reference != "None":
        expected = [tensor.numpy() for tensor in leaves((reference or module)(**inputs))]
    record_property("op", case.op)
    record_property("judge", "formula" if reference else "nobody" if expected is None else "OneFlow")
    written = []
    for opset in OPSETS:
        path = tmp_path / f"{opset}.onnx"
        try:
            lowered = to_onnx(compiled, opset=opset)
        except UnsupportedModelError as error:
            assert opset < 20, error
            assert all("exists from opset" in problem.reason for problem in error.problems), error
            continue
        onnx.checker.check_model(write_model(lowered, path), full_check=True)
        written.append(opset)
        if expected is not None:
            _compare(path, inputs, expected, opset)
        record_property(f"operators {opset}", " ".join(sorted({node.op_type for node in lowered.graph})))
    assert written


def _ops(compiled: CompiledJob) -> set[str]:
    return {op.user_conf.op_type_name for op in compiled.jobs[0].net.op}


def _compare(path: Path, inputs: dict, expected: list, opset: int) -> None:
    names, actual = check.run_file(path, {name: tensor.numpy() for name, tensor in inputs.items()})
    for name, wanted, got in zip(names, expected, actual, strict=True):
        difference = check.difference(name, wanted, got)
        assert difference.relative <= difference.tolerance, f"opset {opset}: {difference}"


def test_breadth() -> None:
    """At least 200 op types are written, and the cases reach them."""
    load_families()
    reached = {case.op for case in CASES}
    assert len(reached & (ROWS.keys() | HANDLERS.keys())) >= 200
