"""Models of transformers with the weights of files that onnxruntime-genai's builder made of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from onnx2nn.errors import InputError, VerificationError
from onnx2nn.ground.extras import require
from onnx2nn.language.caches import Decoder
from onnx2nn.loading import load
from onnx2nn.reading import reader

_TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""The largest difference of logits, relative to the largest one."""

_PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Matrices that some models of transformers pack, and what they consist of."""


def with_weights_of(path: str | os.PathLike[str], config: Any) -> Any:
    """Returns the model of transformers with the weights of a file, see `onnx2nn.to_transformers`."""
    transformers = require("transformers", extra="transformers", purpose="Models of transformers")
    module = load(path, quantized="dequantize")
    state = dict(module.state_dict())
    config = _config(transformers, Path(path), state) if config is None else config
    config.tie_word_embeddings = _tied(module)
    with torch.random.fork_rng(devices=[]):
        model = transformers.AutoModelForCausalLM.from_config(config)
    weight = next((value for value in state.values() if value.is_floating_point()), torch.empty(0))
    fitting = _fitting(state, model.state_dict())
    model = model.to(weight.dtype).eval()
    try:
        model.load_state_dict(fitting, strict=True)
    except RuntimeError as error:
        raise InputError(f"The file's weights do not fit {type(model).__name__}: {error}") from error
    _compare(module, model)
    return model


def _tied(module: Any) -> bool:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    head, table = (parameters.get(key) for key in ("lm_head.weight", "model.embed_tokens.weight"))
    return head is not None and head is table


def _config(transformers: Any, path: Path, state: Mapping[str, torch.Tensor]) -> Any:
    folder = path.parent
    if (folder / "config.json").exists():
        return transformers.AutoConfig.from_pretrained(folder)
    try:
        known = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
        kind, decoder = known["type"], known["decoder"]
        found = {
            "vocab_size": known["vocab_size"],
            "max_position_embeddings": known["context_length"],
            **{name: known[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in known},
            "hidden_size": decoder["hidden_size"],
            "num_hidden_layers": decoder["num_hidden_layers"],
            "num_attention_heads": decoder["num_attention_heads"],
            "num_key_value_heads": decoder["num_key_value_heads"],
            "head_dim": decoder["head_size"],
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"Neither config.json nor a readable genai_config.json lies beside {path.name} ({error}). Give config=."
        ) from error
    if kind not in transformers.CONFIG_MAPPING:
        raise InputError(f"transformers has no model of type {kind!r}. Give config=.")
    gate = state.get("model.layers.0.mlp.gate_proj.weight")
    if gate is not None:
        found["intermediate_size"] = gate.shape[0]
    found["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in state
    return transformers.CONFIG_MAPPING[kind](**found, **_of_file(path, decoder["head_size"]))


def _of_file(path: Path, head: int) -> dict[str, Any]:
    """Returns what the nodes and the tables of angles of a file say of the configuration."""
    found: dict[str, Any] = {}
    with reader.opened(path) as model:
        for node in model.graph:
            if node.op_type.endswith("SimplifiedLayerNormalization"):
                found.setdefault("rms_norm_eps", round(node.attributes["epsilon"].as_float(), 12))
            window = node.attributes.get("local_window_size") if node.op_type == "GroupQueryAttention" else None
            if window is not None and window.as_int() > 0:
                found["sliding_window"] = window.as_int()
        tables = [model.graph.initializers.get(name) for name in ("cos_cache", "sin_cache")]
        arrays = [None if t is None or t.const_value is None else t.const_value.numpy() for t in tables]
    cos, sin = arrays
    if cos is not None and sin is not None and cos.shape[0] > 1 and cos.shape[1] > 1:
        step = math.atan2(float(sin[1, 1]), float(cos[1, 1]))  # theta ** (-2 / size), of the second angle
        theta = round(step ** -float(cos.shape[1]))
        found["rope_parameters"] = {"rope_type": "default", "rope_theta": float(theta)}
        if 2 * cos.shape[1] != head:
            found["rope_parameters"]["partial_rotary_factor"] = 2 * cos.shape[1] / head
    return found


def _fitting(state: Mapping[str, torch.Tensor], fresh: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the weights under the keys and in the form of a model, of which `fresh` is the state_dict."""
    found = dict(state)
    for key in fresh:
        *around, name, slot = key.split(".")
        parts = [".".join((*around, part, slot)) for part in _PACKED.get(name, ())]
        if key not in found and parts and all(part in found for part in parts):
            found[key] = torch.cat([found.pop(part) for part in parts])
        if key in found and key.endswith("norm.weight") and not fresh[key].any():
            found[key] = found[key] - 1  # norms that multiply by 1 + weight, which the builder adds
    plain = [key for key in found if key not in fresh and key.endswith("norm.weight") and (found[key] == 1).all()]
    return {key: value for key, value in found.items() if key not in plain}  # norms without weights


def _compare(module: Any, model: Any) -> None:
    """Compares the logits of a prompt of random tokens.

    Raises:
        VerificationError: they differ.
    """
    decoder = Decoder.of(module)
    tokens = torch.randint(0, model.config.vocab_size, (1, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, _ = decoder.step(tokens, 0, decoder.empty(1, tokens.device))
        other = model(input_ids=tokens).logits
    gap = float((logits - other).abs().max() / logits.abs().max().clamp(min=1e-6))
    if not gap <= _TOLERANCES[logits.dtype]:
        raise VerificationError(
            f"{type(model).__name__} of this configuration computes something else than the file: the logits differ "
            f"by {gap:.1e} of the largest. Give config=, the configuration that the file was built from."
        )
