"""Where models come from: for each source its models by name, the exporters, and how a file is written."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from scripts.conversions.exported import Exported
from scripts.conversions.rows import File


class Source(Protocol):
    """A collection of models."""

    def versions(self) -> dict[str, str]:
        """Returns the versions of the packages that its models and files are made by."""

    def files(self) -> list[File]:
        """Returns the files that it can write, those that come first first."""

    def export(self, file: File, path: Path) -> Exported:
        """Writes a file.

        Raises:
            NotExported: the model's own framework or exporter fails.
        """


def _made(module: str, *arguments: object) -> Source:
    source: Source = importlib.import_module(f"{__name__}.{module}").Models(*arguments)
    return source


_elsewhere = partial(_made, "other_frameworks")
TENSORFLOW = ("zoo_tensorflow", ("tensorflow_cpu", "keras", "tf2onnx"))
TORCH = ("zoo_torch", ("torch", "onnx", "onnxscript"))
PADDLE = ("zoo_paddle", ("paddlepaddle", "paddleclas", "paddle2onnx"))
ONEFLOW = ("zoo_oneflow", ("oneflow", "flowvision"))
"""A session of nox, and the packages of its environment that make models and files."""

SOURCES: dict[str, Callable[[], Source]] = {
    "torchvision": partial(_made, "torchvision_models"),
    "timm": partial(_made, "timm_models"),
    "transformers": partial(_made, "transformers_models"),
    "definitions": partial(_made, "definitions"),
    "files": partial(_made, "onnx_files"),
    "torch": partial(_elsewhere, "torch", "torch.onnx", "torch_models.py", *TORCH),
    "keras": partial(_elsewhere, "keras", "tf2onnx", "keras_applications.py", *TENSORFLOW),
    "tensorflow": partial(_elsewhere, "tensorflow", "tf2onnx", "tensorflow_models.py", *TENSORFLOW),
    "paddle": partial(_elsewhere, "paddle", "paddle2onnx", "paddle_models.py", *PADDLE),
    "paddle_vision": partial(_elsewhere, "paddle_vision", "paddle2onnx", "paddle_vision.py", *PADDLE),
    "flowvision": partial(_elsewhere, "flowvision", "oneflow_bridge", "flowvision_models.py", *ONEFLOW),
}
"""Sources by name; each imports its packages when it is made."""
