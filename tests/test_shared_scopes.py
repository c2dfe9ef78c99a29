"""Modules of which a file's scopes do not tell one from another, or what was called: weights and their order do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from realmodels import EXPORTERS, check_same, export_dynamo, run, run_onnxruntime, seeded
from torch import nn

import onnx2nn
from onnx2nn.fx.blocks.flattening import flattened


class Residual(nn.Module):
    """A residual block, with a convolution beside it where its channels change."""

    def __init__(self, channels: int, more: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, channels), nn.Conv2d(channels, more, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(2, more), nn.Conv2d(more, more, 3, padding=1)
        self.shortcut = None if channels == more else nn.Conv2d(channels, more, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(torch.sigmoid(self.norm1(x)))
        h = self.conv2(torch.sigmoid(self.norm2(h)))
        return h + (x if self.shortcut is None else self.shortcut(x))


class Levels(nn.Module):
    """Modules without a forward hold the blocks, as in the encoders of diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 6)
        self.down = nn.ModuleList()
        for channels, more in ((4, 4), (4, 6), (6, 6)):
            level = nn.Module()
            level.block = nn.ModuleList([Residual(channels, more), Residual(more, more)])
            level.pool = nn.Conv2d(more, more, 3, stride=2, padding=1)
            self.down.append(level)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for level in self.down:
            for block in level.block:
                x = block(x)
            x = level.pool(x)
        return self.last(x)


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_modules_with_one_scope(exporter: str) -> None:
    """The older exporter writes `block.0` for all of them, with the number of the call, and layers that some lack."""
    original = seeded(Levels).eval()
    inputs = (torch.randn(2, 3, 16, 24),)
    module = onnx2nn.load(EXPORTERS[exporter]("levels", original, inputs, (torch.randn(1, 3, 32, 16),)))
    assert module.state_dict().keys() == original.state_dict().keys()
    for key, value in original.state_dict().items():
        assert torch.equal(module.state_dict()[key], value), key
    check_same(run(module, inputs), run(original, inputs), "the import")
    for name, block in original.named_modules():
        if isinstance(block, Residual):
            given = (torch.randn(2, block.norm1.num_channels, 5, 7),)
            check_same(run(module.get_submodule(name), given), run(block, given), name)


class Fused(nn.Module):
    """A list of which one module gives its value as it is, to another call than that of the next module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.fuse = nn.ModuleList([nn.Identity(), nn.Sequential(nn.Conv2d(4, 3, 1), nn.Upsample(scale_factor=2))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fuse[0](x) + self.fuse[1](self.first(x))


def test_a_list_whose_first_module_is_in_no_file() -> None:
    original, inputs = seeded(Fused), (torch.randn(2, 3, 8, 8),)
    module = onnx2nn.load(export_dynamo("fused", original, inputs, (torch.randn(3, 3, 16, 12),)))
    module.load_state_dict(original.state_dict(), strict=True)
    check_same(run(module, inputs), run(original, inputs), "the import")
    assert not isinstance(module.fuse, nn.Sequential)
    given = (torch.randn(2, 4, 5, 5),)
    check_same(run(module.fuse.get_submodule("1"), given), run(original.fuse[1], given), "the sequence")


class Again(nn.Module):
    """One activation at several places of a sequence, the last one too."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU()
        self.body = nn.Sequential(nn.Conv2d(4, 6, 1), act, nn.Conv2d(6, 6, 1), act, nn.Conv2d(6, 4, 1), act)
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(x) - x)


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_one_activation_at_several_places_of_a_sequence(exporter: str, tmp_path: Path) -> None:
    """The older exporter names it after the first place."""
    original, inputs = seeded(Again), (torch.randn(2, 4, 3, 5),)
    module = onnx2nn.load(EXPORTERS[exporter]("again", original, inputs, (torch.randn(3, 4, 6, 6),)))
    module.load_state_dict(original.state_dict(), strict=True)
    expected = run(original, inputs)
    check_same(run(module, inputs), expected, "the import")
    check_same(run(module.body, inputs), run(original.body, inputs), "the sequence")
    assert isinstance(module.body, nn.Sequential) and len(module.body) == 6
    if exporter == "torchscript":
        seen: list[torch.Tensor] = []
        module.body[1].register_forward_hook(lambda _, given, result: seen.append(result))
        run(module, inputs)
        assert len(seen) == 3
    check_same(run(flattened(module), inputs), expected, "the flat program")
    check_same(run(onnx2nn.optimize(module, "eager"), inputs), expected, "the faster module")
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    check_same(run_onnxruntime(tmp_path / "again.onnx", inputs), expected, "the file")
    onnx2nn.to_python(module, tmp_path / "source")
    spec = importlib.util.spec_from_file_location("again_source", tmp_path / "source/model.py")
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    check_same(run(source.load_model(), inputs), expected, "the source")


class Masked(nn.Module):
    """A layer that makes a mask for an image, of which it has the pixels in one dimension."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.linear, self.start = nn.Linear(4, 4), start

    def forward(self, x: torch.Tensor, height: int, width: int) -> torch.Tensor:
        image = self.linear(x).view(x.shape[0], height, width, 4)
        mask, number = torch.zeros((1, height, width, 1)), 10 * self.start
        for rows in (slice(0, -2), slice(-2, -self.start), slice(-self.start, None)):
            for columns in (slice(0, -2), slice(-2, None)):
                mask[:, rows, columns, :] = number
                number += 1
        return x + (image * mask).view(x.shape[0], height * width, 4)


class Masks(nn.Module):
    """Each layer makes the mask, of which the older exporter writes the zeros and their sizes once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = nn.Conv2d(3, 4, 1), nn.ModuleList([Masked(0), Masked(1)])
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2:]
        x = self.first(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, height, width)
        return x


def test_a_layer_does_not_give_the_mask_that_it_makes() -> None:
    """The next layer makes its own, of the sizes and not of the dimensions of that one."""
    original, inputs = seeded(Masks), (torch.randn(2, 3, 5, 6),)
    module = onnx2nn.load(EXPORTERS["torchscript"]("masks", original, inputs, (torch.randn(3, 3, 4, 7),)))
    module.load_state_dict(original.state_dict(), strict=True)
    seen: list[object] = []
    for layer in module.layers:
        layer.register_forward_hook(lambda _, given, result: seen.append(result))
    for given in (inputs, (torch.randn(1, 3, 7, 4),)):
        check_same(run(module, given), run(original, given), "the import")
    assert len(seen) == 4
    assert all(isinstance(result, torch.Tensor) for result in seen), "a layer gives a mask too"
