"""Lets activations work in the memory of what nothing else reads."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from onnx2nn.optimization.chains import Calls, Link, links, parts

_LAYERS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm),
)
_FUNCTIONS = (operator.add, operator.sub, operator.mul, torch.add, torch.sub, torch.mul, F.conv2d, F.batch_norm)
"""Layers and functions whose results are new memory, if they are tensors."""

_FORMS: dict[Any, Any] = {torch.relu: torch.relu_, torch.sigmoid: torch.sigmoid_, torch.tanh: torch.tanh_}
"""Functions and their forms in place."""


def work_in_place(root: nn.Module) -> None:
    """Lets activations work in place whose input was made for them alone, at each place at which they are called."""
    calls, fresh = Calls(root), Counter[nn.Module]()
    for part in parts(root):
        fresh.update(link.layer for link in links(part) if _is_fresh(link))
        if isinstance(part, fx.GraphModule):
            _replace_functions(part)
    for layer, count in fresh.items():
        if hasattr(layer, "inplace") and count == calls[layer]:
            layer.inplace = True  # type: ignore[assignment]  # of an activation, which has it


def _is_fresh(link: Link) -> bool:
    if link.node is None or link.before is not None:
        return type(link.before) in _LAYERS
    return _is_made(link.node.args[0])


def _is_made(source: Any) -> bool:
    """Returns whether a node is a call that makes a tensor."""
    return (
        isinstance(source, fx.Node)
        and source.op == "call_function"
        and source.target in _FUNCTIONS
        and any(isinstance(arg, fx.Node) for arg in source.args)
    )


def _replace_functions(part: fx.GraphModule) -> None:
    changed = False
    for node in part.graph.nodes:
        source = node.args[0] if node.op == "call_function" and node.target in _FORMS and node.args else None
        if not isinstance(source, fx.Node) or len(source.users) != 1:
            continue
        layer = part.get_submodule(str(source.target)) if source.op == "call_module" else None
        if type(layer) in _LAYERS or _is_made(source):
            node.target, changed = _FORMS[node.target], True
    if changed:
        part.recompile()
