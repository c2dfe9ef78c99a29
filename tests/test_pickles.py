"""What every released version saved is loaded and computes the same; scripts/pickle_fixtures.py writes the files."""

from __future__ import annotations

import multiprocessing
import re
import zipfile
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np
import pytest
import saved_modules
import torch

SAVED = Path(__file__).parent / "data" / "pickles"
FILES = sorted(path for path in SAVED.glob("*/*") if path.suffix in (".pth", ".pt2", ".torchscript", ".safetensors"))


@pytest.fixture(scope="module")
def fresh() -> Iterator[Pool]:
    """A process for each call, which shares the imports of other packages, and none of ours, with the others."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        context: multiprocessing.context.BaseContext = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "onnx", "onnx_ir"])
    else:
        context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        yield pool


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_loads_in_a_fresh_process(path: Path, fresh: Pool) -> None:
    if path.suffix == ".pt2" and _writer(path) > _version(torch.__version__):
        pytest.skip("torch reads no program that a newer torch wrote")
    outputs, expected = fresh.apply(saved_modules.run, (path,))
    for ours, theirs in zip(outputs, expected, strict=True):
        if theirs.dtype.kind == "f":
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(ours.astype(theirs.dtype), theirs)


def test_every_kind_is_there() -> None:
    """The files of 0.1 name each of our modules that its saved imports may name."""
    named = {
        name
        for path in FILES
        if path.parent.name == "0.1" and path.suffix == ".pth"
        for name in saved_modules.names_of_ours(path)
    }
    control_flow = {"If", "Loop", "Scan", "BatchedScan", "SequenceMap", "Gradient"}
    assert {f"onnx2nn.control_flow {name}" for name in control_flow} <= named
    assert {"onnx2nn.tracing Retracer", "onnx2nn.regions RenameInputs", "onnx2nn.ops.ml pick_strings"} <= named
    assert any(name.startswith("onnx2nn.functional ") for name in named)


def _writer(path: Path) -> tuple[int, ...]:
    """Returns the version of torch that wrote a program."""
    with zipfile.ZipFile(path) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith("models/model.json"))
        return _version(re.findall(rb'"torch_version": *"([^"]+)"', archive.read(member))[0].decode())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
