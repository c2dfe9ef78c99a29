"""The folder of compiled packages: `$ONNX2NN_CACHE`, else `onnx2nn` in the user's cache folder.

A package is machine code that a process loads, so that the folder belongs to the user alone. It may be deleted at any
time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from onnx2nn.errors import InputError

FORMAT = "1"
"""Changes with what a package holds."""


def folder() -> Path:
    """Returns the folder, which exists afterwards and is the user's.

    Raises:
        InputError: it cannot be made, or other users can write it.
    """
    given = os.environ.get("ONNX2NN_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = Path(given) if given else base / "onnx2nn"
    try:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = found.stat()
    except OSError as error:
        raise InputError(f"Cannot make the cache {found}: {error.strerror}. Set ONNX2NN_CACHE to a folder.") from error
    if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise InputError(f"Other users can write the cache {found}, whose code is run. Set ONNX2NN_CACHE to another.")
    return found


def key(module: torch.nn.Module, texts: Iterable[str]) -> str:
    """Returns the hash of a module's programs, layers and weights, of the texts, and of what a package depends on."""
    digest = hashlib.sha256()
    capability = torch.backends.cpu.get_cpu_capability()
    for text in (FORMAT, torch.__version__, capability, str(torch.get_num_threads()), repr(module), *texts):
        digest.update(text.encode() + b"\0")
    for path, inner in module.named_modules():
        if isinstance(inner, torch.fx.GraphModule):
            digest.update(f"{path}\0{inner.code}\0".encode())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:40]
