"""Moves an imported module to the device that it was loaded for."""

from __future__ import annotations

import torch
from torch import nn

from onnx2nn.fx.graph_module import lay_out_state


def move(module: nn.Module, device: torch.device) -> None:
    """Moves a module whose weights are views of their file.

    On the meta device, parameters and the buffers of state_dict have no elements. Constants outside of state_dict, such
    as masks and tables of positions, keep theirs on the CPU: no state_dict brings them back.
    """
    if device.type == "meta":
        _drop_elements(module)
    else:
        module.to(device)
        lay_out_state(module)


def _drop_elements(module: nn.Module) -> None:
    state = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
    made: dict[int, torch.Tensor] = {}
    for holder in module.modules():
        for name, tensor in [*_own_parameters(holder), *_own_buffers(holder)]:
            if id(tensor) not in made:
                made[id(tensor)] = _empty(tensor) if id(tensor) in state else tensor.clone()
            setattr(holder, name, made[id(tensor)])


def _own_parameters(holder: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(holder.named_parameters(recurse=False, remove_duplicate=False))


def _own_buffers(holder: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(holder.named_buffers(recurse=False, remove_duplicate=False))


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty
