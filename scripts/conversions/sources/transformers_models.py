"""transformers: architectures of all kinds by tiny configurations, with random weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts import torchvision_schemas
from scripts.conversions.exported import Exported, TorchModel, export_torch
from scripts.conversions.rows import File, versions
from scripts.torch_exports import WRITERS

torchvision_schemas.predefine()
import transformers  # noqa: E402, it imports torchvision

WIDTH = dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 32)
INNER = dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "n_inner", "hidden_dim", "true_hidden_size"), 64)
CODERS = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in (("layers", 2), ("ffn_dim", 64))}
LAYERS = dict.fromkeys(("num_hidden_layers", "num_layers", "num_decoder_layers", "n_layers", "n_layer"), 2)
HEADS = dict.fromkeys(
    ("num_attention_heads", "num_heads", "n_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), 4
)
LENGTHS = dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions"), 64)
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
IMAGES = {"image_size": 32, "patch_size": 8}
SOUNDS = {"num_mel_bins": 8, "max_source_positions": 20}
TOKENS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
OTHERS = {"head_dim": 8, "d_kv": 8, "num_key_value_heads": 2, "rotary_dim": 4, "projection_dim": 32, "use_cache": False}
TINY = WIDTH | INNER | CODERS | LAYERS | HEADS | LENGTHS | EXPERTS | IMAGES | SOUNDS | TOKENS | OTHERS
"""Fields of a configuration → their sizes; each configuration gets those that it has as one number."""

OWN_IMAGES = set(IMAGES)
KEPT = {
    **dict.fromkeys(("hiera", "levit", "mobilevitv2", "swin", "swinv2"), OWN_IMAGES),
    **dict.fromkeys(("convnext", "convnextv2"), OWN_IMAGES | {"num_hidden_layers"}),
    "align": OWN_IMAGES | {"projection_dim"},
    "falcon": {"head_dim"},
    "mobilebert": {"true_hidden_size"},
    "prophetnet": {"num_hidden_layers"},
    "xlnet": {"max_position_embeddings"},
}
"""Fields that a configuration refuses to be given, or computes others from."""

GIVEN: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "yolos": {"image_size": [64, 96]},
}
"""Fields that must fit to those of `TINY`."""

TEXT = """albert bert biogpt bloom camembert codegen cohere convbert deberta deberta-v2 distilbert
electra ernie esm falcon fnet gemma gemma2 glm gpt2 gpt_bigcode gpt_neo gpt_neox gptj granite helium ibert layoutlm
llama megatron-bert mistral mixtral mobilebert modernbert mpnet mpt nemotron nystromformer olmo olmo2 opt persimmon phi
phi3 qwen2 qwen2_moe qwen3 rembert roberta roformer smollm3 squeezebert stablelm starcoder2 xglm xlm-roberta xlnet"""
TRANSLATING = "bart bigbird_pegasus blenderbot m2m_100 marian mbart pegasus plbart prophetnet t5 mt5 umt5 longt5"
VISION = """beit convnext convnextv2 cvt data2vec-vision deit dinov2 dpt focalnet hiera levit mobilenet_v1 mobilenet_v2
mobilevit mobilevitv2 poolformer pvt pvt_v2 regnet resnet segformer swiftformer swin swinv2 vit vit_mae vit_msn yolos"""
WAVES = "audio-spectrogram-transformer data2vec-audio hubert sew unispeech unispeech-sat wav2vec2 wavlm"
SPECTRA = "whisper speech_to_text"
DECODERS = """bloom cohere falcon gemma gpt2 gpt_neo gpt_neox gptj granite llama mistral mixtral mpt nemotron olmo opt
phi phi3 qwen2 qwen2_moe qwen3 smollm3 stablelm starcoder2"""
TRANSLATORS = "bart blenderbot m2m_100 marian mbart pegasus t5 mt5"
CACHE = "@cache"
PAIRS = "align altclip blip clip clipseg groupvit siglip"

IMAGE_EDGE = 64
NAMES = {
    "text": ("input_ids", "attention_mask"),
    "translating": ("input_ids", "attention_mask", "decoder_input_ids"),
    "vision": ("pixel_values",),
    "waves": ("input_values",),
    "spectra": ("input_features", "decoder_input_ids"),
    "pairs": ("input_ids", "pixel_values", "attention_mask"),
}
"""Kind → the names of what a model is called with."""
KINDS = {
    name: kind
    for kind, names in zip(NAMES, (TEXT, TRANSLATING, VISION, WAVES, SPECTRA, PAIRS), strict=True)
    for name in names.split()
}
"""Type of a model, as its configuration names it → the kind of what it is called with."""


class Models:
    """The model of each type in `KINDS`, as `AutoModel` makes it; `llama@cache` goes on from a cache."""

    def versions(self) -> dict[str, str]:
        """Returns the packages' versions."""
        return versions("torch", "transformers", "onnx", "onnxscript")

    def files(self) -> list[File]:
        """Each by both exporters."""
        going_on = [name + CACHE for name in f"{DECODERS} {TRANSLATORS}".split()]
        return [File("transformers", name, exporter) for name in (*KINDS, *going_on) for exporter in WRITERS]

    def export(self, file: File, path: Path) -> Exported:
        """Exports a model."""
        if file.model.endswith(CACHE):
            return export_torch(file, cached(file.model.removesuffix(CACHE)), path)
        config, kind = tiny(file.model), KINDS[file.model]
        model = TorchModel(partial(_build, config, NAMES[kind]), partial(_inputs, NAMES[kind], config=config))
        return export_torch(file, model, path)


def cached(name: str) -> TorchModel:
    """Returns a decoder with a cache of earlier positions as its last inputs and outputs."""
    config = tiny(name)
    of_kind = ContinuedTranslation if name in TRANSLATORS.split() else Continued
    model = transformers.AutoModel.from_config(config).eval()
    inputs = partial(_inputs, ("input_ids", "attention_mask", "decoder_input_ids"), config=config)
    return TorchModel(lambda: of_kind(transformers.AutoModel.from_config(config)), partial(of_kind.of, model, inputs))


def tiny(name: str) -> Any:
    """Returns a configuration of a type of model with the sizes of `TINY`."""
    sizes = _sizes(transformers.AutoConfig.for_model(name), KEPT.get(name, set()))
    return transformers.AutoConfig.for_model(name, **sizes, **GIVEN.get(name, {}))


def _sizes(config: Any, kept: Collection[str]) -> dict[str, Any]:
    fields = {key: getattr(config, key, "") for key in TINY if key not in kept}
    found: dict[str, Any] = {key: TINY[key] for key, value in fields.items() if value is None or isinstance(value, int)}
    parts = {key: getattr(config, key, None) for key in getattr(config, "sub_configs", {})}
    return found | {key: _sizes(part, kept) for key, part in parts.items() if part is not None}


def _build(config: Any, names: Sequence[str]) -> torch.nn.Module:
    return FirstOutput(transformers.AutoModel.from_config(config), names)


class FirstOutput(torch.nn.Module):
    """A model of transformers with positional inputs and its first output alone."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str]):
        super().__init__()
        self.model = model
        self.names = names

    def forward(
        self, first: torch.Tensor, second: torch.Tensor | None = None, third: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the first output for inputs in the order of the names."""
        given = dict(zip(self.names, (first, second, third), strict=False))
        output: torch.Tensor = self.model(**given, return_dict=True)[0]
        return output


Tensors = tuple[torch.Tensor, ...]


class Continued(torch.nn.Module):
    """A decoder of two layers that sees tokens behind those whose keys and values it is given."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        key0: torch.Tensor,
        value0: torch.Tensor,
        key1: torch.Tensor,
        value1: torch.Tensor,
    ) -> Tensors:
        """Returns states, and the keys and values with those of the tokens."""
        known = _cache(key0, value0, key1, value1)
        found = self.model(input_ids=tokens, attention_mask=mask, past_key_values=known, use_cache=True)
        return found[0], *_kept(found.past_key_values)

    @staticmethod
    def of(model: torch.nn.Module, inputs: Any, batch: int) -> Tensors:
        """Returns example inputs of a model: its last three tokens, its mask, its cache of the others."""
        tokens, mask, _ = inputs(batch)
        with torch.no_grad():
            found = model(input_ids=tokens[:, :-3], attention_mask=mask[:, :-3], use_cache=True)
        return tokens[:, -3:], mask, *_kept(found.past_key_values)


class ContinuedTranslation(torch.nn.Module):
    """A decoder of two layers behind an encoder whose keys and values it is given, too."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: torch.Tensor,
        states: torch.Tensor,
        mask: torch.Tensor,
        key0: torch.Tensor,
        value0: torch.Tensor,
        key1: torch.Tensor,
        value1: torch.Tensor,
        encoded_key0: torch.Tensor,
        encoded_value0: torch.Tensor,
        encoded_key1: torch.Tensor,
        encoded_value1: torch.Tensor,
    ) -> Tensors:
        """Returns states, and the keys and values with those of the tokens."""
        encoded = _cache(encoded_key0, encoded_value0, encoded_key1, encoded_value1)
        known = transformers.EncoderDecoderCache(_cache(key0, value0, key1, value1), encoded)
        given = {"decoder_input_ids": tokens, "encoder_outputs": (states,), "attention_mask": mask}
        found = self.model(**given, past_key_values=known, use_cache=True)
        # The sum: exporters leave out an input that nothing reads, as some models do not read the states.
        return found[0] + 0 * states.sum(), *_kept(found.past_key_values.self_attention_cache)

    @staticmethod
    def of(model: torch.nn.Module, inputs: Any, batch: int) -> Tensors:
        """Returns example inputs of a model: its last three tokens, the encoder's states and mask, the cache."""
        source, mask, tokens = inputs(batch)
        with torch.no_grad():
            given = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": tokens[:, :-3]}
            found = model(**given, use_cache=True)
        known = found.past_key_values
        kept = (*_kept(known.self_attention_cache), *_kept(known.cross_attention_cache))
        return tokens[:, -3:], found.encoder_last_hidden_state, mask, *kept


def _cache(*tensors: torch.Tensor) -> Any:
    """Returns a cache of keys and values in turns, one pair a layer."""
    cache = transformers.DynamicCache()
    for layer, (key, value) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        cache.update(key, value, layer)
    return cache


def _kept(cache: Any) -> Tensors:
    return tuple(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


def _inputs(names: Sequence[str], batch: int, config: Any) -> tuple[torch.Tensor, ...]:
    return tuple(_input(name, batch, config) for name in names)


def _input(name: str, batch: int, config: Any) -> torch.Tensor:
    """Returns an input; texts get longer with the batch, so that their length is open too."""
    generator = torch.Generator().manual_seed(1)
    length = 6 + batch
    if name == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", None) or IMAGE_EDGE
        height, width = (size, size) if isinstance(size, int) else size
        return torch.randn(batch, 3, height, width, generator=generator)
    if name == "input_values":
        if hasattr(config, "num_mel_bins"):
            return torch.randn(batch, config.max_length, config.num_mel_bins, generator=generator)
        return torch.randn(batch, 1200 + 400 * batch, generator=generator)
    if name == "input_features":
        frames = 2 * SOUNDS["max_source_positions"]
        whisper = config.model_type == "whisper"
        shape = (config.num_mel_bins, frames) if whisper else (frames, config.input_feat_per_channel)
        return torch.randn(batch, *shape, generator=generator)
    if name == "attention_mask":
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[::2, -2:] = 0  # every second text ends early
        return mask
    return torch.randint(3, TOKENS["vocab_size"], (batch, length - 2 * name.startswith("decoder")), generator=generator)
