"""Makes torchvision importable where its compiled operators do not load.

torchvision's PyPI wheel is compiled against the CUDA build of torch; beside the CPU build its library fails to load,
and `import torchvision` then stops at `register_fake` for operators that nobody declared. The models need none of
these operators, so declaring their schemas is enough. transformers imports torchvision where it is installed, hence
`predefine` comes before that import too.
"""

from __future__ import annotations

import functools

import torch

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


@functools.lru_cache(maxsize=1)
def predefine() -> torch.library.Library:
    """Declares the operators that `import torchvision` refers to; call it before that import."""
    library = torch.library.Library("torchvision", "FRAGMENT")  # lives as long as the cache holds it
    for name, signature in _SCHEMAS.items():
        try:
            torch._C._dispatch_has_kernel_for_dispatch_key(f"torchvision::{name}", "CPU")
        except RuntimeError:  # the operator does not exist yet
            library.define(name + signature)
    return library
