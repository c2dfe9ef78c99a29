"""The rows of ONNX Runtime's own operators against the schemas that it carries."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import defs, helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from onnx2nn.optable.registry import load_rows
from onnx2nn.optable.row import REQUIRED, Row

OLDER = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 31)
"""Python 3.10 gets no newer one than 1.23; the rows have what later ones added, inputs at the end and attributes."""

SCHEMAS = {(s.domain, s.name): s for s in runtime.get_all_operator_schema() if s.since_version == 1}
OWN = [row for row in load_rows() if row.domain == "com.microsoft"]
INSIDE_ONNX = [
    row
    for row in load_rows()
    if row.domain == "" and row.since == 1 and "contrib" in getattr(SCHEMAS.get(("", row.operator)), "file", "")
]


def default_of(attribute: Any) -> Any:
    if attribute.required:
        return REQUIRED
    proto = onnx.AttributeProto.FromString(attribute._default_value)
    value = helper.get_attribute_value(proto) if proto.name else None
    if isinstance(value, bytes):
        return value.decode()
    return float(str(np.float32(value))) if isinstance(value, float) else value


@pytest.mark.parametrize("row", [*OWN, *INSIDE_ONNX], ids=str)
def test_signature_is_the_schema(row: Row) -> None:
    schema = SCHEMAS.get((row.domain, row.operator))
    assert schema is not None, "this ONNX Runtime has no such operator"
    assert row.since == 1
    known = dict(list(row.inputs.items())[: len(schema.inputs)] if OLDER else row.inputs)
    assert list(known) == [p.name for p in schema.inputs]
    optional = [p.name for p in schema.inputs if p.option == runtime.schemadef.OpSchema.FormalParameterOption.Optional]
    assert [name for name, default in known.items() if default is not REQUIRED] == optional
    attributes = {n: default for n, default in row.attributes.items() if not OLDER or n in schema.attributes}
    assert attributes == {name: default_of(attribute) for name, attribute in schema.attributes.items()}


def test_there_are_rows() -> None:
    assert len(OWN) > 30
    assert not any(defs.has(row.operator, row.domain) for row in OWN)
