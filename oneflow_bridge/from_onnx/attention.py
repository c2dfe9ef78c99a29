"""Multi-head attention with packed weights: a layer of torch.nn that OneFlow 0.9 lacks."""

from __future__ import annotations

from typing import Any

from oneflow_bridge.namespace.dtypes import flow
from oneflow_bridge.namespace.functional.attention import multi_head_attention_forward
from oneflow_bridge.namespace.tensor import Tensor, unwrap


class MultiheadAttention(flow.nn.Module):  # type: ignore[misc]  # OneFlow comes without types
    """Attention with masks; its parameters have the names and layout of `torch.nn.MultiheadAttention`.

    Args:
        embed_dim: features of queries, keys and values.
        num_heads: number of heads; each has `embed_dim / num_heads` features.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.in_proj_weight = flow.nn.Parameter(flow.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = flow.nn.Parameter(flow.zeros(3 * embed_dim))
        self.out_proj = flow.nn.Linear(embed_dim, embed_dim)
        flow.nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, query: Any, key: Any, value: Any, key_padding_mask: Any = None, attn_mask: Any = None) -> Any:
        """Returns the attended values, `(L, N, embed_dim)`, and None in place of the attention weights.

        Args:
            query: `(L, N, embed_dim)`, float32 or float64.
            key: `(S, N, embed_dim)`.
            value: `(S, N, embed_dim)`.
            key_padding_mask: `(N, S)`, a float mask that is added to the scores, or a bool mask, True at masked keys.
            attn_mask: `(L, S)` or `(N * num_heads, L, S)`, float or bool likewise.
        """
        x, y, z, weight, bias = map(Tensor, (query, key, value, self.in_proj_weight, self.in_proj_bias))
        out = Tensor(self.out_proj.weight), Tensor(self.out_proj.bias)
        given = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
        masks: dict[str, Any] = {name: Tensor(mask) for name, mask in given.items() if mask is not None}
        packed = (self.embed_dim, self.num_heads, weight, bias, None, None, False, 0.0, *out)
        return unwrap(multi_head_attention_forward(x, y, z, *packed, need_weights=False, **masks))
