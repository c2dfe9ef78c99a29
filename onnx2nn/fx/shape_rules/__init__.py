"""Shape rules: the symbolic shapes of the results of torch's functions, by function or name of a tensor method.

A call without a rule runs on meta tensors at sample sizes instead, which takes from half a millisecond to seconds, and
whose result must be checked at run time where sizes are dynamic. The module of a rule is imported when a model first
calls its function.
"""

from __future__ import annotations

from onnx2nn.fx.shape_rules.rule import RULES

__all__ = ["RULES"]
