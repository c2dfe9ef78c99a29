"""Longformer's attention of ONNX Runtime."""

from __future__ import annotations

from typing import Any

from onnx2nn.ops.contrib.attention import heads_apart
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.optable.registry import op


@op("LongformerAttention", 1, domain=MICROSOFT)
def longformer_attention(
    F: Any,
    input: Any,
    weight: Any,
    bias: Any,
    mask: Any,
    global_weight: Any,
    global_bias: Any,
    global_: Any,
    *,
    num_heads: int,
    window: int,
) -> Any:
    """A token attends `window` tokens on each side and the global ones; a global token attends all, by other matrices.

    input: `(N, L, heads * size)`; mask: `(N, L)`, is added to the scores of a key; a query where it is negative gives
    zeros. global: `(N, L)`, 1 for global tokens. All scores are computed, L * L, as by the faster of ONNX Runtime's
    kernels.
    """
    local = [heads_apart(x, num_heads) for x in (input @ weight + bias).chunk(3, 2)]
    everywhere = [heads_apart(x, num_heads) for x in (input @ global_weight + global_bias).chunk(3, 2)]
    position = F.arange(input.shape[1], device=input.device)
    near = (position.unsqueeze(1) - position).abs() <= window
    attended = (near | (global_ != 0).unsqueeze(1)).unsqueeze(1)
    Y, Z = _attention(F, local, mask, attended), _attention(F, everywhere, mask, None)
    rows = (mask >= 0).unsqueeze(1).unsqueeze(-1)
    found = F.where((global_ != 0).unsqueeze(1).unsqueeze(-1), Z, Y)
    return F.where(rows, found, 0.0).transpose(1, 2).flatten(2)


def _attention(F: Any, parts: list[Any], mask: Any, attended: Any) -> Any:
    q, k, v = parts
    scores = (q @ k.mT) * q.shape[3] ** -0.5 + mask.unsqueeze(1).unsqueeze(1)
    scores = scores if attended is None else F.where(attended, scores, -float("inf"))
    return F.softmax(scores, -1) @ v
