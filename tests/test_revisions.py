"""Cases of ONNX's own suite at every older revision of their operators that takes them."""

from __future__ import annotations

import numpy as np
import pytest
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
    """Returns the older revisions of the operators in the suite."""
    schemas = [schema for schema in defs.get_all_schemas_with_history() if not schema.deprecated]
    older = {(s.domain, s.name, s.since_version) for s in schemas} - {
        (s.domain, s.name, s.since_version) for s in defs.get_all_schemas()
    }
    served = suitecases.node_cases()
    return sorted(pair for pair in older if pair[:2] in served and pair[1] not in RANDOM)


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
