"""The inputs of language models: tokens, masks, positions, and caches that outputs continue."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onnx2nn.errors import InputError
from onnx2nn.fx.constants import torch_dtype
from onnx2nn.importing.inputs import InputSpec, specs_of
from onnx2nn.optimization.compiled_module import CompiledModule

_TOKENS = frozenset({"input_ids", "attention_mask", "position_ids"})


@dataclass(frozen=True)
class Decoder:
    """An imported module as a function of new tokens and of the cache of the tokens before them.

    Attributes:
        module: the module.
        specs: its inputs, by name.
        outputs: the names of its outputs.
        caches: for each input that is a cache, the output that continues it.
    """

    module: Any
    specs: Mapping[str, InputSpec]
    outputs: Sequence[str]
    caches: Mapping[str, str]

    @classmethod
    def of(cls, module: Any) -> Decoder:
        """Returns the decoder of an imported module.

        Raises:
            InputError: its inputs and outputs are not those of a decoder with a cache.
        """
        specs = {spec.name: spec for spec in specs_of(module)}
        outputs = list(module.meta["onnx2nn"]["outputs"])
        caches = {name: name.replace("past_key_values", "present") for name in specs if name not in _TOKENS}
        unknown = [name for name, other in caches.items() if other == name or other not in outputs]
        if "input_ids" not in specs or "logits" not in outputs or unknown or not caches:
            raise InputError(
                "The module is no decoder: it needs an input 'input_ids', an output 'logits', and caches "
                f"'past_key_values.0.key' that outputs 'present.0.key' continue. Its inputs are {', '.join(specs)}."
            )
        return cls(module, specs, outputs, caches)

    def empty(self, batch: int, device: torch.device) -> dict[str, torch.Tensor]:
        """Returns caches of no tokens, with as many rows as the module takes at least.

        Raises:
            InputError: a cache has another form.
        """
        found = {}
        for name in self.caches:
            spec = self.specs[name]
            _, heads, rows, size = spec.shape if spec.shape is not None and len(spec.shape) == 4 else (None,) * 4
            if not isinstance(heads, int) or not isinstance(size, int) or spec.dtype is None or rows is None:
                raise InputError(f"The cache {spec} is not of the form (batch, heads, tokens, size).")
            count = rows if isinstance(rows, int) else self._least(rows)
            found[name] = torch.zeros(batch, heads, count, size, dtype=torch_dtype(spec.dtype), device=device)
        return found

    def _least(self, size: str) -> int:
        """Returns the smallest size of a dimension that the guards, or machine code, allow.

        A sliding window's cache has its rows, and machine code takes no empty tensor: it gets two rows at least, see
        `step`. The mask says that none of them is a token.
        """
        if isinstance(self.module, CompiledModule):
            return max(self.module.entry.ranges[size][0], 2)
        texts = (guard["condition"] for guard in self.module.meta["onnx2nn"]["guards"])
        found = (re.fullmatch(rf"{re.escape(size)} >= (\d+)", text) for text in texts)
        return max((int(match[1]) for match in found if match), default=0)

    def step(
        self, tokens: torch.Tensor, past: int, caches: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Returns the logits of new tokens, and the caches with them.

        Args:
            tokens: `(N, L)`.
            past: the number of tokens before them.
            caches: of these.

        Returns:
            The logits, `(N, L, words)`, and the caches.

        Raises:
            InputError: the module is machine code that would take the rows of an empty cache for tokens.
        """
        results = dict(zip(self.outputs, self.module(*self.arguments(tokens, past, caches)), strict=True))
        present = {name: results[output] for name, output in self.caches.items()}
        if isinstance(self.module, CompiledModule) and not past:
            self._check_rows(caches, present, tokens.shape[1])
        return results["logits"], present

    def _check_rows(self, caches: Mapping[str, torch.Tensor], present: Mapping[str, torch.Tensor], length: int) -> None:
        """Checks that new tokens were written over a cache's rows: other attentions append them."""
        for name, cache in caches.items():
            rows = cache.shape[2]
            if present[name].shape[2] not in (rows, max(rows, length)):
                raise InputError(
                    f"Machine code takes no empty cache, and this file's attention takes each row of {name!r} for a "
                    'token. Give the module of onnx2nn.load, or one that optimize made in another mode than "compile".'
                )

    def arguments(
        self, tokens: torch.Tensor, past: int, caches: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Returns the inputs of the module for new tokens, see `step`."""
        total = past + tokens.shape[1]
        given = {
            "input_ids": tokens,
            "attention_mask": self._mask(tokens, total),
            "position_ids": torch.arange(past, total, device=tokens.device).expand(tokens.shape),
            **caches,
        }
        return tuple(given[name] for name in self.specs)

    def _mask(self, tokens: torch.Tensor, total: int) -> torch.Tensor:
        """Returns the mask of `total` tokens, and of places behind them where machine code takes no mask as short."""
        mask = tokens.new_ones(tokens.shape[0], total)
        spec = self.specs.get("attention_mask")
        if not isinstance(self.module, CompiledModule) or spec is None or not spec.shape:
            return mask
        least, _ = self.module.entry.ranges.get(str(spec.shape[1]), (0, None))
        return torch.nn.functional.pad(mask, (0, max(least - total, 0)))
