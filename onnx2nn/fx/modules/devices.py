"""Moves an imported module to the device that it was loaded for."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from onnx2nn.fx.modules.graph_module import lay_out_state


def move(module: nn.Module, device: torch.device) -> None:
    """Moves a module whose weights are views of their file to a device that has memory."""
    module.to(device)
    lay_out_state(module)


def drop_elements(module: nn.Module, keys: Collection[str]) -> None:
    """Moves the tensors of some keys of state_dict to the meta device, where they have no elements.

    Constants outside of state_dict, such as masks and tables of positions, keep theirs on the CPU: no state_dict brings
    them back. All tensors that keep their elements get memory of their own.
    """
    state = {id(tensor) for key, tensor in module.state_dict(keep_vars=True).items() if key in keys}
    made: dict[int, torch.Tensor] = {}
    for holder in module.modules():
        for name, tensor in [*_own_parameters(holder), *_own_buffers(holder)]:
            if id(tensor) not in made:
                made[id(tensor)] = _empty(tensor) if id(tensor) in state else _copied(tensor)
            setattr(holder, name, made[id(tensor)])


def _own_parameters(holder: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(holder.named_parameters(recurse=False, remove_duplicate=False))


def _own_buffers(holder: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(holder.named_buffers(recurse=False, remove_duplicate=False))


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return _as(tensor, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return _as(tensor, tensor.detach().clone())


def _as(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(made, requires_grad=tensor.requires_grad) if is_parameter else made
