"""Models that go from one framework through ONNX to another: equal outputs, and the same state under the same keys.

OneFlow has an environment of its own, without PyTorch; the two sides talk through files. `nox -s oneflow` makes it;
`ONNX2NN_ONEFLOW_PYTHON` names the interpreter of another one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from realmodels import export_dynamo, seeded

import onnx2nn
from scripts import torchvision_schemas

torchvision_schemas.predefine()  # before torchvision, whose import fails without them
from torchvision import models  # noqa: E402
from torchvision.models.convnext import CNBlockConfig  # noqa: E402
from torchvision.models.swin_transformer import SwinTransformer  # noqa: E402

pytestmark = pytest.mark.slow  # they need the environment of `nox -s oneflow`

ROOT = Path(__file__).resolve().parents[1]
ONEFLOW = Path(os.environ.get("ONNX2NN_ONEFLOW_PYTHON", ROOT / ".nox" / "oneflow" / "bin" / "python"))
CLOSE = 1e-5
"""How far outputs may be apart, relative to their scale."""

_STAGES = [
    CNBlockConfig(96, 192, 1),
    CNBlockConfig(192, 384, 1),
    CNBlockConfig(384, 768, 2),
    CNBlockConfig(768, None, 1),
]
ORIGINALS: dict[str, tuple[int, Callable[[], torch.nn.Module]]] = {
    "alexnet": (224, lambda: models.alexnet(num_classes=10)),
    "resnet50": (32, lambda: models.resnet50(num_classes=10)),
    "mobilenet_v2": (32, lambda: models.mobilenet_v2(num_classes=10)),
    "vit_tiny": (32, lambda: models.VisionTransformer(32, 16, 2, 3, 192, 768, num_classes=10)),
    "swin_tiny": (56, lambda: SwinTransformer([4, 4], 96, [2, 2], [3, 6], [7, 7], num_classes=10)),
    "convnext_tiny": (32, lambda: models.ConvNeXt(_STAGES, num_classes=10)),
}
"""Image size and builder; the sizes of the transformers are the tiny ones, less deep."""


def oneflow(*arguments: object) -> dict[str, dict[str, Any]]:
    """Runs OneFlow's half; returns its results by model."""
    if not ONEFLOW.exists():
        reason = f"{ONEFLOW} is missing: `nox -s oneflow` makes it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    command = [str(ONEFLOW), str(ROOT / "scripts" / "oneflow_round_trip.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def from_oneflow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("oneflow")
    return folder, oneflow("export", folder)


@pytest.fixture(scope="module")
def from_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("torch")
    for name, (size, build) in ORIGINALS.items():
        model = seeded(build)
        image = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
        path = folder / name / "model.onnx"
        shutil.copytree(export_dynamo(f"round_trip_{name}", model, (image,)).parent, path.parent)
        with torch.no_grad():
            np.savez(path.with_suffix(".npz"), input0=image.numpy(), output0=model(image).numpy())
        state = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
        path.with_suffix(".json").write_text(json.dumps(state))
    return oneflow("import", *(folder / name / "model.onnx" for name in ORIGINALS))


@pytest.mark.parametrize("name", ORIGINALS)
def test_oneflow_to_onnx_to_oneflow(name: str, from_oneflow: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    row = from_oneflow[1][name]
    assert row["difference"] < CLOSE and row["different"] == [] and not row["torch"]


@pytest.mark.parametrize("name", ORIGINALS)
def test_oneflow_to_onnx_to_torch(name: str, from_oneflow: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    path = from_oneflow[0] / name / "model.onnx"
    module = onnx2nn.load(path)
    with np.load(path.with_suffix(".npz")) as arrays, torch.no_grad():
        found, expected = module(torch.from_numpy(arrays["input0"])).numpy(), arrays["output0"]
    assert np.abs(found - expected).max() < CLOSE * np.abs(expected).max()
    state = {key: list(tensor.shape) for key, tensor in module.state_dict().items()}
    assert state == json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("name", ORIGINALS)
def test_torch_to_onnx_to_oneflow(name: str, from_torch: dict[str, dict[str, Any]]) -> None:
    row = from_torch[name]
    assert row["difference"] < CLOSE and not row["torch"]


@pytest.mark.parametrize("name", ORIGINALS)
def test_torch_to_onnx_to_oneflow_keeps_the_state(name: str, from_torch: dict[str, dict[str, Any]]) -> None:
    assert from_torch[name]["different"] == []
