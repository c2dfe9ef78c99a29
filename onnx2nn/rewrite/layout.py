"""Rules: reshapes and transposes that are one function of torch's."""

from __future__ import annotations

from onnx2nn.rewrite.rule import Rule

RULES: tuple[Rule, ...] = ()
