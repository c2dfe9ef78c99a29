"""Jobs of global tensors, compiled by one process and by two, are the same program on one device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx import check

flow = import_oneflow()
SCRIPT = Path(__file__).with_name("global_model.py")
ROOT = SCRIPT.parents[2]


def _run(ranks: int, file: Path) -> None:
    launch = [] if ranks == 1 else ["-m", "oneflow.distributed.launch", "--nproc_per_node", str(ranks)]
    # The launcher imports OneFlow before any code of ours can load CUDA's libraries for it.
    packages = Path(flow.__file__).parents[1]
    libraries = os.pathsep.join(str(folder) for folder in packages.glob("nvidia/*/lib"))
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *launch, str(SCRIPT), str(ranks), str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_ranks_write_the_file_of_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one.onnx", tmp_path / "two.onnx"
    _run(1, one)
    _run(2, two)
    assert one.read_bytes() == two.read_bytes()
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    _, (actual,) = check.run_file(two, {"x": x})
    for file in (one, two):
        np.testing.assert_allclose(actual, np.load(f"{file}.npy"), rtol=1e-5, atol=1e-6)
