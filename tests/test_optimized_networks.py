"""Optimised random networks give what the import gives: within the rounding of float32, at every batch size."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.onnx import OnnxExporterError

import onnx2nn
from onnx2nn.optimization.layouts import ContiguousGroupNorm
from tests.random_networks import draw

FAST, PARTS, IN_A_PART = 16, 8, 250
FACTOR = 10
"""How much farther from float64 than the import an optimised network may be: it adds in another order."""


def _exported(net: nn.Module, x: torch.Tensor) -> bytes:
    file = io.BytesIO()
    axes = {"x": {0: "batch"}}
    torch.onnx.export(net, (x,), file, dynamo=False, input_names=["x"], dynamic_axes=axes, opset_version=17)
    return file.getvalue()


def _fault(seed: int) -> str | None:
    """Returns what is wrong with the optimised import of a network, empty if nothing is; None without a file."""
    net, inputs = draw(seed)
    try:
        source = _exported(net, inputs(2))
    except (OnnxExporterError, RuntimeError):  # pools that the older exporter does not write; images below their pads
        return None
    module, faster = onnx2nn.load(source), onnx2nn.load(source, optimize="eager")
    exact = copy.deepcopy(net).double()
    distances: dict[int, float] = {}
    rounding = 0.0  # of all batches, as a single output may be right by chance
    for batch in (1, 2, 5):
        x = inputs(batch)
        with torch.no_grad():
            found, wanted = faster(x), module(x)
            true = exact(x.double() if x.is_floating_point() else x)
        if found.shape != wanted.shape:
            return f"seed {seed}, batch {batch}: shape {list(found.shape)}, not {list(wanted.shape)}"
        scale = max(float(true.abs().max()), 1e-3)
        distances[batch], plain = (float((value.double() - true).abs().max()) / scale for value in (found, wanted))
        rounding = max(rounding, plain)
    far = [batch for batch, distance in distances.items() if not distance <= FACTOR * rounding + 1e-6]
    return "".join(f"seed {seed}, batch {b}: {distances[b]:.3g} from float64, the import {rounding:.3g}" for b in far)


def _check(seeds: range) -> None:
    found = [_fault(seed) for seed in seeds]
    assert not list(filter(None, found))
    assert found.count("") > 0.75 * len(seeds), "most networks have a file"


def test_some_networks() -> None:
    _check(range(FAST))


@pytest.mark.held
@pytest.mark.parametrize("part", range(PARTS))
def test_many_networks(part: int, request: pytest.FixtureRequest) -> None:
    first = (request.config.getoption("--seed") * PARTS + part) * IN_A_PART + 1000
    _check(range(first, first + IN_A_PART))


@pytest.mark.parametrize("affine", [True, False])
def test_group_norms_keep_their_digits(affine: bool) -> None:
    """In `channels_last`, as behind an optimised convolution, torch's kernel loses the digits of a large mean."""
    conv, norm = nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4, affine=affine)
    nn.init.constant_(conv.bias, 30.0)
    x = torch.rand(2, 1, 5, 5) / 100
    module = onnx2nn.load(_exported(nn.Sequential(conv, norm), x), optimize="eager")
    exact = nn.Sequential(conv, norm).double()(x.double())
    rounded = F.group_norm(conv.float()(x), 2, norm.float().weight, norm.bias)
    wrong = F.group_norm(conv(x).to(memory_format=torch.channels_last), 2, norm.weight, norm.bias)
    error, smallest, kernel = (float((y.double() - exact).abs().max()) for y in (module(x), rounded, wrong))
    assert error <= 2 * smallest
    assert kernel > 10 * smallest, "torch's kernel is as good; ContiguousGroupNorm can go"
    assert any(isinstance(layer, ContiguousGroupNorm) for layer in module.modules()) == affine
