"""The op table against ONNX's schemas."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from onnx import defs, helper

import onnx2nn
from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.revisions import Revision
from onnx2nn.optable.row import HINTS, REQUIRED, Row
from onnx2nn.optable.traits import Trait
from tests.suitecases import node_cases

STANDARD = {"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"}
IN_STANDARD_DOMAIN_BY_RUNTIME = {"LayerNormalization-1", "SimplifiedLayerNormalization-1"}
"""Operators that ONNX Runtime writes in ai.onnx before, or without, ONNX: `tests/test_contrib_table.py` has them."""
ROWS = [row for row in TABLE if row.domain in STANDARD and str(row) not in IN_STANDARD_DOMAIN_BY_RUNTIME]


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


def same(own: Any, value: Any) -> bool:
    """Compares defaults: floats as float32, no default as an empty list."""
    if own is REQUIRED or value is REQUIRED or isinstance(value, str):
        return bool(own == value)
    if isinstance(value, (list, tuple)):
        value = [item.decode() if isinstance(item, bytes) else item for item in value]
        return list(own or ()) == value
    return own == value or (own is not None and value is not None and np.float32(own) == np.float32(value))


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
        assert len(schema.outputs) < 2 or row.several or "_outputs" in row.facts, "which of several outputs it gives"
        expected = {name: default_of(attribute) for name, attribute in schema.attributes.items() if name not in apart}
        assert set(expected) <= set(row.attributes), f"attributes at {schema.since_version}"
        for name, value in expected.items():
            assert same(row.attributes[name], value), name
    # An input that the newest of them made optional is so in the older ones too.
    optional = [p.name for p in schemas[-1].inputs if p.option == defs.OpSchema.FormalParameterOption.Optional]
    assert [n for n, d in row.inputs.items() if d is not REQUIRED] == optional, "optional inputs"
    everything = {name for schema in schemas for name in schema.attributes} - apart
    assert set(row.attributes) == everything, "attributes that no revision has"


EXPERIMENTAL = {
    "Affine-1", "Crop-1", "ImageScaler-1", "ParametricSoftplus-1", "ScaledTanh-1", "GRUUnit-1", "GivenTensorFill-1",
    "DynamicSlice-1", "ATen-1", "ThresholdedRelu-1", "ConstantFill-1", "Scale-1",
    "MeanVarianceNormalization-1",
}  # fmt: skip
"""Operators of the experimental days: real files hold them, onnx has no schema any more."""


def test_all_revisions_of_an_operator_have_its_traits() -> None:
    traits: dict[tuple[str, str], frozenset[str]] = {}
    for row in TABLE:
        assert row.traits <= set(get_args(Trait)), row
        assert traits.setdefault((row.domain, row.operator), row.traits) == row.traits, row


def test_an_output_has_as_many_dimensions_as_the_traits_say() -> None:
    kept = {name for name, cases in node_cases().items() if "keeps_rank" in TABLE.traits_of(name[1], name[0])}
    assert len(kept) > 50
    for name in kept:
        for case in node_cases()[name]:
            if len(case.model.graph.node) == 1:
                alike = len(case.outputs) if "value_preserving" in TABLE.traits_of(name[1], name[0]) else 1
                for output in case.outputs[:alike]:
                    assert np.ndim(output) == np.ndim(case.inputs[0]), case


def test_rows_name_inputs_of_theirs() -> None:
    for row in TABLE:
        named = row.static | row.numbers | row.counts | ({row.sized_by} - {""})
        assert named <= set(row.inputs), row
        assert row.counts <= row.static, row
        for indices, table, axis in row.lookups:
            assert {indices, table} <= set(row.inputs) and {axis} - {""} <= set(row.attributes), row


def test_an_older_revision_is_what_differs_from_a_newer_one() -> None:
    """Its signature is derived, and its calls are made in the newer one's terms."""
    row = TABLE.find("", "Pad", 1)
    assert row is not None and isinstance(row.body, Revision) and row.on_shape_values is not None
    assert list(row.inputs) == ["data"] and row.static == row.numbers == frozenset()
    assert row.attributes == {"mode": "constant", "paddings": REQUIRED, "value": 0.0}
    x = torch.ones(2, 2)
    padded = row.body(torch, x, paddings=[0, 1, 0, 0], value=3.0)
    assert padded.tolist() == [[3.0, 1.0, 1.0]] * 2
    numbers = np.array([5, 6], dtype=object)
    assert row.on_shape_values(numbers, paddings=[1, 0], value=0.0).tolist() == [0, 5, 6]
    top = TABLE.find("", "TopK", 1)
    assert top is not None and top.on_shape_values is not None
    values, indices = top.on_shape_values(np.array([1, 3, 2], dtype=object), k=2)
    assert values.tolist() == [3, 2] and indices.tolist() == [1, 2]


def test_an_older_revision_has_its_own_defaults() -> None:
    row = TABLE.find("", "Selu", 1)
    assert row is not None
    x = torch.tensor([-1.0, 2.0])
    assert row.body(torch, x)[1] == x[1] * 1.0507 and row.body(torch, x, gamma=2.0)[1] == 4.0
    roi = TABLE.find("", "RoiAlign", 10)
    assert roi is not None and "coordinate_transformation_mode" not in roi.attributes and roi.call == "opaque"


def test_an_opaque_row_is_registered_by_its_option() -> None:
    with onnx2nn.register("test.rows", "Op", opaque=True)(lambda F, a: a) as row:
        assert row.call == "opaque"
    assert TABLE.newest("test.rows", "Op") is None


def test_a_row_may_be_registered_with_the_name_host_of_version_0_1() -> None:
    with onnx2nn.register("test.rows", "Op", host=np.negative)(lambda F, a: -a) as row:
        assert row.on_shape_values is np.negative
