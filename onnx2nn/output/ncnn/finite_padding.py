"""Replaces infinities by the largest float32: NCNN's text format cannot write them.

A max pool whose padding is uneven is padded with -inf before it. The module for NCNN is compared afterwards.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import fx


def finite_pads(module: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy in which paddings with an infinity use the largest float32 of its sign."""
    result = fx.GraphModule(module, copy.deepcopy(module.graph))
    largest = torch.finfo(torch.float32).max
    for node in result.graph.nodes:
        if node.target is torch.nn.functional.pad:
            value = node.kwargs.get("value")
            if isinstance(value, float) and math.isinf(value):
                node.update_kwarg("value", math.copysign(largest, value))
    result.recompile()
    return result
