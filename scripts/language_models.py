"""Tiny language models with random weights, as onnxruntime-genai's builder writes them: files, inputs, decoding."""

from __future__ import annotations

import contextlib
import functools
import io
import runpy
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import onnx2nn
from scripts import torchvision_schemas

torchvision_schemas.predefine()  # transformers imports torchvision

_SIZES = dict(
    vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
    max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
# The builder takes any linear layer with as many outputs as there are words for the head.
_GROUPED = {**_SIZES, "num_key_value_heads": 2}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**_GROUPED, "head_dim": 16}),
    "mistral": ("Mistral", {**_GROUPED, "head_dim": 16, "sliding_window": None}),
    "qwen2": ("Qwen2", {**_GROUPED, "use_sliding_window": False}),
    "qwen3": ("Qwen3", {**_GROUPED, "head_dim": 16}),
    "phi3": ("Phi3", {**_SIZES, "num_key_value_heads": 4, "original_max_position_embeddings": 128}),
    "gemma": ("Gemma", {**_SIZES, "num_key_value_heads": 1, "head_dim": 16}),
    "gemma2": ("Gemma2", {**_GROUPED, "head_dim": 16, "sliding_window": 32}),
    "granite": ("Granite", {**_GROUPED}),
    "olmo": ("Olmo", {**_GROUPED}),
}
"""Name → the prefix of transformers' classes, and the options of its configuration."""

WINDOW = 32
"""The rows of gemma2's caches of a sliding window."""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="onnx2nn-language-models-")


@functools.cache
def original(name: str) -> Path:
    """Returns the folder of a transformers model, saved with its tokenizer."""
    transformers = pytest.importorskip("transformers", reason="transformers 5 needs Python 3.11")
    tokenizers = pytest.importorskip("tokenizers", reason="comes with transformers")
    prefix, options = ARCHITECTURES[name]
    folder = Path(_folder().name) / name / "original"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{prefix}ForCausalLM")(getattr(transformers, f"{prefix}Config")(**options))
        with torch.no_grad():
            for parameter in model.parameters():  # larger than fresh ones, so that the tokens differ
                parameter.mul_(4) if parameter.dim() > 1 else parameter.add_(0.1 * torch.randn_like(parameter))
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(128)}, unk_token="w3")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), bos_token="w1", eos_token="w2", pad_token="w0"
    )
    with _quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


@functools.cache
def built(name: str, precision: str, *options: str) -> Path:
    """Returns the ONNX file that the builder makes of a model for the CPU.

    Args:
        name: of `ARCHITECTURES`.
        precision: fp32, fp16, bf16, int4 or int8.
        *options: the builder's extra options, such as `algo_config=rtn`.
    """
    pytest.importorskip("onnxruntime_genai", reason="onnxruntime-genai has no wheel for this system")
    source = original(name)
    folder = source.parent / "-".join([precision, *options])
    arguments = ["builder", "-i", source, "-o", folder, "-p", precision, "-e", "cpu", "-c", folder / "cache"]
    arguments += ["--extra_options", *options] if options else []
    with _quiet(), mock.patch.object(sys, "argv", list(map(str, arguments))):
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
    return folder / "model.onnx"


@contextlib.contextmanager
def _quiet() -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@functools.cache
def graph(path: Path) -> onnx.GraphProto:
    """Returns the graph of a file, without its weights."""
    return onnx.load(path, load_external_data=False).graph


@functools.cache
def session(path: Path) -> onnxruntime.InferenceSession:
    """Returns ONNX Runtime's session of a file.

    The builder declares shapes of intermediate values that hold for prompts only (`sequence_length` for the rows of a
    cache), by which ONNX Runtime reuses memory and fails at others. They are left out.
    """
    return onnxruntime.InferenceSession(without_shapes(path).SerializeToString(), providers=["CPUExecutionProvider"])


def without_shapes(path: Path) -> onnx.ModelProto:
    """Returns a file without the declared shapes of intermediate values, see `session`."""
    model = onnx.load(path)
    del model.graph.value_info[:]
    return model


def scales(path: Path) -> list[np.ndarray]:
    """Returns the scales of the packed weights in a file."""
    weights = onnx.load(path).graph.initializer
    return [onnx.numpy_helper.to_array(weight) for weight in weights if weight.name.endswith("_scales")]


def feeds(path: Path, batch: int, length: int, past: int) -> dict[str, np.ndarray]:
    """Returns inputs of `length` tokens behind a random cache of `past` ones, by name.

    A cache of a sliding window has the window's rows, except in files of float16, whose attention is another operator.
    """
    rng = np.random.default_rng([batch, length, past])
    window = WINDOW if any(node.op_type == "GroupQueryAttention" for node in graph(path).node) else past
    return {
        value.name: _feed(value.name, value.type.tensor_type, batch, length, past, window, rng)
        for value in graph(path).input
    }


def _feed(
    name: str, kind: onnx.TypeProto.Tensor, batch: int, length: int, past: int, window: int, rng: Any
) -> np.ndarray:
    if name == "input_ids":
        return cast(np.ndarray, rng.integers(3, 128, (batch, length)))
    if name == "attention_mask":
        return np.ones((batch, past + length), np.int64)
    if name == "position_ids":
        return np.arange(past, past + length)[None].repeat(batch, 0)
    heads, rows = kind.shape.dim[1].dim_value, kind.shape.dim[2].dim_param
    rows = window if rows == "past_sliding_length" else past
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return cast(np.ndarray, rng.standard_normal((batch, heads, rows, 16)).astype(dtype))


def tensors(inputs: Mapping[str, np.ndarray]) -> tuple[torch.Tensor, ...]:
    """Returns inputs as the arguments of an imported module."""
    return tuple(torch.from_numpy(value) for value in inputs.values())


def dynamic_shapes(path: Path) -> tuple[dict[int, Any], ...]:
    """Returns the dimensions of inputs that torch.export keeps dynamic: batch, length, length of the cache."""
    fixed = onnx2nn.load(path).meta["onnx2nn"]["fixed"]
    return tuple(
        {
            axis: torch.export.Dim.DYNAMIC
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
            if dim.dim_param and dim.dim_param not in fixed
        }
        for value in graph(path).input
    )
