"""`torch.nn.utils.prune`: half of the weights of every layer are masked, then removed for good."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import nn
from torch.nn.utils import prune

from tests.ecosystem.observing import Make, outputs_of
from tests.ecosystem.subjects.subject import Subject

TITLE = "weight pruning (`torch.nn.utils.prune`)"


def use(make: Make, subject: Subject) -> Any:
    """Returns which parameters are masked, and the outputs before and after the masks are made permanent.

    Masks are random except that of the head, where the smallest weights go: exporters fold batch norms into other
    weights, whose order changes by it.
    """
    module = make()
    layers = {name: layer for name, layer in module.named_modules() if _prunable(name, layer, subject)}
    for name, layer in layers.items():
        torch.manual_seed(zlib.crc32(name.encode()))
        by = prune.l1_unstructured if name == subject.head else prune.random_unstructured
        by(layer, "weight", amount=0.5)
    masked = outputs_of(module, subject)
    names = sorted(name for name, _ in module.named_parameters() if name.endswith("_orig"))
    for layer in layers.values():
        prune.remove(layer, "weight")
    return {"parameters": names, "masked": masked, "removed": outputs_of(module, subject)}


def _prunable(name: str, layer: nn.Module, subject: Subject) -> bool:
    """Whether it is a layer with a matrix or kernel that no other layer has; the head may have the embedding's."""
    weight = getattr(layer, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.ndim > 1 and name != subject.embedding
