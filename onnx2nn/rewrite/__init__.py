"""Raising: what an exporter decomposed becomes one operator again, before the import, for every framework alike."""

from __future__ import annotations

from onnx2nn.rewrite.raising import Raising, raise_patterns

__all__ = ["Raising", "raise_patterns"]
