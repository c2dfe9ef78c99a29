"""Files of a single layer, which is the outermost module: its weights have no path."""

from __future__ import annotations

import re

import pytest
import torch
from realmodels import EXPORTERS, check_same, run
from torch import nn

import onnx2nn

LAYERS = [
    (nn.Linear(4, 3), (2, 4)),
    (nn.Conv2d(4, 3, 3), (2, 4, 5, 5)),
    (nn.ConvTranspose1d(4, 2, 3), (2, 4, 6)),
    (nn.LayerNorm(4), (2, 4)),
    (nn.GroupNorm(2, 4), (2, 4, 5)),
    (nn.BatchNorm1d(4), (2, 4, 5)),
    (nn.BatchNorm2d(4), (2, 4, 5, 5)),
    (nn.InstanceNorm2d(4, affine=True), (2, 4, 5, 5)),
    (nn.PReLU(4), (2, 4)),
]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda value: re.sub(r"\W+", "-", repr(value)))
def test_a_layer_alone(layer: nn.Module, shape: tuple[int, ...], exporter: str) -> None:
    """The only key that a file lacks is the number of batches that a normalisation has seen."""
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    first, second = (torch.randn(batch, *shape[1:]) for batch in (2, 3))
    name = f"alone {re.sub(r'[^a-zA-Z0-9]+', '-', repr(layer))}"
    module = onnx2nn.load(EXPORTERS[exporter](name, layer.eval(), (first,), (second,)))
    for x in (first, second):
        check_same(run(module, (x,)), run(layer, (x,)), "the import")
    assert {*module.state_dict(), "num_batches_tracked"} >= layer.state_dict().keys() >= module.state_dict().keys()
    assert dict(module.named_parameters()).keys() == dict(layer.named_parameters()).keys()
    module(first).sum().backward()
