"""Files of TensorFlow's and Paddle's exporters on OneFlow: those that `nox -s zoo_tensorflow zoo_paddle` always writes.

`scripts/oneflow_import.py` compares every file of the cache and writes docs/oneflow.md.
"""

from __future__ import annotations

import os

import pytest

from scripts.oneflow_import import CACHE, TOLERANCE, row_of


@pytest.mark.parametrize(("family", "name"), [("tensorflow", "keras_mobilenet_v2"), ("paddle", "paddle_resnet18")])
def test_equals_framework_and_onnxruntime(family: str, name: str):
    path = CACHE / family / f"{name}.onnx"
    if not path.exists():
        reason = f"{path} is missing: `nox -s zoo_{family}` writes it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    row = row_of(family, name, path)
    assert row.works, row
    assert row.difference is not None and row.difference < TOLERANCE / 10
