"""Models written in PyTorch, of torchvision, transformers and our own, that both of torch's exporters write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from realmodels import Tensors, require_transformers
from torch import nn

from scripts import torchvision_schemas
from scripts.zoo.torch_definitions.examples import Discriminator, Generator, SuperResolution, WordLanguageModel

torchvision_schemas.predefine()
import torchvision  # noqa: E402  # after the line above, without which it does not load


@dataclass(frozen=True)
class Case:
    """One model: how it is built and what it is called with.

    Attributes:
        build: makes the original.
        inputs: makes the inputs from one number, the batch size (or another dynamic size).
        exporters: the exporters that can write it.
        sizes: what `inputs` is called with: the size exported, then sizes never seen by exporter or importer.
        travels: the ways on; the largest models take the costly ones once, from the dynamo exporter's file.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensors]
    exporters: tuple[str, ...] = ("torchscript", "dynamo")
    sizes: tuple[int, ...] = (2, 3, 1)
    travels: dict[str, tuple[str, ...]] = field(default_factory=dict)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(1))


def _vision(name: str, size: int, *, large: bool = False, **options: object) -> Case:
    """A torchvision model on `size` by `size` images; a large one is re-exported and copied once only."""
    build = functools.partial(torchvision.models.get_model, name, weights=None, num_classes=10, **options)
    once = {"torchscript": ("torch.export", "torch.compile", "torch.jit.trace")} if large else {}
    return Case(build, lambda batch: (normal(batch, 3, size, size),), travels=once)


VISION = {
    "alexnet": _vision("alexnet", 224, large=True),
    "vgg11": _vision("vgg11", 224, large=True),
    "googlenet": _vision("googlenet", 64, aux_logits=False, init_weights=False),
    "resnet18": _vision("resnet18", 64),
    "resnext50": _vision("resnext50_32x4d", 64, large=True),
    "mobilenet_v2": _vision("mobilenet_v2", 64),
    "mobilenet_v3": _vision("mobilenet_v3_small", 64),
    "densenet121": _vision("densenet121", 64, large=True),
    "efficientnet_b0": _vision("efficientnet_b0", 64, large=True),
    "regnet": _vision("regnet_y_400mf", 64, large=True),
    "inception_v3": _vision("inception_v3", 96, large=True, init_weights=False),
    "shufflenet_v2": _vision("shufflenet_v2_x1_0", 64),
    "squeezenet": _vision("squeezenet1_1", 64),
    "convnext_tiny": _vision("convnext_tiny", 64, large=True),
    "vit_b_16": _vision("vit_b_16", 64, large=True, image_size=64),
    "swin_t": _vision("swin_t", 64, large=True),
}


class TransformersOutput(nn.Module):
    """A transformers model with positional inputs and its first output alone."""

    def __init__(self, model: nn.Module, *names: str):
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, first: torch.Tensor, second: torch.Tensor | None = None) -> torch.Tensor:
        given = dict(zip(self.names, (first, second), strict=False))
        return self.model(**given, return_dict=True)[0]


BERT = {
    **{"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 64, "max_position_embeddings": 40},
}
"""The configuration of a small BERT."""


def _bert() -> nn.Module:
    require_transformers()
    from transformers import BertConfig, BertModel

    return TransformersOutput(BertModel(BertConfig(**BERT)), "input_ids", "attention_mask")


def _gpt2() -> nn.Module:
    require_transformers()
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50, n_positions=40, n_embd=32, n_layer=2, n_head=4, use_cache=False)
    return TransformersOutput(GPT2LMHeadModel(config), "input_ids", "attention_mask")


def _whisper_encoder() -> nn.Module:
    require_transformers()
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=20,
    )
    return TransformersOutput(WhisperEncoder(config), "input_features")


def mask(batch: int, length: int) -> torch.Tensor:
    """An attention mask in which every second sequence ends early."""
    kept = torch.ones(batch, length, dtype=torch.int64)
    kept[::2, -2:] = 0
    return kept


class IndexAssignment(nn.Module):
    """Slices, a row and a computed set of places assigned in place: ScatterND and ScatterElements in the file."""

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 1:3] = x[:, 2:4] * 2
        x[:, 0] = -1.0
        x[:, :, rows] = 7.0
        return x


class GatedRecurrent(nn.Module):
    """A bidirectional GRU and an Elman network over a batch-first sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 12, batch_first=True, bidirectional=True)
        self.rnn = nn.RNN(24, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(self.gru(x)[0])[0]


OTHERS = {
    "bert": Case(_bert, lambda n: (tokens(n, 7), mask(n, 7))),
    "gpt2": Case(_gpt2, lambda n: (tokens(n, 7), mask(n, 7))),
    "whisper_encoder": Case(_whisper_encoder, lambda n: (normal(n, 8, 40),)),
    "lstm_language_model": Case(
        WordLanguageModel, lambda n: (tokens(5, n), normal(2, n, 24), normal(2, n, 24)), sizes=(2, 3)
    ),
    "gated_recurrent": Case(GatedRecurrent, lambda n: (normal(n, 5, 8),), exporters=("torchscript",), sizes=(2, 3)),
    "dcgan_generator": Case(Generator, lambda n: (normal(n, 20, 1, 1),)),
    "dcgan_discriminator": Case(Discriminator, lambda n: (normal(n, 3, 32, 32),)),
    "super_resolution": Case(SuperResolution, lambda n: (normal(n, 1, 16, 16),)),
    "index_assignment": Case(IndexAssignment, lambda n: (normal(n, 5, 4), torch.tensor([0, 2]))),
}

CASES = VISION | OTHERS
RUNS = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]
