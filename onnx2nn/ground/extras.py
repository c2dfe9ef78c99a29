"""Optional packages: imported late, and named with the pip command that brings them when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from onnx2nn.errors import MissingDependencyError


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional package.

    Args:
        module: what to import, for example `"onnxruntime"`.
        extra: the extra of this package that brings it, for example `"verify"`.
        purpose: what it is needed for, as the start of the error's sentence: `"Comparing with ONNX Runtime"`.

    Returns:
        The imported module.

    Raises:
        MissingDependencyError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # it is installed but broken: its own message says more
        raise MissingDependencyError(
            f'{purpose} needs {module}, which is not installed: pip install "onnx2nn[{extra}]"'
        ) from error
