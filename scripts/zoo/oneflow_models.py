"""Writes the OneFlow part of the model zoo: small models with random weights, by `oneflow_bridge.export`.

Runs where `onnx2nn[oneflow]`, flowvision and rich are installed (``nox -s zoo_oneflow``). flowvision's whole list is
scripts/oneflow_zoo.py's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import oneflow_zoo
import runner

from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx.exporter import export

flow = import_oneflow()
nn = flow.nn

BATCH = 2
CLASSES = 10


class Images(nn.Module):
    """Convolutions with most layers that a job takes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU())
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.Hardswish())
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.norm = nn.GroupNorm(2, 8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        """Returns the classes' probabilities."""
        x = self.stem(x)
        x = flow.cat([x, self.norm(self.up(self.pool(x))) + self.depthwise(x)], 1)
        return flow.softmax(self.head(x.mean((2, 3))), -1)


class Attention(nn.Module):
    """A recurrent layer and attention over its states."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(6, 16, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.parts = nn.Linear(16, 48)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        """Returns the classes' scores at every step."""
        x = self.norm(self.recurrent(x)[0])
        query, key, value = self.parts(x).chunk(3, -1)
        weights = flow.softmax(flow.matmul(query, key.transpose(1, 2)) / 4.0, -1)
        return self.head(nn.functional.gelu(x + flow.matmul(weights, value)))


def shufflenet() -> Any:
    """flowvision's ShuffleNetV2 with narrow stages."""
    models = oneflow_zoo.flowvision_models()
    return models.shufflenet_v2.ShuffleNetV2([2, 2, 2], [8, 16, 32, 48, 64], num_classes=CLASSES)


def small(path: Path, build: Callable[[], Any], shape: Sequence[int]) -> runner.Sample:
    """Recipe of a model of few weights, its batch dynamic."""
    model = oneflow_zoo.seeded(build)
    x = np.random.default_rng(0).standard_normal((BATCH, *shape)).astype(np.float32)
    export(model, x, path, dynamic=True, input_names=["x"])
    with flow.no_grad():
        return runner.Sample({"x": x}, [model(flow.tensor(x)).numpy()])


RECIPES: dict[str, runner.Recipe] = {
    "oneflow_images": partial(small, build=Images, shape=(3, 32, 32)),
    "oneflow_sequence": partial(small, build=Attention, shape=(9, 6)),
    "flowvision_shufflenet": partial(small, build=shufflenet, shape=(3, 64, 64)),
}
"""Those in `tests/data`."""

if __name__ == "__main__":
    sys.exit(runner.main("oneflow", RECIPES, __doc__ or ""))
