"""Optional packages: imported late, and named with the pip command that brings them when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from onnx2nn.errors import MissingDependencyError


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional package.

    Args:
        module: the module to import, for example `"onnxruntime"`.
        extra: the extra of this package that installs it, for example `"verify"`.
        purpose: the step that needs it, as the subject of the error's sentence: `"Comparing with ONNX Runtime"`.

    Returns:
        The imported module.

    Raises:
        MissingDependencyError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # installed but broken: its own message says more
        raise MissingDependencyError(
            f'{purpose} needs {module}, which is not installed: pip install "onnx2nn[{extra}]"'
        ) from error


def require_extras(purpose: str, **modules: str) -> None:
    """Imports a module of each of several extras, so that all that is missing is told at once.

    Args:
        purpose: the step that needs them, as for `require`.
        modules: a module by the extra that installs it, `verify="onnxruntime"`.

    Raises:
        MissingDependencyError: some are not installed.
    """
    missing = {}
    for extra, module in modules.items():
        try:
            require(module, extra=extra, purpose=purpose)
        except MissingDependencyError as error:
            missing[extra] = error
    if len(missing) == 1:
        raise next(iter(missing.values()))
    if missing:
        names = " and ".join(modules[extra] for extra in missing)
        raise MissingDependencyError(
            f'{purpose} needs {names}, which are not installed: pip install "onnx2nn[{",".join(missing)}]"'
        )
