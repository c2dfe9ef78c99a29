"""What every released version saved is loaded by OneFlow and computes the same; see scripts/pickle_fixtures.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDERS = sorted((Path(__file__).resolve().parents[1] / "data" / "pickles").glob("*/*.oneflow"))
RUN = """
import sys
import numpy as np
import oneflow as flow
folder = sys.argv[1]
assert not any(name.partition(".")[0] in ("onnx2nn", "oneflow_bridge") for name in sys.modules)
module = flow.load(folder)
with np.load(folder + ".npz", allow_pickle=False) as stored:
    inputs = [stored[key] for key in sorted(stored.files) if key.startswith("input")]
    expected = [stored[key] for key in sorted(stored.files) if key.startswith("output")]
with flow.no_grad():
    result = module(*map(flow.tensor, inputs))
results = result if isinstance(result, tuple) else (result,)
for ours, theirs in zip(results, expected, strict=True):
    ours = ours if isinstance(ours, np.ndarray) else ours.numpy()
    if theirs.dtype.kind == "f":
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(ours.astype(theirs.dtype), theirs)
"""


def test_there_are_some():
    assert len(FOLDERS) >= 10


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_loads_in_a_fresh_process(folder: Path):
    done = subprocess.run([sys.executable, "-c", RUN, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
