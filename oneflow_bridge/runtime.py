"""Imports OneFlow with the shared libraries that it needs, or names the missing one."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from onnx2nn.errors import MissingDependencyError

VERSION = "0.9.0"
PYTHON = (3, 10)
PACKAGES = f"oneflow=={VERSION} 'numpy<2' protobuf==3.20.3 'nvidia-cudnn-cu11>=8,<9' nvidia-cublas-cu11"

# In loading order: each library finds the ones it needs among those before it. The wheel is built for CUDA 11 and asks
# the loader for them even where it runs on the CPU alone.
LIBRARIES = {
    "cublas": ("libcublasLt.so.11", "libcublas.so.11"),
    "cudnn": (
        "libcudnn.so.8",
        "libcudnn_ops_infer.so.8",
        "libcudnn_ops_train.so.8",
        "libcudnn_cnn_infer.so.8",
        "libcudnn_cnn_train.so.8",
    ),
}


@cache
def import_oneflow() -> Any:
    """Imports `oneflow`, after loading the CUDA libraries of the installed nvidia packages.

    Returns:
        The `oneflow` module, version 0.9.

    Raises:
        MissingDependencyError: the Python version is another, or OneFlow or a package that it needs is absent or of
            another version; the text holds the pip command.
    """
    if "oneflow" not in sys.modules:
        _require_python(sys.version_info[:2])
        if importlib.util.find_spec("oneflow") is None:
            raise _missing("OneFlow is not installed.")
        preload_libraries()
    try:
        flow = importlib.import_module("oneflow")
    except ImportError as error:
        raise _missing(f"OneFlow does not load: {error}.") from error
    except (AttributeError, TypeError) as error:  # from OneFlow's generated code under numpy 2 or protobuf 4
        raise _missing(f"OneFlow does not load with the numpy or protobuf that is installed: {error}.") from error
    if not str(flow.__version__).startswith("0.9."):
        raise _missing(f"OneFlow {flow.__version__} is installed, version {VERSION} is needed.")
    return flow


def preload_libraries() -> None:
    """Loads the CUDA libraries that OneFlow links to, globally, so that no library path has to be set.

    Raises:
        MissingDependencyError: a package with such a library is not installed, or the library does not load.
    """
    for package, names in LIBRARIES.items():
        for name in names:
            try:
                ctypes.CDLL(_library_path(package, name), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise _missing(f"OneFlow needs {name} of the package nvidia-{package}-cu11: {error}.") from error


def _library_path(package: str, name: str) -> str:
    """Path of a library in the installed nvidia packages, or its bare name for the system's loader to find."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / package / "lib" / name
        if path.is_file():
            return str(path)
    return name


def _require_python(version: tuple[int, int]) -> None:
    if version != PYTHON:
        wanted, found = (".".join(map(str, v)) for v in (PYTHON, version))
        raise _missing(
            f"OneFlow {VERSION} is used under Python {wanted}; this is Python {found}. Under Python {wanted}:"
        )


def _missing(found: str) -> MissingDependencyError:
    return MissingDependencyError(
        f'{found} Run: pip install "onnx2nn[oneflow]" (that is: pip install {PACKAGES}) under Python 3.10.'
    )


def error_text(error: Exception) -> str:
    """Returns the message of an exception that OneFlow raised, without its C++ stack and colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[-1].startswith(
        "Error Type:"
    ):  # OneFlow's own errors: the message comes first, then the C++ stack
        return lines[0]
    return lines[-1].removeprefix("Error: ") if lines else type(error).__name__
