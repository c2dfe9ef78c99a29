"""What unpickling a module runs its code with."""

from __future__ import annotations

from torch import fx


class Retracer(fx.Tracer):
    """What unpickling a module runs its code with: buffers stay attributes, so that sizes may index and expand them."""

    proxy_buffer_attributes = True


Retracer.__module__ = "onnx2nn.tracing"  # the name that pickles have of it, whichever room it stands in
