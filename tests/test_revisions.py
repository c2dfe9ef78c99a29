"""Cases of ONNX's own suite at every older revision of their operators that takes them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import defs

import onnx2nn
from onnx2nn.backend import OnnxModule
from tests import onnxnode, suitecases

RANDOM = {
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
"""What they draw is no draw of another generator; tests/cases has their shapes and dtypes."""

TOLERANCE = 1e-3
"""The suite's own, relative."""


def pairs() -> list[suitecases.Pair]:
    """Returns the older revisions."""
    schemas = [schema for schema in defs.get_all_schemas_with_history() if not schema.deprecated]
    older = {(s.domain, s.name, s.since_version) for s in schemas} - {
        (s.domain, s.name, s.since_version) for s in defs.get_all_schemas()
    }
    return sorted(pair for pair in older if pair[1] not in RANDOM)


@pytest.mark.slow
@pytest.mark.parametrize("pair", pairs(), ids=lambda pair: ".".join(map(str, pair)))
def test_suite_case(pair: suitecases.Pair) -> None:
    found = suitecases.rewritten(pair)
    if found is None:
        pytest.skip("the suite has no case in a form that this revision takes; tests/cases has the older forms")
    case, _ = found
    outputs = OnnxModule(case.model, onnx2nn.load(case.model)).run(case.inputs)
    for actual, expected in zip(outputs, case.outputs, strict=True):
        onnxnode.assert_close(actual, expected, TOLERANCE)


def test_the_pairs_are_older_revisions() -> None:
    assert ("", "If", 11) in pairs() and all(np.isscalar(version) for *_, version in pairs())


@pytest.mark.parametrize("opset", [17, 18, 21, 24])
def test_a_sequence_map_is_of_the_models_opset(opset: int) -> None:
    """Onnx builds its function for opset 17 alone; the nodes in its graph mean what they mean in the model's."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": {opset}]>
        maps (float[N, 3] x) => (float[A, B] y, float[C, 3] z) {{
            negative = Neg (x)
            items = SequenceConstruct (x, negative)
            doubles, sums = SequenceMap (items, x) <body = each (float[N, 3] item, float[N, 3] other)
                    => (float[N, 3] double, float[N, 3] total) {{
                two = Constant <value_float = 2.0> ()
                one = Constant <value_ints = [1]> ()
                double = Mul (item, two)
                sum = ReduceSum <keepdims = 1> (other, one)
                total = Add (item, sum)
            }}>
            y = ConcatFromSequence <axis = 1> (doubles)
            z = ConcatFromSequence <axis = 0> (sums)
        }}
    """)
    module = onnx2nn.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (1, 4):
        x = np.random.default_rng(rows).standard_normal((rows, 3), np.float32)
        for actual, expected in zip(module(torch.from_numpy(x)), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-6)
