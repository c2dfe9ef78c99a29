"""Writes flowvision's models with random weights, by `oneflow_bridge.export`.

Runs where `onnx2nn[oneflow]`, flowvision and rich are installed (``nox -s zoo_oneflow -- --list`` makes it).
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import oneflow_zoo
import runner

from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx.arguments import leaves
from oneflow_bridge.to_onnx.exporter import export

BATCH = 2
CALIBRATION_BATCH = 4


def model(path: Path, name: str) -> runner.Sample:
    """Recipe of a model of flowvision, its batch dynamic."""
    flow = import_oneflow()
    module = oneflow_zoo.create(name)
    size = oneflow_zoo.input_size(name)
    images = np.random.default_rng(1).normal(size=(CALIBRATION_BATCH, 3, size, size)).astype(np.float32)
    oneflow_zoo.normalise(module, images)
    image = images[:BATCH]
    export(module, image, path, dynamic=True, check=False, input_names=["image"])
    with flow.no_grad():
        answer = module(flow.tensor(image))
    return runner.Sample({"image": image}, [output.numpy() for output in leaves(answer)])


RECIPES: dict[str, runner.Recipe] = {name: partial(model, name=name) for name in oneflow_zoo.MODELS}

if __name__ == "__main__":
    sys.exit(runner.main("flowvision", RECIPES, __doc__ or ""))
