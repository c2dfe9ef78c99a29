"""Weights that go from a file to the processes of torch.distributed, to each its part.

A file comes in; boxes of its tensors go out, to `torch.distributed.checkpoint`. PyTorch is imported at the first use of
`OnnxReader`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx2nn.ground.extras import require

if TYPE_CHECKING:
    from onnx2nn.checkpoint.reader import OnnxReader

__all__ = ["OnnxReader"]


def __getattr__(name: str) -> Any:
    if name != "OnnxReader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("torch", extra="torch", purpose="Reading weights into sharded modules")
    from onnx2nn.checkpoint.reader import OnnxReader

    return OnnxReader
