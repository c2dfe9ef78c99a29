"""What exporters decompose comes back as one call, equal to ONNX Runtime and to the literal import."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from realmodels import EXPORTERS, Tensors, check_against_onnxruntime, check_same, check_travels, run, seeded
from tiers import mostly_slow
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

import onnx2nn
from onnx2nn.fx.blocks.flattening import flattened
from onnx2nn.fx.modules.readable_code import readable
from onnx2nn.optable.registry import TABLE
from onnx2nn.rewrite.activation import any_shape
from onnx2nn.rewrite.patterns import NODES, NUMBER, Notation, matches, parse
from onnx2nn.rewrite.raising import Raising, raise_patterns
from onnx2nn.rewrite.rewrite_rule import NewNode, Rule
from onnx2nn.rewrite.rule_sets import SWEEPS, all_rules
from tests import installed

DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"


class RootMeanSquare(nn.Module):
    """T5's and Llama's normalisation as transformers writes it."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class WrittenOutLayerNorm(nn.LayerNorm):
    """As it was written before torch had it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + self.eps) * self.weight + self.bias


class Sequences(nn.Module):
    """Layers and activations of sequences, each an output of its own."""

    def __init__(self, rms_norm: bool):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.plain_norm = nn.LayerNorm(8, elementwise_affine=False)
        self.written_norm = WrittenOutLayerNorm(8)
        self.rms_norm = nn.RMSNorm(8) if rms_norm else RootMeanSquare(8)
        self.transformers_norm = RootMeanSquare(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        attended = x * 4
        return (
            self.attention(attended, attended, attended, need_weights=False)[0],
            self.linear(x),
            self.plain_norm(x),
            self.written_norm(x),
            self.rms_norm(x),
            self.transformers_norm(x + 1),  # exporters compute once what is written twice
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            F.silu(x),
            F.mish(x),
            F.softplus(x),
            (x.exp() + 1).log(),
            x * F.relu6(x + 3) / 6,
            F.relu6(x + 1 + 3) / 6,
            F.glu(x),
            F.softsign(x),
        )


class Padding(nn.Conv2d):
    """A convolution that pads its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(x, (2, 2, 2, 2)))


class Images(nn.Module):
    """Layers of images, each an output of its own."""

    def __init__(self, shuffle: bool) -> None:
        super().__init__()
        self.group = nn.GroupNorm(2, 8)
        self.plain_group = nn.GroupNorm(4, 8, affine=False)
        self.plain_instance = nn.InstanceNorm2d(8)
        self.shuffle = nn.ChannelShuffle(4) if shuffle else nn.Identity()
        self.padded = Padding(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, c, h, w = x.shape
        return (
            self.group(x),
            self.plain_group(x),
            self.plain_instance(x),
            F.normalize(x, dim=1),
            x.view(n, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // 4, h * 2, w * 2),
            F.pixel_unshuffle(x, 2),
            x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w),
            self.shuffle(x) * 2,
            self.padded(x),
        )


class Attentions(nn.Module):
    """Attention with each kind of mask, and written out as BERT and GPT-2 had it, each an output of its own."""

    def __init__(self, grouped: bool) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(5, 5, dtype=torch.bool).tril())
        self.grouped = grouped

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        attend = F.scaled_dot_product_attention
        keys = [k + step for step in range(7)]  # exporters compute once what is written twice
        kept = torch.where(self.kept, q @ keys[0].transpose(-1, -2) / 2.0, torch.tensor(-3e38))
        outputs = (
            kept.softmax(-1) @ v,
            attend(q, keys[1], v),
            attend(q, keys[2], v, is_causal=True),
            attend(q, keys[3], v, scale=0.3),
            attend(q, keys[4], v, attn_mask=scores),
            attend(q, keys[5], v, attn_mask=scores > 0),
            (q @ keys[6].transpose(-1, -2) / 2.0 + scores).softmax(-1) @ v,
        )
        return (*outputs, attend(q, k[:, :1], v[:, :1], enable_gqa=True)) if self.grouped else outputs


class Recurrent(nn.Module):
    """Stacks of recurrent layers: from zeros, from states that are given, in both directions and in one."""

    def __init__(self, elman: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(8, 4, num_layers=2)
        self.rnn = nn.RNN(8, 4) if elman else nn.GRU(8, 4)

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, (h, c) = self.lstm(x)
        return y, h, c, *self.gru(x.transpose(0, 1) * 2, start), self.rnn(x.transpose(0, 1) * 3)[0]


class LastStates(nn.Module):
    """Classifiers of sequences: of stacks of recurrent layers nothing but the last state of the last layer is read."""

    def __init__(self, elman: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True)
        self.gru = nn.GRU(8, 4, num_layers=2, bidirectional=True, batch_first=True)
        kind = functools.partial(nn.RNN, nonlinearity="relu") if elman else nn.GRU
        self.rnn = kind(8, 4, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.lstm(x)[1][0][-1], self.gru(x * 2)[1][-1], self.rnn(x * 3)[1][-1]


class MaskedCopy(nn.Module):
    """Copies through a mask, as dynamo writes it: with the places of the mask, and their count from the mask itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, mask = torch.zeros_like(x), x > 0
        y[mask] = x[mask] * 2
        return y


def _recurrent(n: int) -> Tensors:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 3, 8, generator=generator), torch.randn(2, n, 4, generator=generator)


def _sequence(n: int) -> Tensors:
    return (torch.randn(n, 3, 8, generator=torch.Generator().manual_seed(n)),)


def _image(n: int) -> Tensors:
    return (torch.randn(n, 8, 6, 6, generator=torch.Generator().manual_seed(n)),)


def _attended(n: int) -> Tensors:
    generator = torch.Generator().manual_seed(n)
    shapes = [(n, 2, 5, 4), (n, 2, 5, 4), (n, 2, 5, 4), (5, 5)]
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@dataclass(frozen=True)
class Case:
    """A model, and what is raised in the file that an exporter makes of it.

    Attributes:
        build: makes the original.
        inputs: makes the inputs from the batch size.
        raised: how many times each rule is applied.
        calls: what the forward holds, and how often.
        layers: classes of the module's layers.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensors]
    raised: dict[str, int]
    calls: dict[str, int]
    layers: tuple[type[nn.Module], ...] = ()


_SEQUENCES = {
    "MultiheadAttention": 1,
    "scaled_dot_product_attention": 1,
    "Linear": 2,
    "LayerNorm": 2,
    "RMSNorm": 2,
    "SiLU": 1,
    "Hardswish": 1,
    "Hardsigmoid": 1,
    "GLU": 1,
    "Softsign": 1,
}
_ACTIVATIONS = {"gelu(x)": 1, "approximate='tanh'": 1, "silu(": 1, "mish(": 1, "softplus(": 2, "hardswish(": 1}
_ACTIVATIONS |= {"hardsigmoid(": 1, "functional.glu(x, ": 1, "softsign(": 1, "functional.layer_norm(": 0}
_NORMS = (
    nn.MultiheadAttention,
    NonDynamicallyQuantizableLinear,
    nn.Linear,
    nn.LayerNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.RMSNorm,
)
_IMAGES = {"GroupNorm": 2, "InstanceNorm": 1, "normalize": 1, "PixelShuffle": 1, "PixelUnshuffle": 1}
_IMAGE_CALLS = {"functional.group_norm(": 0, "functional.instance_norm(": 0, "functional.normalize(": 1}
_IMAGE_CALLS |= {"pixel_shuffle(": 1, "pixel_unshuffle(": 1}
_IMAGE_LAYERS = (nn.GroupNorm, nn.GroupNorm, nn.InstanceNorm2d, nn.Conv2d)
_ATTENTION = "scaled_dot_product_attention"
_MASKS = {"is_causal=True": 1, "scale=0.3": 1, "attn_mask=scores": 2}

CASES = {
    "recurrent-torchscript": Case(
        lambda: Recurrent(True),
        _recurrent,
        {"LSTM": 1, "GRU": 1, "RNN": 1},
        {"self.lstm(x)": 1, "flatten(": 0, "reshape(": 0},
        (nn.LSTM, nn.GRU, nn.RNN),
    ),
    "recurrent-dynamo": Case(
        lambda: Recurrent(False),
        _recurrent,
        {"LSTM": 1, "GRU": 2},
        {"self.lstm(x)": 1, "flatten(": 0, "reshape(": 0},
        (nn.LSTM, nn.GRU, nn.GRU),
    ),
    "states-torchscript": Case(
        lambda: LastStates(True), _sequence, {"LSTM": 1, "GRU": 1, "RNN": 1}, {}, (nn.LSTM, nn.GRU, nn.RNN)
    ),
    "states-dynamo": Case(lambda: LastStates(False), _sequence, {"LSTM": 1, "GRU": 2}, {}, (nn.LSTM, nn.GRU, nn.GRU)),
    "masks-dynamo": Case(
        MaskedCopy, _sequence, {"count_nonzero": 1}, {"onnx2nn_functional_NonZero(": 1, "onnx2nn_functional_Expand(": 0}
    ),
    "sequences-torchscript": Case(
        lambda: Sequences(False),
        _sequence,
        {**_SEQUENCES, "transpose": 1, "GELU": 1, "GELU (tanh)": 1, "Mish": 1, "Softplus": 1},
        _ACTIVATIONS,
        _NORMS,
    ),
    "sequences-dynamo": Case(
        lambda: Sequences(True), _sequence, {**_SEQUENCES, "transpose": 2, "Softplus": 2}, _ACTIVATIONS, _NORMS
    ),
    "images-torchscript": Case(
        lambda: Images(False),
        _image,
        {**_IMAGES, "ChannelShuffle": 1, "pads": 1},
        _IMAGE_CALLS,
        (*_IMAGE_LAYERS, nn.ChannelShuffle),
    ),
    "images-dynamo": Case(
        lambda: Images(True),
        _image,
        {**_IMAGES, "ChannelShuffle": 2},
        _IMAGE_CALLS,
        (*_IMAGE_LAYERS, nn.ChannelShuffle, nn.ChannelShuffle),
    ),
    "attentions-torchscript": Case(
        lambda: Attentions(False), _attended, {_ATTENTION: 7}, {**_MASKS, f"{_ATTENTION}(": 7, "softmax(": 0}
    ),
    "attentions-dynamo": Case(
        lambda: Attentions(True),
        _attended,
        {_ATTENTION: 8, "transpose": 6, "repeat_interleave": 2},
        {**_MASKS, f"{_ATTENTION}(": 8, "softmax(": 0, "enable_gqa=True": 1},
    ),
}


def _export(name: str) -> Path:
    case, (model, exporter) = CASES[name], name.split("-")
    return EXPORTERS[exporter](f"raising_{model}", seeded(case.build), case.inputs(2), case.inputs(3))


@pytest.mark.parametrize("name", CASES)
def test_raised(name: str) -> None:
    """The forward holds the calls and gives what ONNX Runtime and the literal import give, at other sizes too."""
    case, path = CASES[name], _export(name)
    module = onnx2nn.load(path)
    literal = onnx2nn.load(path, raise_patterns=False)
    assert module.meta["onnx2nn"]["raising"] == {"raised": case.raised, "dropped": []}
    assert "raising" not in literal.meta["onnx2nn"]
    code = readable(flattened(module).code, module)
    counts = {call: len(re.findall(rf"(?<![a-z_]){re.escape(call)}", code)) for call in case.calls}
    assert counts == case.calls, code
    layers = [type(layer) for layer in module.modules() if type(layer).__module__.startswith("torch.nn.modules")]
    assert sorted(map(str, layers)) == sorted(map(str, (*case.layers, *(k for k in layers if k in _CONTAINERS))))
    for size in (2, 3, 1):
        inputs = case.inputs(size)
        outputs = check_against_onnxruntime(path, module, inputs)
        check_same(run(literal, inputs), outputs, "the literal import against the raised one")


_CONTAINERS = (nn.Module, nn.ModuleList, nn.Sequential, nn.Identity)
"""What holds layers; an `nn.Identity` keeps a place in an `nn.Sequential` of which the file has no call."""


@pytest.mark.parametrize(
    "name", mostly_slow([name for name in CASES if name.endswith("dynamo")], ["images-dynamo", "attentions-dynamo"])
)
def test_travels(name: str) -> None:
    """What is raised still goes everywhere, with its dynamic batch."""
    check_travels(onnx2nn.load(_export(name)), CASES[name].inputs(2), CASES[name].inputs(3))


# ---- files whose sizes are all fixed, which exporters simplify otherwise


class Heads(nn.Module):
    """Attention of heads as Llama has them (several queries share keys), OPT (causal) and GPT-J (in float32)."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = (x.view(2, 5, -1, 4).transpose(1, 2) for x in (q, k, v))
        grouped = [x[:, :, None].expand(2, 2, 2, 5, 4).reshape(2, 4, 5, 4) for x in (k, v)]
        causal = F.scaled_dot_product_attention(q[:, :2], k, v, is_causal=True)
        future = torch.ones(5, 5, dtype=torch.bool).triu(1)
        weights = (q[:, 2:].float() @ k.float().transpose(-1, -2)).masked_fill(future, -3e38).softmax(-1)
        return F.scaled_dot_product_attention(q, *grouped), causal, weights.to(v.dtype) @ v


class Windows(nn.Module):
    """MaxViT's grid of windows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(2, 8, 2, 3, 2, 3).permute(0, 2, 4, 3, 5, 1).reshape(2, 4, 9, 8)
        return x.swapaxes(-2, -3).reshape(2, 3, 3, 2, 2, 8).permute(0, 5, 3, 1, 4, 2).reshape(2, 8, 6, 6)


class Blocks(nn.Module):
    """HaloNet's blocks of an image, which are split as a pixel shuffle's and stay apart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, 8, 3, 2, 3, 2).permute(0, 1, 3, 5, 2, 4).reshape(2, 8, 4, 9).transpose(1, 3)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("build", [Heads, Windows, Blocks])
def test_fixed_sizes(build: Callable[[], nn.Module], exporter: str) -> None:
    """Nothing is dropped, and every attention is one call."""
    generator = torch.Generator().manual_seed(0)
    widths = {Heads: [(2, 5, 16), (2, 5, 8), (2, 5, 8)], Windows: [(2, 8, 6, 6)], Blocks: [(2, 8, 6, 6)]}[build]
    inputs = tuple(torch.randn(shape, generator=generator) for shape in widths)
    path = EXPORTERS[exporter](f"raising_fixed_{build.__name__}", build(), inputs)
    module = onnx2nn.load(path)
    report = module.meta["onnx2nn"]["raising"]
    assert report["dropped"] == []
    assert report["raised"].get(_ATTENTION, 0) == (3 if build is Heads else 0), module.code
    assert "softmax(" not in module.code
    outputs = check_against_onnxruntime(path, module, inputs)
    check_same(run(onnx2nn.load(path, raise_patterns=False), inputs), outputs, "the literal import")


def test_merged_heads_are_no_shuffle() -> None:
    """Where the file states none of the sizes but the number of heads, as wav2vec2's and DeBERTa's attention."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4, t, c] x, float[n, t] w) => (float[n, t, d] y)
        <int64[1] four = {4}, int64[1] eight = {8}, int64[1] rest = {-1}, int64[1] s, int64[1] u> {
            s = Shape <end = 1> (w)
            u = Shape <start = 1> (w)
            split = Concat <axis = 0> (s, four, u, eight)
            join = Concat <axis = 0> (s, u, rest)
            r = Relu (x)
            a = Reshape (r, split)
            b = Transpose <perm = [0, 2, 1, 3]> (a)
            y = Reshape (b, join)
        }""")
    module = onnx2nn.load(model)
    assert "ChannelShuffle" not in str(module.meta["onnx2nn"]["raising"])
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(2, 4, 5, 8), torch.randn(2, 5)))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_one_head_is_no_shuffle(exporter: str) -> None:
    """Positions in groups of one position each stay where they are: einops writes so the heads of an attention."""

    class OneHead(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(x.shape[0], 6, 1, 8).permute(0, 2, 1, 3).reshape(x.shape[0], 6, 8).relu()

    inputs, other = (torch.randn(2, 6, 8),), (torch.randn(5, 6, 8),)
    path = EXPORTERS[exporter]("raising_one_head", OneHead(), inputs, other)
    module = onnx2nn.load(path)
    assert "ChannelShuffle" not in str(module.meta["onnx2nn"]["raising"])
    check_against_onnxruntime(path, module, other)


class Scaled(nn.Module):
    """A normalisation of each kind with a weight and no bias, twice."""

    def __init__(self) -> None:
        super().__init__()
        kinds = functools.partial(nn.GroupNorm, 2), functools.partial(nn.InstanceNorm2d, affine=True), nn.BatchNorm2d
        self.norms = nn.ModuleList(kind(8) for kind in kinds * 2)
        for norm in self.norms:
            norm.bias = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm in self.norms:
            x = norm(x).relu() + x
        return x


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_normalisations_with_a_weight_and_no_bias(exporter: str) -> None:
    """The bias of zeros that the exporter fills in is no constant of the model; each is a layer, where torch has it."""
    inputs, other = _image(2), (torch.randn(3, 8, 5, 9),)
    original = seeded(Scaled)
    path = EXPORTERS[exporter]("raising_norms_without_bias", original, inputs, other)
    module = onnx2nn.load(path)
    assert not module.meta["onnx2nn"]["raising"]["dropped"]
    for values in (inputs, other):
        check_against_onnxruntime(path, module, values)
        check_same(run(module, values), run(original, values), "as its author's")
    for ours, theirs in zip(module.norms, original.norms, strict=True):
        check_same(run(ours, other), run(theirs, other), "alone")
        if "bias" in inspect.signature(nn.GroupNorm).parameters:
            assert type(ours) is type(theirs)
            assert ours.bias is None
    module.load_state_dict(original.state_dict(), strict=True)
    check_travels(module, inputs, other)


class Normalised(nn.Module):
    """Normalisations whose sizes the exporters write as numbers, of values whose sizes the file does not state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.norm(x.exp()), F.normalize(x.exp().transpose(2, 3) * 2, dim=-1)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_normalisations_at_fixed_sizes(exporter: str) -> None:
    inputs = (torch.randn(2, 8, 7, 6),)
    proto = onnx.load(EXPORTERS[exporter]("raising_fixed_norms", seeded(Normalised), inputs))
    del proto.graph.value_info[:]
    module = onnx2nn.load(proto)
    report = module.meta["onnx2nn"]["raising"]
    assert report == {"raised": {"GroupNorm": 1, "normalize": 1}, "dropped": []}
    check_against_onnxruntime(proto.SerializeToString(), module, inputs)


@pytest.mark.parametrize(
    ("sizes", "shapes"), [("1, 4, 5", [(1, 4, 5)]), ("1, 4, 10", [(1, 4, 10), (2, 4, 5), (5, 4, 2)])]
)
def test_a_group_normalisation_with_the_sizes_of_the_example(sizes: str, shapes: list[tuple[int, ...]]) -> None:
    """The exporter says open sizes of the input and wrote those of its example (Demucs); such files were refused."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[n, 4, h] x) => (float[1, 4, m] y) <
            int64[3] split = {{0, 2, -1}}, int64[3] sizes = {{{sizes}}},
            float[2] ones = {{1, 1}}, float[2] zeros = {{0, 0}},
            float[4, 1] weight = {{1, 2, 3, 4}}, float[4, 1] bias = {{4, 2, 3, 1}}
        > {{
            parts = Reshape(x, split)
            normalised = InstanceNormalization(parts, ones, zeros)
            joined = Reshape(normalised, sizes)
            scaled = Mul(joined, weight)
            y = Add(scaled, bias)
        }}""")
    module = onnx2nn.load(model)
    for shape in shapes:
        check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(shape),))


def test_a_normalisation_whose_sizes_are_computed() -> None:
    """The file says the channels of `x` alone, and computes the sizes of the expanded norm from another value."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        graph (float[n, 4, h, w] image) => (float[n, 4, m] y)
        <int64[1] last = {-1}, int64[1] axis = {2}, int64[3] flat = {0, 4, -1}, float low = {1e-12}> {
            x = Reshape(image, flat)
            front = Shape<start = 0, end = 2>(image)
            sides = Shape<start = 2>(image)
            area = ReduceProd<keepdims = 1>(sides)
            sizes = Concat<axis = 0>(front, area)
            norm = ReduceL2<keepdims = 1>(x, last)
            clipped = Clip(norm, low)
            divisor = Expand(clipped, sizes)
            y = Div(x, divisor)
        }""")
    del model.graph.value_info[:]
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"] == {"raised": {"normalize": 1}, "dropped": []}
    image = torch.randn(2, 4, 3, 5)
    torch.testing.assert_close(module(image), F.normalize(image.flatten(2), dim=-1))


@pytest.mark.parametrize("same", ["qk", "qv", "kv", "qkv"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_values_that_are_one(same: str, masked: bool) -> None:
    names = {letter: "x" if letter in same else "y" for letter in "qkv"}
    scores, mask = ("masked", "sum = Add(masked, mask)") if masked else ("sum", "")
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        graph (float[n, t, 4] x, float[n, t, 4] y, float[t, t] mask) => (float[n, t, 4] out) {{
            transposed = Transpose<perm = [0, 2, 1]>({names["k"]})
            {scores} = MatMul({names["q"]}, transposed)
            {mask}
            weights = Softmax<axis = -1>(sum)
            out = MatMul(weights, {names["v"]})
        }}""")
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"] == {"raised": {"scaled_dot_product_attention": 1}, "dropped": []}
    check_against_onnxruntime(model.SerializeToString(), module, (*torch.randn(2, 2, 5, 4), torch.randn(5, 5)))


class Memory(nn.Module):
    """Two layers without bias and a softmax between them, as external attention has them; no attention over values."""

    def __init__(self, bias: bool):
        super().__init__()
        self.keys, self.softmax, self.values = nn.Linear(6, 5, bias=bias), nn.Softmax(-1), nn.Linear(5, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.values(self.softmax(self.keys(x)))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_layers_around_a_softmax_stay_layers(exporter: str, bias: bool) -> None:
    """Each module gives what the original's gives."""
    original, inputs = seeded(functools.partial(Memory, bias)), (torch.randn(2, 4, 6),)
    path = EXPORTERS[exporter](f"raising_memory_{bias}", original, inputs, (torch.randn(3, 7, 6),))
    module = onnx2nn.load(path)
    results: dict[nn.Module, list[torch.Tensor]] = {original: [], module: []}
    for one, found in results.items():
        for name in ("keys", "softmax", "values"):
            one.get_submodule(name).register_forward_hook(lambda *call, found=found: found.append(call[2]))
    check_same(run(module, inputs), run(original, inputs), "the outputs")
    check_same(tuple(results[module]), tuple(results[original]), "the results of the modules")
    assert isinstance(module.keys, nn.Linear) and isinstance(module.values, nn.Linear)


# ---- files of other exporters, and what was written by hand as they write it


def test_digits() -> None:
    """tf2onnx writes Keras's dense layers as MatMul and Add."""
    module = onnx2nn.load(DIGITS)
    assert module.meta["onnx2nn"]["raising"]["raised"]["Linear"] == 2
    assert [layer.bias is not None for layer in module.modules() if isinstance(layer, nn.Linear)] == [True, True]
    inputs = (torch.rand(4, *_size(DIGITS)),)
    outputs = check_against_onnxruntime(DIGITS, module, inputs)
    check_same(run(onnx2nn.load(DIGITS, raise_patterns=False), inputs), outputs, "literal")


def _size(path: Path) -> list[int]:
    return [dim.dim_value for dim in onnx.load(str(path)).graph.input[0].type.tensor_type.shape.dim[1:]]


def _model(nodes: list[onnx.NodeProto], shape: list[int | str], opset: int = 17, **weights: np.ndarray) -> bytes:
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    model: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    ).SerializeToString()
    return model


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_bias_of_a_convolution(operator: str) -> None:
    nodes = [
        helper.make_node(operator, ["x", "w"], ["c"], name=f"/stem/{operator}"),
        helper.make_node("Add", ["b", "c"], ["y"], name="/stem/Add"),
    ]
    model = _model(nodes, ["N", 4, 8, 8], w=_random(4, 4, 3, 3), b=_random(1, 4, 1, 1))
    module = onnx2nn.load(model)
    assert {name for name, _ in module.named_parameters()} == {"stem.weight", "stem.bias"}
    check_against_onnxruntime(model, module, (torch.randn(2, 4, 8, 8),))


@pytest.mark.parametrize(
    ("pads", "value", "raised"),
    [
        ([0, 0, 1, 2, 0, 0, 1, 2], 0.0, 1),
        ([0, 0, 1, 2, 0, 0, 2, 1], 0.0, 0),
        ([0, 1, 1, 1, 0, 1, 1, 1], 0.0, 0),
        ([0, 0, 1, 1, 0, 0, 1, 1], 1.0, 0),
        ([0, 0, -1, -1, 0, 0, -1, -1], 0.0, 0),
    ],
    ids=["symmetric", "asymmetric", "of_channels", "of_ones", "negative"],
)
def test_pads_of_a_convolution(pads: list[int], value: float, raised: int) -> None:
    nodes = [
        helper.make_node("Constant", [], ["pads"], value_ints=pads),
        helper.make_node("Pad", ["x", "pads", "value"], ["p"]),
        helper.make_node("Conv", ["p", "w", "b"], ["y"], name="conv", pads=[1, 0, 1, 0]),
    ]
    channels = 4 + pads[1] + pads[5]
    weights = {"w": _random(6, channels, 3, 3), "b": _random(6), "value": np.asarray(value)}
    model = _model(nodes, ["N", 4, 8, 8], **weights)
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"]["raised"].get("pads", 0) == raised
    assert not raised or "pad(" not in module.code
    check_against_onnxruntime(model, module, (torch.randn(2, 4, 8, 8),))


BIASES = {"of_the_rows": _random(3, 1), "two_dimensional": _random(3, 4), "one_number": _random(1)}


@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_what_is_added_to_a_product_is_no_bias(bias: np.ndarray) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    model = _model(nodes, [2, 3, 8], w=_random(8, 4), b=bias)
    module = onnx2nn.load(model)
    assert "Linear" not in module.meta["onnx2nn"]["raising"]["raised"]
    check_against_onnxruntime(model, module, (torch.randn(2, 3, 8),))


def test_a_product_that_something_else_reads_stays() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Mul", ["s", "p"], ["y"]),
    ]
    model = _model(nodes, [2, 8], w=_random(8, 4), b=_random(4))
    module = onnx2nn.load(model)
    assert not module.meta["onnx2nn"]["raising"]["raised"]
    check_against_onnxruntime(model, module, (torch.randn(2, 8),))


def _gelu(result: str) -> list[onnx.NodeProto]:
    """Returns the nodes of a GELU of `x` with the numbers `root`, `one` and `half`."""
    return [
        helper.make_node("Div", ["x", "root"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"]),
        helper.make_node("Add", ["b", "one"], ["c"]),
        helper.make_node("Mul", ["x", "c"], ["d"]),
        helper.make_node("Mul", ["d", "half"], [result]),
    ]


NEARLY_GELU = {"root": (1.5, 1.0, 0.5), "one": (1.4142135, 1.5, 0.5), "half": (1.4142135, 1.0, 0.25)}


@pytest.mark.parametrize("numbers", NEARLY_GELU.values(), ids=NEARLY_GELU)
def test_other_constants_are_another_function(numbers: tuple[float, float, float]) -> None:
    model = _model(_gelu("y"), [2, 8], **dict(zip(("root", "one", "half"), map(np.asarray, numbers), strict=True)))
    module = onnx2nn.load(model)
    assert not module.meta["onnx2nn"]["raising"]["raised"]
    check_against_onnxruntime(model, module, (torch.randn(2, 8),))


@pytest.mark.parametrize(("axes", "raised"), [([-1], True), ([2], True), ([1], False), ([-2], False)])
def test_layer_norm_is_over_the_last_dimensions(axes: list[int], raised: bool) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=axes),
        helper.make_node("Sub", ["x", "m"], ["d"]),
        helper.make_node("Pow", ["d", "two"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["v"], axes=axes),
        helper.make_node("Add", ["v", "eps"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["s"]),
        helper.make_node("Div", ["d", "s"], ["n"]),
        helper.make_node("Mul", ["n", "w"], ["g"]),
        helper.make_node("Add", ["g", "b"], ["y"]),
    ]
    weights = {"two": np.asarray(2.0), "eps": np.asarray(1e-5), "w": _random(8), "b": _random(8)}
    model = _model(nodes, [2, 8, 8], 13, **weights)
    module = onnx2nn.load(model)
    assert (module.meta["onnx2nn"]["raising"]["raised"] == {"LayerNorm": 1}) is raised
    assert any(isinstance(layer, nn.LayerNorm) for layer in module.modules()) is raised
    check_against_onnxruntime(model, module, (torch.randn(2, 8, 8),))


@pytest.mark.parametrize(
    ("before", "rank"),
    [
        ("a = MatMul(x, w)", 3),
        ("a = MatMul(v, m)", 2),
        ("a = MatMul(w, w)", 2),
        ("a = Gemm(w, w)", 2),
        ("a = Gather(w, ids)", 3),
        ("squares = ReduceSumSquare<axes = [1]>(x) a = Div(x, squares)", 3),
        ("a = ReduceMax<axes = [1], keepdims = 0>(x)", 2),
        (
            """sizes = Shape(x) narrow = Cast<to = 6>(sizes) steps = Gather(narrow, front) rest = Gather(narrow, back)
            product = ReduceProd<keepdims = 1>(rest) joined = Concat<axis = 0>(steps, product)
            target = Cast<to = 7>(joined) a = Reshape(x, target)""",
            3,
        ),
    ],
)
def test_a_normalisation_whose_rank_follows_from_the_operator_before_it(before: str, rank: int) -> None:
    """tf2onnx counts axes from the front, and its files tell no shapes of what lies between inputs and outputs."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 15]>
        graph (float[n, 5, 8] x, float[8] v, float[n, 8, 8] m, float[8, 8] w, int64[n, 5] ids) => (float[] y)
        <float eps = {{1e-6}}, int64[2] front = {{0, 1}}, int64[1] back = {{2}}> {{
            {before}
            square = Mul(a, a)
            mean = ReduceMean<axes = [{rank - 1}]>(square)
            sum = Add(mean, eps)
            root = Sqrt(sum)
            factor = Reciprocal(root)
            y = Mul(a, factor)
        }}""")
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"] == {"raised": {"RMSNorm": 1}, "dropped": []}
    ids = torch.randint(0, 8, (3, 5))
    inputs = (torch.randn(3, 5, 8), torch.randn(8), torch.randn(3, 8, 8), torch.randn(8, 8), ids)
    check_against_onnxruntime(model.SerializeToString(), module, inputs)


def test_layer_norms_one_behind_the_other() -> None:
    """As tf2onnx writes those of residual blocks: the rank of what reaches a norm follows from nodes far before it."""
    block = """
            mean{0} = GlobalAveragePool({1})
            minus{0} = Neg(mean{0})
            centred{0} = Sub({1}, mean{0})
            square{0} = Mul(centred{0}, centred{0})
            variance{0} = GlobalAveragePool(square{0})
            sum{0} = Add(variance{0}, eps)
            root{0} = Sqrt(sum{0})
            inverse{0} = Reciprocal(root{0})
            factor{0} = Mul(inverse{0}, w)
            scaled{0} = Mul({1}, factor{0})
            shift{0} = Mul(minus{0}, factor{0})
            offset{0} = Add(shift{0}, b)
            norm{0} = Add(scaled{0}, offset{0})
            y{0} = Relu(norm{0})"""
    blocks = "".join(block.format(i + 1, f"y{i}") for i in range(4))
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 15]>
        graph (float[n, 5, 8] y0) => (float[n, 5, 8] y4) <float eps = {{1e-3}}> {{{blocks}
        }}""")
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(_random(1, 1, 8)), name) for name in ("w", "b"))
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"] == {"raised": {"LayerNorm": 4}, "dropped": []}
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(3, 5, 8),))


@pytest.mark.parametrize(
    ("shape", "weights", "raised"),
    [
        (["n", "m", 8], (8,), {"LayerNorm": 1}),
        (["n", "m", 8], (1, 1, 8), {"LayerNorm": 1}),
        ([2, 8, 8], None, {"LayerNorm": 1}),
        ([2, 4, 8, 8], (8,), {}),
        ([2, 4, 8, 8], None, {}),
    ],
)
def test_layer_norm_with_means_by_global_average_pool(
    shape: list[int | str], weights: tuple[int, ...] | None, raised: dict[str, int]
) -> None:
    """As tf2onnx writes the means over the last of three dimensions; of four dimensions it takes two."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["m"]),
        helper.make_node("Sub", ["x", "m"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["q"]),
        helper.make_node("GlobalAveragePool", ["q"], ["v"]),
        helper.make_node("Add", ["v", "eps"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["s"]),
        helper.make_node("Div", ["d", "s"], ["n" if weights else "y"]),
    ]
    constants = {"eps": np.asarray(1e-3)}
    if weights:
        nodes += [helper.make_node("Mul", ["n", "w"], ["g"]), helper.make_node("Add", ["g", "b"], ["y"])]
        constants |= {"w": _random(*weights), "b": _random(*weights)}
    model = _model(nodes, shape, 13, **constants)
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"]["raised"] == raised
    for sizes in ((2, 8), (3, 5)) if "n" in shape else (shape[:-1],):
        check_against_onnxruntime(model, module, (torch.randn(*sizes, 8),))


@pytest.mark.parametrize(("shape", "raised"), [([2, 3, 5, 4], 1), ([5, 4], 0)])
def test_constants_that_add_dimensions(shape: list[int], raised: int) -> None:
    """Keras's constants have as many dimensions as the images; on fewer dimensions they would add some."""
    nodes = [
        helper.make_node("Add", ["x", "three"], ["a"]),
        helper.make_node("Clip", ["a", "low", "high"], ["b"]),
        helper.make_node("Mul", ["b", "sixth"], ["c"]),
        helper.make_node("Mul", ["x", "c"], ["y"]),
    ]
    numbers = {"three": np.full((1, 1, 1, 1), 3.0), "low": np.asarray(0.0), "high": np.asarray(6.0)}
    model = _model(nodes, list(shape), **numbers, sixth=np.full((1, 1, 1, 1), 1 / 6))
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"]["raised"].get("Hardswish", 0) == raised
    check_against_onnxruntime(model, module, (4 * torch.randn(shape),))


@pytest.mark.skipif(
    installed.version("onnxruntime") < (1, 32),
    reason="ONNX Runtime before 1.32 gives a product over no elements the batch of its first operand alone",
)
@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ([1, 2, 3], [3, "keys", 3], [3, "keys", 2]),
        ([1, "queries", 3], ["N", 4, 3], ["N", 4, 2]),
        (["N", 1, 2, 3], ["N", 3, "keys", 3], [1, 1, "keys", 2]),
        (["N", 2, 3], ["M", "keys", 3], [1, "keys", 2]),
        ([2, 3], [3, "keys", 3], [1, "keys", 2]),
        ([1, 2, 3], [1, "keys", 3], [3, "keys", 2]),
        (["N", "queries", 3], ["N", "keys", 3], ["N", "keys", 2]),
    ],
    ids=str,
)
def test_attention_without_elements_has_the_batch_of_all_three(
    q: list[int | str], k: list[int | str], v: list[int | str]
) -> None:
    perm = [*range(len(k) - 2), len(k) - 1, len(k) - 2]
    nodes = [
        helper.make_node("Transpose", ["k"], ["turned"], perm=perm),
        helper.make_node("MatMul", ["q", "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(n, 1, s) for n, s in (("q", q), ("k", k), ("v", v))]
    outputs = [helper.make_tensor_value_info("y", 1, ["_"] * max(map(len, (q, k, v))))]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    module = onnx2nn.load(model)
    assert "scaled_dot_product_attention" in module.code
    for sizes in (
        {"N": n, "M": m, "keys": keys, "queries": queries}
        for n in (1, 3)
        for m in (1, 3)
        for keys in (0, 4)
        for queries in (0, 2)
    ):
        shapes = ([sizes.get(size, size) if isinstance(size, str) else size for size in shape] for shape in (q, k, v))
        check_against_onnxruntime(model, module, tuple(torch.randn(shape) for shape in shapes))


def test_attention_as_paddle_writes_it() -> None:
    """With Identity nodes in between, and a scale that adds 0."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "turned"], ["product"]),
        helper.make_node("Identity", ["product"], ["same"]),
        helper.make_node("Mul", ["same", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "offset"], ["sum"]),
        helper.make_node("Identity", ["sum"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
    ]
    model = _model(nodes, ["N", 2, 5, 4], scale=np.asarray(0.5), offset=np.asarray(0.0))
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"]["raised"] == {"scaled_dot_product_attention": 1}
    assert "scaled_dot_product_attention(x, x, x)" in module.code
    check_against_onnxruntime(model, module, (torch.randn(3, 2, 5, 4),))


def test_the_half_of_a_gelu_is_no_scale_of_the_attention_behind_it() -> None:
    nodes = [
        *_gelu("query"),
        helper.make_node("Transpose", ["x"], ["keys"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["query", "keys"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
    ]
    numbers = {"root": 1.4142135, "one": 1.0, "half": 0.5}
    model = _model(nodes, [2, 2, 5, 4], **{name: np.asarray(number) for name, number in numbers.items()})
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"]["raised"] == {"GELU": 1, "scaled_dot_product_attention": 1}
    check_against_onnxruntime(model, module, (torch.randn(2, 2, 5, 4),))


def test_a_reshape_to_sizes_that_a_run_tells_is_skipped() -> None:
    """Where another one follows: how windows of a size that was computed are divided and joined."""
    numbers = {"minus": [-1], "target": [-1, 6]}
    nodes = [
        *(helper.make_node("Constant", [], [name], value_ints=ints) for name, ints in numbers.items()),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("Equal", ["x", "x"], ["flags"]),
        helper.make_node("NonZero", ["flags"], ["places"]),
        helper.make_node("Shape", ["places"], ["count"], start=1),
        helper.make_node("Concat", ["minus", "count"], ["between"], axis=0),
        helper.make_node("Reshape", ["turned", "between"], ["split"]),
        helper.make_node("Reshape", ["split", "target"], ["y"]),
    ]
    model = _model(nodes, ["N", 3, 8])
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"] == {"raised": {"reshapes": 1}, "dropped": []}
    assert module.code.count("reshape(") == 1
    check_against_onnxruntime(model, module, (torch.randn(2, 3, 8),))


CANCELLING = {
    "transposes": ([("Transpose", [], {"perm": [0, 2, 1]}), ("Transpose", [], {"perm": [1, 2, 0]})], ["Transpose"]),
    "inverse_transposes": (
        [("Transpose", [], {"perm": [1, 2, 0]}), ("Transpose", [], {"perm": [2, 0, 1]})],
        ["Identity"],
    ),
    "reshapes": ([("Reshape", [[6, 4]], {}), ("Reshape", [[4, -1]], {})], ["Reshape"]),
    "reshape_that_copies_a_size": ([("Reshape", [[6, 4]], {}), ("Reshape", [[0, -1]], {})], ["Reshape", "Reshape"]),
    "new_axis": (
        [("Unsqueeze", [[0]], {}), ("Transpose", [], {"perm": [3, 1, 0, 2]}), ("Squeeze", [[2]], {})],
        ["Transpose"],
    ),
    "pool_of_sequences": (
        [
            ("Unsqueeze", [[-2]], {}),
            ("ReduceMean", [], {"axes": [-1, -2]}),
            ("Squeeze", [[-2]], {}),
            ("Reshape", [[2, 3]], {}),
        ],
        ["GlobalAveragePool", "Reshape"],
    ),
    "mean_of_rows": (
        [("Unsqueeze", [[0]], {}), ("ReduceMean", [], {"axes": [0, 3]}), ("Squeeze", [[0]], {})],
        ["Unsqueeze", "ReduceMean", "Squeeze"],
    ),
    "mean_of_columns": (
        [("Unsqueeze", [[2]], {}), ("ReduceMean", [], {"axes": [1, 2]}), ("Squeeze", [[2]], {})],
        ["Unsqueeze", "ReduceMean", "Squeeze"],
    ),
}


@pytest.mark.parametrize(("steps", "left"), CANCELLING.values(), ids=CANCELLING)
def test_chains(steps: list[tuple[str, list[list[int]], dict[str, list[int]]]], left: list[str]) -> None:
    """Reshapes and transposes in a row are as few as can be."""
    nodes, targets = [], []
    for index, (operator, operands, attributes) in enumerate(steps):
        names = [f"t{index}_{i}" for i in range(len(operands))]
        targets += [
            helper.make_node("Constant", [], [name], value_ints=ints)
            for name, ints in zip(names, operands, strict=True)
        ]
        output = "y" if index == len(steps) - 1 else f"v{index}"
        nodes.append(helper.make_node(operator, [f"v{index - 1}" if index else "x", *names], [output], **attributes))
    shape = (2, 3, 4)
    model = _model([*targets, *nodes], list(shape))
    raised = _read(model)
    raise_patterns(raised, TABLE, torch)
    assert [node.op_type for node in raised.graph if node.op_type != "Constant"] == left
    check_against_onnxruntime(model, onnx2nn.load(model), (torch.randn(shape),))


@pytest.mark.parametrize("open_", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize(
    ("shape", "split", "perm", "join"),
    [
        ((6, 4, 5, 5), [-1, 2, 4, 5, 5], [0, 2, 1, 3, 4], [-1, 8, 5, 5]),  # frames of a video among the batch
        ((6, 4, 9), [3, 2, 4, 9], [0, 2, 1, 3], [3, 8, 9]),
        ((2, 8, 3, 3), [2, 2, 4, 3, 3], [0, 2, 1, 3, 4], [2, 8, 3, 3]),  # a channel shuffle
        ((8, 2, 2, 6), [-1, 2, 2, 2, 2, 3], [0, 1, 4, 2, 5, 3], [-1, 2, 4, 6]),
        ((2, 8, 2, 3), [-1, 2, 2, 2, 2, 3], [0, 1, 4, 2, 5, 3], [-1, 2, 4, 6]),  # a pixel shuffle
        ((4, 2, 2, 12), [-1, 2, 2, 2, 3, 2], [0, 1, 3, 5, 2, 4], [-1, 8, 2, 3]),
    ],
)
def test_shuffles_of_what_has_another_shape(
    shape: tuple[int, ...], split: list[int], perm: list[int], join: list[int], open_: bool
) -> None:
    """A reshape does not tell the shape of what it reads."""
    nodes = [
        helper.make_node("Constant", [], ["split"], value_ints=split),
        helper.make_node("Constant", [], ["join"], value_ints=join),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "split"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=perm),
        helper.make_node("Reshape", ["b", "join"], ["y"]),
    ]
    model = _model(nodes, ["n", *shape[1:]] if open_ else list(shape))
    check_against_onnxruntime(model, onnx2nn.load(model), (torch.randn(shape),))


# ---- the mechanism


def _read(model: bytes) -> ir.Model:
    return ir.from_proto(onnx.ModelProto.FromString(model))


def test_a_rule_that_disagrees_is_dropped_and_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = Rule("wrong", parse("x * Sigmoid(x)"), lambda match, facts: NewNode("Tanh", (match["x"],)), any_shape)
    from onnx2nn.rewrite import raising

    monkeypatch.setattr(raising, "applicable_rules", lambda *_: [wrong])
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"], name="gate")]
    model = _model(nodes, [2, 8])
    module = onnx2nn.load(model)
    report = module.meta["onnx2nn"]["raising"]
    assert not report["raised"]
    assert (
        "wrong is not applied at node 'gate', which stays as in the file: the result differs by" in report["dropped"][0]
    )
    assert "wrong is not applied at node 'gate'" in caplog.text
    check_against_onnxruntime(model, module, (torch.randn(2, 8),))


def test_equal_matches_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx2nn.rewrite import raising

    compared = []
    original = raising._Raiser._difference
    monkeypatch.setattr(raising._Raiser, "_difference", lambda *args: compared.append(args) or original(*args))
    nodes = []
    for index in range(6):
        before = f"v{index - 1}" if index else "x"
        nodes.append(helper.make_node("Sigmoid", [before], [f"s{index}"]))
        nodes.append(helper.make_node("Mul", [before, f"s{index}"], [f"v{index}" if index < 5 else "y"]))
    model = _read(_model(nodes, [2, 8]))
    result: Raising = raise_patterns(model, TABLE, torch)
    assert result.raised == {"SiLU": 6}
    assert len(compared) == 1
    assert [node.op_type for node in model.graph] == ["Swish"] * 6
    assert {node.version for node in model.graph} == {28}


def _grouped(groups: tuple[int, ...], channels: int) -> bytes:
    """Returns convolutions whose biases are added behind them, one after the other."""
    nodes, weights = [], {}
    for index, group in enumerate(groups):
        before, after = f"x{index}" if index else "x", f"x{index + 1}" if index + 1 < len(groups) else "y"
        nodes.append(helper.make_node("Conv", [before, f"w{index}"], [f"c{index}"], group=group, pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Add", [f"c{index}", f"b{index}"], [after], name=f"add{index}"))
        weights |= {f"w{index}": _random(channels, channels // group, 3, 3), f"b{index}": _random(1, channels, 1, 1)}
    return _model(nodes, [1, channels, 5, 6], **weights)


def test_two_groups_are_compared_for_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx2nn.rewrite import raising

    compared = []
    original = raising._Raiser._difference
    monkeypatch.setattr(raising._Raiser, "_difference", lambda *args: compared.append(args[1]) or original(*args))
    model = _grouped((1, 2, 4, 8), 8)
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"] == {"raised": {"Conv": 4}, "dropped": []}
    channels = [next(iter(this.sample.values()))[1] for this in compared]
    assert channels == [4, 2]
    check_against_onnxruntime(model, module, (torch.randn(1, 8, 5, 6),))


def test_a_replacement_with_other_groups_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison with fewer groups takes both for the same only where they have the same number of groups."""
    from onnx2nn.rewrite import linear_conv, raising

    def build(match: dict[str, Any], facts: Any) -> NewNode | None:
        right = linear_conv._conv(match, facts)
        assert right is not None
        return NewNode("Conv", right.inputs, {**right.attributes, "group": 4})

    (rule,) = (rule for rule in linear_conv.RULES if rule.name == "Conv")
    monkeypatch.setattr(raising, "applicable_rules", lambda *_: [dataclasses.replace(rule, build=build)])
    model = _grouped((4, 8), 8)
    module = onnx2nn.load(model)
    report = module.meta["onnx2nn"]["raising"]
    assert report["raised"] == {"Conv": 1}
    (dropped,) = report["dropped"]
    assert dropped.startswith("Conv is not applied at node 'add1'")
    check_against_onnxruntime(model, module, (torch.randn(1, 8, 5, 6),))


def test_attributes_that_are_missing_or_of_another_type() -> None:
    """What a rule cannot read it leaves to the import."""
    nodes = [helper.make_node("Transpose", ["x"], ["t"]), helper.make_node("Transpose", ["t"], ["y"])]
    model = _model(nodes, [2, 3, 4])
    module = onnx2nn.load(model)
    assert not module.meta["onnx2nn"]["raising"]["raised"]
    check_against_onnxruntime(model, module, (torch.randn(2, 3, 4),))
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=1.5),
        helper.make_node("Transpose", ["t"], ["y"], perm=2.5),
    ]
    raise_patterns(_read(_model(nodes, [2, 3, 4])), TABLE, torch)


def test_notation() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Add", ["w", "n"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=1),
    ]
    value = _read(_model(nodes, [2, 8], w=_random(8))).graph.outputs[0]

    def found(text: str) -> list[list[str]]:
        return [sorted(set(match) - {NODES}) for match in matches(value, parse(text), {})]

    assert found("Softmax(-x + +w)") == [["w", "x"]]
    assert found("(last := Softmax(_, axis=1))") == [["last"]]
    assert found("Softmax(x, axis=0)") == []
    assert found("Softmax(x - y | x + y)") == [["x", "y"], ["x", "y"]]
    assert found("Softmax(-+w + x)") == []
    assert found("Softmax(x + x)") == []
    assert [
        match["sum"].op_type for match in matches(value, parse("Softmax((sum := SUM))", SUM=parse("x + y")), {})
    ] == [
        "Add",
        "Add",
    ]
    assert found("~Softmax(x + _)") == [["x"], ["x"]]
    with pytest.raises(ValueError, match="is not a pattern"):
        parse("[x for x in y]")


def test_a_number_that_an_op_holds() -> None:
    """OneFlow's jobs have an op for a tensor and a number, which is no input."""
    notation = Notation({"*": "broadcast_mul"}, {"*": "scalar_mul"})
    node = ir.Node("", "scalar_mul", [ir.Value(name="x")])

    def found(text: str, number: Any) -> list[dict[str, Any]]:
        node.meta[NUMBER] = number
        return [
            {name: value for name, value in match.items() if name != NODES}
            for match in matches(node.outputs[0], parse(text, notation), {})
        ]

    assert [set(match) for match in found("x * 0.5", 0.5)] == [{"x"}]
    assert found("x * 0.5", 0.25) == found("x * 0.5", "batch") == found("x * y", 0.5) == []
    assert found("scalar_mul(_, factor)", (0.5, 0.25)) == [{"factor": (0.5, 0.25)}]
    assert len(found("OPS(x, 2) | x * 3", 3)) == 1


GATED = """<ir_version: 8, opset_import: ["": {opset}]> g (float[b,n,2] x) => (float[b,m,2] y) {{
    first, second = Split <axis = 1{parts}> (x)  gate = Sigmoid (second)  y = Mul (first, gate)
}}"""


@pytest.mark.parametrize(("opset", "parts"), [(13, ""), (18, ", num_outputs = 2")])
def test_a_gated_unit_of_a_dynamic_size(opset: int, parts: str) -> None:
    """From opset 18 on the second part may be shorter: a single element is repeated, others do not fit."""
    model = onnx.parser.parse_model(GATED.format(opset=opset, parts=parts))
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"]["raised"] == {"GLU": 1}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in (2, 3, 4, 5, 6):
        x = torch.randn(3, size, 2)
        if size % 2 and not (opset == 18 and size == 3):
            with pytest.raises(ValueError, match="dimension 1 of input 'x'"):
                module(x)
        else:
            expected = session.run(None, {"x": x.numpy()})[0]
            np.testing.assert_allclose(module(x).detach().numpy(), expected, rtol=1e-6)


def test_every_rule_has_a_test() -> None:
    tested = {rule for case in CASES.values() for rule in case.raised} | TESTED_ON_THEIR_OWN
    assert {rule.name for sweep in SWEEPS for rule in all_rules(sweep)} | {"LSTM", "GRU", "RNN"} == tested


TESTED_ON_THEIR_OWN = {
    "BatchNorm",
    "PReLU",
    "RotaryEmbedding",
    "Conv",
    "ConvTranspose",
    "transposes",
    "reshapes",
    "as_strided",
    "GlobalAveragePool",
    "Conv1d",
    "pool1d",
    "Embedding",
}


@pytest.mark.parametrize(
    ("split", "join"),
    [([-1, 3, 4], [-1, 4, 3]), ([2, -1, 4], [2, 4, -1]), ([2, -1, 4], [0, 4, -1])],
    ids=str,
)
def test_constants_that_equal_sample_sizes_by_chance_raise_nothing(split: list[int], join: list[int]) -> None:
    """The reshapes take other elements together once the dynamic dimensions are not 2 and 3."""
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["parts"]),
        helper.make_node("Transpose", ["parts"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["turned", "join"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["a", "b", 4])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * 3)]
    constants = [numpy_helper.from_array(np.array(v), name) for name, v in (("split", split), ("join", join))]
    graph = helper.make_graph(nodes, "parts", inputs, outputs, constants)
    module = onnx2nn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert not module.meta["onnx2nn"]["raising"]["raised"]
    for shape in ((2, 3, 4), (6, 1, 4), (1, 12, 4)):
        x = torch.arange(float(np.prod(shape))).reshape(shape)
        torch.testing.assert_close(module(x), x.reshape(split).transpose(1, 2).reshape(_filled(join, split, x)))


def _filled(join: list[int], split: list[int], x: torch.Tensor) -> list[int]:
    """Returns a target with the size that a 0 copies."""
    parts = x.reshape(split).transpose(1, 2).shape
    return [parts[i] if size == 0 else size for i, size in enumerate(join)]


@pytest.mark.parametrize("target", [[1, 1, -1], [-1, 1, 4], [0, 1, -1], [0, 0, -1]], ids=str)
def test_sizes_that_follow_a_recurrent_layer_stay_the_files(target: list[int]) -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (2, 8, 3), "r": (2, 8, 2)}
    constants = [numpy_helper.from_array(rng.standard_normal(s, np.float32), name) for name, s in shapes.items()]
    constants.append(numpy_helper.from_array(np.array(target), "target"))
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["h"], hidden_size=2, direction="bidirectional"),
        helper.make_node("Transpose", ["h"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "target"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["steps", "batch", 3])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * 3)]
    graph = helper.make_graph(nodes, "layer", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module, literal = onnx2nn.load(model), onnx2nn.load(model, raise_patterns=False)
    for shape in ((1, 1, 3), (4, 1, 3), (3, 2, 3)):
        x = torch.from_numpy(rng.standard_normal(shape, np.float32))
        try:
            expected = literal(x)
        except ValueError:
            continue  # sizes that the file refuses
        torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize(("last", "widths"), [(-1, {7, 10, 5}), (32, {12, 32, 16})], ids=["any width", "the file's"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_wide_recurrent_layers_are_compared_narrow(
    monkeypatch: pytest.MonkeyPatch, kind: str, last: int, widths: set[int]
) -> None:
    """Unless a Reshape of the file holds the width, a layer of a few features stands for those of any number."""
    from onnx2nn.rewrite import raising

    compared = []
    original = raising._Raiser._difference
    monkeypatch.setattr(raising._Raiser, "_difference", lambda *args: compared.append(args[1]) or original(*args))
    target = numpy_helper.from_array(np.array([0, 0, last]))
    nodes, weights = [helper.make_node("Constant", [], ["target"], value=target)], dict[str, np.ndarray]()
    rows = {"LSTM": 64, "GRU": 48, "RNN": 16}[kind]
    attributes = {"linear_before_reset": 1} if kind == "GRU" else {}
    for index, width in enumerate((12, 32)):
        x, y = ("x", "y0") if not index else ("y0", "y")
        names = [f"{name}{index}" for name in "wrb"]
        weights |= dict(zip(names, (_random(2, rows, width), _random(2, rows, 16), _random(2, 2 * rows)), strict=True))
        options = dict(hidden_size=16, direction="bidirectional", **attributes)
        nodes.append(helper.make_node(kind, [x, *names], [f"h{index}"], **options))
        nodes.append(helper.make_node("Transpose", [f"h{index}"], [f"t{index}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{index}", "target"], [y]))
    model = _model(nodes, [3, 2, 12], **weights)
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"] == {"raised": {kind: 1}, "dropped": []}
    (this,) = compared
    shapes = {value.name: shape for value, shape in this.sample.items() if value.name in {*weights, "x"}}
    compared_with = {name: value.shape for name, value in weights.items()} | shapes
    assert {compared_with[name][-1] for name in ("w0", "w1", "r0", "r1")} == widths
    check_against_onnxruntime(model, module, (torch.randn(3, 2, 12),))


@pytest.mark.parametrize("shape", [[], [3]], ids=str)
def test_constants_of_one_element_may_give_a_scalar_a_dimension(shape: list[int]) -> None:
    constants = [numpy_helper.from_array(np.array([1], np.float32), "one")]
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["s"]),
        helper.make_node("Log", ["s"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape or [1])]
    graph = helper.make_graph(nodes, "softplus", inputs, outputs, constants)
    module = onnx2nn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    x = torch.ones(shape)
    torch.testing.assert_close(module(x), F.softplus(x).reshape(shape or [1]))


def test_layers_whose_nodes_end_before_their_biases_are_a_stack() -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 8, 3), "r": (1, 8, 2), "v": (1, 8, 2), "s": (1, 8, 2)}
    constants = [numpy_helper.from_array(rng.standard_normal(s, np.float32), name) for name, s in shapes.items()]
    constants.append(numpy_helper.from_array(np.array([1]), "axis"))
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["h"], hidden_size=2),
        helper.make_node("Squeeze", ["h", "axis"], ["a"]),
        helper.make_node("LSTM", ["a", "v", "s"], ["i"], hidden_size=2),
        helper.make_node("Squeeze", ["i", "axis"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["steps", "batch", 3])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * 3)]
    graph = helper.make_graph(nodes, "stack", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module = onnx2nn.load(model)
    assert [layer.num_layers for layer in module.modules() if isinstance(layer, nn.LSTM)] == [2]
    x = torch.from_numpy(rng.standard_normal((3, 2, 3), np.float32))
    torch.testing.assert_close(module(x), onnx2nn.load(model, raise_patterns=False)(x))


class Lines(nn.Module):
    """Layers over the columns of an image, as a reader of text lines has them: their input is transposed before.

    Args:
        batch_first: whether the layers take the batch first; where they do not, their author turns the results.
        before: whether the columns come last, so that the author transposes for the layers.
        behind: whether the author transposes the results, the features to the second place.
    """

    def __init__(self, batch_first: bool, before: bool = True, behind: bool = False):
        super().__init__()
        self.lstm = nn.LSTM(6, 5, 2, bidirectional=True, batch_first=batch_first)
        self.gru = nn.GRU(6, 5, batch_first=batch_first)
        self.before, self.behind = before, behind

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = (0, 2, 1) if self.before else (0, 1, 2)
        back = (0, 2, 1) if self.behind else (0, 1, 2)
        if not self.lstm.batch_first:
            order, back = (order[1], order[0], order[2]), tuple((1, 0, 2)[axis] for axis in back)
        a, b = self.lstm(x.permute(order))[0], self.gru((x + 1).permute(order))[0]
        return a.permute(back), b.permute(back)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("before", "behind"), [(True, False), (True, True), (False, True)])
def test_recurrent_layers_take_the_batch_first_beside_another_transpose(
    exporter: str, batch_first: bool, before: bool, behind: bool
) -> None:
    """Exporters write two transposes in a row as one."""
    original = seeded(lambda: Lines(batch_first, before, behind))
    given = [torch.randn(count, 6, 7) for count in (2, 3, 1)]
    inputs, other, single = [(x if before else x.transpose(1, 2).contiguous(),) for x in given]
    path = EXPORTERS[exporter](f"lines{batch_first}{before}{behind}", original, inputs, other)
    module = onnx2nn.load(path)
    module.load_state_dict(original.state_dict(), strict=True)
    for x in (inputs, other, single):
        check_against_onnxruntime(path, module, x)
        ours, authors = (_results_of_layers(model, x) for model in (module, original))
        check_same(ours, authors, "what hooks of the layers see")


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_recurrent_layers_before_a_fixed_length_have_their_keys(exporter: str) -> None:
    """The newer exporter writes the traced length into a target, which then stands behind the layer."""
    original, inputs, other = seeded(lambda: Lines(False)), (torch.randn(2, 6, 7),), (torch.randn(3, 6, 4),)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:  # a second export of an LSTM is refused
        path = fresh.submit(EXPORTERS[exporter], "lines_open", original, inputs, other).result()
    module = onnx2nn.load(path)
    original.load_state_dict(module.state_dict(), strict=True)
    check_same(run(module, inputs), run(original, inputs), "after load_state_dict")


def _results_of_layers(model: nn.Module, inputs: Tensors) -> Tensors:
    seen: list[torch.Tensor] = []
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda _, __, results: seen.append(results[0]))
        for name in ("lstm", "gru")
    ]
    model(*inputs)
    for hook in hooks:
        hook.remove()
    return tuple(seen)


_OF_SEQUENCES = {
    "unturned": """image = Unsqueeze(x, two) c = Conv<pads = [0, 1, 0, 1]>(image, wide) s = Squeeze(c, two)
        y = Add(s, bias)""",
    "turned": """t = Transpose<perm = [0, 2, 1]>(x) image = Unsqueeze(t, minus)
        u = Transpose<perm = [0, 3, 1, 2]>(image) c = Conv<strides = [1, 2], kernel_shape = [1, 3]>(u, wide)
        v = Transpose<perm = [0, 2, 3, 1]>(c)
        s = Squeeze(v, one) r = Transpose<perm = [0, 2, 1]>(s) y = Add(r, bias)""",
    "separable": """image = Unsqueeze(x, two) d = Conv<group = 4, auto_pad = "SAME_UPPER">(image, deep)
        c = Conv(d, narrow) s = Squeeze(c, two) y = Add(s, bias)""",
    "tall": """image = Unsqueeze(x, three) c = Conv<dilations = [2, 1]>(image, tall) s = Squeeze(c, three)
        y = Add(s, bias)""",
}


@pytest.mark.parametrize("form", _OF_SEQUENCES)
def test_a_convolution_of_sequences_as_one_of_images(form: str) -> None:
    """TensorFlow computes it with a further dimension, which tf2onnx may move behind or in front of its transposes."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17], producer_name: "tf2onnx">
        graph (float[n, 4, m] x) => (float[] y)
        <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}}, int64[1] minus = {{-3}}> {{
            {_OF_SEQUENCES[form]} }}""")
    weights = {
        "wide": (6, 4, 1, 3),
        "narrow": (6, 4, 1, 1),
        "deep": (4, 1, 1, 3),
        "tall": (6, 4, 3, 1),
        "bias": (1, 6, 1),
    }
    used = {name for node in model.graph.node for name in node.input}
    arrays = {name: np.float32(_random(*shape)) for name, shape in weights.items() if name in used}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    module = onnx2nn.load(model)
    raised = module.meta["onnx2nn"]["raising"]
    assert raised["raised"].items() >= {"Conv1d": 1, "Conv": 1}.items() and raised["dropped"] == []
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv1d)]
    assert len(layers) == 1 + (form == "separable") and layers[-1].bias is not None
    assert sum("squeeze" in str(node.target) for node in flattened(module).graph.nodes) == 0
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(2, 4, 9),))


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_a_pool_of_sequences_as_one_of_images(pool: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        graph (float[n, m, 4] x) => (float[] y) <int64[1] one = {{1}}, int64[1] two = {{2}}> {{
            image = Unsqueeze(x, one) t = Transpose<perm = [0, 3, 1, 2]>(image)
            p = {pool}<kernel_shape = [1, 3], strides = [1, 2], pads = [0, 1, 0, 1]>(t)
            y = Squeeze(p, two) }}""")
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"] == {"raised": {"pool1d": 1}, "dropped": []}
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(2, 9, 4),))


@pytest.mark.parametrize(
    "attributes",
    ["pads = [1, 0, 0, 0]", "strides = [2, 1]", "kernel_shape = [1, 1, 1]", "kernel_shape = [3, 1]", "pads = [0]"],
)
def test_a_convolution_along_a_new_dimension_stays(attributes: str) -> None:
    """It computes along it, or is malformed."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        graph (float[n, 4, 9] x) => (float[] y) <int64[1] two = {{2}}> {{
            image = Unsqueeze(x, two) c = Conv<{attributes}>(image, weight) y = Squeeze(c, two) }}""")
    size = (6, 4, 3, 1) if "[3, 1]" in attributes else (6, 4, 1, 1)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(_random(*size)), "weight"))
    assert raise_patterns(_read(model.SerializeToString()), TABLE, torch).raised == {}


def test_convolutions_that_share_a_new_dimension_keep_their_names() -> None:
    """tf2onnx makes one node of the equal ones, with the name of one of them."""
    names = ["a/conv1/ExpandDims", "a/conv1/Conv", "a/conv1/Squeeze", "a/conv2/Conv", "a/conv2/Squeeze", "a/Concat"]
    nodes = [
        helper.make_node("Unsqueeze", ["x", "two"], ["image"]),
        helper.make_node("Conv", ["image", "w1"], ["c1"]),
        helper.make_node("Squeeze", ["c1", "two"], ["s1"]),
        helper.make_node("Conv", ["image", "w2"], ["c2"]),
        helper.make_node("Squeeze", ["c2", "two"], ["s2"]),
        helper.make_node("Concat", ["s1", "s2"], ["y"], axis=1),
    ]
    for node, name in zip(nodes, names, strict=True):
        node.name = name
    model = onnx.load_from_string(_model(nodes, ["N", 4, 9], w1=_random(6, 4, 1, 1), w2=_random(5, 4, 1, 1)))
    model.producer_name = "tf2onnx"
    model.graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
    module = onnx2nn.load(model)
    assert {*module.state_dict()} == {"a.conv1.weight", "a.conv2.weight"}
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(2, 4, 9),))


_FROM_FRONT = {
    "sums": """yes = Cast<to = 6>(below) no = Not(below) rest = Cast<to = 6>(no) turned = Mul(yes, moved)
        kept = Mul(x, rest) at = Add(turned, kept)""",
    "where": "at = Where(below, moved, x)",
}


@pytest.mark.parametrize(("rows", "raised"), [(7, {"Embedding": 1}), (6, {})])
@pytest.mark.parametrize("form", _FROM_FRONT)
def test_an_embedding_whose_negative_indices_count_from_the_end(form: str, rows: int, raised: dict[str, int]) -> None:
    """Keras 3 writes it, and an nn.Embedding has no use for it: it takes no negative indices."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        graph (float[n, m] given) => (float[n, m, 3] y) <int32 rows = {{{rows}}}, float zero = {{0}}> {{
            x = Cast<to = 6>(given) moved = Add(x, rows) number = Cast<to = 1>(x) below = Less(number, zero)
            {_FROM_FRONT[form]}
            y = Gather(table, at) }}""")
    model.graph.initializer.append(numpy_helper.from_array(np.float32(_random(7, 3)), "table"))
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"] == {"raised": raised, "dropped": []}
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randint(0, 7, (2, 4)).float(),))
    assert len(module.state_dict()) == (1 if raised else 3)
    if raised:
        assert onnx2nn.verify(model, module, input_shapes={"given": [4, 20]}).ok  # with indices of the table alone


@pytest.mark.parametrize("target", ["{-1, 1, 0, 0}", "{-1, 1, 5, 7}", ""], ids=["computed", "static", "none"])
def test_a_layer_norm_of_the_channels_of_an_image(target: str) -> None:
    """tf2onnx moves the transposes around it into its constants, and those of its means become Reshapes."""
    moved = "again = Reshape(mean, target)" if target else "again = Identity(mean)"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 15], producer_name: "tf2onnx">
        graph (float[n, 4, 5, 7] x) => (float[n, 4, 5, 7] y)
        <float eps = {{1e-3}}, int64[4] target = {target or "{0, 0, 0, 0}"}> {{
            mean = ReduceMean<axes = [1]>(x) minus = Neg(mean) {moved}
            centred = Sub(x, again) square = Mul(centred, centred) variance = ReduceMean<axes = [1]>(square)
            sum = Add(variance, eps) root = Sqrt(sum) inverse = Reciprocal(root) factor = Mul(inverse, w)
            scaled = Mul(x, factor) shift = Mul(minus, factor) offset = Add(shift, b) y = Add(scaled, offset) }}""")
    for node in model.graph.node:
        node.name = f"Transpose__{len(node.name)}" if node.op_type == "Reshape" else f"net/norm/{node.output[0]}"
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(_random(1, 4, 1, 1)), name) for name in "wb")
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"]["raised"]["LayerNorm"] == 1
    assert isinstance(module.net.norm, nn.LayerNorm) and len(module.state_dict()) == 2
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(2, 4, 5, 7),))


@pytest.mark.parametrize(
    ("step", "attributes"), [(2, ""), (3, 'group = 2, auto_pad = "VALID", '), (2, "strides = [2, 1], ")]
)
def test_a_dilated_convolution_of_images_with_some_of_the_pixels(step: int, attributes: str) -> None:
    """TensorFlow computes one so where the size of its images is dynamic; SpaceToDepth takes pixels to the batch."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 15]>
        graph (float[n, 4, h, w] x) => (float[] y) {{
            turned = Transpose<perm = [1, 0, 2, 3]>(x) apart = SpaceToDepth<blocksize = {step}>(turned)
            images = Transpose<perm = [1, 0, 2, 3]>(apart) c = Conv<{attributes}kernel_shape = [3, 2]>(images, weight)
            back = Transpose<perm = [1, 0, 2, 3]>(c) joined = DepthToSpace<blocksize = {step}>(back)
            y = Transpose<perm = [1, 0, 2, 3]>(joined) }}""")
    size = (6, 2 if "group" in attributes else 4, 3, 2)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(_random(*size)), "weight"))
    module = onnx2nn.load(model)
    layer = next(layer for layer in module.modules() if isinstance(layer, nn.Conv2d))
    assert layer.dilation == ((1, 1) if "strides" in attributes else (step, step))
    assert sum(node.op == "call_module" for node in module.graph.nodes) == 1
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(2, 4, 4 * step, 5 * step),))


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose weight is standardised at each call (Qiao et al. 2019), too large to be folded."""

    def __init__(self) -> None:
        super().__init__(64, 32, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.weight.reshape(1, self.out_channels, -1)
        weight = nn.functional.batch_norm(rows, None, None, training=True, momentum=0.0, eps=1e-6)
        return nn.functional.conv2d(x, weight.reshape_as(self.weight))


def test_a_standardised_weight_has_its_gradient() -> None:
    original, inputs = seeded(StandardisedConv2d), (torch.randn(2, 64, 5, 6),)
    module = onnx2nn.load(EXPORTERS["dynamo"]("raising_standardised", original, inputs))
    assert module.meta["onnx2nn"]["raising"] == {"raised": {"BatchNorm": 1}, "dropped": []}
    check_same(run(module, inputs), run(original, inputs), "the convolution")
    for each in (original, module):
        each(*inputs).square().sum().backward()
    check_same([module.weight.grad], [original.weight.grad], "the gradient of the weight")


def test_functions_of_the_file_are_raised_and_are_modules(tmp_path: Path) -> None:
    """As those that jax2onnx keeps: a module takes tensors under the function's names, and gives one."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17, "author": 1]>
        graph (float[n, 4] x, float[n, 4] y) => (float[n, 4] z) { a = author.Block(y, x) z = author.Block(a, y) }
        <domain: "author", opset_import: ["": 17]> Block (first, second) => (result) {
            gate = Sigmoid(second) gated = Mul(gate, second) result = Sub(gated, first) }""")
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"]["raised"] == {"SiLU": 1}
    inputs = torch.randn(3, 4), torch.randn(3, 4)
    block = next(iter(module.children()))
    assert list(inspect.signature(block.forward).parameters) == ["first", "second"]
    assert torch.equal(block(*inputs), nn.functional.silu(inputs[1]) - inputs[0])
    check_against_onnxruntime(model.SerializeToString(), module, inputs)
    exported = tmp_path / "exported.onnx"
    onnx2nn.export_onnx(module, exported)
    check_against_onnxruntime(exported.read_bytes(), module, inputs)


def test_a_root_mean_square_norm_of_jax_is_a_layer() -> None:
    """jax2onnx casts the epsilon to the input's type, and gives the weight as many dimensions as the input has."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        graph (float[n, 3, 6] x) => (float[n, 3, 6] y) <double eps = {0.001}, int64[1] axes = {-1}> {
            own = CastLike(eps, x) squares = Mul(x, x) mean = ReduceMean<keepdims = 1>(squares, axes)
            sum = Add(mean, own) root = Sqrt(sum) scaled = Div(x, root) y = Mul(scaled, weight) }""")
    weight = np.random.default_rng(0).standard_normal((1, 1, 6)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    module = onnx2nn.load(model)
    assert [type(layer) for layer in module.children()] == [nn.RMSNorm]
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(2, 3, 6),))


@pytest.mark.parametrize("double", [False, True])
def test_a_layer_norm_of_jax_is_a_layer(double: bool) -> None:
    """jax2onnx gives equal numbers exactly 0; infinite ones and NaN give NaN."""
    variance = "wide = Cast<to = 11>(squares) mean2 = ReduceMean(wide, axes) var = Cast<to = 1>(mean2)"
    variance = variance if double else "var = ReduceMean(squares, axes)"
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        graph (float[n, 3, 6] x) => (float[n, 3, 6] y)
        <int64[1] axes = {{-1}}, float zero = {{0}}, float eps = {{1e-5}}> {{
            mean = ReduceMean(x, axes) centred = Sub(x, mean) least = ReduceMin(x, axes) most = ReduceMax(x, axes)
            equal = Equal(least, most) nothing = Sub(mean, mean) finite = Equal(nothing, zero)
            constant = And(equal, finite) stable = Where(constant, zero, centred) squares = Mul(stable, stable)
            {variance} sum = Add(var, eps) root = Sqrt(sum) scaled = Div(stable, root)
            weighted = Mul(scaled, weight) y = Add(weighted, bias) }}""")
    for number, name in enumerate(["weight", "bias"]):
        array = np.random.default_rng(number).standard_normal(6).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    module = onnx2nn.load(model)
    assert [type(layer) for layer in module.children()] == [nn.LayerNorm]
    x = torch.randn(4, 3, 6)
    x[1], x[2, 0], x[3, 1, 2], x[3, 2, 1] = 0.1, 1000.1, torch.inf, torch.nan
    check_against_onnxruntime(model.SerializeToString(), module, (x,))


def test_a_guard_over_other_axes_makes_no_layer_norm() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        graph (float[n, 3, 6] x) => (float[n, 3, 6] y)
        <int64[1] axes = {-1}, int64[1] others = {1}, float zero = {0}, float eps = {1e-5}> {
            mean = ReduceMean(x, axes) centred = Sub(x, mean) least = ReduceMin(x, others) most = ReduceMax(x, others)
            equal = Equal(least, most) nothing = Sub(mean, mean) finite = Equal(nothing, zero)
            constant = And(equal, finite) stable = Where(constant, zero, centred) squares = Mul(stable, stable)
            var = ReduceMean(squares, axes) sum = Add(var, eps) root = Sqrt(sum) y = Div(stable, root) }""")
    module, x = onnx2nn.load(model), torch.randn(2, 3, 6)
    x[0] = x[0, :1]
    assert module.meta["onnx2nn"]["raising"]["raised"] == {"RMSNorm": 1}  # of what is behind the guard
    check_against_onnxruntime(model.SerializeToString(), module, (x,))
