"""The names of compiled packages in the folder of `ground.cache_folder`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from onnx2nn.ground.device_placement import device_of

FORMAT = "9"
"""Changes with what a package holds."""


def key(module: torch.nn.Module, texts: Iterable[str]) -> str:
    """Returns the hash of a module's programs, layers and weights, of the texts, and of what a package depends on."""
    digest = hashlib.sha256()
    for text in (
        FORMAT,
        torch.__version__,
        *_processor(device_of(module, torch.device("cpu"))),
        repr(module),
        *texts,
    ):
        digest.update(text.encode() + b"\0")
    for path, inner in module.named_modules():
        if isinstance(inner, torch.fx.GraphModule):
            digest.update(f"{path}\0{inner.code}\0".encode())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()[:40]


def _processor(device: torch.device) -> tuple[str, ...]:
    """Returns what distinguishes the processors of which one runs a package and another does not, or not as fast."""
    if device.type == "cuda":
        return (str(device), torch.cuda.get_device_name(device), str(torch.version.cuda))
    return (device.type, torch.backends.cpu.get_cpu_capability(), str(torch.get_num_threads()))
