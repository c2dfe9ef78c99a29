"""The names of the namespace: those that a module defines, and those for which OneFlow has nothing."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from onnx2nn.errors import OperatorError

MISSING = {
    "_int_mm": "products of 8-bit integers",
    "contiguous_format": "memory formats",
    "fft": "Fourier transforms of this kind",
    "stft": "a complex short-time Fourier transform",
    "istft": "Fourier transforms",
    "complex": "operations of this kind on complex numbers",
    "polar": "complex numbers",
    "real": "complex numbers",
    "imag": "complex numbers",
    "view_as_complex": "complex numbers",
    "angle": "complex numbers",
    "quantize_per_tensor": "quantized tensors",
    "svd": "a singular value decomposition",
    "qr": "a QR decomposition",
    "solve": "a solver of linear equations",
    "eigh": "an eigenvalue decomposition",
    "cholesky": "a Cholesky decomposition",
    "digamma": "the digamma function",
    "i0": "Bessel functions",
    "ops": "operators of PyTorch's own library",
    "while_loop": "loops in a program of machine code",
}
"""Torch name → the feature that OneFlow 0.9 lacks for it."""


class MissingNameError(OperatorError, AttributeError):
    """A name that torch has and this namespace does not."""

    def __init__(self, name: str):
        lacks = MISSING.get(name.rsplit(".", 1)[-1]) or MISSING.get(name.split(".")[0])
        super().__init__(
            f"OneFlow 0.9 has no {lacks} (torch.{name})." if lacks else f"There is no torch.{name} on OneFlow 0.9."
        )


class Names:
    """A part of the namespace, such as `F.linalg`."""

    def __init__(self, path: str, names: dict[str, Any], layers: Any = None):
        self.__dict__.update(names)
        self._path, self._layers = path, layers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._layers is not None and hasattr(self._layers, name):
            return getattr(self._layers, name)
        raise MissingNameError(f"{self._path}.{name}")

    def __dir__(self) -> list[str]:
        return sorted(name for name in self.__dict__ if not name.startswith("_"))


def functions(module: ModuleType) -> dict[str, Any]:
    """The public functions that a module defines, by name."""
    found = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return {name: value for name, value in found.items() if not name.startswith("_") and callable(value)}
