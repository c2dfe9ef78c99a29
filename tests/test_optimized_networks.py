"""Optimised random networks give what the import gives: within the rounding of their type, at every batch size."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.onnx import OnnxExporterError, TrainingMode

import onnx2nn
from onnx2nn.optimization import eager, half_code, half_products, packing
from onnx2nn.optimization.layouts import ContiguousGroupNorm
from tests.random_networks import draw

FAST, PARTS, IN_A_PART = 16, 8, 250
FACTOR = 10
"""How much farther from float64 than the import an optimised network may be: it adds in another order."""


def _exported(net: nn.Module, x: torch.Tensor, folded: bool = True) -> bytes:
    """Returns the file of a network; without `folded` its batch norms stand behind the convolutions as they are."""
    file, axes = io.BytesIO(), {"x": {0: "batch"}}
    mode = TrainingMode.EVAL if folded else TrainingMode.PRESERVE
    options = {"dynamo": False, "input_names": ["x"], "dynamic_axes": axes, "opset_version": 17, "training": mode}
    torch.onnx.export(net, (x,), file, **options)
    return file.getvalue()


def _fault(seed: int, dtype: torch.dtype) -> str | None:
    """Returns what is wrong with the optimised import of a network, empty if nothing is; None without a file."""
    net, inputs = draw(seed)
    try:
        source = _exported(net, inputs(2), folded=seed % 3 == 0)
    except (OnnxExporterError, RuntimeError):  # pools that the older exporter does not write; images below their pads
        return None
    module, faster = onnx2nn.load(source, dtype=dtype), onnx2nn.load(source, dtype=dtype, optimize="eager")
    exact = copy.deepcopy(net).to(dtype).double()
    distances: dict[int, float] = {}
    rounding = 0.0  # of all batches, as a single output may be right by chance
    for batch in (1, 2, 5):
        x = inputs(batch)
        x = x.to(dtype) if x.is_floating_point() else x
        with torch.no_grad():
            try:
                wanted = module(x)
            except NotImplementedError:  # torch has no average pool of volumes in half precision
                return None
            found = faster(x)
            true = exact(x.double() if x.is_floating_point() else x)
        if found.shape != wanted.shape:
            return f"seed {seed}, batch {batch}: shape {list(found.shape)}, not {list(wanted.shape)}"
        scale = max(float(true.abs().max()), 1e-3)
        distances[batch], plain = (float((value.double() - true).abs().max()) / scale for value in (found, wanted))
        rounding = max(rounding, plain)
    far = [
        batch for batch, distance in distances.items() if not distance <= FACTOR * rounding + 8 * torch.finfo(dtype).eps
    ]
    return "".join(f"seed {seed}, batch {b}: {distances[b]:.3g} from float64, the import {rounding:.3g}" for b in far)


def _check(seeds: range, dtype: torch.dtype) -> None:
    found = [_fault(seed, dtype) for seed in seeds]
    assert not list(filter(None, found))
    assert found.count("") > 0.75 * len(seeds), "most networks have a file"


def test_some_networks() -> None:
    _check(range(FAST), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_some_networks_in_half_precision(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for holder in (packing, eager):
        monkeypatch.setattr(holder, "is_slow", lambda kind, dtype: True)
    _check(range(FAST), dtype)


@pytest.mark.held
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_many_networks(part: int, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    first = (request.config.getoption("--seed") * PARTS + part) * IN_A_PART + 1000
    _check(range(first, first + IN_A_PART), dtype)


class Grouped(nn.Module):
    """A convolution whose results a function normalises."""

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.group_norm(self.conv(x), 2)


@pytest.mark.parametrize("form", ["affine", "plain", "function"])
def test_group_norms_keep_their_digits(form: str) -> None:
    """In `channels_last`, as behind an optimised convolution, torch's kernel loses the digits of a large mean."""
    conv, norm = nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4, affine=form == "affine")
    nn.init.constant_(conv.bias, 30.0)
    x = torch.rand(2, 1, 5, 5) / 100
    net = Grouped(conv) if form == "function" else nn.Sequential(conv, norm)
    module = onnx2nn.load(_exported(net, x), optimize="eager")
    exact = nn.Sequential(conv, norm).double()(x.double())
    rounded = F.group_norm(conv.float()(x), 2, norm.float().weight, norm.bias)
    wrong = F.group_norm(conv(x).to(memory_format=torch.channels_last), 2, norm.weight, norm.bias)
    error, smallest, kernel = (float((y.double() - exact).abs().max()) for y in (module(x), rounded, wrong))
    assert error <= 2 * smallest
    assert kernel > 10 * smallest, "torch's kernel is as good; ContiguousGroupNorm can go"
    assert any(isinstance(layer, ContiguousGroupNorm) for layer in module.modules()) == (form != "function")


class Attending(nn.Module):
    """Multiplies as attention does: by layers, tensors by tensors, and in torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed) @ torch.softmax(q.transpose(1, 2) @ k, -1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("net", ["attention", "convolution"])
def test_traces_of_half_precision_compute_in_float32(
    dtype: torch.dtype, net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every product of a program for machine code, whose outputs keep their names, type and digits."""
    torch.manual_seed(0)
    attends = net == "attention"
    made = Attending() if attends else nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2))
    x = torch.randn(2, 9, 32) if attends else torch.randn(2, 3, 9, 9)
    module = onnx2nn.load(_exported(made.eval(), x), dtype=dtype)
    program = torch.export.export(module, (x.to(dtype),))
    names = [spec.arg.name for spec in program.graph_signature.output_specs]
    monkeypatch.setattr(half_code, "is_slow", lambda kind, dtype: False)
    before = str(program.graph)
    half_code.compute_in_float32(program.graph)
    assert str(program.graph) == before
    monkeypatch.setattr(half_code, "is_slow", lambda kind, dtype: True)
    half_code.compute_in_float32(program.graph)
    program.graph.lint()
    multiplying = [
        node for node in program.graph.nodes if node.op == "call_function" and node.target in half_code.KINDS
    ]
    assert multiplying and {node.meta["val"].dtype for node in multiplying} == {torch.float32}
    assert [spec.arg.name for spec in program.graph_signature.output_specs] == names
    exact = copy.deepcopy(made).to(dtype).double()(x.to(dtype).double())
    with torch.no_grad():
        found, plain = program.module()(x.to(dtype)), module(x.to(dtype))
    assert found.dtype == dtype
    ours, theirs = (float((value.double() - exact).abs().max() / exact.abs().max()) for value in (found, plain))
    assert ours <= 2 * theirs + torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_half_precision_are_rounded_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for holder in (packing, eager):
        monkeypatch.setattr(holder, "is_slow", lambda kind, dtype: True)
    torch.manual_seed(0)
    net, x = Attending().eval(), torch.randn(2, 9, 32)
    source = _exported(net, x)
    module, faster = onnx2nn.load(source, dtype=dtype), onnx2nn.load(source, dtype=dtype, optimize="eager")
    called = {node.target for node in faster.graph.nodes}
    assert {half_products.matmul, half_products.scaled_dot_product_attention} <= called
    exact = copy.deepcopy(net).to(dtype).double()(x.to(dtype).double())
    with torch.no_grad():
        found, plain = faster(x.to(dtype)), module(x.to(dtype))
    assert found.dtype == dtype
    ours, theirs = (float((value.double() - exact).abs().max() / exact.abs().max()) for value in (found, plain))
    assert ours <= 2 * theirs + torch.finfo(dtype).eps
    file = io.BytesIO()
    torch.save(faster, file)
    file.seek(0)
    for again in (copy.deepcopy(faster), torch.load(file, weights_only=False)):
        assert torch.equal(again(x.to(dtype)), found)
    traced = torch.jit.trace(faster, x.to(dtype), check_trace=False)
    epsilon = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(traced(x[:1].to(dtype)), faster(x[:1].to(dtype)), rtol=epsilon, atol=epsilon)
