"""One `nn.TransformerEncoderLayer`, dynamic in its batch and, by the dynamo exporter, in its length.

Its file computes reshape targets from the input's shape. An importer that leaves shapes to tensors gives a module on
which torch.export, torch.compile(fullgraph=True), jit.trace and the way back to ONNX all fail.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from realmodels import (
    EXPORTERS,
    Tensors,
    check_against_onnxruntime,
    check_same,
    check_travels,
    run,
    seeded,
)
from tiers import mostly_slow
from torch import nn

import onnx2nn

FEATURES = 16
# exporter, (batch, length) as exported, then those never seen by exporter or importer
DYNAMIC = {
    "torchscript-batch": ("torchscript", (2, 5), (3, 5), (1, 5), (7, 5)),
    "dynamo-batch": ("dynamo", (2, 5), (3, 5), (1, 5), (7, 5)),
    "dynamo-batch-length": ("dynamo", (2, 5), (3, 8), (1, 1), (7, 4)),
}
# What reads a tensor's value into Python, or makes a tensor of Python numbers: shapes need neither.
LEAVES_THE_GRAPH = re.compile(r"\.item\(|\.tolist\(|\.numpy\(|\bint\(|torch\.(as_)?tensor\(|_shape_as_tensor")


def _inputs(size: tuple[int, int]) -> Tensors:
    return (torch.randn(*size, FEATURES, generator=torch.Generator().manual_seed(size[0])),)


def _export(dynamic: str, norm_first: bool) -> tuple[nn.Module, Path]:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(
            FEATURES, nhead=4, dim_feedforward=32, activation="gelu", norm_first=norm_first, batch_first=True
        )
        return nn.Sequential(layer)  # alone, its optional arguments become inputs of the TorchScript exporter's graph

    exporter, first, second, *_ = DYNAMIC[dynamic]
    model = seeded(build)
    name = f"transformer_layer_{dynamic}_{'pre' if norm_first else 'post'}"
    return model, EXPORTERS[exporter](name, model, _inputs(first), _inputs(second))


@pytest.mark.parametrize("norm_first", [False, True], ids=["post_norm", "pre_norm"])
@pytest.mark.parametrize("dynamic", DYNAMIC)
def test_agrees_at_sizes_never_seen(dynamic: str, norm_first: bool) -> None:
    original, path = _export(dynamic, norm_first)
    module = onnx2nn.load(path)
    for size in DYNAMIC[dynamic][1:]:
        inputs = _inputs(size)
        outputs = check_against_onnxruntime(path, module, inputs)
        check_same(outputs, run(original, inputs), f"against the original at {size}")


@pytest.mark.parametrize("norm_first", mostly_slow([False, True], [False]), ids=["post_norm", "pre_norm"])
@pytest.mark.parametrize("dynamic", DYNAMIC)
def test_travels(dynamic: str, norm_first: bool) -> None:
    _, path = _export(dynamic, norm_first)
    _, first, second, *_ = DYNAMIC[dynamic]
    check_travels(onnx2nn.load(path), _inputs(first), _inputs(second))


@pytest.mark.parametrize("dynamic", DYNAMIC)
def test_code_keeps_shapes_as_sizes(dynamic: str) -> None:
    _, path = _export(dynamic, False)
    code = onnx2nn.load(path).code
    assert not LEAVES_THE_GRAPH.search(code), code


def test_learns_like_the_original() -> None:
    """Gradients of the imported parameters, sorted by size of norm, are the original's."""
    original, path = _export("dynamo-batch-length", True)
    module = onnx2nn.load(path)
    norms = []
    for model in (original, module):
        model(*_inputs((2, 5))).square().mean().backward()
        norms.append(sorted(float(parameter.grad.norm()) for parameter in model.parameters()))
    assert norms[1] == pytest.approx(norms[0], rel=1e-3, abs=1e-6)
