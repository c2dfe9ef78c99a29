"""The op table against ONNX's schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import defs, helper

from onnx2nn.table import HINTS, REQUIRED, TABLE, Row, load_rows

STANDARD = {"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"}
REVIEWED = Path(__file__).with_name("reviewed_revisions.txt")
ROWS = [row for row in load_rows() if row.domain in STANDARD]


def history(row: Row) -> list[defs.OpSchema]:
    """Returns the schemas that `row` serves, oldest first."""
    rows = TABLE.revisions(row.domain, row.operator)
    later = [other.since for other in rows if other.since > row.since]
    schemas = [s for s in defs.get_all_schemas_with_history() if (s.domain, s.name) == (row.domain, row.operator)]
    served = [s for s in schemas if row.since <= s.since_version < min(later, default=1 << 30)]
    served = [s for s in served if not s.deprecated or s.since_version == row.since]
    return sorted(served, key=lambda s: s.since_version)


def default_of(attribute: Any) -> Any:
    if attribute.required:
        return REQUIRED
    value = helper.get_attribute_value(attribute.default_value) if attribute.default_value.name else None
    if isinstance(value, bytes):
        return value.decode()
    return float(str(np.float32(value))) if isinstance(value, float) else value


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_signature_is_the_schema(row: Row) -> None:
    schemas = history(row)
    apart = HINTS | set(row.inputs)  # Split-1 takes its lengths as an input or as an attribute
    if str(row) in EXPERIMENTAL:
        assert not schemas, "it has a schema after all"
        return
    assert schemas and schemas[0].since_version == row.since, f"no revision {row.since} of {row.operator}"
    for schema in schemas:
        assert list(row.inputs) == [p.name for p in schema.inputs], f"inputs at {schema.since_version}"
        optional = [p.name for p in schema.inputs if p.option == defs.OpSchema.FormalParameterOption.Optional]
        assert [n for n, d in row.inputs.items() if d is not REQUIRED] == optional, "optional inputs"
        expected = {name: default_of(attribute) for name, attribute in schema.attributes.items() if name not in apart}
        assert set(expected) <= set(row.attributes), f"attributes at {schema.since_version}"
        for name, value in expected.items():
            own = row.attributes[name]
            assert own == value or (own is None and value in ([], None)) or np.float32(own) == np.float32(value), name
    everything = {name for schema in schemas for name in schema.attributes} - apart
    assert set(row.attributes) == everything, "attributes that no revision has"


EXPERIMENTAL = {
    "Affine-1", "Crop-1", "ImageScaler-1", "ParametricSoftplus-1", "ScaledTanh-1", "GRUUnit-1", "GivenTensorFill-1",
    "DynamicSlice-1", "ATen-1", "ThresholdedRelu-1",
}  # fmt: skip
"""Operators of the experimental days: real files hold them, onnx has no schema any more."""


def test_every_revision_was_reviewed() -> None:
    """A revision that the installed onnx brings and nobody looked at fails here; then: review it and add its line."""
    reviewed = set(REVIEWED.read_text().split("\n"))
    new = [
        f"{s.domain or 'ai.onnx'} {s.name} {s.since_version}"
        for s in defs.get_all_schemas_with_history()
        if TABLE.find(s.domain, s.name, s.since_version) and not s.deprecated
    ]
    assert not sorted(set(new) - reviewed), "revisions that no row acknowledges"
