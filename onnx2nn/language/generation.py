"""Decoding: the tokens that a language model continues a prompt with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from onnx2nn.errors import InputError
from onnx2nn.language.caches import Decoder


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn, see `onnx2nn.generate`.

    Raises:
        InputError: a number does not fit.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    generator: torch.Generator | None

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise InputError(f"temperature={self.temperature}: give a positive number.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p}: give a number above 0, 1 at most.")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k={self.top_k}: give 1 or more.")

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns tokens `(N, 1)` for logits `(N, words)`."""
        return torch.multinomial(self.probabilities(logits), 1, generator=self.generator)

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the probabilities of tokens, 0 for those that are not drawn from."""
        logits = logits.float() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[:, -1:], -torch.inf)
        probable = logits.softmax(-1)
        if self.top_p is not None and self.top_p < 1:
            ordered, order = probable.sort(-1, descending=True)
            before = ordered.cumsum(-1) - ordered
            probable = torch.zeros_like(probable).scatter(-1, order, ordered.masked_fill(before >= self.top_p, 0.0))
        return probable


def decode(
    module: Any,
    input_ids: torch.Tensor,
    count: int,
    drawing: Drawing | None,
    ends: int | Collection[int],
    padding: int,
) -> torch.Tensor:
    """Returns prompts with up to `count` new tokens, the most probable ones or drawn; see `onnx2nn.generate`."""
    if input_ids.ndim != 2 or not input_ids.shape[1]:
        raise InputError(f"input_ids has the shape {tuple(input_ids.shape)}. Give (prompts, tokens).")
    decoder = Decoder.of(module)
    caches = decoder.empty(input_ids.shape[0], input_ids.device)
    last = torch.tensor([ends] if isinstance(ends, int) else list(ends), dtype=torch.int64, device=input_ids.device)
    found, new = input_ids, input_ids
    done = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
    with torch.no_grad():
        for _ in range(count):
            logits, caches = decoder.step(new, found.shape[1] - new.shape[1], caches)
            logits = logits[:, -1]
            new = logits.argmax(-1, keepdim=True) if drawing is None else drawing.draw(logits)
            new = torch.where(done.unsqueeze(1), padding, new)
            found = torch.cat([found, new], 1)
            done = done | torch.isin(new[:, 0], last)
            if bool(done.all()):
                break
    return found
