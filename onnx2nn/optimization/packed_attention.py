"""Self-attention whose two matrices are packed for oneDNN."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from onnx2nn.optimization.half_products import scaled_dot_product_attention
from onnx2nn.optimization.packed_layers import can_be_held


class PackedSelfAttention(nn.Module):
    """An `nn.MultiheadAttention` that is called on one tensor, without masks and without weights as a result.

    Its state has the keys of the plain layer.

    Args:
        layer: the layer, in evaluation mode, see `can_be_packed`.
        in_proj: the first of its `matrices`, packed.
        out_proj: the second.
    """

    def __init__(self, layer: nn.MultiheadAttention, in_proj: nn.Module, out_proj: nn.Module):
        super().__init__()
        self.heads, self.batch_first = layer.num_heads, layer.batch_first
        self.in_proj, self.out_proj = in_proj, out_proj
        self.register_state_dict_post_hook(_plain_keys)
        self.register_load_state_dict_pre_hook(_packed_keys)

    def forward(self, query: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        """Returns the result for `(L, N, E)`, `(N, L, E)` with the batch first or `(L, E)`, and None."""
        turned = query.ndim == 3 and not self.batch_first
        x = query.transpose(0, 1) if turned else query
        parts = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in self.in_proj(x).chunk(3, -1))
        y = self.out_proj(scaled_dot_product_attention(*parts).transpose(-3, -2).flatten(-2))
        return (y.transpose(0, 1) if turned else y), None

    def extra_repr(self) -> str:
        """Returns the settings."""
        return f"heads={self.heads}, batch_first={self.batch_first}"


def matrices(layer: nn.MultiheadAttention) -> tuple[nn.Linear, nn.Linear]:
    """Returns the two linear layers of an attention, on its weights."""
    of_input = _linear(layer.in_proj_weight, layer.in_proj_bias)
    return of_input, _linear(layer.out_proj.weight, layer.out_proj.bias)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def _plain_keys(layer: PackedSelfAttention, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in ("weight", "bias"):
        if f"{prefix}in_proj.{name}" in state:
            state[f"{prefix}in_proj_{name}"] = state.pop(f"{prefix}in_proj.{name}")


def _packed_keys(layer: PackedSelfAttention, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name in ("weight", "bias"):
        if f"{prefix}in_proj_{name}" in state:
            state[f"{prefix}in_proj.{name}"] = state.pop(f"{prefix}in_proj_{name}")


def can_be_packed(layer: nn.Module, calls: list[fx.Node]) -> bool:
    """Returns whether `PackedSelfAttention` does what a layer does in its calls."""
    if type(layer) is not nn.MultiheadAttention or layer.in_proj_weight is None or layer.add_zero_attn:
        return False
    if layer.bias_k is not None or not can_be_held(layer.in_proj_weight):
        return False
    return bool(calls) and all(
        len(call.args) == 3 and len(set(call.args)) == 1 and call.kwargs == {"need_weights": False} for call in calls
    )
