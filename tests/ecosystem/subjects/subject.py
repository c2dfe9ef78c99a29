"""The originals: small instances with random weights, and what a tool has to know of each."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import onnx2nn
from scripts import torchvision_schemas
from tests.ecosystem.subjects.networks import Tagger, UNet
from tests.realmodels import EXPORTERS, Tensors, seeded

torchvision_schemas.predefine()
import torchvision  # noqa: E402  # after the line above, without which it does not load


@dataclass(frozen=True)
class Subject:
    """One original.

    Attributes:
        name: in tests and tables.
        build: makes it, with the weights that torch's generator gives.
        inputs: makes its inputs from a batch size.
        blocks: names of the repeated blocks that users shard, checkpoint, compile and replace.
        layer: the block whose activations are looked at.
        replaceable: a block whose result has the shape of its argument.
        head: the layer that gives the outputs.
        columns: layers to split by output features, for tensor parallelism; `rows` take their results.
        rows: layers to split by input features.
        adapted: layers that get a LoRA, as PEFT takes them: by the ends of their names.
        pruned: the layer that loses an output channel.
        target: the index of the output that is explained, without the batch axis.
        embedding: the layer that looks up tokens, "" for models of images.
        transformers: whether transformers has to be installed.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensors]
    blocks: tuple[str, ...]
    layer: str
    replaceable: str
    head: str
    adapted: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    pruned: str = ""
    target: int | tuple[int, ...] = 1
    embedding: str = ""
    transformers: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)  # other processes have the same; what builds it cannot be pickled

    def original(self) -> nn.Module:
        """Returns a fresh original in evaluation mode, always with the same weights.

        Its activations are not in-place, which full backward hooks and captum's methods refuse.
        """
        module = seeded(self.build)
        for inner in module.modules():
            if hasattr(inner, "inplace"):
                inner.inplace = False
        return module

    def file(self, exporter: str) -> Path:
        """Returns the path of its ONNX file, whose batch size (and length) is dynamic."""
        return _file(self.name, exporter)

    def imported(self, exporter: str) -> nn.Module:
        """Returns a fresh import of its file."""
        return onnx2nn.load(str(self.file(exporter)))


@functools.cache
def _file(name: str, exporter: str) -> Path:
    subject = SUBJECTS[name]
    other = _longer(subject.inputs(3)) if subject.embedding else subject.inputs(3)
    with _without_log():
        return EXPORTERS[exporter](f"ecosystem-{name}", subject.original(), subject.inputs(2), other)


def _longer(inputs: Tensors) -> Tensors:
    """Returns sequences with two more tokens, so that their length is exported as dynamic."""
    return tuple(torch.cat([x, x[:, :2]], 1) for x in inputs)


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _images(batch: int) -> Tensors:
    return (torch.randn(batch, 3, 32, 32, generator=_generator()),)


def _tokens(batch: int) -> Tensors:
    return (torch.randint(1, 100, (batch, 12), generator=_generator()),)


def _tokens_and_mask(batch: int) -> Tensors:
    mask = torch.ones(batch, 12, dtype=torch.int64)
    mask[0, -3:] = 0
    return (*_tokens(batch), mask)


def _language_model(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from tests.ecosystem.subjects import language_models  # transformers has no release for Python 3.10

        return getattr(language_models, name)()

    return build


def _vit() -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=10
    )


def _numbered(pattern: str, count: int) -> tuple[str, ...]:
    return tuple(pattern.format(index) for index in range(count))


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(
            "resnet18",
            functools.partial(torchvision.models.resnet18, num_classes=10),
            _images,
            blocks=tuple(f"layer{stage}.{index}" for stage in (1, 2, 3, 4) for index in (0, 1)),
            layer="layer3",
            replaceable="layer2.1",
            head="fc",
            pruned="layer1.0.conv1",
            adapted=("fc",),
            columns=("fc",),
        ),
        Subject(
            "mobilenet_v2",
            functools.partial(torchvision.models.mobilenet_v2, num_classes=10, width_mult=0.35),
            _images,
            blocks=tuple(f"features.{index}" for index in range(1, 18)),
            layer="features.13",
            replaceable="features.5",
            head="classifier.1",
            pruned="features.3.conv.0.0",
            adapted=("classifier.1",),
            columns=("classifier.1",),
        ),
        Subject(
            "vit",
            _vit,
            _images,
            blocks=_numbered("encoder.layers.encoder_layer_{}", 2),
            layer="encoder.layers.encoder_layer_0",
            replaceable="encoder.layers.encoder_layer_1",
            head="heads.head",
            pruned="encoder.layers.encoder_layer_0.mlp.0",
            adapted=("mlp.0", "mlp.3"),
            columns=_numbered("encoder.layers.encoder_layer_{}.mlp.0", 2),
            rows=_numbered("encoder.layers.encoder_layer_{}.mlp.3", 2),
        ),
        Subject(
            "unet",
            UNet,
            _images,
            blocks=("down1", "down2", "bottom", "up2", "up1"),
            layer="bottom",
            replaceable="bottom",
            head="head",
            target=(1, 5, 5),
            pruned="down1.conv",
            adapted=("head",),
        ),
        Subject(
            "lstm",
            Tagger,
            _tokens,
            blocks=("head",),
            layer="head",
            replaceable="head.act",
            head="head.out",
            target=(3, 1),
            pruned="head.hidden",
            adapted=("hidden",),
            columns=("head.hidden",),
            rows=("head.out",),
            embedding="embedding",
        ),
        Subject(
            "bert",
            _language_model("Bert"),
            _tokens_and_mask,
            blocks=_numbered("bert.encoder.layer.{}", 2),
            layer="bert.encoder.layer.0",
            replaceable="bert.encoder.layer.1",
            head="classifier",
            pruned="bert.encoder.layer.0.intermediate.dense",
            adapted=("query", "value"),
            columns=_numbered("bert.encoder.layer.{}.intermediate.dense", 2),
            rows=_numbered("bert.encoder.layer.{}.output.dense", 2),
            embedding="bert.embeddings.word_embeddings",
            transformers=True,
        ),
        Subject(
            "llama",
            _language_model("Llama"),
            _tokens_and_mask,
            blocks=_numbered("model.layers.{}", 2),
            layer="model.layers.0",
            replaceable="model.layers.1",
            head="lm_head",
            pruned="model.layers.0.mlp.up_proj",
            target=(3, 1),
            adapted=("q_proj", "down_proj"),
            columns=tuple(f"model.layers.{index}.mlp.{name}_proj" for index in (0, 1) for name in ("gate", "up")),
            rows=_numbered("model.layers.{}.mlp.down_proj", 2),
            embedding="model.embed_tokens",
            transformers=True,
        ),
        Subject(
            "gpt2",
            _language_model("GPT2"),
            _tokens_and_mask,
            blocks=_numbered("transformer.h.{}", 2),
            layer="transformer.h.0",
            replaceable="transformer.h.1",
            head="lm_head",
            pruned="transformer.h.0.mlp.c_fc",
            target=(3, 1),
            adapted=("c_attn", "c_fc"),
            columns=("lm_head",),
            embedding="transformer.wte",
            transformers=True,
        ),
    )
}
"""Name → original."""


def _named(name: str) -> Subject:
    return SUBJECTS[name]
