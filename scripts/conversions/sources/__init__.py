"""Where models come from: for each source its models by name, the exporters, and how a file is written."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from scripts.conversions.exported import Exported
from scripts.conversions.rows import File


class Source(Protocol):
    """A collection of models.

    Attributes:
        packages: those that its models and files are made by, whose versions are facts.
    """

    packages: Sequence[str]

    def files(self) -> list[File]:
        """Returns the files that it can write, those that come first first."""

    def export(self, file: File, path: Path) -> Exported:
        """Writes a file.

        Raises:
            NotExported: the model's own framework or exporter fails.
        """


def _made(module: str) -> Source:
    source: Source = importlib.import_module(f"{__name__}.{module}").Models()
    return source


SOURCES: dict[str, Callable[[], Source]] = {
    "torchvision": partial(_made, "torchvision_models"),
    "timm": partial(_made, "timm_models"),
    "transformers": partial(_made, "transformers_models"),
    "definitions": partial(_made, "definitions"),
    "files": partial(_made, "onnx_files"),
}
"""Sources by name; each imports its packages when it is made."""
