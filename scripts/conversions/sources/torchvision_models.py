"""torchvision's models: classification, segmentation, video, optical flow and detection, with random weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts import torchvision_schemas
from scripts.conversions.exported import Exported, TorchModel, export_torch
from scripts.conversions.rows import File, versions
from scripts.torch_exports import WRITERS

torchvision_schemas.predefine()
import torchvision  # noqa: E402, after the operators that it refers to

EDGE = 64
"""Height and width of most images, so that a row takes seconds."""

EDGES = {"alexnet": 224, "vgg": 224, "inception_v3": 96, "vit_h_14": 56, "maxvit_t": 224, "raft": 128}
"""Others by the beginning of the model's name. The older exporter writes an adaptive pool only where its output's size
divides its input's; a ViT has whole patches, MaxViT whole windows, RAFT eight pixels in each of its coarsest cells."""


class Segments(torch.nn.Module):
    """A model for segmentation that returns the scores of its main head alone."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> Any:
        """Returns scores `(batch, classes, height, width)`."""
        return self.model(image)["out"]


def kind(name: str) -> str:
    """Returns the part of torchvision that a model is in: `segmentation`, `video`, ... or `models`."""
    return torchvision.models.get_model_builder(name).__module__.split(".")[2]


class Models:
    """Every name of `torchvision.models.list_models()` whose operators are torch's own, which detection's are not."""

    def versions(self) -> dict[str, str]:
        """Returns the packages' versions."""
        return versions("torch", "torchvision", "onnx", "onnxscript")

    def files(self) -> list[File]:
        """Classifiers first, and those of few weights, each by both exporters."""
        names = [name for name in torchvision.models.list_models() if kind(name) not in ("quantization", "detection")]
        names.sort(key=lambda name: (kind(name) in ("segmentation", "video", "optical_flow"), _weights(name)))
        return [File("torchvision", name, exporter) for exporter in WRITERS for name in names]

    def export(self, file: File, path: Path) -> Exported:
        """Exports a model."""
        return export_torch(file, _model(file.model), path)


def _weights(name: str) -> int:
    known = torchvision.models.get_model_weights(name)
    return int(next(iter(known)).meta["num_params"])


def _model(name: str) -> TorchModel:
    part, edge = kind(name), next((edge for start, edge in EDGES.items() if name.startswith(start)), EDGE)
    options: dict[str, Any] = {"weights": None}
    shape: tuple[int, ...] = (3, edge, edge)
    if part == "segmentation":
        options |= {"weights_backbone": None, "num_classes": 21}
    if part == "video":  # frames come before height and width; transformers have their number built in
        shape = (3, 16, *((224, 224) if name.startswith(("mvit", "swin3d", "s3d")) else (edge, edge)))
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": False}
    if name.startswith("vit_"):
        options["image_size"] = edge
    build = partial(torchvision.models.get_model, name, **options)
    if part == "segmentation":
        return TorchModel(lambda: Segments(build()), partial(_values, shape=shape))
    return TorchModel(build, partial(_values, shape=shape, count=2 if part == "optical_flow" else 1))


def _values(batch: int, shape: tuple[int, ...], count: int = 1) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(batch, *shape, generator=generator) for _ in range(count))
