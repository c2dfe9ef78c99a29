"""Models of transformers with the weights of files that onnxruntime-genai's builder made of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onnx2nn.errors import InputError, VerificationError
from onnx2nn.ground.extras import require
from onnx2nn.ground.limits import Account
from onnx2nn.language.caches import Decoder
from onnx2nn.loading import load
from onnx2nn.reading import reader
from onnx2nn.reading.remote import local_source

_TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""The largest difference of logits, relative to the largest one."""

_PROMPT = 256
"""Tokens of the prompt that is compared, so many that scaled angles differ from others."""

_WRITTEN_AS = {"olmo": "llama"}
"""Models whose files compute another one: the builder writes OLMo's layer norms as RMS norms of ones."""

_PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Matrices that some models of transformers pack, and what they consist of."""


def with_weights_of(path: str | os.PathLike[str], config: Any) -> Any:
    """Returns the model of transformers with the weights of a file, see `onnx2nn.to_transformers`."""
    transformers = require("transformers", extra="transformers", purpose="Models of transformers")
    path = local_source(path, Account())
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
    _compare(module, model, Path(path))
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
    found["mlp_bias"] = "model.layers.0.mlp.down_proj.bias" in state
    found |= _of_file(path, decoder["head_size"])
    kind = _WRITTEN_AS.get(kind, kind) if "rms_norm_eps" in found else kind
    return transformers.CONFIG_MAPPING[kind](**found)


def _of_file(path: Path, head: int) -> dict[str, Any]:
    """Returns what the nodes and the tables of angles of a file say of the configuration.

    Args:
        path: of the file.
        head: the size of a head; 0 where it is not known.
    """
    found: dict[str, Any] = {}
    with reader.opened(path) as model:
        for node in model.graph:
            if node.op_type.endswith("SimplifiedLayerNormalization"):
                found.setdefault("rms_norm_eps", round(node.attributes["epsilon"].as_float(), 12))
            if node.op_type == "GroupQueryAttention" and "local_window_size" in node.attributes:
                window = node.attributes["local_window_size"].as_int()
                found["sliding_window"] = window if window > 0 else found.get("sliding_window")
        tables = [model.graph.initializers.get(name) for name in ("cos_cache", "sin_cache")]
        arrays = [None if t is None or t.const_value is None else t.const_value.numpy() for t in tables]
    cos, sin = arrays
    if cos is not None and sin is not None and cos.shape[0] > 1 and cos.shape[1] > 1:
        found["rope_parameters"] = _rope(cos, sin)
        if head and 2 * cos.shape[1] != head:
            found["rope_parameters"]["partial_rotary_factor"] = 2 * cos.shape[1] / head
    return found


def _rope(cos: Any, sin: Any) -> dict[str, Any]:
    """Returns the parameters of angles `position * theta ** (-2 i / size) / factor`, of their tables.

    Args:
        cos: `(positions, size / 2)`.
        sin: likewise.
    """
    digits = 5 if cos.dtype == np.float32 else 3
    first, last, count = _step(cos[:, 0], sin[:, 0]), _step(cos[:, -1], sin[:, -1]), cos.shape[1]
    theta = (first / last) ** (count / (count - 1)) if last > 0 else math.nan
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": float(f"{theta:.{digits}g}")}
    factor = float(f"{1 / first:.{digits}g}") if first > 0 else math.nan
    return found if factor == 1 else {**found, "rope_type": "linear", "factor": factor}


def _step(cos: Any, sin: Any) -> float:
    """Returns the angle of a position, of the first one behind an eighth of a turn, or of the last one."""
    position = max(int(np.argmax(cos < 0.7)) or len(cos) - 1, 1)
    return math.atan2(float(sin[position]), float(cos[position])) / position


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


def _compare(module: Any, model: Any, path: Path) -> None:
    """Compares the logits of a prompt of random tokens.

    Raises:
        VerificationError: they differ.
    """
    decoder, config, stated = Decoder.of(module), model.config, _of_file(path, 0)
    length = _length(config, stated)
    tokens = torch.randint(0, config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, _ = decoder.step(tokens, 0, decoder.empty(1, tokens.device))
        other = model(input_ids=tokens).logits
    gap = float((logits - other).abs().max() / logits.abs().max().clamp(min=1e-6))
    if not gap <= _TOLERANCES[logits.dtype]:
        raise VerificationError(
            f"{type(model).__name__} of this configuration computes something else than the file: the logits of "
            f"{length} tokens differ by {gap:.1e} of the largest. {_advice(config, stated)}"
        )


def _length(config: Any, stated: Mapping[str, Any]) -> int:
    """Returns the tokens of a prompt in which every window, and every scaling of angles, changes the logits."""
    windows = [getattr(config, "sliding_window", None), stated.get("sliding_window")]
    beyond = [window + 16 for window in windows if window and window < config.max_position_embeddings]
    return min(max([_PROMPT, *beyond]), config.max_position_embeddings)


def _advice(config: Any, stated: Mapping[str, Any]) -> str:
    """Returns what to do where a configuration is not the file's: what the file states otherwise, or to give one."""
    written_as = _WRITTEN_AS.get(config.model_type)
    if written_as and "rms_norm_eps" in stated:
        return f"The builder writes the layer norms of {config.model_type} as RMS norms: give a {written_as}'s config=."
    other = [f"{name}={value}" for name, value in stated.items() if not _agrees(getattr(config, name, None), value)]
    if other:
        return f"The file states {', '.join(other)}; the builder does not write all that a configuration says."
    return "Give config=, the configuration that the file was built from."


def _agrees(value: Any, stated: Any) -> bool:
    """Returns whether a value of a configuration, or a dictionary's entries, is what a file states of it."""
    if isinstance(stated, dict):
        return isinstance(value, dict) and all(_agrees(value.get(name), entry) for name, entry in stated.items())
    return bool(value == stated)
