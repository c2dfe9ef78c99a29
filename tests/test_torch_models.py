"""Models written in PyTorch, exported by both of torch's exporters, come back equal and go on everywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import pytest
import torch
from realmodels import (
    EXPORTERS,
    TRAVELS,
    Tensors,
    check_against_onnxruntime,
    check_same,
    check_travels,
    require_transformers,
    run,
    seeded,
)
from saved_modules import names_of_ours
from tiers import mostly_slow
from torch import nn

import onnx2nn
from scripts import torchvision_schemas
from scripts.zoo.torch_definitions.examples import Discriminator, Generator, SuperResolution, WordLanguageModel

torchvision_schemas.predefine()
import torchvision  # noqa: E402


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


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _tokens(*shape: int, vocabulary: int = 50) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(1))


def _vision(name: str, size: int, *, large: bool = False, **options: object) -> Case:
    """A torchvision model on `size` by `size` images; a large one is re-exported and copied once only."""
    build = functools.partial(torchvision.models.get_model, name, weights=None, num_classes=10, **options)
    once = {"torchscript": ("torch.export", "torch.compile", "torch.jit.trace")} if large else {}
    return Case(build, lambda batch: (_normal(batch, 3, size, size),), travels=once)


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


def _bert() -> nn.Module:
    require_transformers()
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    return TransformersOutput(BertModel(config), "input_ids", "attention_mask")


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


def _mask(batch: int, length: int) -> torch.Tensor:
    """An attention mask in which every second sequence ends early."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[::2, -2:] = 0
    return mask


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
    "bert": Case(_bert, lambda n: (_tokens(n, 7), _mask(n, 7))),
    "gpt2": Case(_gpt2, lambda n: (_tokens(n, 7), _mask(n, 7))),
    "whisper_encoder": Case(_whisper_encoder, lambda n: (_normal(n, 8, 40),)),
    "lstm_language_model": Case(
        WordLanguageModel, lambda n: (_tokens(5, n), _normal(2, n, 24), _normal(2, n, 24)), sizes=(2, 3)
    ),
    "gated_recurrent": Case(GatedRecurrent, lambda n: (_normal(n, 5, 8),), exporters=("torchscript",), sizes=(2, 3)),
    "dcgan_generator": Case(Generator, lambda n: (_normal(n, 20, 1, 1),)),
    "dcgan_discriminator": Case(Discriminator, lambda n: (_normal(n, 3, 32, 32),)),
    "super_resolution": Case(SuperResolution, lambda n: (_normal(n, 1, 16, 16),)),
    "index_assignment": Case(IndexAssignment, lambda n: (_normal(n, 5, 4), torch.tensor([0, 2]))),
}

CASES = VISION | OTHERS
RUNS = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]


def _export(name: str, exporter: str) -> tuple[nn.Module, Path]:
    case = CASES[name]
    model = seeded(case.build)
    path = EXPORTERS[exporter](name, model, case.inputs(case.sizes[0]), case.inputs(case.sizes[1]))
    return model, path


FAST = [
    *(("resnet18", "torchscript"), ("shufflenet_v2", "dynamo"), ("lstm_language_model", "dynamo")),
    *(("gated_recurrent", "torchscript"), ("bert", "torchscript"), ("index_assignment", "dynamo")),
]
"""A model of each kind; the slow tests take all of them, by both exporters."""


@pytest.mark.parametrize(
    ("name", "exporter"), mostly_slow(RUNS, [*FAST, ("gpt2", "dynamo"), ("dcgan_generator", "dynamo")])
)
def test_agrees(name: str, exporter: str) -> None:
    """The imported module gives what ONNX Runtime and the original give, at sizes never seen too."""
    case = CASES[name]
    original, path = _export(name, exporter)
    dims = onnx.load(str(path), load_external_data=False).graph.input[0].type.tensor_type.shape.dim
    assert any(dim.dim_param for dim in dims), "the exporter fixed every size, so other sizes would prove nothing"
    module = onnx2nn.load(path)
    assert not module.training
    for size in case.sizes:
        inputs = case.inputs(size)
        outputs = check_against_onnxruntime(path, module, inputs)
        check_same(outputs, run(original, inputs), f"against the original at {size}")


@pytest.mark.parametrize(("name", "exporter"), mostly_slow(RUNS, FAST))
def test_travels(name: str, exporter: str) -> None:
    """The imported module goes through torch.export, torch.compile, jit.trace, both copies and back to ONNX."""
    case = CASES[name]
    _, path = _export(name, exporter)
    travels = case.travels.get(exporter, tuple(TRAVELS))
    check_travels(onnx2nn.load(path), case.inputs(case.sizes[0]), case.inputs(case.sizes[1]), travels=travels)


@pytest.mark.parametrize(("name", "exporter"), [("bert", "torchscript"), ("bert", "dynamo"), ("gpt2", "dynamo")])
def test_a_whole_module_needs_torch_alone(name: str, exporter: str, tmp_path: Path) -> None:
    """Buffers that sizes index, and a module named `self`, are read where onnx2nn is not installed."""
    case = CASES[name]
    _, exported = _export(name, exporter)
    module = onnx2nn.load(exported)
    path = tmp_path / f"{name}.pth"
    onnx2nn.save(module, path)
    without_form = {"onnx2nn.functional onnx2nn__Require", "onnx2nn.layers Conv1D"}  # a guard, GPT-2's layer
    assert names_of_ours(path) <= without_form
    read = torch.load(path, weights_only=False)
    inputs = case.inputs(case.sizes[1])
    torch.testing.assert_close(read(*inputs), module(*inputs), rtol=0, atol=0)
    assert list(read.state_dict()) == list(module.state_dict())
    assert [type(m).__name__ for m in read.modules()][1:] == [type(m).__name__ for m in module.modules()][1:]
