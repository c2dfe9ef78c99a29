"""Runs an imported PyTorch module on NumPy arrays, and beside another form of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnx2nn.errors import Onnx2nnError, VerificationError, first_line
from onnx2nn.ground.extras import require
from onnx2nn.verification.value_comparison import compare


def run_module(module: Callable[..., Any], arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
    """Calls a PyTorch module on arrays, without gradients, and returns its outputs as a tuple.

    Raises:
        VerificationError: the module failed on these inputs.
    """
    torch = require("torch", extra="torch", purpose="Running the imported module")
    tensors = [to_tensor(array) for array in arrays]
    try:
        with torch.no_grad():
            outputs = module(*tensors)
    except Onnx2nnError:
        raise
    except Exception as error:  # any error of the module's own run
        raise VerificationError(f"The imported module failed: {type(error).__name__}: {first_line(error)}") from error
    return tuple(outputs) if isinstance(outputs, tuple) else (outputs,)


def to_tensor(array: np.ndarray) -> Any:
    """Returns an array as an input of an imported module: a tensor that owns its memory; strings stay NumPy arrays."""
    import torch

    if array.dtype.kind in "OUS":
        return array
    array = np.array(array, order="C")  # a copy: a module may work in place
    if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"):
        carrier = np.int16 if array.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(array.view(carrier)).view(getattr(torch, array.dtype.name))
    if array.dtype.name in ("int4", "uint4", "int2", "uint2"):
        array = array.astype(np.uint8 if array.dtype.name[0] == "u" else np.int8)
    return torch.from_numpy(array)


def check_same(module: Callable[..., Any], converted: Callable[..., Any], tensors: Sequence[Any], form: str) -> None:
    """Runs a module and another form of it on the same inputs.

    Args:
        module: the module.
        converted: the other form.
        tensors: the inputs, which stay as they are.
        form: what the other form is, for the error.

    Raises:
        VerificationError: their outputs differ.
    """
    import torch

    with torch.no_grad():
        ours, theirs = (_as_tuple(run(*(tensor.clone() for tensor in tensors))) for run in (converted, module))
    names = [f"output {index}" for index in range(len(theirs))]
    wrong = [str(output) for output in compare(names, ours, theirs) if not output.ok]
    if wrong:
        raise VerificationError(f"The {form} differs from the module: {'; '.join(wrong)}.")


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
