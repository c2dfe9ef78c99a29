"""Models that no package has, defined in `scripts/zoo/torch_definitions`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from scripts.conversions.exported import Exported, TorchModel, export_torch
from scripts.conversions.rows import File, versions
from scripts.torch_exports import WRITERS
from scripts.zoo.torch_definitions.classifiers import MobileNetV1, SENet, ShuffleNetV1
from scripts.zoo.torch_definitions.detectors import YOLOv5
from scripts.zoo.torch_definitions.examples import Discriminator, Generator, SuperResolution, WordLanguageModel


def _values(batch: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1)),)


def _tokens(batch: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    states = (torch.randn(2, batch, 24, generator=generator) for _ in range(2))
    return torch.randint(0, 50, (5, batch), generator=generator), *states


MODELS = {
    "mobilenet_v1": TorchModel(partial(MobileNetV1, 10, 0.25), partial(_values, shape=(3, 64, 64))),
    "shufflenet_v1": TorchModel(partial(ShuffleNetV1, 10), partial(_values, shape=(3, 64, 64))),
    "senet": TorchModel(partial(SENet, 10, 32), partial(_values, shape=(3, 64, 64))),
    "yolov5s": TorchModel(partial(YOLOv5, 80), partial(_values, shape=(3, 64, 64))),
    "dcgan_generator": TorchModel(Generator, partial(_values, shape=(20, 1, 1))),
    "dcgan_discriminator": TorchModel(Discriminator, partial(_values, shape=(3, 32, 32))),
    "super_resolution": TorchModel(SuperResolution, partial(_values, shape=(1, 16, 16))),
    "word_language_model": TorchModel(WordLanguageModel, _tokens),
}


class Models:
    """Each model of `MODELS`."""

    def versions(self) -> dict[str, str]:
        """Returns the packages' versions."""
        return versions("torch", "onnx", "onnxscript")

    def files(self) -> list[File]:
        """Each by both exporters."""
        return [File("definitions", name, exporter) for name in MODELS for exporter in WRITERS]

    def export(self, file: File, path: Path) -> Exported:
        """Exports a model."""
        return export_torch(file, MODELS[file.model], path)
