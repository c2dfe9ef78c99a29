"""Writes every model of paddle.vision.models with random weights and small images, by paddle2onnx.

Runs in the environment of `constraints-paddle.txt` (``nox -s zoo_paddle -- --list`` makes it).
"""

from __future__ import annotations

import sys

import paddle_models
import runner

EDGE = 64
EDGES = {"alexnet": 224, "vgg": 224, "googlenet": 224, "inception_v3": 128}
"""Others by the beginning of the name: pools of these architectures need them."""

NAMES = [name for name in paddle_models.models.__all__ if name[0].islower()]
RECIPES: dict[str, runner.Recipe] = {
    f"paddle_vision_{name}": paddle_models.of_vision(
        name, next((edge for start, edge in EDGES.items() if name.startswith(start)), EDGE)
    )
    for name in NAMES
}

if __name__ == "__main__":
    sys.exit(runner.main("paddle_vision", RECIPES, __doc__ or ""))
