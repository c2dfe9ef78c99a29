"""flowvision's cheap models, each in a process of its own: exported with a dynamic batch, compared at another one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import oneflow_zoo

needs_flowvision = pytest.mark.skipif(
    importlib.util.find_spec("flowvision") is None,
    reason="flowvision 0.2.2 defines the models; the nox session `oneflow` installs it",
)


@needs_flowvision
@pytest.mark.parametrize("name", oneflow_zoo.CI_MODELS)
def test_model(name: str) -> None:
    row = oneflow_zoo.in_process(name)
    assert row["equal"] == "Yes", row
    assert row["scale"] > 0 and row["difference"] <= 1e-4
