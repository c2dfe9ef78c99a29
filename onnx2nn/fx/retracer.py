"""The tracer with which unpickling a module runs its code."""

from __future__ import annotations

from torch import fx


class Retracer(fx.Tracer):
    """The tracer with which unpickling a module runs its code; buffers become proxies, which sizes may index."""

    proxy_buffer_attributes = True


Retracer.__module__ = "onnx2nn.tracing"  # pickles hold this name
