"""Layers that their author extended, norms by activations and convolutions by padding, are blocks and still layers."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from realmodels import EXPORTERS, check_same, export_dynamo, run, seeded
from torch import fx, nn
from torch.nn import functional as F

import onnx2nn
from onnx2nn.fx.blocks.flattening import flattened


class Activated(nn.BatchNorm2d):
    """Normalises and calls the modules in it, as timm's `BatchNormAct2d` does."""

    def __init__(self, channels: int):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.drop(super().forward(x)))


class Written(nn.BatchNorm1d):
    """Calls the function of the layer, and two activations of which one is a function."""

    def __init__(self, channels: int):
        super().__init__(channels)
        self.bound = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        statistics = self.running_mean, self.running_var
        x = F.batch_norm(x, *statistics, self.weight, self.bias, self.training, self.momentum or 0.0, self.eps)
        return self.bound(F.silu(x))


class Grouped(nn.GroupNorm):
    """Normalises groups of channels, as timm's `GroupNormAct` does."""

    def __init__(self, channels: int):
        super().__init__(2, channels)
        self.layer = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps))


class Network(nn.Module):
    """A sum between a layer and its norm keeps exporters from folding the norm; the caller activates the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.groups = nn.Conv2d(3, 6, 3), Activated(6), Grouped(6)
        self.linear, self.second = nn.Linear(6, 5), Written(5)
        self.last = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.groups(self.first(self.conv(x) + 0.5)).mean((2, 3))
        x = self.second(self.linear(x) * 2)
        return torch.relu(self.last(x + 1))


class Same(nn.Conv2d):
    """Pads as much as the sizes of its input need, as timm's `Conv2dSame` does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        widths: list[int] = []
        for axis in (1, 0):
            size, kernel, stride = x.shape[2 + axis], self.kernel_size[axis], self.stride[axis]
            more = ((size + stride - 1) // stride - 1) * stride + kernel - size
            widths += [more // 2, more - more // 2]
        return super().forward(F.pad(x, widths))


class Held(nn.Conv2d):
    """Calls a module that pads, as the first PyTorch port of EfficientNet does."""

    def __init__(self, before: int, after: int):
        super().__init__(before, after, 3, stride=2, bias=False)
        self.static_padding = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.static_padding(x))


class Padding(nn.Module):
    """Convolutions that pad in ways of their own, and some that torch has; one is called twice, one padded outside."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.held = Same(3, 6, 3, stride=2), Held(6, 4)
        self.even = nn.Conv2d(4, 4, (2, 4), padding="same", groups=2)
        self.mirrored = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.uneven = nn.Sequential(Same(4, 4, 2, stride=1), nn.ReLU())
        self.again, self.outside = Same(4, 4, 2), nn.Conv2d(4, 4, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.even(self.held(torch.relu(self.same(x))))
        x = self.again(torch.tanh(self.again(self.uneven(self.mirrored(x)))))
        return self.outside(F.pad(x, (0, 1, 0, 1)))


NETWORKS = {"norms": Network, "convolutions": Padding}


@pytest.fixture(params=sorted(EXPORTERS))
def exporter(request: pytest.FixtureRequest) -> str:
    """The name of an exporter."""
    return str(request.param)


@pytest.fixture(params=sorted(NETWORKS))
def original(request: pytest.FixtureRequest) -> nn.Module:
    """A network."""
    return seeded(NETWORKS[request.param]).eval()


@pytest.fixture
def path(exporter: str, original: nn.Module) -> Path:
    """The file of a network, by either exporter."""
    return EXPORTERS[exporter](
        f"extended_{type(original).__name__}", copy.deepcopy(original), _inputs(2), _inputs(3, 9)
    )


def _inputs(count: int, side: int = 7) -> tuple[torch.Tensor]:
    return (torch.randn(count, 3, side, 8),)


GIVEN = {"first": (4, 6, 5, 5), "groups": (4, 6, 3, 3), "second": (4, 5), "last": (4, 5)}


@pytest.mark.parametrize("original", ["norms"], indirect=True)
def test_called_alone(path: Path, original: nn.Module) -> None:
    module = onnx2nn.load(path)
    module.load_state_dict(original.state_dict(), strict=True)
    for name, shape in GIVEN.items():
        inputs = (torch.randn(shape),)
        check_same(run(module.get_submodule(name), inputs), run(original.get_submodule(name), inputs), name)
        assert isinstance(module.get_submodule(name), type(original.get_submodule(name)).__mro__[name != "last"])
    assert [*dict(module.first.named_children())] == ["act"] and type(module.first.act) is nn.SiLU
    assert type(module.groups.layer) is nn.ReLU and type(module.second.bound) is nn.Tanh
    assert type(module.last) is nn.BatchNorm1d
    tree = module.meta["onnx2nn"]["tree"]
    assert [*tree["blocks"]] == ["first", "groups", "second"]
    assert (tree["calls"], tree["inside"]) == (15, 7)


PLAIN = ("even", "uneven", "mirrored", "outside")
PADDED = {
    "same": (2, 3, 11, 8),
    "held": (2, 6, 5, 5),
    "even": (2, 4, 3, 4),
    "mirrored": (2, 4, 3, 4),
    "uneven": (2, 4, 3, 4),
    "uneven.0": (2, 4, 3, 4),
    "again": (1, 4, 5, 3),
    "outside": (2, 4, 4, 5),
}


@pytest.mark.parametrize("original", ["convolutions"], indirect=True)
def test_padding_is_in_the_layer(path: Path, original: nn.Module, exporter: str) -> None:
    module = onnx2nn.load(path)
    module.load_state_dict(original.state_dict(), strict=True)
    for name, shape in PADDED.items():
        layer, inputs = module.get_submodule(name), (torch.randn(shape),)
        check_same(run(layer, inputs), run(original.get_submodule(name), inputs), name)
        assert isinstance(layer, type(original.get_submodule(name)).__mro__[name not in PLAIN])
    assert type(module.even) is type(module.mirrored) is type(module.outside) is nn.Conv2d
    assert (module.even.padding, module.mirrored.padding_mode) == ("same", "reflect")
    if exporter == "torchscript":  # the newer exporter makes one node of both
        assert type(module.held.static_padding) is nn.ZeroPad2d


@pytest.mark.parametrize("original", ["norms"], indirect=True)
def test_in_training(path: Path, original: nn.Module) -> None:
    module = onnx2nn.load(path)
    original.train(), module.train()
    inputs = _inputs(6)
    for _ in range(2):
        check_same(run(module, inputs), run(original, inputs), "training")
    for key, value in original.named_buffers():
        if not key.endswith("num_batches_tracked"):
            check_same((module.get_buffer(key),), (value,), key)
    (before,) = run(module.eval(), inputs)
    for layer in module.modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.train()
    assert not torch.equal(*run(module, inputs), before)


@pytest.mark.filterwarnings("ignore:.*jit.script. is deprecated:DeprecationWarning")
def test_written_and_optimised(path: Path, original: nn.Module, tmp_path: Path) -> None:
    module = onnx2nn.load(path)
    inputs = _inputs(5)
    expected = run(original, inputs)
    check_same(run(module, inputs), expected, "the module")
    check_same(run(flattened(module), inputs), expected, "the flat program")
    check_same(run(copy.deepcopy(module), inputs), expected, "a copy")
    check_same(run(torch.jit.script(module), inputs), expected, "a script")
    check_same(run(fx.symbolic_trace(module), inputs), expected, "traced")
    check_same(run(torch.export.export(module, inputs).module(), inputs), expected, "exported")
    optimised = onnx2nn.optimize(module, "eager")
    check_same(run(optimised, inputs), expected, "optimised")
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    again = onnx2nn.load(tmp_path / "again.onnx")
    check_same(run(again, inputs), expected, "written again")
    assert repr(again) == repr(module)
    assert again.state_dict().keys() == module.state_dict().keys()
    assert onnx2nn.verify_nodes(path, module, input_shapes={"x": (4, 3, 9, 8)}).ok


def test_source(path: Path, original: nn.Module, tmp_path: Path) -> None:
    onnx2nn.to_python(path, tmp_path)
    inputs = _inputs(4)
    torch.save((*inputs, *run(original, inputs), *run(original.train(), inputs)), tmp_path / "case.pt")
    program = (
        "import sys, torch, model\nx, expected, trained = torch.load('case.pt')\nfound = model.load_model()\n"
        "torch.testing.assert_close(found.eval()(x), expected)\ntorch.testing.assert_close(found.train()(x), trained)\n"
        "assert not any(m.startswith('onnx2nn') for m in sys.modules)\nprint(*found.state_dict())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == [*original.state_dict()], done.stderr


def test_pickled(path: Path, original: nn.Module) -> None:
    stored, inputs = io.BytesIO(), _inputs(5)
    torch.save(onnx2nn.load(path), stored)
    assert b"onnx2nn." not in stored.getvalue()
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    check_same(run(loaded, inputs), run(original, inputs), "unpickled")
    check_same(run(loaded.train(), inputs), run(original.train(), inputs), "unpickled, in training")


def test_folded_by_the_optimiser() -> None:
    """The activation stays, in the place of the norm."""
    inputs, other = (torch.randn(2, 3, 8, 8),), (torch.randn(3, 3, 9, 7),)
    original = nn.Sequential(nn.Conv2d(3, 4, 3), Activated(4), nn.Conv2d(4, 5, 1), Activated(5))
    original = original.eval()
    for layer in original[1::2]:
        layer.running_var.fill_(0.4)
    module = onnx2nn.load(export_dynamo("extended_chain", original, inputs, other))
    assert [type(layer).__name__ for layer in module.children()] == ["Conv2d", "Activated"] * 2
    optimised = onnx2nn.optimize(module, "eager")
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in optimised.modules())
    check_same(run(optimised, other), run(original, other), "optimised")


class Folded(nn.Module):
    """A convolution that pads, and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = Same(3, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


def test_a_batch_norm_behind_padding_is_folded(exporter: str) -> None:
    """By the optimiser, and by the function of torch."""
    original, inputs, other = seeded(Folded).eval(), (torch.randn(2, 3, 8, 8),), (torch.randn(3, 3, 9, 8),)
    original.norm.running_mean.normal_()
    original.norm.running_var.fill_(0.4)
    module = onnx2nn.load(EXPORTERS[exporter]("extended_folded", copy.deepcopy(original), inputs, other))
    expected = run(original, other)
    check_same(run(module, other), expected, "the module")
    optimised = onnx2nn.optimize(module, "eager")
    assert not any(isinstance(layer, (nn.BatchNorm2d, fx.GraphModule)) for layer in optimised.children())
    check_same(run(optimised, other), expected, "optimised")
    if exporter == "dynamo":  # the older exporter folds the norm
        fused = nn.utils.fusion.fuse_conv_bn_eval(module.conv, module.norm)
        check_same((torch.relu(fused(*other)).detach(),), expected, "fused")
