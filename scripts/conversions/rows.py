"""What is measured: a file of a model, and what is made of it.

A file is a source's model, written by an exporter. It has a row for each direction and for each peer.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from typing import Any, NamedTuple

Facts = Mapping[str, Any]
"""What was found, as JSON has it. `problem` is a reason where there is no result."""

EXPORT = "export"
"""The direction of a row that says what came of the export itself."""


class File(NamedTuple):
    """A model's file, by the names of its source, model and exporter."""

    source: str
    model: str
    exporter: str

    def __str__(self) -> str:
        return "/".join(self)


@dataclasses.dataclass(frozen=True)
class Row:
    """The facts of a file in one direction."""

    file: File
    direction: str
    facts: Facts

    @property
    def name(self) -> str:
        """What `--only` takes: `torchvision/resnet18/dynamo/PyTorch`."""
        return f"{self.file}/{self.direction}"

    @property
    def problem(self) -> str:
        """The reason without a result, empty for a result."""
        return str(self.facts.get("problem", ""))


def versions(*packages: str) -> dict[str, str]:
    """Returns the versions of packages, which are facts of the rows of exports."""
    return {package: importlib.metadata.version(package) for package in packages}
