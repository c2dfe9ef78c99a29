"""What `onnx2nn ops` prints, column by column, against schemas, imports and the runs that measured it."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import defs

import onnx2nn
from onnx2nn.optable.catalog import entries
from onnx2nn.optable.registry import TABLE
from tests import onnxnode
from tests.cases import all_cases


@pytest.mark.pinned("onnx")
def test_operators_are_all_that_files_may_hold() -> None:
    schemas: dict[tuple[str, str], list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        schemas.setdefault((schema.domain or "ai.onnx", schema.name), []).append(schema)
    table = {(entry.domain, entry.operator): entry for entry in entries()}
    current = {name for name, forms in schemas.items() if not max(forms, key=lambda s: s.since_version).deprecated}
    assert current <= set(table)
    for name, entry in table.items():
        if name in schemas:
            assert list(entry.revisions) == sorted(schema.since_version for schema in schemas[name])
        else:
            assert entry.revisions == (1,) and entry.domain in (
                "ai.onnx",
                "com.microsoft",
                "com.microsoft.nchwc",
                "org.pytorch.aten",
            )
    assert not [name for name, entry in table.items() if not entry.types]
    own = {(row.domain or "ai.onnx", row.operator) for row in TABLE}
    assert {name for name, entry in table.items() if entry.built == "expanded"} == set(table) - own


@pytest.mark.pinned("onnx")
@pytest.mark.parametrize(
    ("domain", "operator", "types"),
    [
        ("ai.onnx", "Where", "float int uint bool string complex"),  # its first input is a condition
        ("ai.onnx", "ArgMax", "float int uint"),  # its output is an index
        ("ai.onnx", "SequenceAt", "float int uint bool string complex sequence"),
        ("ai.onnx", "DequantizeLinear", "float8 float4 float6 int uint int4"),
        ("ai.onnx", "Affine", "float"),
        ("com.microsoft", "QLinearConcat", "int uint"),
        ("com.microsoft", "FusedGemm", "float int uint"),
        ("org.pytorch.aten", "ATen", "PyTorch's"),
    ],
)
def test_types(domain: str, operator: str, types: str) -> None:
    (entry,) = (entry for entry in entries() if (entry.domain, entry.operator) == (domain, operator))
    assert " ".join(entry.types) == types


def test_how_operators_are_built() -> None:
    """Of every seventh operator that has a case whose weights are constants, what a case becomes."""
    table = {("" if e.domain == "ai.onnx" else e.domain, e.operator): e for e in entries()}
    chosen = {(case.domain, case.operator): case for case in all_cases() if case.constant and case.inputs}
    tried = 0
    for name, case in list(chosen.items())[::7]:
        if not (revisions := onnxnode.revisions(case)):
            continue  # newer than the installed onnx
        model, _ = onnxnode.model_of(case, revisions[-1])
        module = onnx2nn.load(model)
        layers = {type(m).__name__ for m in module.modules() if type(m).__module__.startswith("torch.nn.modules")}
        assert layers - {"Module"} <= set(table[name].layers)
        if table[name].built == "opaque":
            assert "onnx2nn_functional" in module.code
        tried += 1
    assert tried > 10
