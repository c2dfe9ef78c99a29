"""Changes a tree of modules for inference in eager mode."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from onnx2nn.optimization.batch_norms import fold_batch_norms
from onnx2nn.optimization.in_place import work_in_place
from onnx2nn.optimization.layouts import hold_channels_last
from onnx2nn.optimization.packing import pack_layers


def optimized(module: nn.Module) -> nn.Module:
    """Returns an optimised copy, see `onnx2nn.optimize`."""
    result: Any = copy.deepcopy(module).eval()
    for parameter in result.parameters():
        parameter.requires_grad_(False)
    fold_batch_norms(result)
    pack_layers(result)
    work_in_place(result)
    hold_channels_last(result)
    result.meta["onnx2nn"]["optimized"] = "eager"
    return result  # type: ignore[no-any-return]  # a copy
