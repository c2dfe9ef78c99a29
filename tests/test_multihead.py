"""nn.MultiheadAttention comes back as the layer, with the masks that it was called with."""

from __future__ import annotations

import re

import pytest
import torch
from realmodels import EXPORTERS, Tensors, check_against_onnxruntime, check_same, run, seeded
from tiers import mostly_slow
from torch import nn

import onnx2nn
from onnx2nn.fx.blocks.flattening import flattened

FEATURES, HEADS, STEPS = 8, 2, 5


def _attention(**options: bool) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(FEATURES, HEADS, batch_first=True, **options)


class Masked(nn.Module):
    """One attention of each kind of call, each an output of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.weighed, self.faded, self.plain = *(_attention() for _ in range(3)), _attention(bias=False)
        self.padded = nn.TransformerEncoderLayer(FEATURES, HEADS, 16)
        self.causal = nn.TransformerEncoderLayer(FEATURES, HEADS, 16, batch_first=True)

    def forward(
        self, x: torch.Tensor, future: torch.Tensor, bias: torch.Tensor, padding: torch.Tensor, fade: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        a, b, c = (x + step for step in range(3))  # exporters compute once what is written twice
        triangle = nn.Transformer.generate_square_subsequent_mask(STEPS)
        return (
            self.both(a, a, a, attn_mask=future, key_padding_mask=padding, need_weights=False)[0],
            self.weighed(b, b, b, attn_mask=bias)[0],
            self.faded(c, c, c, key_padding_mask=fade)[0],
            self.plain(x, x, x, need_weights=False)[0],
            self.padded(x.transpose(0, 1), src_key_padding_mask=padding),
            self.causal(x, src_mask=triangle, is_causal=True),
        )


def _inputs(n: int) -> Tensors:
    generator = torch.Generator().manual_seed(n)
    padding = torch.zeros(n, STEPS, dtype=torch.bool)
    padding[0, 3:] = True
    future = torch.ones(STEPS, STEPS, dtype=torch.bool).triu(1)
    bias, fade = torch.randn(STEPS, STEPS, generator=generator), torch.randn(n, STEPS, generator=generator)
    return torch.randn(n, STEPS, FEATURES, generator=generator), future, bias, padding, fade


@pytest.mark.parametrize("exporter", mostly_slow(EXPORTERS, ["torchscript"]))
def test_masks(exporter: str) -> None:
    """Every attention is the layer, called with the author's masks; its weights are the author's.

    The TorchScript exporter keeps no name of an attention without biases.
    """
    original = seeded(Masked)
    path = EXPORTERS[exporter]("multihead", original, _inputs(2), _inputs(3))
    module = onnx2nn.load(path)
    report = module.meta["onnx2nn"]["raising"]
    assert (report["raised"]["MultiheadAttention"], report["dropped"]) == (5 + (exporter == "dynamo"), [])
    code = flattened(module).code
    calls = re.findall(r"self\.([\w.]+)\([^()]*, (None|\w+), False(?:, (\w+))?\)", code)
    masks = {name: given for name, *given in calls}
    assert masks | {"plain": ["None", ""], "causal.self_attn": ["None", "triu"]} == {
        "both": ["padding", "future"],
        "weighed": ["None", "bias"],
        "faded": ["fade", ""],
        "plain": ["None", ""],
        "padded.self_attn": ["padding", ""],
        "causal.self_attn": ["None", "triu"],
    }, code
    if exporter == "dynamo":
        original.load_state_dict(module.state_dict())
    literal = onnx2nn.load(path, raise_patterns=False)
    for size in (2, 3, 1):
        inputs = _inputs(size)
        outputs = check_against_onnxruntime(path, module, inputs)
        check_same(run(literal, inputs), outputs, "the literal import against the raised one")
