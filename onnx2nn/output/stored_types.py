"""The element types that a safetensors file holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnx2nn.errors import InputError, listed, shown_name

if TYPE_CHECKING:
    import torch


def check_types(safetensors: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Checks that a safetensors file can hold tensors; the package itself ends in a KeyError.

    Args:
        safetensors: the module `safetensors.torch`, which is asked for each type.
        tensors: by name.

    Raises:
        InputError: it cannot; all such tensors are named.
    """
    unknown = {dtype for dtype in {tensor.dtype for tensor in tensors.values()} if not _holds(safetensors, dtype)}
    refused = [f"{shown_name(name)}: {tensor.dtype}" for name, tensor in tensors.items() if tensor.dtype in unknown]
    if refused:
        lines = ["A safetensors file cannot hold these types. Save the module as .pth:", *listed(refused, "tensors")]
        raise InputError("\n".join(lines))


def _holds(safetensors: Any, dtype: torch.dtype) -> bool:
    import torch

    try:
        safetensors.save({"x": torch.empty(0, dtype=dtype)})
    except KeyError:
        return False
    return True
