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


class Last(nn.Module):
    """The features of a recurrent layer, without its states."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_is_scripted_with_its_weights(kind: type[nn.Module], exporter: str) -> None:
    """Torch keeps them in a list too, which a call brings up to date, but not one in TorchScript."""
    torch.manual_seed(0)
    original = Last(kind(3, 4, bidirectional=True, batch_first=True)).eval()
    first, second = torch.randn(2, 5, 3), torch.randn(3, 5, 3)  # the newer exporter fixes an RNN's length
    path = EXPORTERS[exporter](f"scripted {kind.__name__}", original, (first,), (second,))
    scripted = torch.jit.script(onnx2nn.load(path))
    check_same(run(scripted, (second,)), run(original, (second,)), "the import, scripted before any call")
