"""Files of other frameworks' exporters, and of the bridge's own, on OneFlow.

Those in tests/data, and of the cache those that `nox -s zoo_tensorflow zoo_paddle` always writes;
`scripts/oneflow_import.py` compares every file of the cache and writes docs/oneflow.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.oneflow_import import CACHE, TOLERANCE, row_of

SMALL = sorted((Path(__file__).parents[1] / "data").glob("*/*.onnx"))
CACHED = [CACHE / "tensorflow" / "keras_mobilenet_v2.onnx", CACHE / "paddle" / "paddle_resnet18.onnx"]
FILES = [*SMALL, *(pytest.param(path, marks=pytest.mark.slow) for path in CACHED)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_equals_framework_and_onnxruntime(path: Path):
    if not path.exists():
        reason = f"{path} is missing: `nox -s zoo_{path.parent.name}` writes it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    row = row_of(path.parent.name, path.stem, path)
    assert row.works, row
    assert row.difference is not None and row.difference < TOLERANCE / 10
