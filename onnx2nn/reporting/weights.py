"""The weights of a module: their sizes, and how their elements are distributed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from onnx2nn.reporting.model_report import Weight
from onnx2nn.reporting.module_runs import described

_BINS = 32
_CHUNK = 1 << 24
"""Elements that are converted at a time."""


def weights_of(module: nn.Module, restored: Mapping[str, str]) -> list[Weight]:
    """Returns the weights of a module and of those inside of it.

    Args:
        module: the module.
        restored: key → how the author's key was found.
    """
    persistent = set(module.state_dict(keep_vars=True))
    first: dict[Hashable, str] = {}
    found = []
    for role, key, tensor in _tensors(module):
        place = id(tensor) if tensor.is_meta else (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        tied = first.setdefault(place, key) if tensor.numel() else key
        known = Weight(
            key,
            "constant" if role == "buffer" and key not in persistent else role,
            described(tensor),
            tensor.numel(),
            tensor.nbytes,
            "" if tied == key else tied,
            found=restored.get(key, ""),
        )
        readable = tied == key and tensor.numel() and not tensor.is_meta and not tensor.is_complex()
        found.append(dataclasses.replace(known, **_distribution(tensor)) if readable else known)
    return found


def _tensors(module: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    for key, parameter in module.named_parameters(remove_duplicate=False):
        yield "parameter", key, parameter.detach()
    for key, buffer in module.named_buffers(remove_duplicate=False):
        yield "buffer", key, buffer.detach()


def _distribution(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns the fields of `Weight` that its elements decide."""
    count, zeros, total, least, greatest = 0, 0, 0.0, math.inf, -math.inf
    for part in _finite_parts(tensor):
        count += part.numel()
        zeros += int((part == 0).sum())
        total += float(part.sum())
        least, greatest = min(least, float(part.min())), max(greatest, float(part.max()))
    bad = {"zeros": zeros, "not_finite": tensor.numel() - count}
    if not count:
        return bad
    mean, squares, counted = total / count, 0.0, [0] * _BINS
    for part in _finite_parts(tensor):
        squares += float((part - mean).square().sum())
        if greatest > least:
            more = torch.histc(part, _BINS, least, greatest)
            counted = [before + int(number) for before, number in zip(counted, more, strict=True)]
    return {
        **bad,
        "least": least,
        "greatest": greatest,
        "mean": mean,
        "deviation": math.sqrt(squares / count),
        "histogram": counted if greatest > least else [],
    }


def _finite_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the finite elements in float64, so many at a time that the memory of a large weight is not doubled."""
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        values = flat[start : start + _CHUNK].to("cpu", torch.float64)
        values = values[torch.isfinite(values)]
        if values.numel():
            yield values
