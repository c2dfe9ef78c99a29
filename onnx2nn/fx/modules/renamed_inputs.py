"""Calls of an imported module with the names of the file's inputs, where these are no Python identifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


class RenameInputs:
    """A forward pre-hook for calls with input names that are no Python identifiers."""

    def __init__(self, names: Mapping[str, str]):
        self.names = dict(names)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the call's arguments with the names in the module's forward."""
        return args, {self.names.get(name, name): value for name, value in kwargs.items()}
