"""Names that modules saved by onnx2nn 0.1 hold."""

from __future__ import annotations

from torch import fx

__all__ = ["Retracer"]


class Retracer(fx.Tracer):
    """The tracer with which unpickling a module of 0.1 runs its code; buffers become proxies, which sizes may index."""

    proxy_buffer_attributes = True
