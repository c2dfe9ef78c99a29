"""From an ONNX file to each of torch's ways of deployment: the program runs where there is no onnx2nn."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import onnx2nn

DIGITS = Path(__file__).parents[1] / "examples" / "digits"

SMALL = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[batch, 3] x) => (float[batch, 2] y)
<float[2, 3] w = {1.0, -2.0, 3.0, 0.5, 0.25, -1.0}, float[2] b = {0.5, -0.5}>
{ g = Gemm <transB = 1> (x, w, b) y = Tanh(g) }
"""
"""Compiling takes minutes for the digits network."""

RUN = """
import sys
sys.modules["onnx2nn"] = sys.modules["onnx"] = None
import numpy as np, torch
with torch.no_grad():
    program = {load}
    for rows in (2, 5):
        images = torch.from_numpy(np.load("images.npy")[:rows])
        np.save(f"answer{{rows}}.npy", program(images).numpy())
"""

compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")),
    reason="torch's Inductor compiles C++; there is no compiler on this machine",
)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    with np.load(DIGITS / "digits_test.npz") as stored:
        return stored["image"].astype(np.float32)[:5]


@pytest.fixture(scope="module")
def module() -> torch.fx.GraphModule:
    return onnx2nn.load(DIGITS / "digits.onnx")


def _check_elsewhere(load: str, module: torch.nn.Module, images: np.ndarray, folder: Path) -> None:
    """Asserts that a process without onnx2nn and onnx, in `folder`, gives the module's answers at two batch sizes."""
    np.save(folder / "images.npy", images)
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(load=load)], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for rows in (2, 5):
        expected = module(torch.from_numpy(images[:rows])).detach().numpy()
        np.testing.assert_allclose(np.load(folder / f"answer{rows}.npy"), expected, rtol=0, atol=1e-6)


def test_torchscript(module: torch.nn.Module, images: np.ndarray, tmp_path: Path) -> None:
    onnx2nn.save(module, tmp_path / "m.torchscript", example_inputs=[images[:2]])
    _check_elsewhere('torch.jit.load("m.torchscript")', module, images, tmp_path)


def test_exported_program(module: torch.nn.Module, images: np.ndarray, tmp_path: Path) -> None:
    onnx2nn.save(module, tmp_path / "m.pt2", example_inputs=[images[:2]], dynamic_axes=[{0: "batch"}])
    _check_elsewhere('torch.export.load("m.pt2").module()', module, images, tmp_path)


@pytest.mark.slow
@compiler
def test_aotinductor_package(tmp_path: Path) -> None:
    module, x = onnx2nn.load(onnx.parser.parse_model(SMALL)), np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(module, (torch.from_numpy(x),), dynamic_shapes=({0: batch},))
    torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "m.pt2"))
    _check_elsewhere('torch._inductor.aoti_load_package("m.pt2")', module, x, tmp_path)


COMPILE = """
import sys, torch, onnx2nn
module = onnx2nn.load("m.onnx")
assert "torch.onnx" not in sys.modules, "torch.compile imports it while it reads the program"
x = torch.linspace(-1, 1, 9).reshape(3, 3)
compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=True)
torch.testing.assert_close(compiled(x), module(x))
"""


def test_compiled_in_a_process_that_exports_nothing(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(SMALL), tmp_path / "m.onnx")
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@compiler
def test_compiled_by_inductor() -> None:
    torch._dynamo.reset()
    module = onnx2nn.load(onnx.parser.parse_model(SMALL))
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (2, 5):
            x = torch.linspace(-1, 1, 3 * rows).reshape(rows, 3)
            torch.testing.assert_close(compiled(x), module(x), rtol=0, atol=1e-6)
