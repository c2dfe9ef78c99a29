"""An imported module has the author's names: its state_dict loads into the original, strictly, and nothing changes."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from realmodels import EXPORTERS, Tensors, check_same, export_dynamo, require_transformers, run, run_onnxruntime, seeded
from tiers import mostly_slow
from torch import nn
from torch.nn import functional as F
from torch_models import BERT, CASES, TransformersOutput, mask, normal, tokens

import onnx2nn
from onnx2nn.errors import InputError
from onnx2nn.ground import naming
from onnx2nn.provenance.relative_positions import window_index

STRICT = {
    "dynamo": [
        *("googlenet", "resnet18", "mobilenet_v2", "mobilenet_v3", "densenet121", "efficientnet_b0", "regnet"),
        *("shufflenet_v2", "squeezenet", "convnext_tiny", "vit_b_16", "dcgan_generator", "dcgan_discriminator"),
        *("swin_t", "lstm_language_model", "super_resolution", "index_assignment"),
    ],
    "torchscript": [
        *("squeezenet", "convnext_tiny", "vit_b_16", "gpt2", "gated_recurrent", "dcgan_generator", "super_resolution"),
        *("lstm_language_model", "index_assignment"),
    ],
}
"""Models by exporter; torchscript's files have no batch normalisation behind a convolution, and nothing of its name."""

ABSENT = {
    "inception_v3": r"AuxLogits\.",  # not a part of the graph in evaluation mode
    "bert": r"model\.pooler\.|model\.embeddings\.position_embeddings\.weight$",  # unused; folded for one fixed length
}
"""Keys that dynamo's files do not hold, by model."""


def _bert() -> nn.Module:
    require_transformers()
    from transformers import BertConfig, BertForMaskedLM

    return TransformersOutput(BertForMaskedLM(BertConfig(**BERT)), "input_ids", "attention_mask")


def _vit() -> nn.Module:
    require_transformers()
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=8,
    )
    return TransformersOutput(ViTForImageClassification(config), "pixel_values")


class Parts(nn.Module):
    """Fresh batch normalisations behind each layer they are folded into, layers of other kinds, a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, eps=1e-3, momentum=0.2), nn.PReLU(8))
        self.up = nn.ModuleList([nn.ConvTranspose2d(8, 4, 2, groups=2, bias=False), nn.BatchNorm2d(4)])
        self.plain = nn.ModuleDict({"conv-a": nn.Conv2d(4, 4, 1, bias=False), "norm": nn.GroupNorm(2, 4)})
        self.scale = nn.Parameter(torch.full((4, 1, 1), 0.5))
        self.register_buffer("shift", torch.full((4, 1, 1), 0.5))
        self.register_buffer("mask", torch.tensor([1.0, 0.0]).repeat(2)[:, None, None], persistent=False)
        self.unused = nn.Linear(2, 3)
        self.deep = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.rnn = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up[1](self.up[0](self.wide(x)))
        x = self.plain["norm"](self.plain["conv-a"](x)) * self.scale * self.mask + self.shift
        return self.rnn(self.norm(self.deep(x.mean((2, 3)))).unsqueeze(1))[0]


def _text(batch: int, length: int) -> Tensors:
    return tokens(batch, length), mask(batch, length)


TRANSFORMERS: dict[str, tuple[Callable[[], nn.Module], Tensors, Tensors]] = {
    "names_bert": (_bert, _text(2, 7), _text(3, 9)),
    "names_gpt2": (CASES["gpt2"].build, _text(2, 7), _text(3, 9)),
    "names_vit": (_vit, (normal(2, 3, 16, 16),), (normal(3, 3, 16, 16),)),
}
TIED = {
    "names_bert": [
        ("model.bert.embeddings.word_embeddings.weight", "model.cls.predictions.decoder.weight"),
        ("model.cls.predictions.bias", "model.cls.predictions.decoder.bias"),
    ],
    "names_gpt2": [("model.transformer.wte.weight", "model.lm_head.weight")],
}


PARTS = (normal(2, 3, 9, 9),), (normal(3, 3, 9, 9),)


@functools.cache
def _exported(name: str, exporter: str) -> tuple[nn.Module, Path, Tensors]:
    if name in TRANSFORMERS:
        build, inputs, other = TRANSFORMERS[name]
    else:
        case = CASES[name]
        build, (inputs, other) = case.build, map(case.inputs, case.sizes[:2])
    model = seeded(build)
    return model, EXPORTERS[exporter](name, model, inputs, other), inputs


def _check_strict(original: nn.Module, module: nn.Module, inputs: Tensors) -> None:
    """Asserts that a copy of the original with other weights loads the module's and then computes what it did."""
    expected, fresh = run(original, inputs), copy.deepcopy(original)
    with torch.no_grad():
        for tensor in fresh.state_dict().values():
            tensor.zero_()
    fresh.load_state_dict(module.state_dict(), strict=True)
    check_same(run(fresh, inputs), expected, "after load_state_dict")
    check_same(run(module, inputs), expected, "the imported module")


def _check_both_ways(original: nn.Module, module: nn.Module, inputs: Tensors) -> None:
    """Asserts that each loads the other's state_dict, strictly; changes the weights of both."""
    _check_strict(original, module, inputs)
    with torch.no_grad():
        for weight in original.parameters():
            weight += torch.randn_like(weight) / 4
    module.load_state_dict(original.state_dict(), strict=True)
    check_same(run(module, inputs), run(original, inputs), "with other values")


@pytest.mark.parametrize(
    ("name", "exporter"),
    mostly_slow(
        [(name, exporter) for exporter, names in STRICT.items() for name in names],
        [("resnet18", "dynamo"), ("shufflenet_v2", "dynamo")],
    ),
)
def test_original_loads_the_state(name: str, exporter: str) -> None:
    original, path, inputs = _exported(name, exporter)
    module = onnx2nn.load(path)
    _check_strict(original, module, inputs)
    assert not module.naming_report().missing and not module.naming_report().extra
    if exporter == "dynamo":
        assert module.naming_report().ok
        assert {k for k, _ in module.named_parameters()} == {k for k, _ in original.named_parameters()}


@pytest.mark.parametrize("exporter", mostly_slow(EXPORTERS, ["torchscript"]))
@pytest.mark.parametrize("name", mostly_slow(TRANSFORMERS, ["names_gpt2"]))
def test_transformers_load_the_state(name: str, exporter: str, tmp_path: Path) -> None:
    """With every dimension open, so that no table is folded; tied weights have all their keys and one storage."""
    original, path, inputs = _exported(name, exporter)
    module = onnx2nn.load(path)
    _check_strict(original, module, inputs)
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    again = onnx2nn.load(tmp_path / "again.onnx")
    for travelled in (module, copy.deepcopy(module), _through_a_file(module), again):
        state = travelled.state_dict()
        assert set(state) == set(original.state_dict())
        for one, other in TIED.get(name, []):
            assert state[one].data_ptr() == state[other].data_ptr()


class OneTable(nn.Module):
    """A table that encoder and decoder have too, as in T5 and BART; only the first of its keys is read."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(7, 3)
        self.encoder, self.decoder = nn.Module(), nn.Module()
        self.encoder.embed_tokens = self.decoder.embed_tokens = nn.Embedding(7, 3)
        self.decoder.embed_tokens.weight = self.shared.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared(x)


class Tables(nn.Module):
    """Tables of two towers that are one, which the whole has under a name that nothing reads, and its head."""

    def __init__(self, name: str, tower: str, table: str) -> None:
        super().__init__()
        self.tower = tower
        self.add_module(name, nn.Embedding(7, 3))
        for kind in ("encoder", "decoder"):
            held = nn.Sequential()
            held.add_module(table, nn.Embedding(7, 3))
            held.get_submodule(table).weight = self.get_submodule(name).weight
            self.add_module(f"{tower}{kind}", held)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.get_submodule(name).weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        encoder, decoder = (self.get_submodule(f"{self.tower}{kind}") for kind in ("encoder", "decoder"))
        return self.head(encoder(x) * decoder(x + 1))


@pytest.mark.parametrize(
    "names",
    [("shared", "", "embed_tokens"), ("shared", "text_", "embed_tokens"), ("word_embeddings", "", "word_embeddings")],
)
def test_tables_under_names_that_nothing_reads(names: tuple[str, str, str]) -> None:
    original, inputs = seeded(lambda: nn.Sequential(Tables(*names))), (torch.tensor([[1, 5]]),)
    module = onnx2nn.load(export_dynamo(f"names_tables_{'_'.join(names)}", original, inputs))
    assert module.naming_report().ok and not module.naming_report().unnamed
    _check_both_ways(original, module, inputs)


class UsedBackwards(nn.Module):
    """Uses its parameters, layers and blocks in another order than it declares them."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.after, self.scale, self.act = nn.Linear(4, 4), nn.Parameter(torch.randn(4)), nn.Tanh()
        self.inner = UsedBackwards(depth - 1) if depth else nn.Linear(4, 4)
        self.steps = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.before, self.shift = nn.Linear(4, 4), nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.steps(self.before(x + self.shift))
        return self.after(self.act(self.inner(x)) * self.scale)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_parameters_are_in_the_authors_order(exporter: str) -> None:
    """An optimiser's state goes by position."""
    original, x = seeded(UsedBackwards), torch.randn(2, 4)
    module = onnx2nn.load(EXPORTERS[exporter]("used_backwards", original, (x,), (torch.randn(3, 4),)))
    assert [*dict(module.named_parameters())] == [*dict(original.named_parameters())]
    assert [*module.state_dict()] == [*original.state_dict()]
    assert [*copy.deepcopy(module).state_dict()] == [*original.state_dict()]
    first, second = torch.optim.Adam(module.parameters()), torch.optim.Adam(original.parameters())
    for net, optimizer in ((module, first), (original, second)):
        net(x).square().sum().backward()
        optimizer.step()
        optimizer.load_state_dict(first.state_dict())
        optimizer.step()
    for key, value in module.state_dict().items():
        torch.testing.assert_close(value, original.state_dict()[key])


class Statistics(nn.Module):
    """A module that holds buffers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.randn(4))
        self.register_buffer("factor", torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.factor + self.offset)


class BuffersUsedBackwards(nn.Module):
    """Uses its buffers, and modules that hold buffers alone, in another order than it declares them."""

    def __init__(self) -> None:
        super().__init__()
        self.after, self.linear, self.between, self.before = (
            Statistics(),
            nn.Linear(4, 4),
            nn.BatchNorm1d(4),
            Statistics(),
        )
        self.plain = nn.BatchNorm1d(4, affine=False)
        self.register_buffer("second", torch.randn(4))
        self.register_buffer("first", torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.between(torch.relu(self.linear(self.plain(self.before(x + self.first)))))
        return self.after(torch.relu(x) * self.second)


def _told(module: nn.Module, exporter: str) -> list[list[str]]:
    """Returns keys in orders that a file tells: of the newer exporter's, not those of different kinds of modules."""
    if exporter == "torchscript":
        return [list(module.state_dict())]
    buffers = [key for key, _ in module.named_buffers()]
    kinds = [[key for key in buffers if key.startswith("between") is kind] for kind in (False, True)]
    return [[key for key, _ in module.named_parameters()], *kinds]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_buffers_are_in_the_authors_order(exporter: str, tmp_path: Path) -> None:
    original, x = seeded(BuffersUsedBackwards), torch.randn(2, 4)
    module = onnx2nn.load(EXPORTERS[exporter]("buffers_used_backwards", original, (x,), (torch.randn(3, 4),)))
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    assert _told(module, exporter) == _told(copy.deepcopy(module), exporter) == _told(original, exporter)
    assert _told(onnx2nn.load(tmp_path / "again.onnx"), "dynamo") == _told(module, "dynamo")


def test_a_weight_of_three_keys() -> None:
    original, inputs = seeded(OneTable), (torch.tensor([[1, 5]]),)
    module = onnx2nn.load(EXPORTERS["dynamo"]("names_one_table", original, inputs, (torch.tensor([[1], [2]]),)))
    _check_strict(original, module, inputs)
    assert len(module.state_dict()) == 3
    assert len({tensor.data_ptr() for tensor in module.state_dict().values()}) == 1


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_gradients_are_the_originals(exporter: str) -> None:
    """Of a weight with two uses as well, and of tables that are read at fixed places."""
    original, path, inputs = _exported("names_gpt2", exporter)
    module = onnx2nn.load(path)
    found = []
    for one in (original, module):
        one.zero_grad()
        first = one(*inputs)
        first.square().mean().backward()
        found.append({key: value.grad for key, value in one.named_parameters()})
    for key, gradient in found[0].items():
        assert found[1][key] is not None, key
        torch.testing.assert_close(found[1][key], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("fresh", [False, True])
def test_parts_of_every_kind(fresh: bool) -> None:
    """What is folded into layers of every kind; equal weights stay two; what no node uses is all that is missing."""
    original = Parts().eval() if fresh else seeded(Parts)
    path = EXPORTERS["dynamo"](f"names_parts_{fresh}", original, *PARTS)
    module = onnx2nn.load(path)
    lost = {"unused.weight", "unused.bias"}
    assert set(module.naming_report().missing) == lost
    assert not module.naming_report().extra
    assert {key for key, _ in module.named_buffers()} >= {"shift", "wide.1.running_mean", "norm.running_var"}
    assert module.get_submodule("wide.1").momentum == pytest.approx(0.2)
    lacking = {key: value for key, value in original.state_dict().items() if key in lost}
    expected = run(original, PARTS[1])
    with torch.no_grad():
        for key, tensor in original.state_dict().items():
            tensor.mul_(key in lost)
    original.load_state_dict(module.state_dict() | lacking, strict=True)
    check_same(run(original, PARTS[1]), expected, "after load_state_dict")
    check_same(run(module, PARTS[1]), expected, "the imported module")


class Shared(nn.Module):
    """A layer that is called twice, as ALBERT has it."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 5, bias=bias), nn.Linear(5, 6, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + self.outer(torch.tanh(self.inner(x)))
        return x


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_layer_that_is_called_twice_is_one(exporter: str, bias: bool) -> None:
    """The exporter transposes its weight for each call."""
    original, inputs = seeded(lambda: Shared(bias)), (normal(2, 3, 6),)
    module = onnx2nn.load(EXPORTERS[exporter](f"names_shared_{bias}", original, inputs, (normal(4, 3, 6),)))
    _check_strict(original, module, inputs)
    assert {key for key, _ in module.named_parameters(remove_duplicate=False)} == set(original.state_dict())


class Decoded(nn.Module):
    """A table that each step of a decoder reads, and again for all steps before, as PARSeq of docTR has it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(9, 6), nn.Tanh())
        self.scores = nn.Linear(6, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            query = self.embed(x[:, -1:]) + self.embed(x).mean(1, keepdim=True)
            x = torch.cat([x, self.scores(query).argmax(-1)], 1)
        return self.scores(query)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_table_that_is_read_repeatedly_is_one(exporter: str) -> None:
    """The older exporter numbers the calls, as it would name other embeddings with the same weight."""
    original, inputs = seeded(Decoded), (tokens(2, 3) % 9,)
    module = onnx2nn.load(EXPORTERS[exporter]("names_decoded", original, inputs, (tokens(4, 3) % 9,)))
    _check_strict(original, module, inputs)
    assert set(module.state_dict()) == set(original.state_dict())
    assert repr(module.embed) == repr(original.embed)


class Biased(nn.Module):
    """A layer that reads rows of a table that its caller gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, at: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self.proj(x) + table[at]


class Biases(nn.Module):
    """Gives its layers one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(9, 4), nn.ModuleList([Biased(), Biased()])

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x, at, self.table.weight) + self.layers[1](x, at, self.table.weight)


def test_a_table_that_a_layer_is_given_is_none_of_its_own() -> None:
    """The older exporter writes the lookup as that of an embedding in the layer's place: `layers.0.weight`."""
    original, inputs = seeded(Biases), (normal(2, 5, 6), tokens(2, 5) % 9)
    other = (normal(3, 12, 6), tokens(3, 12) % 9)
    module = onnx2nn.load(EXPORTERS["torchscript"]("names_biases", original, inputs, other))
    _check_strict(original, module, inputs)
    assert set(module.state_dict()) == set(original.state_dict())


class Spoken(nn.Module):
    """A decoder that scores words by the table that it reads them from, as OpenAI's Whisper does."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Scored()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.decoder(x)
        return scores


class Scored(nn.Module):
    """The decoder of `Spoken`."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(11, 6), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.words(x)) @ self.words.weight.to(torch.float32).transpose(0, 1)


@pytest.mark.parametrize("build", [Spoken, Scored])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_product_with_a_table_that_words_are_read_from_reads_it(exporter: str, build: type[nn.Module]) -> None:
    """Exporters transpose a copy of it: it stayed as it was where other weights were loaded, and was not trained."""
    original, inputs = seeded(build), (tokens(2, 3) % 11,)
    module = onnx2nn.load(EXPORTERS[exporter](f"names_{build.__name__}", original, inputs, (tokens(4, 5) % 11,)))
    _check_strict(original, module, inputs)
    other = seeded(build, 1)
    module.load_state_dict(other.state_dict(), strict=True)
    check_same(run(module, inputs), run(other, inputs), "with other weights")
    for model in (module, other):
        model(*inputs).square().sum().backward()
    grads = [[weight.grad for name, weight in sorted(model.named_parameters())] for model in (module, other)]
    check_same(tuple(grads[0]), tuple(grads[1]), "the gradients")


@pytest.mark.parametrize("name", ABSENT)
def test_keys_that_the_file_lacks_are_reported(name: str) -> None:
    original, path, _ = _exported(name, "dynamo")
    module = onnx2nn.load(path)
    report, theirs, ours = module.naming_report(), set(original.state_dict()), set(module.state_dict())
    assert set(report.missing) == theirs - ours and set(report.extra) == ours - theirs
    assert report.missing and all(re.match(ABSENT[name], key) for key in report.missing)
    assert not report.ok and f"lacks {len(report.missing)} of the author's keys" in str(report)
    assert all(why for why in report.missing.values())
    original.load_state_dict({key: value for key, value in module.state_dict().items() if key in theirs}, strict=False)


def test_folded_batch_norm_is_an_addition() -> None:
    """What comes back of a folded batch normalisation adds the bias and changes nothing else, to the last bit."""
    _, path, inputs = _exported("resnet18", "dynamo")
    module, literal = onnx2nn.load(path), onnx2nn.load(path, raise_patterns=False)
    x = torch.randn(3, 64, 5, 5, generator=torch.Generator().manual_seed(0)) * 100
    bias = literal.conv1.bias[:, None, None]
    assert isinstance(module.bn1, nn.BatchNorm2d) and module.conv1.bias is None
    assert torch.equal(module.bn1(x), x + bias)
    assert torch.equal(module.conv1.weight, literal.conv1.weight)
    assert module.bn1.momentum == pytest.approx(0.1) and module.bn1.eps == pytest.approx(1e-5)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in literal.modules())
    assert set(literal.naming_report().missing) == {
        key for key in module.state_dict() if key not in literal.state_dict()
    }
    check_same(run(module, inputs), run(literal, inputs), "with batch normalisations")


class PlainNorms(nn.Module):
    """Batch normalisations without weights behind layers that they are folded into, as XFeat of Kornia has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6, affine=False), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4, eps=1e-3, momentum=0.2, affine=False))
        self.up = nn.Sequential(nn.ConvTranspose2d(4, 4, 2), nn.BatchNorm2d(4, affine=False))
        for name, buffer in self.named_buffers():
            if "running" in name:
                nn.init.uniform_(buffer, 0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.second(self.first(x)))


def test_a_folded_batch_norm_without_weights_subtracts_its_mean() -> None:
    original = seeded(PlainNorms)
    path = EXPORTERS["dynamo"]("names_plain_norms", original, *PARTS)
    module = onnx2nn.load(path)
    _check_strict(original, module, PARTS[1])
    assert module.naming_report().ok
    assert {key for key, _ in module.named_parameters()} == {key for key, _ in original.named_parameters()}
    for name, layer in original.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert repr(module.get_submodule(name)) == repr(layer)


@pytest.mark.parametrize("reader", ["a node", "an output"])
def test_a_folded_bias_that_is_read_elsewhere_stays(reader: str) -> None:
    """The bias of a convolution, to which a batch normalisation's was added, cannot be divided among both then."""
    inputs = PARTS[0]
    model = onnx.load(EXPORTERS["dynamo"]("names_parts_False", seeded(Parts), *PARTS))
    convolution = next(node for node in model.graph.node if node.op_type == "Conv" and len(node.input) > 2)
    bias = convolution.input[2]
    if reader == "a node":
        model.graph.node.append(helper.make_node("Neg", [bias], ["read"]))
    read = helper.make_tensor_value_info("read" if reader == "a node" else bias, onnx.TensorProto.FLOAT, [8])
    model.graph.output.append(read)
    module = onnx2nn.load(model)
    check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "with the bias")
    assert bias in module.state_dict()


def test_a_bias_of_another_layer_beside_the_own_one() -> None:
    """A layer adds another's bias, and the file has one of its own, which nothing reads."""
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    inputs = (normal(2, 3, 4),)
    model = onnx.load(EXPORTERS["torchscript"]("names_two_biases", seeded(lambda: layers), inputs, (normal(1, 2, 4),)))
    for node in model.graph.node:
        node.input[:] = ["0.bias" if name == "2.bias" else name for name in node.input]
    module = onnx2nn.load(model)
    check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "one bias")


def test_folded_batch_norm_without_a_name_is_reported() -> None:
    original, path, _ = _exported("resnet18", "torchscript")
    module = onnx2nn.load(path)
    report = module.naming_report()
    assert not report.listed and not report.ok and "does not list" in str(report)
    convolutions = [name for name, layer in original.named_modules() if isinstance(layer, nn.Conv2d)]
    assert sorted(report.unnamed) == sorted(convolutions)
    assert all("batch normalisation" in why for why in report.unnamed.values())
    assert {name for name, layer in module.named_modules() if isinstance(layer, nn.Conv2d)} == set(convolutions)


class ClassToken(nn.Module):
    """What Vision Transformers put before the patches: a weight that is repeated for every item of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("fresh", [False, True])
def test_class_token_of_a_fixed_batch(batch: int, fresh: bool) -> None:
    original = ClassToken().eval() if fresh else seeded(ClassToken)
    inputs = (normal(batch, 2, 4),)
    path = export_dynamo(f"names_class_token_{batch}_{fresh}", original, inputs)
    module = onnx2nn.load(path)
    assert module.naming_report().ok and isinstance(module.token, nn.Parameter)
    _check_strict(original, module, inputs)
    module(*inputs).sum().backward()
    original(*inputs).sum().backward()
    torch.testing.assert_close(module.token.grad, original.token.grad)
    check_same(run(onnx2nn.load(path, raise_patterns=False), inputs), run(original, inputs), "as the file has it")


REPEATED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "doubled": lambda w: w * 2,
    "turned": lambda w: w.flip(2),
    "softmax": lambda w: w.softmax(-1),
    "part": lambda w: w[:1],
    "sizes": lambda w: w.reshape(1, 4)[None],
    "whole": lambda w: w[:, :1],
    "copied": lambda w: w.clone(),
}


class Repeated(ClassToken):
    """A class token of which something is computed before it is repeated."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.change(self.token).expand(x.shape[0], -1, -1), x], 1))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("change", REPEATED)
def test_class_token_that_was_computed(change: str, dynamic: bool) -> None:
    """What was computed of the token is not the token; a slice that takes all of it is."""
    original, inputs = seeded(lambda: Repeated(REPEATED[change])), (normal(3, 2, 4),)
    path = export_dynamo(
        f"names_repeated_{change}_{dynamic}", original, inputs, (normal(5, 2, 4),) if dynamic else None
    )
    module = onnx2nn.load(path)
    check_same(run(module, inputs), run(original, inputs), "the imported module")
    if change in ("whole", "copied"):
        _check_strict(original, module, inputs)
    else:
        assert "token" in module.naming_report().missing and "token" not in module.state_dict()


class Positions(nn.Module):
    """Adds the rows of a table for as many positions as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, 5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[:, : x.shape[1]]


@pytest.mark.parametrize("length", [5, 3])
def test_positions_of_which_all_are_used(length: int) -> None:
    original, inputs = seeded(lambda: nn.Sequential(nn.Linear(4, 4), Positions())), (normal(2, length, 4),)
    module = onnx2nn.load(export_dynamo(f"names_positions_{length}", original, inputs))
    if length == 5:
        _check_strict(original, module, inputs)
    else:
        assert "1.table" in module.naming_report().missing


class ChannelNorm(nn.Module):
    """ConvNeXt's normalisation of channels, with tokens beside the pixels and a row that is added to all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.tokens, self.row = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(1, keepdim=True)
        x = self.weight[:, None, None] * (centred / (centred.pow(2).mean(1, keepdim=True) + 1e-6).sqrt())
        x = (x + self.bias[:, None, None]).flatten(2).transpose(1, 2) + self.row[None]
        return torch.cat([self.tokens[None].expand(x.shape[0], -1, -1), x], 1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_weights_with_further_dimensions(dynamic: bool) -> None:
    original = seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), ChannelNorm()))
    inputs = (normal(2, 3, 5, 4),)
    path = export_dynamo(f"names_further_{dynamic}", original, inputs, (normal(3, 3, 6, 5),) if dynamic else None)
    module = onnx2nn.load(path)
    assert module.naming_report().ok, module.naming_report()
    _check_strict(original, module, inputs)
    module(*inputs).square().sum().backward()
    original(*inputs).square().sum().backward()
    for key, weight in original.named_parameters():
        torch.testing.assert_close(module.get_parameter(key).grad, weight.grad)
    check_same(run(onnx2nn.load(path, raise_patterns=False), inputs), run(original, inputs), "as the file has it")


class ViewedVectors(nn.Module):
    """A normalisation by the response of all channels, and factors of each, as views of vectors; a matrix as a row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.gamma = (nn.Parameter(torch.zeros(4)) for _ in range(3))
        self.shift, self.scale, self.twice = (nn.Parameter(torch.zeros(4)) for _ in range(3))
        self.table = nn.Parameter(torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = x.norm(dim=(1, 2), keepdim=True)
        x = x + self.weight.view(1, 1, 1, -1) * (x * norm / (norm.mean(-1, keepdim=True) + 1e-6))
        x = torch.addcmul(self.shift.view(1, 1, 1, -1), self.scale.view(1, 1, 1, -1), x)
        x = torch.addcmul(self.shift, self.twice, x, value=2)
        x = (x + self.bias.view(1, 1, 1, -1)).permute(0, 3, 1, 2) * self.gamma.reshape(1, 4, 1, 1)
        return x.flatten(1, 2) @ x.flatten(1, 2).mT + (self.table.view(1, -1) * x.mean((2, 3))).sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_vectors_that_are_viewed(dynamic: bool) -> None:
    original, inputs = seeded(lambda: nn.Sequential(nn.Linear(3, 4), ViewedVectors())), (normal(2, 5, 4, 3),)
    path = export_dynamo(f"names_viewed_{dynamic}", original, inputs, (normal(3, 6, 5, 3),) if dynamic else None)
    module = onnx2nn.load(path)
    missing = {"1.table", "1.twice"}  # no note says that one is a matrix, the other is doubled
    assert set(module.naming_report().missing) == missing
    theirs = {key: value for key, value in original.state_dict().items() if key not in missing}
    assert {key: value.shape for key, value in module.state_dict().items() if key in theirs} == {
        key: value.shape for key, value in theirs.items()
    }
    with torch.no_grad():
        for value in theirs.values():
            value += torch.randn_like(value)
        module.load_state_dict(theirs, strict=False)
    check_same(run(module, inputs), run(original, inputs), "with other values")


class Affine(nn.Module):
    """A factor and a shift for each channel in one call, as ResMLP has them."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.shift = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self.shift, self.factor, x)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_factors_of_addcmul(exporter: str) -> None:
    """The newer exporter multiplies them by a value of 1, and folds that."""
    original, inputs = seeded(lambda: nn.Sequential(Affine(), nn.Linear(4, 4), Affine())), (normal(2, 3, 4),)
    module = onnx2nn.load(EXPORTERS[exporter]("names_addcmul", original, inputs, (normal(3, 5, 4),)))
    _check_both_ways(original, module, inputs)


class Pair(nn.Module):
    """Compares tokens and patches as CLIP does: both have positions of a fixed length, the result a learned scale."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self.words, self.patches = nn.Embedding(9, 4), nn.Linear(3, 4)
        self.image, self.text = nn.Module(), nn.Module()
        for part, count in ((self.text, 5), (self.image, 6)):
            part.places = nn.Embedding(count, 4)
            part.register_buffer("position_ids", torch.arange(count)[None], persistent=part is self.text)
        self.scale = nn.Parameter(torch.tensor(exponent))

    def forward(self, ids: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        text = self.words(ids) + self.text.places(self.text.position_ids[:, : ids.shape[1]])
        patches = self.patches(image) + self.image.places(self.image.position_ids)
        return text.mean(1) @ patches.mean(1).mT * self.scale.exp()


@pytest.mark.parametrize("exponent", [2.3025851, 4.6052, -3.7, 0.25, 1e-4, -0.7])
def test_positions_and_scales_of_clip(exponent: float) -> None:
    original = seeded(lambda: Pair(exponent))
    with torch.no_grad():
        original.scale.fill_(exponent)
    inputs = (torch.randint(0, 9, (2, 5)), normal(2, 6, 3))
    module = onnx2nn.load(export_dynamo(f"names_clip_{exponent}", original, inputs, (inputs[0][:1], normal(3, 6, 3))))
    theirs = original.state_dict()
    several = 0 < abs(exponent) < 2  # weights have this exponential
    assert ("last digits" in module.naming_report().restored["scale"]) == (abs(exponent) < 2)
    for key, value in module.state_dict().items():
        near = 2.0**-22 if several and key == "scale" else 0
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=near)
    _check_both_ways(original, module, inputs)


class Tempered(nn.Module):
    """Multiplies by the exponential of a weight that has the same value in every layer at first (Swin V2)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), nn.Parameter(torch.full((2, 1), 2.302585))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x).reshape(-1, 2, 2) * self.scale.exp()).reshape(-1, 4)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_what_modules_compute_of_equal_weights_is_of_their_own(exporter: str) -> None:
    """The newer exporter computes the exponentials, and merges these; each module computes its own again."""
    original, inputs = seeded(lambda: nn.Sequential(*(Tempered() for _ in range(3)))), (normal(2, 4),)
    module = onnx2nn.load(EXPORTERS[exporter]("names_tempered", original, inputs, (normal(3, 4),)))
    assert len({id(module.get_submodule(name).scale) for name in "012"}) == 3
    for name in "012":
        check_same(module.get_submodule(name)(*inputs), original.get_submodule(name)(*inputs), "called alone")
    _check_both_ways(original, module, inputs)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_layers_that_begin_as_the_identity_are_not_tied(exporter: str) -> None:
    """Both exporters merge equal weights (ConViT's values begin so)."""

    def build() -> nn.Module:
        layers = [nn.Linear(4, 4, bias=False) for _ in range(3)]
        for layer in layers[:2]:
            nn.init.eye_(layer.weight)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    original, inputs = seeded(build), (normal(2, 5, 4),)
    module = onnx2nn.load(EXPORTERS[exporter]("names_identity", original, inputs, (normal(3, 5, 4),)))
    assert module.get_submodule("0").weight is not module.get_submodule("2").weight
    _check_both_ways(original, module, inputs)


class BesideViews(nn.Module):
    """Adds a vector, multiplies by a view of it, and by a factor computed of it."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.table = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x + self.shift).permute(0, 3, 1, 2) * self.shift.view(1, -1, 1, 1)
        x = torch.addcmul(x, self.shift[:, None, None], x) @ self.table
        return x.flatten(2).mT * self.table.view(-1) * self.shift.cos().sum()


def test_weights_beside_views_of_them() -> None:
    original, inputs = seeded(lambda: nn.Sequential(nn.Linear(3, 4), BesideViews())), (normal(2, 5, 2, 3),)
    module = onnx2nn.load(export_dynamo("names_shared", original, inputs))
    (apart,) = module.naming_report().unnamed.items()
    assert apart[0].startswith("sum") and "'1.shift'" in apart[1]
    with torch.no_grad():
        scale = original[1].shift.cos().sum()
        for value in original.parameters():
            value += torch.randn_like(value)
        module.load_state_dict(original.state_dict())
        scale /= original[1].shift.cos().sum()
        check_same([value / scale for value in run(module, inputs)], run(original, inputs), "with other values")


class Transposed(nn.Module):
    """A product with a transposed matrix, as of relative positions in a halo, and one that is used as it is too."""

    def __init__(self) -> None:
        super().__init__()
        self.height, self.width, self.table = (nn.Parameter(torch.zeros(3, 4)) for _ in range(3))
        self.lengths = nn.Linear(4, 4, bias=False)
        self.depth = nn.Parameter(torch.zeros(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.lengths.weight.T + x @ self.depth.T  # a name that the exporter has for all permutations
        y = x @ self.height.transpose(-1, -2)
        return (y @ self.table @ self.table.t())[:, :4] * self.width.mT


@pytest.mark.parametrize("dynamic", [False, True])
def test_transposed_matrices(dynamic: bool) -> None:
    original, inputs = seeded(lambda: nn.Sequential(nn.Linear(3, 4), Transposed())), (normal(2, 5, 3),)
    path = export_dynamo(f"names_transposed_{dynamic}", original, inputs, (normal(3, 6, 3),) if dynamic else None)
    _check_both_ways(original, onnx2nn.load(path), inputs)


class TiedLayers(nn.Module):
    """An autoencoder whose decoder is the transposed encoder, and a search of the nearest vectors of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.table, self.bias = nn.Linear(5, 3), nn.Embedding(7, 3), nn.Parameter(torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = self.encode(x)
        near = torch.matmul(code, self.table.weight.t()).softmax(-1)
        return F.linear(torch.tanh(code) + near @ self.table.weight, self.encode.weight.t(), self.bias)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 5)], ids=["rows", "sequences"])
def test_matrices_that_layers_and_tables_have_transposed(shape: tuple[int, ...], inside: bool, exporter: str) -> None:
    """They were constants that do not follow the weight, or weights of their own."""
    original, inputs = seeded(TiedLayers), (normal(2, *shape),)
    original = nn.Sequential(nn.Linear(5, 5), original) if inside else original
    name = f"names_tied_layers_{inside}_{len(shape)}"
    module = onnx2nn.load(EXPORTERS[exporter](name, original, inputs, (normal(3, *shape),)))
    _check_both_ways(original, module, inputs)
    for network in (original, module):
        network.zero_grad()
        run_with_gradients = network(*inputs).square().sum()
        run_with_gradients.backward()
    gradients = dict(module.named_parameters())
    for name, parameter in original.named_parameters():
        torch.testing.assert_close(gradients[name].grad, parameter.grad, msg=name)


class Masked(nn.Module):
    """Couples the elements where a mask is 1 with the others."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.scale = nn.Linear(6, 6)
        self.register_buffer("mask", (torch.arange(6) % 2 == first).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x * self.mask
        return kept + (1 - self.mask) * (x * self.scale(kept))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_what_is_computed_from_one_mask_and_equal_to_another(exporter: str, tmp_path: Path) -> None:
    """The older exporter merges `1 - mask` of the first with the mask of the second, behind an Identity."""
    original, inputs = seeded(lambda: nn.Sequential(Masked(0), Masked(1), Masked(0))), (normal(2, 6),)
    module = onnx2nn.load(EXPORTERS[exporter]("names_masks", original, inputs))
    check_same(run(module, inputs), run(original, inputs), "all")
    assert not [key for key in module.state_dict() if not key.startswith(("0.", "1.", "2."))]
    onnx2nn.to_python(module, tmp_path / "source")


class Scaled(nn.Module):
    """A normalisation whose factor is computed from its weight, as Gemma has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class Odd(nn.Module):
    """Weights that are not used the usual way; it loads states of its own version alone, as torchvision's MNASNet."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.words, self.same = nn.Embedding(9, 6), nn.Embedding(9, 6)
        self.same.weight = self.words.weight
        self.mix, self.groups, self.slope = nn.Conv1d(5, 5, 1, bias=False), nn.GroupNorm(5, 5), nn.PReLU(5)
        self.places = nn.Linear(2, 6)
        self.register_buffer("coordinates", torch.arange(10.0).reshape(5, 2) / 10)
        self.uncalled = nn.Module()
        self.uncalled.inner = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6, bias=False))
        self.norm = Scaled()
        self.attention = nn.Module()
        self.attention.qkv = nn.Linear(6, 6)
        self.table = nn.Parameter(torch.zeros(5, 6))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.slope(self.groups(self.mix(self.words(ids) + self.same(ids + 1))))
        x = self.norm(self.uncalled.inner(x + self.places(self.coordinates).relu()))
        bias = self.attention.qkv.bias.clone()
        bias[2:4] = 0
        return nn.functional.linear(x, self.attention.qkv.weight, bias) + self.table.clone()

    def _load_from_state_dict(self, state: dict[str, torch.Tensor], prefix: str, metadata: dict, *rest: object) -> None:
        if metadata.get("version") != self._version:
            raise ValueError(f"a state of version {metadata.get('version')}")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


ODD = (torch.tensor([[1, 0, 7, 3, 2], [4, 4, 5, 6, 0]]),)


@pytest.mark.parametrize("raised", [True, False])
def test_odd_weights_are_the_authors(tmp_path: Path, raised: bool) -> None:
    """The exporter computes nothing with optimize=False, so that everything is there, in the author's layout."""
    original, path = seeded(Odd), tmp_path / "odd.onnx"
    torch.onnx.export(original, ODD, path, dynamo=True, optimize=False, verbose=False)
    module = onnx2nn.load(path, raise_patterns=raised)
    assert module.naming_report().ok
    for travelled in (module, copy.deepcopy(module), _through_a_file(module)):
        _check_strict(original, travelled, ODD)


def test_what_is_computed_from_a_weight_is_not_called_so(tmp_path: Path) -> None:
    """The report says which keys are missing and what was made of them; gradients reach what was."""
    original, path = seeded(Odd), tmp_path / "odd.onnx"
    torch.onnx.export(original, ODD, path, dynamo=True, verbose=False)
    module = onnx2nn.load(path)
    report, theirs, ours = module.naming_report(), set(original.state_dict()), set(module.state_dict())
    assert set(report.missing) == theirs - ours >= {"norm.weight", "places.weight", "places.bias"}
    assert set(report.extra) == ours - theirs
    assert all(re.match(r"the exporter computed '\w+' from it", report.missing[key]) for key in report.missing)
    assert report.extra and all("from weights" in why for why in report.extra.values())
    check_same(run(module, ODD), run(original, ODD), "the imported module")
    assert ours - theirs <= {key for key, _ in module.named_parameters()}


class Antisymmetric(nn.Module):
    """A module with a weight that the exporter computes, a bias beside it and a layer inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.skew = nn.Parameter(torch.randn(4, 4))
        self.bias = nn.Parameter(torch.randn(4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ (self.skew - self.skew.T) + self.inner(x).relu() + self.bias)


def test_a_layer_of_a_computed_weight_is_inside_the_module_around_it(tmp_path: Path) -> None:
    """In the module's own place it would take the module's keys: `bias` was renamed, and the source lacked `inner`."""
    original, inputs = seeded(lambda: nn.Sequential(Antisymmetric(), Antisymmetric())), (normal(2, 4),)
    module = onnx2nn.load(EXPORTERS["dynamo"]("names_antisymmetric", original, inputs))
    theirs, ours = set(original.state_dict()), set(module.state_dict())
    assert theirs - ours == {"0.skew", "1.skew"}
    assert ours - theirs == {"0.linear.weight", "1.linear.weight"}
    onnx2nn.to_python(module, tmp_path / "source")
    check_same(run(module, inputs), run(original, inputs), "the imported module")


class BiasBehind(nn.Module):
    """Adds a vector of its own to what a layer without a bias gives, as Marian does to its words' scores."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 5, bias=False)
        self.register_buffer("final_logits_bias", torch.randn(1, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + self.final_logits_bias


def test_a_vector_of_the_module_around_names_no_matrix() -> None:
    """The key of the matrix was `0.head.final_logits_weight`."""
    original, inputs = seeded(lambda: nn.Sequential(BiasBehind(), nn.ReLU())), (normal(2, 3, 4),)
    module = onnx2nn.load(EXPORTERS["torchscript"]("names_bias_behind", original, inputs))
    _check_strict(original, module, inputs)


class Recurrent(nn.Module):
    """A recurrent module of which the newer exporter folds the small weights: biases, matrices of few features."""

    def __init__(self, kind: type[nn.RNNBase], features: int, bidirectional: bool) -> None:
        super().__init__()
        self.rnn = kind(features, 96, 2, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x)[0]


@pytest.mark.parametrize("features", [8, 96])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_folded_biases_beside_matrices_that_are_not(kind: type[nn.RNNBase], features: int, bidirectional: bool) -> None:
    """The layer was a call of a function with matrices that it put together, and biases that were frozen."""
    original, inputs = seeded(lambda: Recurrent(kind, features, bidirectional)), (normal(2, 3, features),)
    path = EXPORTERS["dynamo"](f"names_{kind.__name__.lower()}_{features}_{bidirectional}", original, inputs)
    held = {tensor.name for tensor in onnx.load(path).graph.initializer}
    assert "rnn.weight_hh_l0" in held and "rnn.bias_hh_l0" not in held
    module = onnx2nn.load(path)
    assert type(module.rnn) is kind
    _check_strict(original, module, inputs)


class Computing(nn.Module):
    """A module that computes the weights of several layers, as those of Keras do with their kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, 3, 2, 4))
        self.second = nn.Parameter(torch.randn(3, 3, 4, 5))
        self.kernel = nn.Parameter(torch.randn(5, 6))
        self.offset = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.conv2d(x, self.first.permute(3, 2, 0, 1)).relu()
        x = torch.conv2d(x, self.second.permute(3, 2, 0, 1)).relu()
        return torch.matmul(x.mean((2, 3)), self.kernel * 2) + self.offset * 2


def test_several_layers_of_computed_weights_are_inside_their_module(tmp_path: Path) -> None:
    """One took the module's own place, which held the weights of the others, and convolutions were no layers."""
    original, inputs = seeded(lambda: nn.Sequential(Computing())), (normal(2, 2, 7, 6),)
    module = onnx2nn.load(EXPORTERS["torchscript"]("names_computing", original, inputs))
    (inside,) = module.children()
    assert [type(layer).__name__ for layer in inside.children()] == ["Conv2d", "Conv2d", "Linear"]
    assert not set(module.state_dict()) & set(original.state_dict())
    onnx2nn.to_python(module, tmp_path / "source")
    check_same(run(module, inputs), run(original, inputs), "the imported module")


def test_recurrent_layers_keep_their_place() -> None:
    """Each is one node with two matrices that the exporter computed, and a stack is two such nodes."""
    original = seeded(lambda: nn.Sequential(nn.LSTM(3, 4, num_layers=2, batch_first=True)))
    module = onnx2nn.load(EXPORTERS["torchscript"]("names_recurrent_place", original, (normal(2, 5, 3),)))
    assert set(module.state_dict()) == set(original.state_dict())


COMPUTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "negated": torch.neg,
    "doubled": lambda w: w * 2,
    "turned": lambda w: w.flip(0),
    "rolled": lambda w: torch.cat([w[1:], w[:1]]),
    "sorted": lambda w: w.sort(0)[0],
    "summed": lambda w: w.sum(0, keepdim=True).expand_as(w),
    "part": lambda w: w[:1],
    "swapped": lambda w: w.transpose(0, -1),
    "product": lambda w: w @ w.transpose(-1, -2),
}


class OfWeights(nn.Module):
    """Views of weights, in other shapes and orders of dimensions, and what is computed of weights alone."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.steps: list[list[str | list[int]]] = []
        for number in range(24):
            sizes = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(2, 4))]
            self.register_parameter(f"w{number}", nn.Parameter(torch.randn(sizes)))
            views: list[str | list[int]] = [rng.sample(range(4), 4) for _ in range(rng.randint(1, 3))]
            if number % 3 == 2:
                views[rng.randrange(len(views))] = rng.choice([*COMPUTED])
            self.steps.append(views)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = []
        for number, steps in enumerate(self.steps):
            value = getattr(self, f"w{number}")
            for step in steps:
                if isinstance(step, str):
                    value = COMPUTED[step](value)
                    continue
                value = value.reshape([1] * (4 - value.ndim) + list(value.shape)).permute(step)
                if step[0] % 2:
                    value = value.reshape(value.shape[0] * value.shape[1], *value.shape[2:])
            results.append(x * value)
        return tuple(results)


@pytest.mark.parametrize("seed", range(3))
def test_views_of_weights(seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """What an exporter leaves to compute of a weight alone is folded at import; a view of it is read as one."""
    torch.manual_seed(seed)
    original, x = OfWeights(request.config.getoption("--seed") * 3 + seed).eval(), torch.ones(1)
    path = tmp_path / "views.onnx"
    torch.onnx.export(original, (x,), path, dynamo=True, optimize=False, verbose=False)
    module = onnx2nn.load(path)
    for found, wanted in zip(module(x), original(x), strict=True):
        torch.testing.assert_close(found, wanted)
    state = module.state_dict()
    views = [
        key for key, steps in zip(original.state_dict(), original.steps, strict=True) if str not in map(type, steps)
    ]
    assert all(torch.equal(state[key], original.state_dict()[key]) for key in views)


@pytest.mark.parametrize("raised", [True, False])
def test_odd_weights_of_the_older_exporter(raised: bool) -> None:
    original = seeded(Odd)
    module = onnx2nn.load(EXPORTERS["torchscript"]("names_odd", original, ODD), raise_patterns=raised)
    state, theirs = module.state_dict(), original.state_dict()
    assert set(theirs) - set(state) == {"norm.weight"}
    (other,) = set(state) - set(theirs)
    assert list(module.naming_report().unnamed) == [other]
    torch.testing.assert_close(state[other], 1 + theirs["norm.weight"])
    for key in set(theirs) & set(state):
        assert torch.equal(state[key], theirs[key]), key
    check_same(run(module, ODD), run(original, ODD), "the imported module")
    assert state["words.weight"].data_ptr() == state["same.weight"].data_ptr()


class Equalised(nn.Conv2d):
    """A convolution whose weight is computed from its parameter, as StyleGAN has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, self.weight * 2, self.bias)


def test_computed_weight_of_the_older_exporter_is_reported() -> None:
    original, inputs = seeded(lambda: nn.Sequential(Equalised(2, 3, 2))), (normal(1, 2, 4, 4),)
    module = onnx2nn.load(EXPORTERS["torchscript"]("names_equalised", original, inputs))
    assert "0.weight" not in module.state_dict() and "0.bias" in module.state_dict()
    assert re.match("the exporter computed its weight", module.naming_report().unnamed["0"])
    check_same(run(module, inputs), run(original, inputs), "the imported module")


class Across(nn.Module):
    """An attention from one sequence to others, of which the exporter splits the packed weight; batched or not."""

    def __init__(self, **options: int) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.layer(x, y, z)[0]


ACROSS: dict[str, tuple[Callable[[], nn.Module], Tensors]] = {
    "packed": (Across, (normal(2, 6, 8), normal(2, 4, 8), normal(2, 4, 8))),
    "unbatched": (Across, (normal(6, 8), normal(4, 8), normal(4, 8))),
    "no_bias": (functools.partial(Across, bias=False), (normal(2, 6, 8), normal(2, 4, 8), normal(2, 4, 8))),
    "other_sizes": (functools.partial(Across, kdim=5, vdim=3), (normal(2, 6, 8), normal(2, 4, 5), normal(2, 4, 3))),
    "decoder": (lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), (normal(2, 6, 8), normal(2, 4, 8))),
}


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize("name", ACROSS)
def test_a_weight_of_which_parts_are_used_stays_whole(name: str, raised: bool) -> None:
    build, inputs = ACROSS[name]
    original = seeded(build)
    path = export_dynamo(f"names_across_{name}", original, inputs)
    module = onnx2nn.load(path, raise_patterns=raised)
    assert module.naming_report().ok
    for travelled in (module, copy.deepcopy(module), _through_a_file(module)):
        _check_strict(original, travelled, inputs)
    for one in (original, module):
        one.zero_grad()
        one(*inputs).square().mean().backward()
    gradients = {key: value.grad for key, value in module.named_parameters()}
    for key, value in original.named_parameters():
        torch.testing.assert_close(gradients[key], value.grad, rtol=1e-3, atol=1e-6)


def _twice(layer: nn.Module) -> nn.Module:
    """A fresh layer and a copy of it, which is called twice: the exporter merges all their weights."""
    second = copy.deepcopy(layer)
    return nn.Sequential(layer, nn.ReLU(), second, nn.ReLU(), second)


def _zero_bias() -> nn.Module:
    layer = nn.Linear(8, 8)
    nn.init.zeros_(layer.bias)
    return _twice(layer)


def _encoder() -> nn.Module:
    """Its file leaves out the biases that are zero."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _folded_twice() -> nn.Module:
    layers = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), seeded(lambda: nn.BatchNorm2d(4)), nn.PReLU(4))
    return nn.Sequential(layers, copy.deepcopy(layers))


EQUAL: dict[str, tuple[Callable[[], nn.Module], Tensors]] = {
    "layer_norm": (lambda: _twice(nn.LayerNorm(8)), (normal(3, 8),)),
    "batch_norm": (lambda: _twice(nn.BatchNorm1d(4)), (normal(3, 4, 5),)),
    "group_norm": (lambda: _twice(nn.GroupNorm(2, 4)), (normal(3, 4, 5),)),
    "linear": (lambda: _twice(nn.Linear(8, 8)), (normal(3, 8),)),
    "linear_of_zeros": (_zero_bias, (normal(3, 8),)),
    "linear_of_rank_3": (lambda: _twice(nn.Linear(8, 8)), (normal(2, 3, 8),)),
    "linear_without_bias": (lambda: _twice(nn.Linear(8, 8, bias=False)), (normal(2, 3, 8),)),
    "conv": (lambda: _twice(nn.Conv1d(4, 4, 3, padding=1)), (normal(2, 4, 5),)),
    "encoder": (_encoder, (normal(2, 5, 8),)),
}


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize("name", EQUAL)
def test_layers_of_equal_weights_stay_several(name: str, raised: bool) -> None:
    """Each weight has all its keys, is a parameter of its own, and is used where the original uses it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        original = EQUAL[name][0]().eval()
    inputs = EQUAL[name][1]
    module = onnx2nn.load(export_dynamo(f"names_equal_{name}", original, inputs), raise_patterns=raised)
    assert module.naming_report().ok, str(module.naming_report())
    _check_strict(original, module, inputs)
    assert len(list(module.parameters())) == len(list(original.parameters()))
    other = copy.deepcopy(original)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    state = other.state_dict()
    module.load_state_dict({key: value for key, value in state.items() if key in module.state_dict()}, strict=False)
    check_same(run(module, inputs), run(other, inputs), "with another state")


@pytest.mark.parametrize("raised", [True, False])
def test_equal_weights_into_which_others_were_folded(raised: bool) -> None:
    """What was a convolution's weight is not called by the key of the normalisation that was folded into it."""
    original, inputs = seeded(_folded_twice), (normal(1, 4, 5, 5),)
    module = onnx2nn.load(export_dynamo("names_equal_folded", original, inputs), raise_patterns=raised)
    state, theirs = module.state_dict(), original.state_dict()
    assert all(state[key].shape == theirs[key].shape for key in state if key in theirs)
    check_same(run(module, inputs), run(original, inputs), "the imported module")


def _through_a_file(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_layers_say_where_they_come_from() -> None:
    _, path, _ = _exported("resnet18", "dynamo")
    module = onnx2nn.load(path)
    nodes = {node.name: node for node in onnx.load(str(path), load_external_data=False).graph.node}
    for travelled in (module, copy.deepcopy(module), _through_a_file(module)):
        layer = travelled.layer1.get_submodule("0").conv1
        assert layer.onnx_op == nodes[layer.onnx_name].op_type == "Conv"
        assert re.fullmatch(r".*resnet\.py:\d+", layer.onnx_source)
        assert travelled.fc.onnx_op == "Gemm"
        assert onnx2nn.naming_report(travelled) == module.naming_report()
        assert travelled.meta["onnx2nn"] == module.meta["onnx2nn"]
        assert onnx2nn.naming_report(travelled).restored


def test_report_is_for_imported_modules() -> None:
    with pytest.raises(InputError, match=r"none that onnx2nn\.load gave"):
        onnx2nn.naming_report(nn.Linear(2, 2))


COLLIDING = ["a.b", "a_b", "a/b", "a", "a.b.c", "training", "a-b", "a..b", "code", "c.code"]


@pytest.mark.parametrize("producer", ["pytorch", "another"])
def test_names_never_collide_and_never_change(producer: str) -> None:
    values = [np.array([k, k + 0.5], np.float32) for k in range(1, len(COLLIDING) + 1)]
    weights = [numpy_helper.from_array(value, name) for name, value in zip(COLLIDING, values, strict=True)]
    steps = ["x", *(f"step{k}" for k in range(1, len(COLLIDING))), "y"]
    nodes = [
        helper.make_node(operator, [before, name], [after])
        for operator, name, (before, after) in zip(
            itertools.cycle(["Add", "Mul"]), COLLIDING, itertools.pairwise(steps), strict=False
        )
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "collide", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name=producer)
    one, two = (onnx2nn.load(model) for _ in range(2))
    assert list(one.state_dict()) == list(two.state_dict())
    assert sorted(value.tolist() for value in one.state_dict().values()) == [value.tolist() for value in values]
    inputs = (torch.ones(3, 2),)
    check_same(run(one, inputs), run_onnxruntime(model.SerializeToString(), inputs), "names that collide")
    assert set(_through_a_file(one).state_dict()) == set(one.state_dict())


def test_the_target_of_a_reshape_is_no_weight() -> None:
    """Whatever a tool calls it that changed the exporter's file; the matrix has no name of the author's either."""
    nodes = [
        helper.make_node("Reshape", ["onnx::MatMul_3", "target"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in ("x", "y")]
    weights = {"onnx::MatMul_3": np.arange(16, dtype=np.float32), "target": np.array([4, 4])}
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "target", ends[:1], ends[1:], held)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="pytorch")
    module, inputs = onnx2nn.load(model), (normal(2, 4),)
    assert "reshape" not in module.code and [tuple(p.shape) for p in module.parameters()] == [(4, 4)]
    check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "a target")


@pytest.mark.parametrize("other", ["b.0", "a.bias.0", "a.weight.0", "a"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_key_inside_the_key_of_a_weight(other: str, tied: bool) -> None:
    """No state_dict has both, but a file may: in another order of the layers, too."""
    weight, bias = np.arange(9, dtype=np.float32).reshape(3, 3), np.ones(3, np.float32)
    values = {"a.weight": weight, "a.bias": bias, "b": bias * 2}
    copy = helper.make_node("Identity", [other.removesuffix(".0")], [other])
    nodes = [copy] if tied and other != "a" else []
    if not nodes:
        values[other] = bias * 3
    added = "b" if other == "a.weight.0" and tied else other
    nodes += [
        helper.make_node("Add", ["x", added], ["c"]),
        helper.make_node("Gemm", ["c", "a.weight", "a.bias"], ["d"], transB=1),
        helper.make_node("Add", ["d", "b"], ["y"]),
    ]
    if added != other:
        nodes[-1:] = [helper.make_node("Gemm", ["d", other, "b"], ["y"], transB=1)]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "inside", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="pytorch")
    inputs = (normal(2, 3),)
    module = onnx2nn.load(model)
    check_same(run(module, inputs), run_onnxruntime(model.SerializeToString(), inputs), "keys in keys")
    assert set(_through_a_file(module).state_dict()) == set(module.state_dict())


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("layer1.0.conv1.weight", ["layer1", "0", "conv1", "weight"]),
        ("/layer1/layer1.0/conv1/Conv", ["layer1", "0", "conv1", "Conv"]),
        ("/features/features.1/conv/conv.0/conv.0.0/Conv", ["features", "1", "conv", "0", "0", "Conv"]),
        ("/model/h.0/attn/Add", ["model", "h", "0", "attn", "Add"]),
        ("mobilenetv2_0.35_96/Conv1/kernel:0", ["mobilenetv2_0_35_96", "Conv1", "kernel"]),
        ("a-b/for.while", ["a_b", "for_", "while_"]),
        ("//", ["_"]),
    ],
)
def test_steps_of_a_path(name: str, steps: list[str]) -> None:
    assert naming.split_path(name) == steps


def test_layers_of_keras_have_its_names() -> None:
    """Also those whose nodes tf2onnx merged or numbered."""
    module = onnx2nn.load(Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx")
    layers = {name: type(layer).__name__ for name, layer in module.named_modules() if hasattr(layer, "onnx_op")}
    assert layers == {
        "digits_1.conv2d_1": "Conv2d",
        "digits_1.conv2d_1_2": "PaddedConv2d",
        "digits_1.depthwise_conv2d_1": "Conv2d",
        "digits_1.batch_normalization_2_1": "BatchNorm2d",
        "digits_1.conv2d_2_1": "Conv2d",
        "digits_1.dense_1": "Linear",
        "digits_1.probability_1": "Linear",
    }


@pytest.mark.parametrize("copies", [False, True], ids=["weights", "copies"])
@pytest.mark.parametrize("nodes", [False, True], ids=["initializers", "constants"])
def test_layers_of_paddle_have_its_names(nodes: bool, copies: bool) -> None:
    """The weights are nodes in the files of paddle2onnx up to 1.2; a pass of Paddle copies and renames them."""
    shapes = {
        "conv2d_0.w_0": (4, 3, 1, 1),
        "batch_norm2d_0.w_0": (4,),
        "batch_norm2d_0.b_0": (4,),
        "batch_norm2d_0.w_1": (4,),
        "batch_norm2d_0.w_2": (4,),
    }
    weights = {f"{name}_deepcopy_{i}" if copies else name: shape for i, (name, shape) in enumerate(shapes.items())}
    conv, *norm = weights
    norm = ["p2o.pd_op.conv2d.0.0", *norm]
    module = _of_paddle(
        weights,
        [
            helper.make_node("Conv", ["x", conv], ["p2o.pd_op.conv2d.0.0"], "Conv.0"),
            helper.make_node("BatchNormalization", norm, ["y"], "BatchNormalization.0"),
        ],
        nodes,
    )
    assert set(module.state_dict()) == {"conv2d_0.weight"} | {
        f"batch_norm2d_0.{name}" for name in nn.BatchNorm2d(4).state_dict()
    }


@pytest.mark.parametrize("nodes", [False, True], ids=["initializers", "constants"])
def test_layers_of_paddle_classification_have_its_names(nodes: bool) -> None:
    """Static programs name weights so: PaddleClas, and PaddleOCR up to version 2. A bias is reshaped, then added."""
    weights = {
        "conv1_weights": (4, 3, 1, 1),
        "conv1_bn_scale": (4,),
        "conv1_bn_offset": (4,),
        "conv1_bn_mean": (4,),
        "conv1_bn_variance": (4,),
        "se_1_weights": (4, 4, 1, 1),
        "se_1_offset": (4,),
    }
    shape = numpy_helper.from_array(np.int64([1, 4, 1, 1]), "Constant@0")
    module = _of_paddle(
        weights,
        [
            helper.make_node("Conv", ["x", "conv1_weights"], ["conv2d_0.tmp_0"], "Conv@0"),
            helper.make_node(
                "BatchNormalization", ["conv2d_0.tmp_0", *list(weights)[1:5]], ["n.tmp_2"], "BatchNormalization@0"
            ),
            helper.make_node("Conv", ["n.tmp_2", "se_1_weights"], ["conv2d_1.tmp_0"], "Conv@1"),
            helper.make_node("Constant", [], ["Constant@0"], value=shape),
            helper.make_node("Reshape", ["se_1_offset", "Constant@0"], ["Reshape@0"], "Reshape@0"),
            helper.make_node("Add", ["conv2d_1.tmp_0", "Reshape@0"], ["y"], "Add@0"),
        ],
        nodes,
    )
    expected = nn.ModuleDict({"conv1": nn.Conv2d(3, 4, 1, bias=False), "se_1": nn.Conv2d(4, 4, 1)})
    expected["conv1_bn"] = nn.BatchNorm2d(4)
    assert set(module.state_dict()) == set(expected.state_dict())
    assert {name for name, _ in module.named_parameters()} == {name for name, _ in expected.named_parameters()}


def _of_paddle(weights: dict[str, tuple[int, ...]], nodes: list[onnx.NodeProto], constants: bool) -> nn.Module:
    """Imports a network of images `x`, with three channels, to `y`, with four."""
    tensors = [numpy_helper.from_array(np.full(shape, 0.5, np.float32), name) for name, shape in weights.items()]
    made = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in tensors] if constants else []
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", c, 5, 5]) for name, c in (("x", 3), ("y", 4))
    ]
    graph = helper.make_graph([*made, *nodes], "PaddlePaddle", ends[:1], ends[1:], [] if constants else tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    module = onnx2nn.load(model)
    x = torch.randn(2, 3, 5, 5)
    check_same([module(x)], run_onnxruntime(model.SerializeToString(), [x]), "the network")
    return module


class _PartOfTable(nn.Module):
    """Attention in a window that may be smaller than the table of relative positions is made for (monai's Swin)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.relative_position_bias_table = nn.Parameter(torch.randn(9, 2))
        self.register_buffer("relative_position_index", torch.arange(36).reshape(6, 6) % 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index = self.relative_position_index[: self.size, : self.size].reshape(-1)
        return x + self.relative_position_bias_table[index].reshape(self.size, self.size, -1).permute(2, 0, 1)


class Attending(nn.Module):
    """An attention to another value than its key, as DETR adds positions to queries and keys alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.wide = bool(options.get("kdim"))
        for name, value in self.attention.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(value)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        places = x + 0.5
        key, value = (y[..., :6], y[..., :4]) if self.wide else (places, x)
        return self.attention(places, key, value, need_weights=False)[0] * 2 + y.sum()


@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 4}], ids=str)
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_attention_to_other_values_than_keys(exporter: str, options: dict[str, Any]) -> None:
    """The older exporter splits its matrix, and gives the parts no names; without biases it names nothing of it."""
    original, inputs = seeded(lambda: Attending(**options)), (normal(2, 5, 8), normal(2, 5, 8))
    path = EXPORTERS[exporter](f"names_attending_{len(options)}", original, inputs, (normal(3, 4, 8), normal(3, 4, 8)))
    module = onnx2nn.load(path)
    _check_both_ways(original, module, inputs)
    check_same(run(onnx2nn.load(path, raise_patterns=False), inputs), run_onnxruntime(path, inputs), "as it is")


class Decoding(nn.Module):
    """A decoder whose layers have equal weights, as it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.decoder(x, y)


def test_attention_of_layers_with_equal_weights() -> None:
    """The older exporter merges the parts of their packed weights."""
    torch.manual_seed(0)
    original, inputs = Decoding().eval(), (normal(2, 5, 8), normal(2, 4, 8))
    path = EXPORTERS["torchscript"]("names_equal_attention", original, inputs)
    module = onnx2nn.load(path)
    _check_strict(original, module, inputs)
    assert sum(isinstance(layer, nn.MultiheadAttention) for layer in module.modules()) == 4
    check_same(run(onnx2nn.load(path, raise_patterns=False), inputs), run_onnxruntime(path, inputs), "as it is")


class JoinedBiases(nn.Module):
    """Queries, keys and values of one product, of which the keys have no bias (BEiT); a buffer may hold its zeros."""

    def __init__(self, held: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))
        if held:
            self.register_buffer("k_bias", torch.zeros(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zeros = self.k_bias if hasattr(self, "k_bias") else torch.zeros_like(self.v_bias)
        x = nn.functional.linear(x, self.qkv.weight, torch.cat((self.q_bias, zeros, self.v_bias)))
        query, key, value = x.chunk(3, -1)
        return (query @ key.mT).softmax(-1) @ value


@pytest.mark.parametrize("held", [False, True])
def test_biases_of_queries_and_values(held: bool) -> None:
    original, inputs = seeded(lambda: nn.Sequential(JoinedBiases(held), nn.Linear(8, 4))), (normal(2, 5, 8),)
    module = onnx2nn.load(export_dynamo(f"names_joined_{held}", original, inputs, (normal(3, 4, 8),)))
    _check_both_ways(original, module, inputs)


class Window(nn.Module):
    """The table and the index of a window of 2 by 2, in a module of their own, as transformers' Swin has them.

    BEiT's has a class token too.
    """

    def __init__(self, token: bool = False) -> None:
        super().__init__()
        self.relative_position_bias_table = nn.Parameter(torch.zeros(9 + 3 * token, 3))
        self.register_buffer("relative_position_index", torch.from_numpy(window_index(2, token=token)))

    def forward(self) -> torch.Tensor:
        rows = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        return rows.view(*self.relative_position_index.shape, -1).permute(2, 0, 1).contiguous().unsqueeze(0)


class Distances(nn.Module):
    """LeViT's biases, for pairs of a place and one of those in steps."""

    def __init__(self, size: int, step: int = 1, heads: int = 3) -> None:
        super().__init__()
        places = [*itertools.product(range(size), repeat=2)]
        queries = [*itertools.product(range(0, size, step), repeat=2)]
        rows = dict[tuple[int, int], int]()
        index = [[rows.setdefault((abs(a - c), abs(b - d)), len(rows)) for c, d in places] for a, b in queries]
        self.attention_biases = nn.Parameter(torch.zeros(heads, len(rows)))
        self.register_buffer("attention_bias_idxs", torch.tensor(index), persistent=False)

    def forward(self) -> torch.Tensor:
        return self.attention_biases[:, self.attention_bias_idxs]


class WithToken(nn.Module):
    """Adds a bias that several have, and one for places and a class token from a module of any name."""

    def __init__(self) -> None:
        super().__init__()
        self.rel_pos, self.scale = Window(token=True), nn.Parameter(torch.ones(4))

    def forward(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = scores * self.scale + bias
        return (nn.functional.pad(scores, (1, 0, 1, 0), value=2) + self.rel_pos())[..., 1:, 1:]


class Attention(nn.Module):
    """Adds biases and masks to scores, the biases first or last."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first, self.distances = first, Distances(2)
        self.relative_position_bias, self.shared = Window(), Window()
        self.inner = nn.ModuleList(WithToken() for _ in range(2))
        self.pooled, self.large = Distances(4, 2), Distances(7, heads=4)  # too large for the exporter's constants

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias, scores = self.relative_position_bias(), x @ x.mT
        scores, shared = bias + scores if self.first else scores + bias, self.shared().squeeze(0)
        scores = self.inner[1](self.inner[0](scores, shared), shared)
        pairs = self.pooled() @ torch.cat([x] * 4, -2)
        return (scores + self.distances()).softmax(-1) @ x + pairs + self.large().mean()


@pytest.mark.parametrize("first", [False, True])
def test_biases_of_relative_positions(first: bool) -> None:
    original, inputs = seeded(lambda: Attention(first)), (normal(2, 3, 4, 5),)
    module = onnx2nn.load(export_dynamo(f"names_positions_{first}", original, inputs, (normal(3, 3, 4, 5),)))
    _check_both_ways(original, module, inputs)
    check_same([module.relative_position_bias()], [original.relative_position_bias()], "the bias")
    check_same([module.shared()], [original.shared().squeeze(0)], "the bias that several share")


class Queries(nn.Module):
    """Vectors that are repeated for each item of the batch, as DETR's queries, with a dimension more or as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.token = nn.Embedding(5, 3), nn.Parameter(torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries = self.queries.weight.unsqueeze(0).repeat(x.shape[0], 1, 1)
        return torch.tanh(queries * 2 + queries @ self.token.repeat(x.shape[0], 1, 1) @ x)


def test_repeated_vectors() -> None:
    """The number of dimensions of what `repeat` gets is not in the file where it gives it one more."""
    original, inputs = seeded(lambda: nn.Sequential(nn.Linear(3, 3), Queries())), (normal(2, 4, 3),)
    module = onnx2nn.load(export_dynamo("names_queries", original, inputs, (normal(3, 4, 3),)))
    assert [*module.naming_report().missing] == ["1.token"]
    with torch.no_grad():
        original[1].queries.weight += torch.randn(5, 3)
    module.load_state_dict(original.state_dict(), strict=False)
    check_same(run(module, inputs), run(original, inputs), "with other values")


class Axes(nn.Module):
    """Scores of distances along both axes of an image, as in ViTDet; the tables may be interpolated, as in SAM."""

    def __init__(self, height: int, width: int, resized: bool) -> None:
        super().__init__()
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * height - 1, 3))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * width - 1, 3))
        self.resized = resized

    def _vectors(self, table: torch.Tensor) -> torch.Tensor:
        if self.resized:
            table = nn.functional.interpolate(table.T[None], size=len(table), mode="linear")[0].T
        size = (len(table) + 1) // 2
        apart = torch.arange(size)[:, None] * 1.0 - torch.arange(size)[None, :] * 1.0 + (size - 1)
        return table[apart.long()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.einsum("bhwc,hkc->bhwk", x, self._vectors(self.rel_pos_h))
        columns = torch.einsum("bhwc,wkc->bhwk", x, self._vectors(self.rel_pos_w))
        return rows[..., None] + columns[..., None, :]


@pytest.mark.parametrize("resized", [False, True])
def test_positions_along_axes(resized: bool) -> None:
    original, inputs = seeded(lambda: nn.Sequential(nn.Linear(4, 3), Axes(3, 5, resized))), (normal(2, 3, 5, 4),)
    module = onnx2nn.load(export_dynamo(f"names_axes_{resized}", original, inputs, (normal(3, 3, 5, 4),)))
    _check_both_ways(original, module, inputs)


class Indexed(nn.Module):
    """An embedding of positions that is a table with an index, as the one of Whisper's decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(7, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)[None].repeat(x.shape[0], 1)
        return x + self.positions.weight[places]


def test_rows_of_a_table_by_an_index() -> None:
    original, inputs = seeded(Indexed), (normal(2, 3, 5),)
    module = onnx2nn.load(export_dynamo("names_indexed", original, inputs, (normal(3, 4, 5),)))
    _check_both_ways(original, module, inputs)


@pytest.mark.parametrize("sizes", [(6, 4), (4, 6)])
def test_a_part_of_a_table_of_integers_leaves_the_whole_in_the_state(sizes: tuple[int, int], tmp_path: Path) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.ModuleList(map(_PartOfTable, sizes))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.stages[0](x), self.stages[1](y)

    both, inputs = Both().eval(), tuple(torch.randn(2, size, size) for size in sizes)
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(both, inputs, path, dynamo=False, do_constant_folding=False)
    module = onnx2nn.load(path)
    assert {key: value.shape for key, value in module.state_dict().items()} == {
        key: value.shape for key, value in both.state_dict().items()
    }
    for weight in both.parameters():
        weight.data.mul_(3)
    module.load_state_dict(both.state_dict(), strict=True)
    for ours, theirs in zip(module(*inputs), both(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_part_of_a_vector_of_integers_has_no_key_of_the_authors(tmp_path: Path) -> None:
    """Its size is another: under the author's key, no state_dict of the author's would be loaded."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("positions", torch.arange(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) + self.positions[1:5]

    model, x = nn.Sequential(Positions()).eval(), torch.randn(2, 4)
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(model, (x,), path, dynamo=False, do_constant_folding=False)
    module = onnx2nn.load(path)
    missing, unexpected = module.load_state_dict(model.state_dict(), strict=False)
    assert not missing and unexpected == ["0.positions"]
    torch.testing.assert_close(module(x), model(x))


class Placing(nn.Module):
    """Buffers of indices, of which one is where to take from, the other where to put."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("index", torch.tensor([[0, 2], [1, 1]]))
        self.register_buffer("place", torch.tensor([[1, 0, 1]]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.linear(x)
        return x.gather(1, self.index), x.scatter(0, self.place, 0.5)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_buffers_of_indices_have_their_keys(exporter: str, tmp_path: Path) -> None:
    """The newer exporter folds those of a gather with the size that it adds to negative ones, and drops their name."""
    original, inputs = seeded(Placing), (torch.randn(2, 3),)
    module = onnx2nn.load(EXPORTERS[exporter]("names_placing", original, inputs))
    expected = original.state_dict().keys() - ({"index"} if exporter == "dynamo" else set())
    assert module.state_dict().keys() == expected
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    again = onnx2nn.load(tmp_path / "again.onnx")
    assert again.state_dict().keys() == expected
    check_same(run(again, inputs), run(original, inputs), exporter)


class Mixing(nn.Module):
    """A layer behind parameters in a list, which is no module that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scales, self.linear = nn.ParameterList([torch.rand(8), torch.rand(8)]), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * self.scales[0] + self.scales[1])


class TwoNames(nn.Module):
    """A module with two names, which is called by both."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Mixing()
        self.other = self.one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(torch.tanh(self.one(x)))


def test_parameters_in_a_list_of_a_module_with_two_names() -> None:
    """Each of the author's keys is there, and each module takes what the original's takes."""
    original, x = seeded(TwoNames), torch.randn(2, 8)
    module = onnx2nn.load(EXPORTERS["dynamo"]("two-names", original, (x,), (torch.randn(3, 8),)))
    assert set(module.state_dict()) == set(original.state_dict())
    original.load_state_dict(module.state_dict(), strict=True)
    for name in ("one", "other"):
        check_same(run(module.get_submodule(name), (x,)), run(original.get_submodule(name), (x,)), name)


class Filters(nn.Module):
    """Kernels, a matrix and a table that are no weights, as filters and fixed positions are, and norms without any."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3, eps=1e-3, affine=False), nn.Conv2d(3, 4, 3)
        self.behind = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4, affine=False))
        self.edges = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).expand(4, 1, 3, 3).contiguous()
        self.mixed, self.places = torch.randn(5, 4), torch.randn(9, 5)
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.behind[1].running_var, 0.5, 2)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = self.behind(self.conv(self.norm(x)))
        x = nn.functional.conv2d(x, self.edges, groups=4).mean((2, 3))
        return nn.functional.linear(x, self.mixed) + nn.functional.embedding(at, self.places)


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_constants_that_are_no_weights_are_not_trained(exporter: str, raised: bool) -> None:
    original = seeded(Filters)
    first, second = ((torch.randn(size, 3, 8, 8), torch.arange(size)) for size in (2, 3))
    module = onnx2nn.load(EXPORTERS[exporter]("names_filters", original, first, second), raise_patterns=raised)
    if raised:
        _check_strict(original, module, first)
        assert (repr(module.norm), repr(module.behind[1])) == (repr(original.norm), repr(original.behind[1]))
    assert {name for name, _ in module.named_parameters()} == {name for name, _ in original.named_parameters()}
    check_same(run(module, second), run(original, second), "the imported module")


class SameNames(nn.Module):
    """A module of a dictionary whose key names another one; torch's older exporter writes one scope of both."""

    def __init__(self) -> None:
        super().__init__()
        parts = (nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) for _ in range(2))
        self.parts = nn.ModuleDict({"head": next(parts)})
        self.head = next(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.parts["head"](x))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("rank", [2, 3])
def test_modules_of_one_name(exporter: str, rank: int) -> None:
    original, x = seeded(SameNames), torch.randn((2, 5, 6)[3 - rank :])
    module = onnx2nn.load(EXPORTERS[exporter](f"names_same_{rank}", original, (x,), (torch.cat([x, x]),)))
    _check_strict(original, module, (x,))
    assert {name for name, _ in module.named_parameters()} == set(original.state_dict())
