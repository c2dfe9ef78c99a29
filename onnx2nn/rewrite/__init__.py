"""Raising: replaces decomposed operators, such as the Erf, Add and Mul nodes of a GELU, by one operator.

A model comes in before its import and is changed in place. A report of the applied rules goes out. The replacements are
the same for every framework. `loading` calls `raise_patterns`. The OneFlow exporter uses `patterns`; other passes over
models take `REPLACEMENT_OPSET` from `rewrite_rule`.
"""

from __future__ import annotations

from onnx2nn.rewrite.raising import Raising, raise_patterns

__all__ = ["Raising", "raise_patterns"]
