"""The program of a module in the terms of imported files: it is exported, and imported again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx, nn

from onnx2nn.errors import InputError, first_line
from onnx2nn.ground.extras import require
from onnx2nn.ground.quiet import quiet
from onnx2nn.loading import load


def twin(model: nn.Module, tensors: Sequence[Any]) -> fx.GraphModule:
    """Returns the module's program, with the module's keys, in float64.

    Its weights are random: where weights of a module are equal, exporters write them once. Constants are folded as the
    exporter does it, but for those that are computed from weights.

    Args:
        model: a module in eval mode, which stays as it is.
        tensors: its inputs.

    Raises:
        InputError: torch.onnx.export refuses the module.
        MissingDependencyError: onnxscript is not installed.
        UnsupportedModelError: the exported module cannot be imported.
    """
    require("onnxscript", extra="export", purpose="torch.onnx.export")
    model = copy.deepcopy(model).cpu().float()
    _randomise(model)
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(model, tuple(tensors), dynamo=True, optimize=False, verbose=False)
    except Exception as error:  # its errors share no base class
        raise InputError(
            f"torch.onnx.export cannot export the {type(model).__name__}: {first_line(error)}. Give inputs= that it "
            "takes, or a module that can be exported."
        ) from error
    assert program is not None  # dynamo=True gives a program
    _fold(program.model)
    found: fx.GraphModule = load(program.model_proto, dtype=torch.float64)
    return found


def _randomise(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.1
    for name, buffer in model.named_buffers():
        slot = name.rpartition(".")[2]
        if slot in ("running_mean", "running_var"):
            buffer.copy_(torch.rand(buffer.shape, generator=generator, dtype=buffer.dtype) + 0.5)


def _fold(model: ir.Model) -> None:
    from onnxscript import optimizer  # an extra, see `twin`

    weights = set(model.graph.initializers.values())  # those that are folded become initializers too

    def should_fold(node: ir.Node) -> bool | None:
        return None if weights.isdisjoint(node.inputs) else False

    optimizer.fold_constants_ir(model, onnx_shape_inference=True, should_fold=should_fold)
