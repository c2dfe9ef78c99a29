"""Jobs of global tensors, compiled by one process and by two, are the same program on one device."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx import check

flow = import_oneflow()
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def _free_port() -> int:
    """A port that nothing listens on; tests of other processes may have launched ranks too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _run(ranks: int, script: str, *arguments: str) -> None:
    launch = ["-m", "oneflow.distributed.launch", "--nproc_per_node", str(ranks), "--master_port", str(_free_port())]
    # The launcher imports OneFlow before any code of ours can load CUDA's libraries for it.
    packages = Path(flow.__file__).parents[1]
    libraries = os.pathsep.join(str(folder) for folder in packages.glob("nvidia/*/lib"))
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *(launch if ranks > 1 else []), str(HERE / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_ranks_write_the_file_of_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one.onnx", tmp_path / "two.onnx"
    _run(1, "global_model.py", "1", str(one))
    _run(2, "global_model.py", "2", str(two))
    assert one.read_bytes() == two.read_bytes()
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    _, (actual,) = check.run_file(two, {"x": x})
    for file in (one, two):
        np.testing.assert_allclose(actual, np.load(f"{file}.npy"), rtol=1e-5, atol=1e-6)


def test_a_rank_that_drops_its_graph_does_not_end_the_others() -> None:
    """One rank dropped its graph while the other was still compiling it, and OneFlow ended the process of that one."""
    _run(2, "compile_often.py", "300")
