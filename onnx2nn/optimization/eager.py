"""Changes a tree of modules for inference in eager mode."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from onnx2nn.fx.modules.float_type import float_type
from onnx2nn.ground.device_placement import device_of
from onnx2nn.optimization.batch_norms import fold_batch_norms
from onnx2nn.optimization.half_products import HALF, compute_in_float32
from onnx2nn.optimization.in_place import work_in_place
from onnx2nn.optimization.layouts import hold_channels_last
from onnx2nn.optimization.packing import is_slow, pack_layers
from onnx2nn.optimization.rounded_weights import round_weights
from onnx2nn.optimization.sequences import skip_identities


def optimized(module: nn.Module) -> nn.Module:
    """Returns an optimised copy, see `onnx2nn.optimize`."""
    result: Any = copy.deepcopy(module).eval()
    for parameter in result.parameters():
        parameter.requires_grad_(False)
    round_weights(result)
    fold_batch_norms(result)
    is_on_cpu = device_of(result, torch.device("cpu")).type == "cpu"
    if is_on_cpu:
        pack_layers(result)
        if (dtype := float_type(result)) in HALF and is_slow(nn.Linear, dtype):
            compute_in_float32(result)
    work_in_place(result)
    skip_identities(result)
    if is_on_cpu:
        hold_channels_last(result)
    result.meta["onnx2nn"]["optimized"] = "eager"
    return result  # type: ignore[no-any-return]  # a copy
