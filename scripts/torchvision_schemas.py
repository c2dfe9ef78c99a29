"""Makes torchvision importable where its compiled operators do not load.

torchvision's PyPI wheel is compiled against the CUDA build of torch; beside the CPU build its library fails to load,
and `import torchvision` then stops at `register_fake` for operators that nobody declared. The models need none of
these operators, so declaring their schemas is enough. transformers imports torchvision where it is installed, hence
`predefine` comes before that import too.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from pathlib import Path

import torch

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


@functools.lru_cache(maxsize=1)
def predefine() -> torch.library.Library:
    """Declares the operators that `import torchvision` refers to; call it before that import."""
    _load_compiled()  # where it loads it declares them itself, and aborts the process if they are there already
    library = torch.library.Library("torchvision", "FRAGMENT")  # lives as long as the cache holds it
    for name, signature in _SCHEMAS.items():
        try:
            torch._C._dispatch_has_kernel_for_dispatch_key(f"torchvision::{name}", "CPU")
        except RuntimeError:  # the operator does not exist yet
            library.define(name + signature)
    return library


def _load_compiled() -> None:
    package = importlib.util.find_spec("torchvision")
    for folder in (package and package.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("_C*.*")):
            with contextlib.suppress(ImportError, OSError):
                torch.ops.load_library(path)
