"""What a module holds itself, without the modules in it: its parameters, buffers and children by name.

torch's public iterators leave out a second name of the same object unless they are told otherwise; these do not.
"""

from __future__ import annotations

import torch
from torch import nn


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the module's own parameters by name; names registered as None are left out."""
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def own_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the module's own buffers by name, the non-persistent ones too; those that are None are left out."""
    return dict(module.named_buffers(recurse=False, remove_duplicate=False))


def own_modules(module: nn.Module) -> dict[str, nn.Module]:
    """Returns the module's children by name, one that has two names twice."""
    every = module.named_modules(remove_duplicate=False)
    return {name: child for name, child in every if name and "." not in name}


def non_persistent_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the buffers in `module`, at any depth, that its state_dict leaves out, by their full names."""
    state = module.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in module.named_buffers(remove_duplicate=False) if name not in state}
