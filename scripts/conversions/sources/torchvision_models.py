"""torchvision's models: classification, segmentation, video, optical flow, detection, quantised; random weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts import torchvision_kernels
from scripts.conversions.exported import Exported, TorchModel, export_torch
from scripts.conversions.rows import File, versions
from scripts.torch_exports import WRITERS

torchvision_kernels.install()
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


class Detects(torch.nn.Module):
    """A detector that takes one image and returns what it says of its boxes."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns boxes, labels, scores, and where there are some masks or keypoints of `(3, height, width)`."""
        (found,) = self.model([image])
        return tuple(found.values())

    def tell_places_apart(self) -> None:
        """Gives the backbone the statistics of images: with others all places have equal scores, in any order."""
        for module in self.model.backbone.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
        with torch.no_grad():
            self.model.backbone.train()(torch.randn(2, 3, 320, 320, generator=torch.Generator().manual_seed(2)))
        self.model.backbone.eval()


FEW_BOXES = {
    "rcnn": {"rpn_post_nms_top_n_test": 20, "box_score_thresh": 0.0, "box_detections_per_img": 10},
    "ssd": {"score_thresh": 0.0, "topk_candidates": 20, "detections_per_img": 10},
    "": {"score_thresh": 0.0, "topk_candidates": 20, "detections_per_img": 10, "min_size": 96, "max_size": 160},
}
"""Part of a detector's name → options by which it finds few boxes, but some: random weights are sure of nothing."""


def kind(name: str) -> str:
    """Returns the part of torchvision that a model is in: `segmentation`, `video`, ... or `models`."""
    return torchvision.models.get_model_builder(name).__module__.split(".")[2]


class Models:
    """Every name of `torchvision.models.list_models()`."""

    def versions(self) -> dict[str, str]:
        """Returns the packages' versions."""
        return versions("torch", "torchvision", "onnx", "onnxscript")

    def files(self) -> list[File]:
        """Classifiers first, and those of few weights, each by both exporters; quantised ones by the older alone."""
        names = sorted(torchvision.models.list_models(), key=lambda name: (kind(name) != "models", _weights(name)))
        return [
            File("torchvision", name, exporter)
            for exporter in WRITERS
            for name in names
            if exporter == "torchscript" or kind(name) != "quantization"
        ]

    def export(self, file: File, path: Path) -> Exported:
        """Exports a model."""
        return export_torch(file, _model(file.model), path)


def _weights(name: str) -> int:
    known = torchvision.models.get_model_weights(name)
    return int(next(iter(known)).meta["num_params"])


def _model(name: str) -> TorchModel:
    part, architecture = kind(name), name.removeprefix("quantized_")
    edge = next((edge for start, edge in EDGES.items() if architecture.startswith(start)), EDGE)
    options: dict[str, Any] = {"weights": None}
    shape: tuple[int, ...] = (3, edge, edge)
    if part == "segmentation":
        options |= {"weights_backbone": None, "num_classes": 21}
    if part == "video":  # frames come before height and width; transformers have their number built in
        shape = (3, 16, *((224, 224) if name.startswith(("mvit", "swin3d", "s3d")) else (edge, edge)))
    if part == "detection":
        few = next(few for kinds, few in FEW_BOXES.items() if kinds in name)
        sizes = {"min_size": 96, "max_size": 160} if "rcnn" in name else {}
        detector = partial(torchvision.models.get_model, name, **options, weights_backbone=None, **few, **sizes)
        return TorchModel(lambda: Detects(detector()), _photograph, Detects.tell_places_apart)
    if part == "quantization":
        options["quantize"] = True
    if name.endswith(("googlenet", "inception_v3")):
        options |= {"aux_logits": False, "init_weights": False}
    if name.startswith("vit_"):
        options["image_size"] = edge
    build = partial(torchvision.models.get_model, name, **options)
    if part == "quantization":  # a value between two steps of 8-bit activations goes to either
        return TorchModel(build, partial(_values, shape=shape), max_difference=0.1)
    if part == "segmentation":
        return TorchModel(lambda: Segments(build()), partial(_values, shape=shape))
    return TorchModel(build, partial(_values, shape=shape, count=2 if part == "optical_flow" else 1))


def _photograph(batch: int) -> tuple[torch.Tensor, ...]:
    """Returns one image, whose height depends on the number that is the batch of others."""
    return (torch.rand(3, 80 + 16 * batch, 128, generator=torch.Generator().manual_seed(1)),)


def _values(batch: int, shape: tuple[int, ...], count: int = 1) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(batch, *shape, generator=generator) for _ in range(count))
