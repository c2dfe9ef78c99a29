"""Models written in PyTorch, exported by both of torch's exporters, come back equal and go on everywhere."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from realmodels import (
    EXPORTERS,
    TRAVELS,
    check_against_onnxruntime,
    check_same,
    check_travels,
    run,
    seeded,
)
from saved_modules import names_of_ours
from tiers import mostly_slow
from torch import nn
from torch_models import CASES, RUNS

import onnx2nn


def _export(name: str, exporter: str) -> tuple[nn.Module, Path]:
    case = CASES[name]
    model = seeded(case.build)
    path = EXPORTERS[exporter](name, model, case.inputs(case.sizes[0]), case.inputs(case.sizes[1]))
    return model, path


FAST = [
    *(("resnet18", "torchscript"), ("shufflenet_v2", "dynamo"), ("lstm_language_model", "dynamo")),
    *(("gated_recurrent", "torchscript"), ("bert", "torchscript"), ("index_assignment", "dynamo")),
]
"""A model of each kind; the slow tests take all of them, by both exporters."""


@pytest.mark.parametrize(
    ("name", "exporter"), mostly_slow(RUNS, [*FAST, ("gpt2", "dynamo"), ("dcgan_generator", "dynamo")])
)
def test_agrees(name: str, exporter: str) -> None:
    """The imported module gives what ONNX Runtime and the original give, at sizes never seen too."""
    case = CASES[name]
    original, path = _export(name, exporter)
    dims = onnx.load(str(path), load_external_data=False).graph.input[0].type.tensor_type.shape.dim
    assert any(dim.dim_param for dim in dims), "the exporter fixed every size, so other sizes would prove nothing"
    module = onnx2nn.load(path)
    assert not module.training
    for size in case.sizes:
        inputs = case.inputs(size)
        outputs = check_against_onnxruntime(path, module, inputs)
        check_same(outputs, run(original, inputs), f"against the original at {size}")


@pytest.mark.parametrize(("name", "exporter"), mostly_slow(RUNS, FAST))
def test_travels(name: str, exporter: str) -> None:
    """The imported module goes through torch.export, torch.compile, jit.trace, both copies and back to ONNX."""
    case = CASES[name]
    _, path = _export(name, exporter)
    travels = case.travels.get(exporter, tuple(TRAVELS))
    check_travels(onnx2nn.load(path), case.inputs(case.sizes[0]), case.inputs(case.sizes[1]), travels=travels)


@pytest.mark.parametrize(("name", "exporter"), [("bert", "torchscript"), ("bert", "dynamo"), ("gpt2", "dynamo")])
def test_a_whole_module_needs_torch_alone(name: str, exporter: str, tmp_path: Path) -> None:
    """Buffers that sizes index, and a module named `self`, are read where onnx2nn is not installed."""
    case = CASES[name]
    _, exported = _export(name, exporter)
    module = onnx2nn.load(exported)
    path = tmp_path / f"{name}.pth"
    onnx2nn.save(module, path)
    without_form = {"onnx2nn.functional onnx2nn__Require", "onnx2nn.layers Conv1D"}  # a guard, GPT-2's layer
    assert names_of_ours(path) <= without_form
    read = torch.load(path, weights_only=False)
    inputs = case.inputs(case.sizes[1])
    torch.testing.assert_close(read(*inputs), module(*inputs), rtol=0, atol=0)
    assert list(read.state_dict()) == list(module.state_dict())
    assert [type(m).__name__ for m in read.modules()][1:] == [type(m).__name__ for m in module.modules()][1:]
