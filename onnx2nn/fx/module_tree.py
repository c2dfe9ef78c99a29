"""Modules, parameters and buffers by dotted path: put in, taken out, moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from onnx2nn.fx.constants import identity_of
from onnx2nn.fx.trace_errors import TraceError


def container(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Returns the module that holds what is at the dotted `path`, made where there is none, and its name there."""
    if "." not in path:
        return root, path
    *steps, name = path.split(".")
    for step in steps:
        inner = getattr(root, step, None)
        if not isinstance(inner, nn.Module):
            root.add_module(step, inner := nn.Module())
        root = inner
    return root, name


def paths_around(path: Any) -> Iterator[str]:
    """Yields a dotted path and those of the modules around what is there."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def remove(root: nn.Module, path: str) -> None:
    """Removes what is at the dotted `path`, and the modules around it that hold nothing else."""
    while path:
        around, _, name = path.rpartition(".")
        holder = root.get_submodule(around)
        delattr(holder, name)
        if type(holder) is not nn.Module or [*holder.children(), *_own_state(holder)]:
            return
        path = around


def put_module(root: nn.Module, path: str, module: nn.Module) -> None:
    """Puts `module` at the dotted `path`; what a container there holds already, constants, moves into it."""
    holder, name = container(root, path)
    before = getattr(holder, name, None)
    if isinstance(before, nn.Module):
        _move(before, module)  # first: what does not fit leaves the container where it is
    holder.add_module(name, module)


def _move(source: nn.Module, target: nn.Module) -> None:
    """Gives `target` what `source` holds; under one key both must hold the same."""
    persistent = source.state_dict(keep_vars=True).keys()
    for name, value in _own_state(source):
        held = getattr(target, name, None)
        if isinstance(held, torch.Tensor) and identity_of(held) == identity_of(value):
            continue
        if hasattr(target, name):
            raise TraceError(f"a layer has another {name!r} than the constant called so")
        if isinstance(value, nn.Parameter):
            target.register_parameter(name, value)
        else:
            target.register_buffer(name, value, persistent=name in persistent)
    for name, inner in source.named_children():
        if isinstance(own := getattr(target, name, None), nn.Module):
            _move(inner, own)
        else:
            target.add_module(name, inner)


def _own_state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parameters and buffers of a module without those of the modules in it."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)
