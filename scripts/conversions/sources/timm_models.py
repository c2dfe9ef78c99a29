"""timm: one small architecture of each of its modules, on small images and on images of its own size."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts import torchvision_schemas
from scripts.conversions.exported import Exported, TorchModel, export_torch
from scripts.conversions.rows import File, versions
from scripts.torch_exports import WRITERS

torchvision_schemas.predefine()
import timm  # noqa: E402, after the operators that it refers to

SMALL_EDGE = 64
SMALLEST = (
    r"femto|atto|pico|nano|xxs|xx|tiny|(?<!\d)050",
    r"(^|_)(xs|ti16|t|s0|m0|m1|b0|l1|c|5m|0|xxnano|ti|mci0|mt|9)($|_)|10t|14t|14d|atto",
    r"small|mini|(^|_)(s|s0|s1|s12|128s|m0_9)($|_)",
    r"(?<!\d)(11|18|19|26|121)(?!\d)|002|8m|100|(^|_)m($|_)",
    r"",
)
"""Parts of names of small architectures, the smallest first: building all of them to count weights takes an hour."""


class Models:
    """`NAME@small` on images of 64 by 64 where the architecture takes them, `NAME@own` on images of its own size."""

    def versions(self) -> dict[str, str]:
        """Returns the packages' versions."""
        return versions("torch", "timm", "onnx", "onnxscript")

    def files(self) -> list[File]:
        """Small images by both exporters first, and small architectures."""
        names = sorted((smallest(timm.list_models(module=module)) for module in timm.list_modules()), key=_rank)
        return [
            File("timm", f"{name}@{size}", exporter)
            for size in ("small", "own")
            for exporter in WRITERS
            for name in names
        ]

    def export(self, file: File, path: Path) -> Exported:
        """Exports a model; one that does not take small images gets its own size."""
        name, _, size = file.model.partition("@")
        return export_torch(file, _small(name) if size == "small" else _own(name), path)


def smallest(names: list[str]) -> str:
    """Returns the name that tells of the smallest architecture."""
    return min((name for name in names if not name.startswith("test_")), key=_rank)


def _rank(name: str) -> tuple[int, int, str]:
    return next(i for i, part in enumerate(SMALLEST) if re.search(part, name)), len(name), name


def _build(name: str, **options: Any) -> torch.nn.Module:
    model: torch.nn.Module = timm.create_model(name, pretrained=False, exportable=True, **options)
    return model


def _own(name: str) -> TorchModel:
    size = timm.get_pretrained_cfg(name).input_size
    return TorchModel(partial(_build, name), partial(_images, size=tuple(size)))


def _small(name: str) -> TorchModel:
    size = (timm.get_pretrained_cfg(name).input_size[0], SMALL_EDGE, SMALL_EDGE)
    for options in ({"img_size": SMALL_EDGE}, {}):
        try:
            with torch.no_grad():
                _build(name, **options).eval()(*_images(1, size))
        except Exception:  # each architecture refuses an option or a size in its own way
            continue
        return TorchModel(partial(_build, name, **options), partial(_images, size=size))
    return _own(name)


def _images(batch: int, size: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, *size, generator=torch.Generator().manual_seed(1)),)
