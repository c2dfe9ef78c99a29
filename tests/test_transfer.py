"""`onnx2nn.transfer`: weights of files without names in modules that exist; nothing wrong is accepted."""

from __future__ import annotations

import io
import logging
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from torch import nn

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import InputError, Onnx2nnError, VerificationError
from scripts.torch_exports import quiet, seeded
from scripts.transfer_table import renamed

pytest.importorskip("onnxscript")
safetensors_torch = pytest.importorskip("safetensors.torch")

IMAGE = (1, 3, 12, 12)


def _written(model: nn.Module, sizes: tuple[int, ...] = IMAGE, *, dynamo: bool = False) -> onnx.ModelProto:
    with quiet():
        if dynamo:
            program = torch.onnx.export(model, (torch.randn(sizes),), dynamo=True, verbose=False)
            assert program is not None
            return program.model_proto
        file = io.BytesIO()
        torch.onnx.export(model, (torch.randn(sizes),), file, dynamo=False)
        return onnx.load_from_string(file.getvalue())


def _shuffled(proto: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """Returns a file without names, whose initializers stand in another order."""
    initializers = list(proto.graph.initializer)
    random.Random(seed).shuffle(initializers)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(initializers)
    return renamed(proto)


def _equal(one: nn.Module, other: nn.Module, sizes: tuple[int, ...] = IMAGE) -> None:
    for seed in range(3):
        x = torch.randn(sizes, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            torch.testing.assert_close(other.eval()(x), one.eval()(x), rtol=1e-4, atol=1e-5)


class Residual(nn.Module):
    """A stem, two branches of different depth that meet, a head."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.short = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.deep(x) + self.short(x)
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """Three projections of equal sizes, which only their places in the attention tell apart, and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 6, 16))
        self.norm = nn.LayerNorm(16)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.table)
        q, k, v = (part(x).reshape(1, 6, 2, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 6, 16)


class Windowed(nn.Module):
    """A layer behind a mask that its forward makes and tables that no state_dict holds."""

    table: torch.Tensor
    blur: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 2)
        self.register_buffer("table", torch.arange(6.0) + 1, persistent=False)
        self.register_buffer("blur", torch.tensor([[[1.0, 2.0, 1.0]]]), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.new_zeros(1, 6)
        mask[:, 1:4] = -100.0
        x = nn.functional.conv1d(x.unsqueeze(1), self.blur, padding=1).squeeze(1)
        return self.head((self.inner(x) * self.table + mask).softmax(-1))


class ScaledRows(nn.Module):
    """Linear layers with a scale behind each, over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.gamma, self.delta = nn.Parameter(torch.rand(6) + 0.5), nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + (self.gamma * self.one(x)).flip(1)
        return x + self.delta * self.two(x)


class Pooled(nn.Module):
    """A normalisation of groups, for which exporters write an InstanceNormalization of neutral weights."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.GroupNorm(groups, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.norm(x)
        return self.head((x + nn.functional.avg_pool2d(y, 3, 1, 1) - y).mean((2, 3)))


class Placed(nn.Module):
    """A layer that is called on a table of positions, the inputs stand beside its results."""

    positions: torch.Tensor

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem, self.project, self.head = nn.Conv2d(3, 6, 1), layer(), nn.Linear(6, 2)
        self.register_buffer("positions", torch.arange(48.0).reshape(1, 4, 4, 3).sin(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.project, nn.Linear):
            places = self.project(self.positions.flatten(1, 2)[:, :12])
        else:
            places = self.project(self.positions).flatten(2).transpose(1, 2)
        return self.head(torch.relu(self.stem(x).flatten(2).transpose(1, 2) + places))


class Parallel(nn.Module):
    """Two branches that structure does not tell apart, with a function on each."""

    def __init__(self, left: Callable[[Any], Any], right: Callable[[Any], Any]) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.left, self.right = left, right

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.left(self.a(x)) + self.right(self.b(x)))


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_folded_batch_norm_is_neutral(dynamo: bool) -> None:
    model, other = seeded(Residual, 1), seeded(Residual, 2)
    report = onnx2nn.transfer(_shuffled(_written(model, dynamo=dynamo)), other)
    assert report.by == "structure" and not report.kept and report.difference < 1e-6
    _equal(model, other)
    norm = other.stem[1]
    assert (norm.weight == 1).all() and (norm.running_mean == 0).all()
    assert {weight.key for weight in report.placed if "folded" in weight.how} == {
        f"stem.1.{slot}" for slot in ("weight", "bias", "running_mean", "running_var")
    }


def test_weights_that_are_not_folded_are_the_same() -> None:
    model, other = seeded(Attention, 1), seeded(Attention, 2)
    report = onnx2nn.transfer(_shuffled(_written(model, (1, 6, 16))), other)
    assert len(report.placed) == len(model.state_dict())
    for key, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key


@pytest.mark.parametrize("dynamo", [False, True])
def test_constants_of_the_module_are_no_weights(dynamo: bool) -> None:
    model, other = seeded(Windowed, 1), seeded(Windowed, 2)
    report = onnx2nn.transfer(_shuffled(_written(model, (3, 6), dynamo=dynamo)), other)
    assert {weight.key for weight in report.placed} == set(model.state_dict())
    _equal(model, other, (3, 6))


@pytest.mark.pinned("onnxsim")  # those before 0.8 leave MatMul and Add, where this one writes Gemm
@pytest.mark.parametrize("sizes", [(1, 4, 4, 6), (1, 4, 6)])
def test_scales_behind_reshaped_rows(sizes: tuple[int, ...]) -> None:
    """onnxsim makes Gemm of a linear layer on four dimensions, with a Reshape on either side."""
    onnxsim = pytest.importorskip("onnxsim")
    model, other = seeded(ScaledRows, 1), seeded(ScaledRows, 2)
    proto, _ = onnxsim.simplify(_written(model, sizes))
    assert [node.op_type for node in proto.graph.node].count("Gemm") == 2
    report = onnx2nn.transfer(_shuffled(proto), other)
    assert {weight.key for weight in report.placed} == set(model.state_dict())
    _equal(model, other, sizes)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("form", ["onnxsim", "torchscript", "dynamo"])
def test_a_normalisation_of_groups(form: str, groups: int) -> None:
    build = partial(Pooled, groups)
    model, other = seeded(build, 1), seeded(build, 2)
    for one in (model, other):
        nn.init.normal_(one.norm.weight)
        nn.init.normal_(one.norm.bias)
    proto = _written(model, dynamo=form == "dynamo")
    if form == "onnxsim":
        proto, _ = pytest.importorskip("onnxsim").simplify(proto)
    report = onnx2nn.transfer(_shuffled(proto), other)
    assert {weight.key for weight in report.placed} == set(model.state_dict())
    _equal(model, other)


ON_CONSTANTS: list[Callable[[], nn.Module]] = [
    lambda: nn.Conv2d(4, 6, 1),
    lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2),
    lambda: nn.Conv2d(4, 6, 1, bias=False),
    lambda: nn.Linear(3, 6),
]


@pytest.mark.parametrize("layer", ON_CONSTANTS)
@pytest.mark.parametrize("form", ["onnxsim", "torchscript", "dynamo"])
def test_a_layer_on_a_constant(form: str, layer: Callable[[], nn.Module]) -> None:
    model, other = seeded(partial(Placed, layer), 1), seeded(partial(Placed, layer), 2)
    sizes = (1, 3, *(4, 3))
    proto = _written(model, sizes, dynamo=form == "dynamo")
    if form == "onnxsim":
        proto, _ = pytest.importorskip("onnxsim").simplify(proto)
    report = onnx2nn.transfer(_shuffled(proto), other)
    assert {weight.key for weight in report.placed} == set(model.state_dict())
    _equal(model, other, sizes)


def test_a_constant_that_no_weights_give_is_refused() -> None:
    """Three numbers at each of twelve places give a linear layer's results, not any results."""
    model, other = seeded(partial(Placed, ON_CONSTANTS[-1]), 1), seeded(partial(Placed, ON_CONSTANTS[-1]), 2)
    model.positions.normal_(generator=torch.Generator().manual_seed(1))
    proto = _written(model, (1, 3, 4, 3), dynamo=True)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(VerificationError, match="project"):
        onnx2nn.transfer(_shuffled(proto), other)
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())


def test_a_constant_of_another_value_is_refused() -> None:
    model, other = seeded(Windowed, 1), seeded(Windowed, 2)
    other.table += 1
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(VerificationError, match="differ by"):
        onnx2nn.transfer(_shuffled(_written(model, (3, 6))), other)
    assert all(torch.equal(other.state_dict()[key], value) for key, value in before.items())


def test_exporters_log_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """torch.onnx logs, in the middle of a command's lines, that there is no torchvision."""
    proto, other = _shuffled(_written(seeded(Attention, 1), (1, 6, 16))), seeded(Attention, 2)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    caplog.clear()
    monkeypatch.setattr(logging.getLogger("torch"), "propagate", True)
    onnx2nn.transfer(proto, other)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_names_decide_where_they_are() -> None:
    model, other = seeded(Attention, 1), seeded(Attention, 2)
    assert onnx2nn.transfer(_written(model, (1, 6, 16)), other).by == "names"
    assert all(torch.equal(other.state_dict()[key], value) for key, value in model.state_dict().items())


def test_names_of_other_layers_do_not_decide() -> None:
    """A file whose names are wrong has the module's keys and shapes, and other outputs."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), 1)
    proto = _written(model, (1, 4))
    swap = {"0.weight": "2.weight", "2.weight": "0.weight", "0.bias": "2.bias", "2.bias": "0.bias"}
    for tensor in proto.graph.initializer:
        tensor.name = swap[tensor.name]
    for node in proto.graph.node:
        node.input[:] = [swap.get(name, name) for name in node.input]
        node.name = ""
    other = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), 2)
    assert onnx2nn.transfer(proto, other).by == "structure"
    _equal(model, other, (1, 4))


class Scaled(nn.Module):
    """A convolution with a scale of each channel behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.gamma = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x) * self.gamma)


class Plain(nn.Module):
    """The same without it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


@pytest.mark.parametrize("builds", [(Scaled, Plain), (Plain, Scaled)])
def test_a_scale_on_one_side_is_folded(builds: tuple[Callable[[], nn.Module], Callable[[], nn.Module]]) -> None:
    model, other = seeded(builds[0], 1), seeded(builds[1], 2)
    report = onnx2nn.transfer(_shuffled(_written(model)), other)
    assert any("scale" in weight.how or "behind" in weight.how for weight in report.placed)
    _equal(model, other)


class Halved(nn.Module):
    """A layer on a value that is multiplied by numbers, as the half of a GELU is in older files."""

    def __init__(self, factor: float, *, bias: bool = True) -> None:
        super().__init__()
        self.factor = factor
        self.stem = nn.Conv2d(3, 4, 1)
        self.convs = nn.Sequential(nn.Conv2d(4, 4, 3, bias=bias), nn.BatchNorm2d(4))
        self.up, self.head = nn.ConvTranspose2d(4, 4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.stem, self.convs, self.up):
            x = layer(x)
            x = x * (1 + torch.erf(x / 2**0.5)) * self.factor
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize(
    ("numbers", "dynamo"),
    [((1.0, 0.5), False), ((0.5, 1.0), False), ((-3.0, 1.0), False), ((1.0, 0.123), False), ((1.0, 0.5), True)],
)
def test_a_factor_is_folded_into_the_layer_behind(numbers: tuple[float, float], dynamo: bool) -> None:
    """The file's other factor stands for weights into which a simplifier folded it."""
    model, other = (seeded(lambda factor=factor: Halved(factor), seed) for seed, factor in enumerate(numbers))
    report = onnx2nn.transfer(_shuffled(_written(model, dynamo=dynamo)), other)
    factor = numbers[0] / numbers[1]
    scaled = {weight.key for weight in report.placed if f"times {factor:g}," in weight.how}
    assert {"up.weight", "head.weight"} <= scaled, report
    torch.testing.assert_close(other.head.weight, model.head.weight * factor, rtol=1e-6, atol=0)
    _equal(model, other)


def test_a_factor_of_a_shared_weight_is_no_solution() -> None:
    """One layer is called twice, and only one of its inputs has the factor."""

    class Twice(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor, self.layer = factor, nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.relu(self.layer(x)) * self.factor)

    model, other = seeded(lambda: Twice(0.5), 1), seeded(lambda: Twice(1.0), 2)
    with pytest.raises(VerificationError, match="differ"):
        onnx2nn.transfer(_shuffled(_written(model, (1, 4))), other)


def test_branches_that_outputs_do_not_tell_apart_are_listed() -> None:
    build = lambda: Parallel(torch.relu, torch.relu)  # noqa: E731, a builder in a line
    model, other = seeded(build, 1), seeded(build, 2)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(InputError, match=r"several weights possible.*\n +a\.weight.* or "):
        onnx2nn.transfer(_shuffled(_written(model, (1, 6))), other)
    assert all(torch.equal(other.state_dict()[key], value) for key, value in before.items())


@pytest.mark.parametrize("sides", [(torch.relu, torch.tanh), (torch.tanh, torch.relu)])
def test_branches_that_values_tell_apart_are_found(sides: tuple[Any, Any]) -> None:
    build = lambda: Parallel(*sides)  # noqa: E731, a builder in a line
    swapped = lambda: Parallel(*reversed(sides))  # noqa: E731, the same function, whose branches are written in turn
    model, other = seeded(build, 1), seeded(swapped, 2)
    onnx2nn.transfer(_shuffled(_written(model, (1, 6))), other)
    assert torch.equal(other.a.weight, model.b.weight) and torch.equal(other.b.weight, model.a.weight)


class Attentive(nn.Module):
    """Two layers of self-attention, whose layout is a choice."""

    def __init__(self, batch_first: bool, bias: bool) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(8, 2, batch_first=batch_first, bias=bias)
        self.encoder = nn.TransformerEncoderLayer(8, 4, 12, dropout=0.0, batch_first=batch_first, norm_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x + self.first(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_torchs_attention_is_found_without_its_names(bias: bool, batch_first: bool, dynamo: bool) -> None:
    model, other = (seeded(lambda: Attentive(batch_first, bias), seed) for seed in (1, 2))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    onnx2nn.transfer(_shuffled(_written(model, (3, 5, 8), dynamo=dynamo)), other)
    _equal(model, other, (3, 5, 8))
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=1e-4, atol=1e-5)


def test_other_layers_are_named_and_nothing_is_filled() -> None:
    model = seeded(Residual, 1)
    other = seeded(Residual, 2)
    other.head = nn.Linear(8, 6)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(InputError, match=r"module: 1 of 1 without a partner: head\.weight"):
        onnx2nn.transfer(_shuffled(_written(model)), other)
    assert all(torch.equal(other.state_dict()[key], value) for key, value in before.items())


def test_another_function_between_the_layers_is_found() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), 1)
    other = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), 2)
    with pytest.raises(VerificationError, match="differ"):
        onnx2nn.transfer(_shuffled(_written(model, (1, 4))), other)


class Shuffled(nn.Module):
    """A concatenation that is rearranged before a part of it is concatenated again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = torch.cat([self.a(x), self.b(x)], 1).flip(1).chunk(2, 1)
        return torch.cat([left, self.c(right)], 1)


def test_a_concatenation_behind_another_function_stands() -> None:
    model, other = seeded(Shuffled, 1), seeded(Shuffled, 2)
    onnx2nn.transfer(_shuffled(_written(model, (1, 4))), other)
    assert all(torch.equal(other.state_dict()[key], value) for key, value in model.state_dict().items())


@st.composite
def networks(draw: st.DrawFn) -> Callable[[], nn.Module]:
    """Draws a small network of convolutions, normalisations, residual connections and branches."""
    kinds = draw(st.lists(st.sampled_from(["conv", "norm", "residual", "cat", "sum", "relu"]), min_size=1, max_size=5))
    return lambda: Drawn(kinds)


class Drawn(nn.Module):
    """A network of drawn parts."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.kinds = kinds
        self.stem = nn.Conv2d(3, 4, 1)
        self.parts = nn.ModuleList(self._part(kind) for kind in kinds)
        self.head = nn.Linear(4, 3)

    def _part(self, kind: str) -> nn.Module:
        def conv(size: int = 4) -> nn.Module:
            return nn.Conv2d(4, size, 3, padding=1)

        return {
            "conv": conv,
            "norm": lambda: nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)),
            "residual": conv,
            "cat": lambda: nn.ModuleList([conv(2), conv(2)]),
            "sum": lambda: nn.ModuleList([conv(), conv()]),
            "relu": nn.LeakyReLU,
        }[kind]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for kind, part in zip(self.kinds, self.parts, strict=True):
            if kind in ("cat", "sum"):
                left, right = (branch(x) for branch in cast("nn.ModuleList", part))
                x = torch.cat([left, right], 1) if kind == "cat" else left + right
            else:
                x = part(x) + x if kind == "residual" else part(x)
        return self.head(x.mean((2, 3)))


def _checked_network(build: Callable[[], nn.Module], seed: int, dynamo: bool) -> None:
    model, other = seeded(build, seed), seeded(build, seed + 1)
    proto = _shuffled(_written(model, dynamo=dynamo), seed)
    ambiguous = "sum" in model.kinds
    try:
        report = onnx2nn.transfer(proto, other)
    except Onnx2nnError as error:
        assert ambiguous and "several weights possible" in str(error), error
        return
    assert not ambiguous, "branches that can be exchanged were filled"
    _equal(model, other)
    solved = {weight.key for weight in report.placed if weight.how}
    for key, value in model.state_dict().items():
        if value.is_floating_point() and key not in solved and "norm" not in model.kinds:
            assert torch.equal(other.state_dict()[key], value), key


@settings(max_examples=2, suppress_health_check=list(HealthCheck), derandomize=True)
@given(networks(), st.integers(0, 1000), st.booleans())
def test_drawn_networks(build: Callable[[], nn.Module], seed: int, dynamo: bool) -> None:
    _checked_network(build, seed, dynamo)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(networks(), st.integers(0, 1000), st.booleans())
def test_more_drawn_networks(build: Callable[[], nn.Module], seed: int, dynamo: bool) -> None:
    _checked_network(build, seed, dynamo)


@pytest.mark.held
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(networks(), st.integers(0, 1000), st.booleans())
def test_many_drawn_networks(build: Callable[[], nn.Module], seed: int, dynamo: bool) -> None:
    _checked_network(build, seed, dynamo)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A current folder with `residual.onnx`, whose names are gone, and a module of code with a name of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    onnx.save(_shuffled(_written(seeded(Residual, 1))), "residual.onnx")
    name = f"code_{tmp_path.name}"
    lines = ["from tests.test_transfer import Residual", "number = lambda: 3", "def broken(): raise KeyError('lost')"]
    Path(f"{name}.py").write_text("\n".join(lines), encoding="utf-8")
    return name


def test_the_command_writes_the_state(code: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["transfer", "residual.onnx", "--model", f"{code}:Residual", "-o", "filled.safetensors"]) == 0
    printed = capfd.readouterr().out.splitlines()
    assert any(line.startswith("head.weight ← t") for line in printed) and printed[-1].startswith("OK 13 weights")
    other = seeded(Residual, 2)
    safetensors_torch.load_model(other, "filled.safetensors")
    _equal(seeded(Residual, 1), other)


@pytest.mark.parametrize(
    ("model", "output", "said"),
    [
        ("Residual", "filled.safetensors", "is not MODULE:CALLABLE"),
        ("{code}:Nothing", "filled.safetensors", "has no attribute 'Nothing'"),
        ("nowhere_at_all:build", "filled.safetensors", "No module named 'nowhere_at_all'"),
        ("{code}:broken", "filled.safetensors", "KeyError: 'lost'"),
        ("{code}:number", "filled.safetensors", "gives a int, not an nn.Module"),
        ("{code}:Residual", "filled.txt", "Name a .safetensors file"),
        ("{code}:Residual", "missing/filled.safetensors", "Create it first"),
        ("torch.nn:Identity", "filled.safetensors", "different layers"),
    ],
)
def test_the_command_says_what_is_wrong(
    code: str, model: str, output: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["transfer", "residual.onnx", "--model", model.format(code=code), "-o", output]
    try:
        status = main(given)
    except SystemExit as end:  # argparse's
        status = end.code
    printed = capfd.readouterr()
    assert status == 2 and said in printed.err and printed.err.count("\n") == 1
    assert not Path(output).exists()


def test_the_report_names_what_is_placed() -> None:
    model, other = seeded(Residual, 1), seeded(Residual, 2)
    proto = _shuffled(_written(model))
    text = str(onnx2nn.transfer(proto, other))
    assert "head.weight ← t" in text and text.splitlines()[-1].startswith("OK 13 weights placed by structure")
    head = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    assert any(np.array_equal(value, other.head.weight.detach().numpy()) for value in head.values())
