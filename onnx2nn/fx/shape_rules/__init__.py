"""Shape rules: the symbolic shapes of the results of torch's functions, by function or name of a tensor method.

A call without a rule runs on meta tensors at sample sizes instead, which takes from half a millisecond to seconds, and
whose result must be checked at run time where sizes are dynamic.
"""

from __future__ import annotations

import importlib
import pkgutil

from onnx2nn.fx.shape_rules.rule import RULES

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["RULES"]
