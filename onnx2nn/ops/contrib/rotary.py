"""Rotary embeddings of ONNX Runtime for several position streams, and Gemma's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx2nn.errors import OperatorError
from onnx2nn.ops.contrib.fused import MICROSOFT
from onnx2nn.ops.linalg import rotary_embedding
from onnx2nn.ops.shape import scalar
from onnx2nn.optable.registry import op
from onnx2nn.optable.row import Lookup


def _streams(sections: Sequence[int], layout: int) -> list[int]:
    """Returns the position stream that each angle follows: 0 for time, 1 for height, 2 for width."""
    if len(sections) != 3 or layout not in (0, 1):
        raise OperatorError(f"mrope_section={list(sections)}, mrope_layout={layout} is not three sizes, and 0 or 1.")
    if layout == 0:
        return [stream for stream, size in enumerate(sections) for _ in range(size)]
    return [i % 3 if i % 3 and i < 3 * sections[i % 3] else 0 for i in range(sum(sections))]


@op("MRotaryEmbedding", 1, domain=MICROSOFT, lookups=(Lookup("position_ids", "cos_cache"),))
def mrotary_embedding(
    F: Any,
    input: Any,
    position_ids: Any,
    cos_cache: Any,
    sin_cache: Any,
    *,
    interleaved: int | None = None,
    is_packed_batching: int | None = None,
    mrope_layout: int | None = None,
    mrope_section: Sequence[int],
    num_heads: int | None = None,
    rotary_embedding_dim: int | None = None,
    scale: float | None = None,
) -> Any:
    """RotaryEmbedding whose angles follow one of three positions, `(3, N, L)`, each."""
    if scale not in (None, 1.0) or is_packed_batching:
        raise OperatorError(f"scale={scale}, is_packed_batching={is_packed_batching} is not defined. Leave them out.")
    stream = F.tensor(_streams(mrope_section, mrope_layout or 0), dtype=F.int64)
    angle = F.arange(sum(mrope_section))
    cos, sin = (
        F.nn.functional.embedding(position_ids, cache).permute(0, 3, 1, 2)[stream, angle].permute(1, 2, 0)
        for cache in (cos_cache, sin_cache)
    )
    options: dict[str, Any] = dict(interleaved=interleaved or 0, rotary_embedding_dim=rotary_embedding_dim or 0)
    if input.ndim == 4 or num_heads:
        return rotary_embedding(F, input, cos, sin, num_heads=num_heads, **options)
    X = input.unflatten(2, (-1, 2 * sum(mrope_section))).transpose(1, 2)
    return rotary_embedding(F, X, cos, sin, **options).transpose(1, 2).flatten(2)


@op("GemmaRotaryEmbedding", 1, domain=MICROSOFT)
def gemma_rotary_embedding(F: Any, emb: Any, q: Any, q_rot: Any, k: Any, k_rot: Any) -> tuple[Any, ...]:
    """q and k, `(N, heads, L, size)`, rotated by the angles `(N, L, size)`; the rotated halves are inputs."""
    cos, sin = (x.to(q.dtype).unsqueeze(1) for x in (F.cos(emb), F.sin(emb)))
    return q * cos + q_rot * sin, k * cos + k_rot * sin


@op("RMSNormRotary", 1, domain=MICROSOFT, static=["prefill_numerics"])
def rms_norm_rotary(
    F: Any,
    X: Any,
    scale: Any,
    position_ids: Any,
    cosine: Any,
    sine: Any,
    prefill_numerics: Any = None,
    *,
    epsilon: float = 1e-06,
    flatten_batch: int = 0,
    input_start: int = 0,
    input_width: int = 0,
    output_fp16: int = 0,
    rotary_embedding_dim: int,
    use_fp32_arithmetic: int = 1,
    _outputs: int = 1,
) -> Any:
    """RMS normalisation of a slice of each head, `(N, L, heads, width)`, whose first features are then rotated.

    With float16 or caches of float32 all is float32. Else what is normalised is rounded to bfloat16, and so is each
    step of the rotation, in the numerics of a prompt or without use_fp32_arithmetic.
    """
    wide = X.dtype == F.float16 or output_fp16 or cosine.dtype == F.float32
    prompt = prefill_numerics is not None and scalar(prefill_numerics)
    x = X[..., input_start : input_start + input_width] if input_width else X[..., input_start:]
    x = x.to(F.float32)
    root = (x.square().mean(-1, keepdim=True) + epsilon).sqrt()
    normalised = (x * (1 / root) if prompt and not wide else x / root) * scale
    step = F.bfloat16 if not wide and (prompt or not use_fp32_arithmetic) else F.float32
    if not wide:
        normalised = normalised.to(F.bfloat16).to(F.float32)
    position = position_ids
    if position.ndim < 2:
        position = position.reshape(1, 1) + F.arange(X.shape[1])
    c, s = (F.nn.functional.embedding(position, cache).unsqueeze(2).to(step) for cache in (cosine, sine))
    a, b = normalised[..., :rotary_embedding_dim].to(step).chunk(2, -1)
    kept = normalised[..., rotary_embedding_dim:]
    turned = F.cat([(a * c - b * s).to(F.float32), (b * c + a * s).to(F.float32), kept], -1)
    Y = turned.flatten(2).to(F.float16 if output_fp16 else F.bfloat16)
    Y = Y.flatten(0, 1).unsqueeze(0) if flatten_batch else Y
    return (Y, normalised) if _outputs > 1 else Y
