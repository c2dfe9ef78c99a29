"""The namespace `F` of row bodies during an import: `torch`, with recorded calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from onnx2nn.fx.tracing.factories import DRAWS, FACTORIES, RANDOM
from onnx2nn.fx.values.dim import Dim
from onnx2nn.fx.values.tensor import Tensor, is_traced

if TYPE_CHECKING:
    from onnx2nn.fx.tracing.tracer import Tracer

_NOT_TENSORS = {
    torch.finfo,
    torch.iinfo,
    torch.is_tensor,
    torch.promote_types,
    torch.is_floating_point,
    torch.is_complex,
}
_NOT_TENSORS |= {torch.can_cast, torch.broadcast_shapes, torch.get_default_dtype}
_MAX_FOLDED = 1 << 16


class Namespace:
    """`torch` for traced row bodies: a call with traced arguments is recorded, other calls run."""

    def __init__(self, tracer: Tracer, module: ModuleType = torch):
        self._tracer, self._module = tracer, module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, ModuleType):
            value = Namespace(self._tracer, value)
        elif callable(value) and not isinstance(value, (torch.dtype, type)) and value not in _NOT_TENSORS:
            value = self._recorder(value)
        self.__dict__[name] = value
        return value

    def _recorder(self, function: Callable[..., Any]) -> Callable[..., Any]:
        tracer = self._tracer

        def call(*args: Any, **kwargs: Any) -> Any:
            if function is torch.numel and isinstance(args[0], Tensor):
                return args[0].numel()
            traced = (args and type(args[0]) is Tensor) or is_traced((args, kwargs))
            if function is torch.tensor and isinstance(args[0], Dim):
                # torch.fx, which unpickles a module by tracing it, takes no size as the data of a tensor.
                return tracer.call("call_function", torch.full, ((), *args), kwargs)
            if traced or function in RANDOM or function in DRAWS:
                return tracer.call("call_function", function, args, kwargs)
            if function in FACTORIES:
                shape = tracer.infer("call_function", function, args, kwargs).specs.shape
                if math.prod(shape) > _MAX_FOLDED:
                    return tracer.call("call_function", function, args, kwargs)
            return function(*args, **kwargs)

        return call
