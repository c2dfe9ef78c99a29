"""Results do not depend on the kernels that torch selects for a processor and a number of threads."""

from __future__ import annotations

import functools
import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from scripts import conformance
from tests.kernel_outputs import Outputs

CAPABILITIES = ["default", "avx2", "avx512"]
THREADS = [1, 2]

FAMILIES = (
    r"attention|matmul|gemm|[Ll]inear|einsum|[Cc]onv|dft|stft|resize|upsample|reduce|mean|sum|[Ss]oftmax|[Ss]oftmin"
    r"|norm|[Nn]orm|rnn|gru|lstm|[Pp]ool|grid|affine|gelu|sigmoid|tanh|nll|sce"
)
"""Cases that add many numbers, or use functions that kernels approximate."""

ROUNDED_ONCE = r"test_attention.*(fp16|bf16)(?!.*expanded)|_dft|_stft|resize.*nearest"
"""Cases of rows that fix the order of roundings."""

CANCELLED = 1e-14
"""A difference that float64 makes, relative to the largest value of a transform."""

pytestmark = pytest.mark.held


@functools.cache
def outputs(capability: str | None, threads: int) -> Outputs:
    """Returns what a process gives whose kernels are those of `capability`, by default the processor's best."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    environment.pop("ATEN_CPU_CAPABILITY", None)
    if capability is not None:
        environment["ATEN_CPU_CAPABILITY"] = capability
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "outputs.pickle")
        script = Path(__file__).with_name("kernel_outputs.py")
        subprocess.run([sys.executable, str(script), FAMILIES, str(path)], env=environment, check=True, timeout=900)
        found = pickle.loads(path.read_bytes())
    assert isinstance(found, Outputs) and found.threads == threads
    return found


@pytest.fixture(params=[(capability, threads) for capability in CAPABILITIES for threads in THREADS], ids=str)
def selected(request: pytest.FixtureRequest) -> Outputs:
    """The outputs of one selection of kernels."""
    capability, threads = request.param
    found = outputs(capability, threads)
    if found.capability != capability.upper():
        pytest.skip(f"this processor has no {capability}: torch uses its kernels of {found.capability}")
    return found


def test_cases_have_the_stored_verdicts(selected: Outputs) -> None:
    version, results = conformance.stored("torch")
    stored = {result.name: result.verdict for result in results}
    assert len(selected.verdicts) > 800
    assert set(selected.verdicts.values()) <= {"passed", "refused"}
    if conformance.onnx.__version__ == version:
        assert selected.verdicts == {name: stored[name] for name in selected.verdicts}


def test_the_suites_own_comparison_gives_the_same(selected: Outputs) -> None:
    assert selected.unlike == outputs(None, 1).unlike


def test_results_rounded_once_are_the_same(selected: Outputs) -> None:
    reference = outputs(None, 1)
    names = [name for name in reference.arrays if re.search(ROUNDED_ONCE, name)]
    assert len(names) > 20
    for name in names:
        for ours, theirs in zip(selected.arrays[name], reference.arrays[name], strict=True):
            if ours.dtype.kind == "f" and "ft" in name:
                residue = CANCELLED * np.abs(theirs).max()
                ours, theirs = (np.where(np.abs(value) < residue, 0, value) for value in (ours, theirs))
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
