"""Rotary position embedding comes back as one form, as transformers' own function for it is written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from realmodels import EXPORTERS, Tensors, check_against_onnxruntime, check_travels, require_transformers, run, seeded
from torch import nn
from torch_models import TransformersOutput, mask, tokens

import onnx2nn
from onnx2nn.fx.blocks.flattening import flattened


def _llama() -> nn.Module:
    require_transformers()
    from transformers import LlamaConfig, LlamaModel

    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24}
    return LlamaModel(LlamaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, **sizes))


def _gpt_neox() -> nn.Module:
    """Half of each head is turned."""
    require_transformers()
    from transformers import GPTNeoXConfig, GPTNeoXModel

    sizes = {"num_attention_heads": 2, "intermediate_size": 24, "rotary_pct": 0.5}
    return GPTNeoXModel(GPTNeoXConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, **sizes))


def _gpt_j() -> nn.Module:
    require_transformers()
    from transformers import GPTJConfig, GPTJModel

    sizes = {"n_head": 2, "rotary_dim": 4, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2}
    return GPTJModel(GPTJConfig(vocab_size=50, n_embd=16, n_layer=1, **sizes))


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "llama": (_llama, "(Ellipsis, slice(2, None, None))"),
    "gpt_neox": (_gpt_neox, "(Ellipsis, slice(2, None, None))"),
    "gpt_j": (_gpt_j, "torch.stack("),
}
"""Models, and what the forward holds for queries and for keys."""


def _text(batch: int, length: int) -> Tensors:
    return tokens(batch, length), mask(batch, length)


@pytest.mark.parametrize(
    ("name", "exporter"),
    [("llama", "torchscript"), ("llama", "dynamo"), ("gpt_neox", "torchscript"), ("gpt_j", "dynamo")],
)
def test_models(name: str, exporter: str) -> None:
    build, call = MODELS[name]
    original = seeded(lambda: TransformersOutput(build(), "input_ids", "attention_mask"))
    path = EXPORTERS[exporter](f"rotary_{name}_small", original, _text(2, 5), _text(3, 7))
    module = onnx2nn.load(path)
    assert module.meta["onnx2nn"]["raising"]["raised"]["RotaryEmbedding"] == 2
    assert flattened(module).code.count(call) == 2
    for inputs in (_text(2, 5), _text(3, 7), _text(1, 9)):
        check_against_onnxruntime(path, module, inputs)
        torch.testing.assert_close(run(module, inputs), run(original, inputs), rtol=1e-3, atol=1e-4)
    if name == "llama" and exporter == "dynamo":
        check_travels(module, _text(2, 5), _text(3, 7), travels=("torch.export", "torch.jit.trace"))


@pytest.mark.parametrize(
    ("axis", "middle", "raised"), [(2, 3, 1), (-1, 3, 1), (2, 2, 1), (1, 2, 0)], ids=["last", "end", "third", "rows"]
)
def test_what_looks_like_it(axis: int, middle: int, raised: int) -> None:
    """Unequal parts change places too, but of the last dimension alone is it raised."""
    bounds = {"zero": [0], "middle": [middle], "far": [2**63 - 1], "axis": [axis]}
    nodes = [
        helper.make_node("Slice", ["x", "zero", "middle", "axis"], ["lower"]),
        helper.make_node("Slice", ["x", "middle", "far", "axis"], ["upper"]),
        helper.make_node("Neg", ["upper"], ["minus"]),
        helper.make_node("Concat", ["minus", "lower"], ["turned"], axis=axis),
        helper.make_node("Mul", ["x", "cos"], ["a"]),
        helper.make_node("Mul", ["turned", "sin"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    weights = {name: np.array(ints) for name, ints in bounds.items()}
    weights |= {name: np.random.default_rng(0).standard_normal(6).astype(np.float32) for name in ("cos", "sin")}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 6])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    module = onnx2nn.load(model)
    assert module.meta["onnx2nn"]["raising"]["raised"].get("RotaryEmbedding", 0) == raised
    check_against_onnxruntime(model, module, (torch.randn(2, 4, 6),))
