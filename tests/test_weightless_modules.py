"""Modules of `torch.nn` without weights, of which a file has a scope around one operator, are modules again."""

from __future__ import annotations

import functools
import importlib.util
import io
from pathlib import Path

import pytest
import torch
from realmodels import EXPORTERS, check_same, run, run_onnxruntime, seeded
from torch import nn

import onnx2nn
from onnx2nn.fx.blocks.flattening import flattened

ROWS, COLUMNS, IMAGES, VOLUMES = (2, 5, 8), (2, 8, 5), (2, 8, 4, 6), (2, 3, 4, 4, 4)
SHAPES = (ROWS, COLUMNS, IMAGES, VOLUMES)

MODULES = [
    (nn.Softmax(-1), ROWS),
    (nn.Softmax(1), IMAGES),
    (nn.LogSoftmax(-1), ROWS),
    (nn.LayerNorm(8, elementwise_affine=False), ROWS),
    (nn.LayerNorm((5, 8), eps=1e-3, elementwise_affine=False), ROWS),
    (nn.GroupNorm(2, 8, affine=False), IMAGES),
    (nn.GroupNorm(4, 8, eps=1e-3, affine=False), COLUMNS),
    (nn.InstanceNorm1d(8), COLUMNS),
    (nn.InstanceNorm2d(8, eps=1e-3), IMAGES),
    (nn.InstanceNorm3d(3), VOLUMES),
    (nn.ELU(0.5), ROWS),
    (nn.GLU(1), IMAGES),
    (nn.GLU(), ROWS),
    (nn.Softsign(), ROWS),
    (nn.Unflatten(1, (2, 4)), IMAGES),
    (nn.Unflatten(2, (2, 2, 2)), ROWS),
    (nn.Softplus(), ROWS),
    (nn.Upsample(scale_factor=2.0), IMAGES),
    (nn.Upsample(scale_factor=(2.0, 3.0), mode="bilinear", align_corners=False), IMAGES),
    (nn.PixelShuffle(2), IMAGES),
    (nn.PixelUnshuffle(2), IMAGES),
    (nn.ZeroPad2d(1), IMAGES),
    (nn.ZeroPad2d((1, 0, 2, 3)), IMAGES),
    (nn.ConstantPad1d(1, 2.0), ROWS),
    (nn.ConstantPad3d((1, 0, 1, 0, 1, 0), -1.0), VOLUMES),
    (nn.ReflectionPad1d((2, 1)), ROWS),
    (nn.ReflectionPad2d(1), IMAGES),
    (nn.ReplicationPad2d((1, 2, 0, 1)), IMAGES),
    (nn.ReplicationPad3d(1), VOLUMES),
]


class Around(nn.Module):
    """Calls of a module between those of layers."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * 1.5) + 0.25


class Every(nn.Module):
    """Calls each of the modules of the author's on what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.around = nn.ModuleList(Around(inner) for inner, _ in MODULES)

    def forward(
        self, rows: torch.Tensor, columns: torch.Tensor, images: torch.Tensor, volumes: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        given = {ROWS: rows, COLUMNS: columns, IMAGES: images, VOLUMES: volumes}
        return tuple(
            around(given[shape] + place)  # exporters compute once what is written twice
            for place, (around, (_, shape)) in enumerate(zip(self.around, MODULES, strict=True))
        )


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_modules_are_the_author_s(exporter: str, tmp_path: Path) -> None:
    original = Every().eval()
    first, second = (tuple(torch.randn(batch, *shape[1:]) for shape in SHAPES) for batch in (2, 3))
    module = onnx2nn.load(EXPORTERS[exporter]("weightless", original, first, second))
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    wanted = [repr(inner) for inner, _ in MODULES]
    for result in (module, onnx2nn.load(tmp_path / "again.onnx")):
        assert "data decide" not in flattened(result).code  # sizes of results that no rule knows
        assert [repr(result.get_submodule(f"around.{place}.inner")) for place in range(len(MODULES))] == wanted
        for inputs in (first, second):
            check_same(run(result, inputs), run(original, inputs), "the import")


def test_a_fold_is_a_module() -> None:
    """Torch's older exporter writes one for fixed sizes only."""
    original, x = Around(nn.Fold((4, 4), 2)), torch.randn(2, 16, 9)
    module = onnx2nn.load(EXPORTERS["dynamo"]("weightless fold", original, (x,), (torch.randn(3, 16, 9),)))
    assert repr(module.inner) == repr(original.inner)
    check_same(run(module, (x,)), run(original, (x,)), "the import")


class Resized(nn.Module):
    """A class of the author's around one function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, scale_factor=2.0)


def test_a_class_of_the_author_s_stays() -> None:
    x = torch.randn(IMAGES)
    module = onnx2nn.load(EXPORTERS["dynamo"]("resized", Around(Resized()), (x,)))
    assert type(module.inner).__name__ == "Resized"
    torch.testing.assert_close(module.inner(x), Resized()(x))


class Twice(nn.Module):
    """One module that is called twice, and functions outside of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.shuffle = nn.Upsample(scale_factor=2.0), nn.PixelShuffle(2)
        self.tail = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(2, 4, 3), nn.Upsample(scale_factor=3.0), nn.Softmax(1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x) + self.up(-x.abs())
        return self.tail(nn.functional.pad(self.shuffle(y), (1, 1)).softmax(-1))


def _note(calls: list[str], name: str, *_: object) -> None:
    calls.append(name)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_modules_in_lists_and_in_repeated_calls(exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = seeded(Twice).eval()
    first, second = (torch.randn(batch, *IMAGES[1:]) for batch in (2, 3))
    module = onnx2nn.load(EXPORTERS[exporter]("weightless twice", original, (first,), (second,)))
    kinds = {name: type(inner) for name, inner in original.named_modules() if name}
    assert {name: type(inner) for name, inner in module.named_modules() if name} == kinds
    calls: list[str] = []
    for name in ("up", "shuffle", "tail.0", "tail.2"):
        module.get_submodule(name).register_forward_hook(functools.partial(_note, calls, name))
    for x in (first, second):
        check_same(run(module, (x,)), run(original, (x,)), "the import")
    assert calls == ["up", "up", "shuffle", "tail.0", "tail.2"] * 2
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    check_same(run(torch.load(stored, weights_only=False), (first,)), run(original, (first,)), "unpickled")
    onnx2nn.to_python(module, tmp_path)
    source = (tmp_path / "model.py").read_text(encoding="utf-8")
    assert all(f"nn.{name}(" in source for name in ("Upsample", "PixelShuffle", "ReflectionPad2d", "Softmax"))
    spec = importlib.util.spec_from_file_location("model", tmp_path / "model.py")
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    check_same(run(written.load_model(), (first,)), run(original, (first,)), "its source")


class Untrained(nn.Module):
    """Normalisations with weights of 1, which torch's newer exporter takes for the ones of those without."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.plain_rows = nn.LayerNorm(4), nn.LayerNorm(4, elementwise_affine=False)
        self.channels, self.groups = nn.InstanceNorm1d(4), nn.GroupNorm(2, 4)
        self.plain_groups = nn.GroupNorm(2, 4, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.plain_rows(self.rows(x) * 2)
        return self.plain_groups(self.groups(self.channels(y) + x) * x)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_ones_are_no_weights_of_other_layers(exporter: str) -> None:
    original = Untrained().eval()
    first, second = (torch.randn(batch, 4, 4) for batch in (2, 3))
    module = onnx2nn.load(EXPORTERS[exporter]("untrained", original, (first,), (second,)))
    with torch.no_grad():
        for parameter in original.parameters():
            nn.init.normal_(parameter)
    module.load_state_dict(original.state_dict())
    assert {name: repr(inner) for name, inner in module.named_children()} == {
        name: repr(inner) for name, inner in original.named_children()
    }
    for x in (first, second):
        check_same(run(module, (x,)), run(original, (x,)), "the import")


class Unshuffled(nn.Module):
    """An image at half its size and back, as networks that restore images compute."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.PixelUnshuffle(2)
        self.inner = nn.Conv2d(16, 16, 1)
        self.up = nn.PixelShuffle(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `(N, 4, H, W)` for an image `(N, 3, H, W)` of even sizes."""
        y = self.embed(x)
        return self.up(self.inner(self.down(y))) + y


def test_images_of_any_even_size_are_unshuffled(tmp_path: Path) -> None:
    """The conditions were products of quotients, at which torch.export divided by zero."""
    image, sizes = torch.rand(1, 3, 8, 12), [2 * torch.export.Dim(name) for name in ("h", "w")]
    path, again = tmp_path / "m.onnx", tmp_path / "again.onnx"
    options = {"dynamic_shapes": ({2: sizes[0], 3: sizes[1]},), "external_data": False, "verbose": False}
    torch.onnx.export(seeded(Unshuffled), (image,), path, dynamo=True, **options)
    module = onnx2nn.load(path)
    conditions = [guard["condition"] for guard in module.meta["onnx2nn"]["guards"]]
    assert conditions == ["2*h % 2 == 0", "2*w % 2 == 0"]
    with pytest.raises(ValueError, match="the size and the factor of pixel_unshuffle"):
        module(torch.rand(1, 3, 8, 7))
    assert "agrees" in onnx2nn.export_onnx(module, again)
    assert type(onnx2nn.load(again).down) is nn.PixelUnshuffle
    for x in (image, torch.rand(1, 3, 2, 4), torch.rand(1, 3, 10, 6)):
        expected = run_onnxruntime(path.read_bytes(), (x,))
        check_same(run(module, (x,)), expected, "against ONNX Runtime")
        check_same(run(onnx2nn.load(again), (x,)), expected, "written again")
