"""Float16 and bfloat16 computed in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from oneflow_bridge.namespace import dtypes
from oneflow_bridge.namespace.tensor import Tensor, convert


def computed_in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorates a function to compute half-precision tensors in float32, as torch's kernels do."""

    @functools.wraps(function)
    def widening(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        values = [x, *arguments, *options.values()]
        if not any(_is_half(v) for v in values):
            return function(x, *arguments, **options)
        first, *rest = (convert(v, dtypes.float32) if _is_half(v) else v for v in values)
        split = len(arguments)
        return convert(function(first, *rest[:split], **dict(zip(options, rest[split:], strict=True))), x.dtype)

    return widening


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype.is_floating_point and value.dtype.bits == 16
