"""Products of tensors of half precision, computed in float32 and rounded: where a processor has no kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn import functional

from onnx2nn.optimization.chains import parts

HALF = (torch.float16, torch.bfloat16)


def _recorded(function: Callable[..., torch.Tensor], *tensors: Any, **options: Any) -> torch.Tensor | None:
    """Returns the call of a function of this module where torch.fx traces it, as reading a pickle does; else None.

    A proxy stands for the tensor.
    """
    proxy = next((value for value in (*tensors, *options.values()) if isinstance(value, fx.Proxy)), None)
    if proxy is None:
        return None
    call: Any = proxy.tracer.create_proxy("call_function", function, tensors, options)
    return cast("torch.Tensor", call)


def _rounded(function: Callable[..., torch.Tensor], *tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    """Returns the result of a function in the type of its first tensor, computed in float32 if that is shorter."""
    dtype = tensors[0].dtype
    if dtype not in HALF or tensors[0].device.type != "cpu" or torch.compiler.is_compiling():
        return function(*tensors, **options)
    return function(*(tensor.float() for tensor in tensors), **options).to(dtype)


def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns `torch.matmul`, with float32 sums."""
    if (call := _recorded(matmul, input, other)) is not None:
        return call
    return _rounded(torch.matmul, input, other)


def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, **options: Any
) -> torch.Tensor:
    """Returns torch's function of this name, computed in float32."""
    call = _recorded(scaled_dot_product_attention, query, key, value, attn_mask=attn_mask, **options)
    if call is not None:
        return call
    if attn_mask is not None and attn_mask.dtype == query.dtype and query.dtype in HALF:
        attn_mask = attn_mask.float()
    return _rounded(functional.scaled_dot_product_attention, query, key, value, attn_mask=attn_mask, **options)


_FORMS: dict[Any, Callable[..., torch.Tensor]] = {
    torch.matmul: matmul,
    operator.matmul: matmul,
    torch.bmm: matmul,
    functional.scaled_dot_product_attention: scaled_dot_product_attention,
}


def compute_in_float32(root: nn.Module) -> None:
    """Replaces the products of a tree of modules."""
    for part in parts(root):
        if not isinstance(part, fx.GraphModule):
            continue
        calls = [node for node in part.graph.nodes if node.op == "call_function" and node.target in _FORMS]
        for node in calls:
            node.target = _FORMS[node.target]
        if calls:
            part.recompile()
