"""onnx2nn/optable/measured.json: what runs found about operators, for `onnx2nn ops`, which has no suite and no OneFlow.

Each section is written by the script that makes the run: `conformance`, `exported`, `layers` and `types` by
`scripts/conformance.py --write`, `oneflow_import` by the same with `--framework oneflow`, `oneflow_export` by
`scripts/oneflow_tables.py`.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, defs, helper

if TYPE_CHECKING:
    from scripts.conformance import Result
    from tests.cases import Case

PATH = Path(__file__).resolve().parent.parent / "onnx2nn" / "optable" / "measured.json"


def update(section: str, found: Mapping[str, Any]) -> None:
    """Replaces a section of the file."""
    sections = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    sections[section] = found
    lines = []
    for name, operators in sorted(sections.items()):
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(operators.items()))
        lines.append(f" {json.dumps(name)}: {{\n{rows}\n }}")
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def conformance(results: Sequence[Result]) -> dict[str, list[int]]:
    """Returns operator → its cases in ONNX's suite: all, those that pass, those asked of torch.export, that pass it.

    Cases without an operator, and those whose stored values are wrong, are left out.
    """
    found: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0, 0])
    for result in results:
        if result.operator and result.verdict != "disputed":
            asked = result.exported in ("passed", "failed")
            facts = (True, result.verdict == "passed", asked, result.exported == "passed")
            found[result.operator] = [count + fact for count, fact in zip(found[result.operator], facts, strict=True)]
    return dict(found)


def exported(cases: Iterable[Case], known: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Returns operator, its domain in front → how many of its cases in the case lists pass torch.export, of how many.

    Args:
        cases: of the case lists; each is tried in the operator's newest form.
        known: what `conformance` returns; operators of which ONNX's suite says enough are left out.
    """
    from scripts.conformance import Recorder, export_again, shapes_depend_on_data
    from tests import onnxnode

    found: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for case in cases:
        revisions = onnxnode.revisions(case)
        if not revisions or (onnxnode.has_schema(case) and known.get(case.operator, (0, 0, 0))[2]):
            continue
        try:
            model, feeds = onnxnode.model_of(case, revisions[-1])
        except onnxnode.NotExpressible:
            continue
        if shapes_depend_on_data(model):
            continue
        recorder = Recorder("torch").prepare(model)
        outputs = recorder.run(feeds)
        if not all(isinstance(output, np.ndarray) and output.dtype != object for output in outputs):
            continue  # strings, sequences and maps are no tensors
        counts = found[f"{case.domain}.{case.operator}".lstrip(".")]
        counts[0] += export_again(recorder)[0] == "passed"
        counts[1] += 1
    return dict(found)


def oneflow_export(ops: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Returns ONNX operator → the OneFlow ops that are written with it, of OneFlow op → ONNX operators."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for op in sorted(ops):
        for operator in ops[op]:
            found[operator].append(op)
    return dict(found)


def layers(cases: Iterable[Case]) -> dict[str, list[str]]:
    """Returns operator, its domain in front → the `torch.nn` layers that it becomes in the case lists' cases."""
    import torch

    import onnx2nn
    from tests import onnxnode

    found: dict[str, set[str]] = collections.defaultdict(set)
    for case in cases:
        revisions = onnxnode.revisions(case)
        if not case.constant or not revisions:
            continue
        try:
            model, _ = onnxnode.model_of(case, revisions[-1])
        except onnxnode.NotExpressible:
            continue
        kinds = {type(module) for module in onnx2nn.load(model).modules()}
        names = {kind.__name__ for kind in kinds if kind.__module__.startswith("torch.nn.modules")}
        names -= {torch.nn.Module.__name__}
        if names:
            found[f"{case.domain}.{case.operator}".lstrip(".")] |= names
    return {operator: sorted(names) for operator, names in found.items()}


def types() -> dict[str, list[str]]:
    """Returns operator, its domain in front → its types, see `catalog.kinds`; of operators that onnx has no schema of.

    The schemas are ONNX Runtime's, of its own operators and of the experimental ones of ONNX's beginnings. An operator
    without one has the types of what its cases in the case lists expect.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    from onnx2nn.optable.catalog import kinds
    from onnx2nn.optable.registry import load_rows
    from tests.cases import all_cases

    rows = [row for row in load_rows() if not row.any_attribute and not defs.has(row.operator, row.domain)]
    names = {(row.domain, row.operator) for row in rows}
    schemas = [schema for schema in runtime.get_all_operator_schema() if (schema.domain, schema.name) in names]
    found = {(s.domain, s.name): list(kinds(s)) for s in schemas if not s.deprecated}
    without: dict[tuple[str, str], list[Case]] = collections.defaultdict(list)
    for case in all_cases():
        if (case.domain, case.operator) in names - {(s.domain, s.name) for s in schemas}:
            without[case.domain, case.operator].append(case)
    found |= {name: list(kinds(_schema_of(cases))) for name, cases in without.items()}
    return {f"{domain}.{operator}".lstrip("."): types for (domain, operator), types in found.items()}


def _schema_of(cases: Iterable[Case]) -> Any:
    """Returns as much of a schema as `catalog.kinds` reads: the types of what the cases expect."""
    elements = {helper.np_dtype_to_tensor_dtype(case.expected[0].dtype) for case in cases if case.expected}
    types = [f"tensor({TensorProto.DataType.Name(element).lower()})" for element in elements]
    return SimpleNamespace(inputs=[], outputs=[SimpleNamespace(types=types)])
