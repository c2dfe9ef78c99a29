"""The rows of ONNX Runtime's own operators against the schemas that it carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import defs, helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.row import REQUIRED, Row

INSTALLED, REVIEWED = tuple(map(int, onnxruntime.__version__.split(".")[:2])), (1, 32)
"""The rows have what the reviewed release takes. Python 3.10 gets no newer one than 1.23, which lacks some of it. What
a newer one adds, inputs at the end and attributes that may be left out, is reported when the run ends."""

SCHEMAS = {(s.domain, s.name): s for s in runtime.get_all_operator_schema() if s.since_version == 1}
OWN = [row for row in TABLE if row.domain in ("com.microsoft", "com.microsoft.nchwc")]
INSIDE_ONNX = [
    row
    for row in TABLE
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
def test_signature_is_the_schema(row: Row, record_property: Callable[[str, object], None]) -> None:
    schema = SCHEMAS.get((row.domain, row.operator))
    if schema is None and INSTALLED < REVIEWED:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} has no such operator yet")
    assert schema is not None, "this ONNX Runtime has no such operator"
    assert row.since == 1
    inputs, attributes = (
        inputs_of(schema),
        {name: default_of(attribute) for name, attribute in schema.attributes.items()},
    )
    known_inputs, known_attributes = list(row.inputs.items()), dict(row.attributes)
    if INSTALLED < REVIEWED:
        known_inputs = known_inputs[: len(inputs)]
        inputs = [
            (name, required and default is REQUIRED)  # what must be there may be left out since
            for (name, required), (_, default) in zip(inputs, known_inputs, strict=False)
        ]
        known_attributes = {name: default for name, default in known_attributes.items() if name in attributes}
    if INSTALLED > REVIEWED:
        added = [name for name, required in inputs[len(known_inputs) :] if not required]
        added += [
            name for name, default in attributes.items() if name not in row.attributes and default is not REQUIRED
        ]
        if added:
            record_property("newer", f"{row.operator} ({', '.join(added)})")
        inputs = [item for item in inputs if item[0] not in added]
        attributes = {name: default for name, default in attributes.items() if name not in added}
    assert [(name, default is REQUIRED) for name, default in known_inputs] == inputs
    assert known_attributes == attributes


def inputs_of(schema: Any) -> list[tuple[str, bool]]:
    """Name of each input, and whether it has to be there."""
    optional = runtime.schemadef.OpSchema.FormalParameterOption.Optional
    return [(formal.name, formal.option != optional) for formal in schema.inputs]


def test_there_are_rows() -> None:
    assert len(OWN) > 30
    assert not any(defs.has(row.operator, row.domain) for row in OWN)
