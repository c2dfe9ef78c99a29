"""Files of onnxruntime-genai's builder: keys of transformers, its models with the weights, and decoding."""

from __future__ import annotations

import json
import random
import re
import shutil
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from tiers import mostly_slow

import onnx2nn
from onnx2nn.errors import InputError, VerificationError
from onnx2nn.language.caches import Decoder
from scripts.language_models import ARCHITECTURES, built, feeds, original, scales, session, tensors

NAMES = mostly_slow(ARCHITECTURES, ["llama", "gemma"])

OTHER_FUNCTION = {"olmo": "its norms subtract the mean and have no weights; the builder writes RMS norms of ones"}
"""Models that the builder writes as another function, which is Llama's, and why."""

PACKED = {"phi3"}
"""Models whose matrices of queries, keys and values are packed in transformers too."""

PLUS_ONE = {"gemma", "gemma2"}
"""Models whose norms multiply by one more than their weight, which the file's weights contain."""


def _load(path: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the size of a cache's rows
        return onnx2nn.load(path, **options)


def _original(name: str) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(original(name)).eval()


def _to_transformers(path: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        return onnx2nn.to_transformers(path, **options)


def _largest_step(path: Path) -> float:
    """Returns the largest scale of a file's integers: a weight is off by one at most, as the range has no 8."""
    return max(float(np.abs(value).max()) for value in scales(path))


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow), "int4"])
@pytest.mark.parametrize("name", NAMES)
def test_keys_and_values_are_those_of_transformers(name: str, precision: str) -> None:
    path = built(name, precision)
    state, wanted = _load(path, quantized="dequantize").state_dict(), _original(name).state_dict()
    step = _largest_step(path) if precision == "int4" else 0.0
    if name in PACKED:
        state = {key: value for key, value in state.items() if "mlp" not in key and "self_attn" not in key}
        wanted = {key: value for key, value in wanted.items() if key in state}
    if name in OTHER_FUNCTION:
        state = {key: value for key, value in state.items() if "norm" not in key}
    assert state.keys() == wanted.keys()
    for key, value in wanted.items():
        added = 1 if name in PLUS_ONE and "norm" in key else 0
        torch.testing.assert_close(state[key].float() - added, value, rtol=2e-3, atol=step + (2e-3 if added else 1e-6))


@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize("name", NAMES)
def test_the_model_of_transformers_comes_back(name: str, precision: str) -> None:
    """Of a file of int4 with the dequantised weights, so that its tokens are those of the dequantised module."""
    path = built(name, precision)
    model, wanted = _to_transformers(path), _original(name)
    if name in OTHER_FUNCTION:
        assert type(model).__name__ == "LlamaForCausalLM"
        assert [key for key in model.state_dict() if "norm" not in key] == list(wanted.state_dict())
        with pytest.raises(VerificationError, match=f"writes the layer norms of {name} as RMS norms"):
            _to_transformers(path, config=wanted.config)
        wanted = model
    assert type(model) is type(wanted)
    assert list(model.state_dict()) == list(wanted.state_dict())
    tokens = torch.randint(3, 128, (2, 7))
    options: dict[str, Any] = dict(max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
    mask = torch.ones_like(tokens)
    theirs = (wanted if precision == "fp32" else model).generate(tokens, attention_mask=mask, **options)
    assert torch.equal(model.generate(tokens, attention_mask=mask, **options), theirs)
    assert torch.equal(onnx2nn.generate(_load(path, quantized="dequantize"), tokens, max_new_tokens=16), theirs)


@pytest.mark.parametrize("variant", [("fp32",), ("int4", "accuracy_level=1")], ids="-".join)
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_genai(name: str, variant: tuple[str, ...]) -> None:
    genai = pytest.importorskip("onnxruntime_genai", reason="onnxruntime-genai has no wheel for this system")
    path = built(name, *variant)
    tokens = np.random.default_rng(0).integers(3, 128, (2, 5))
    model = genai.Model(str(path.parent))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=40, min_length=40, do_sample=False, batch_size=2)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(tokens.astype(np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    theirs = np.stack([generator.get_sequence(row) for row in range(2)])
    ours = onnx2nn.generate(_load(path), torch.from_numpy(tokens), max_new_tokens=theirs.shape[1] - 5)
    ended = [row.index(2) if 2 in row else len(row) for row in ours.tolist()]  # min_length bans the end for genai
    for row, (a, b) in enumerate(zip(ours.numpy(), theirs, strict=True)):
        assert a[: ended[row]].tolist() == b[: ended[row]].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_half_precision(name: str) -> None:
    path = built(name, "fp16")
    model = _to_transformers(path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}


def test_a_configuration_is_read_given_or_missed(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
    source = built("llama", "fp32").parent
    folder = tmp_path / "model"
    shutil.copytree(source, folder)
    known = json.loads((folder / "genai_config.json").read_text())
    (folder / "genai_config.json").unlink()
    with pytest.raises(InputError, match=r"Give config=\."):
        _to_transformers(folder / "model.onnx")
    config = transformers.AutoConfig.from_pretrained(original("llama"))
    assert _to_transformers(folder / "model.onnx", config=config) is not None
    shutil.copy(original("llama") / "config.json", folder)
    assert _to_transformers(folder / "model.onnx") is not None
    (folder / "config.json").unlink()
    known["model"]["decoder"]["num_attention_heads"] = 2
    known["model"]["decoder"]["head_size"] = 32
    (folder / "genai_config.json").write_text(json.dumps(known))
    with pytest.raises((InputError, VerificationError)):
        _to_transformers(folder / "model.onnx")


@pytest.mark.parametrize(
    ("name", "options", "stated"),
    [
        ("mistral", {"sliding_window": 32}, "sliding_window=None"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}}, "'default'"),
    ],
)
def test_what_the_builder_leaves_out_is_noticed(name: str, options: dict[str, Any], stated: str) -> None:
    """It writes no window of Mistral's and no linear angles of Llama's; the file's own configuration fits it."""
    prefix, common = ARCHITECTURES[name]
    with mock.patch.dict(ARCHITECTURES, {f"{name} left out": (prefix, common | options)}):
        path = built(f"{name} left out", "fp32")
    wanted = _original(f"{name} left out")
    with pytest.raises(VerificationError, match=f"The file states .*{stated}"):
        _to_transformers(path, config=wanted.config)
    tokens = torch.randint(3, 128, (1, 40))
    found = _to_transformers(path)(input_ids=tokens).logits
    decoder = Decoder.of(_load(path))
    logits, _ = decoder.step(tokens, 0, decoder.empty(1, tokens.device))
    torch.testing.assert_close(found, logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["olmo", pytest.param("gemma", marks=pytest.mark.slow)])
def test_linear_angles_and_biases_are_read_from_the_file(name: str, precision: str) -> None:
    prefix, common = ARCHITECTURES[name]
    angles = {"rope_type": "linear", "rope_theta": 123000.0, "factor": 4.0}
    options = {"rope_parameters": angles, "attention_bias": True}
    with mock.patch.dict(ARCHITECTURES, {f"{name} with angles": (prefix, common | options)}):
        path = built(f"{name} with angles", precision)
    config = _to_transformers(path).config
    assert {key: config.rope_parameters[key] for key in angles} == angles
    assert config.attention_bias


def _drawn(rng: random.Random, name: str) -> dict[str, Any]:
    """Returns options of a configuration; those that the builder leaves out of some models are among them."""
    heads, size = rng.choice([1, 2, 4, 6]), rng.choice([8, 16, 32])
    angles = {"rope_type": "default", "rope_theta": rng.choice([1e4, 5e5, 1e6])}
    scaled = [{"rope_type": "linear", "factor": 4.0}]
    if name == "llama":
        scaled.append({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0})
        scaled[-1]["original_max_position_embeddings"] = 64
    if name != "phi3" and rng.random() < 0.4:
        angles |= rng.choice(scaled)
    options = {
        "vocab_size": 131,
        "hidden_size": heads * size,
        "num_hidden_layers": rng.choice([1, 3]),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([count for count in (1, 2, 3, 6) if heads % count == 0]),
        "max_position_embeddings": rng.choice([64, 512]),
        "tie_word_embeddings": rng.random() < 0.5,
        "rope_parameters": angles,
        "attention_bias": name not in ("qwen2", "phi3", "mistral") and rng.random() < 0.4,
        "sliding_window": rng.choice([None, 32]) if name in ("mistral", "phi3") else 32 if name == "gemma2" else None,
    }
    if name == "granite":
        options |= {"residual_multiplier": 0.5, "logits_scaling": 2.0}
    if name == "phi3":
        options["original_max_position_embeddings"] = options["max_position_embeddings"]
    return options if name in ("qwen2", "phi3", "olmo", "granite") else {**options, "head_dim": size}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_of_drawn_configurations_the_model_is_the_files_or_refused(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    prefix, common = ARCHITECTURES[name]
    drawn, precision = f"{name} drawn {seed}", rng.choice(["fp32", "fp16", "int4"])
    with mock.patch.dict(ARCHITECTURES, {drawn: (prefix, common | _drawn(rng, name))}):
        path = built(drawn, precision)
    module = _load(path, quantized="dequantize")
    decoder = Decoder.of(module)
    for config in (None, _original(drawn).config):
        try:
            model = _to_transformers(path, config=config)
        except VerificationError as error:
            assert re.search("The file states|Give config=|as RMS norms", str(error))
            continue
        tokens = torch.randint(3, 131, (1, model.config.max_position_embeddings - 8))
        with torch.no_grad():
            logits, _ = decoder.step(tokens, 0, decoder.empty(1, tokens.device))
            theirs = model(input_ids=tokens).logits
        assert (theirs - logits).abs().max() / logits.abs().max() < (5e-2 if precision == "fp16" else 1e-3)
        if precision != "fp16":  # in which two right roundings may part at a tie
            options: dict[str, Any] = dict(do_sample=False, eos_token_id=None, attention_mask=torch.ones(1, 9))
            theirs = model.generate(tokens[:, :9], max_new_tokens=24, **options)
            assert torch.equal(onnx2nn.generate(module, tokens[:, :9], max_new_tokens=24), theirs)


def test_packed_weights_are_split_lazily_and_exactly() -> None:
    """The module with split matrices computes what the file does, and print reads like the author's model."""
    path = built("llama", "fp32")
    module, inputs = _load(path), feeds(path, 2, 5, 0)
    for ours, theirs in zip(module(*tensors(inputs)), session(path).run(None, inputs), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=0, atol=2e-5)
    text = str(module).partition("def forward")[0]
    assert "(0-1): 2 x Layer(" in text
    assert "(q_proj): Linear(in_features=64, out_features=64, bias=False)" in text
    assert "(norm): RMSNorm((64,)" in text


def test_drawing_follows_the_probabilities() -> None:
    module = _load(built("llama", "fp32"))
    prompt = torch.randint(3, 128, (1, 4)).expand(64, 4)
    drawn = onnx2nn.generate(
        module, prompt, max_new_tokens=1, do_sample=True, generator=torch.Generator().manual_seed(0)
    )
    again = onnx2nn.generate(
        module, prompt, max_new_tokens=1, do_sample=True, generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(drawn, again)
    assert len(drawn[:, -1].unique()) > 1
    greedy = onnx2nn.generate(module, prompt, max_new_tokens=1)
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-6}):
        one = onnx2nn.generate(module, prompt, max_new_tokens=1, do_sample=True, **options)  # type: ignore[arg-type]  # of one type each
        assert torch.equal(one, greedy), options


def test_a_sequence_ends_and_is_padded() -> None:
    module = _load(built("llama", "fp32"))
    prompt = torch.randint(3, 128, (3, 4))
    free = onnx2nn.generate(module, prompt, max_new_tokens=6)
    end = int(free[0, 5])
    found = onnx2nn.generate(module, prompt, max_new_tokens=6, eos_token_id=end, pad_token_id=77)
    for row, wanted in zip(found.tolist(), free.tolist(), strict=True):
        stop = next((i for i in range(4, len(wanted)) if wanted[i] == end), len(wanted))
        assert row == [*wanted[: stop + 1], *[77] * (len(row) - stop - 1)]


def test_other_modules_and_arguments_are_refused() -> None:
    digits = onnx2nn.load(Path(__file__).resolve().parent.parent / "examples" / "digits" / "digits.onnx")
    with pytest.raises(InputError, match="no decoder"):
        onnx2nn.generate(digits, torch.ones(1, 3, dtype=torch.int64), max_new_tokens=1)
    module = _load(built("llama", "fp32"))
    with pytest.raises(InputError, match="input_ids has the shape"):
        onnx2nn.generate(module, torch.ones(3, dtype=torch.int64), max_new_tokens=1)
    for options in ({"temperature": 0}, {"top_p": 2.0}, {"top_k": 0}):
        with pytest.raises(InputError, match=next(iter(options))):
            onnx2nn.generate(
                module,
                torch.ones(1, 3, dtype=torch.int64),
                max_new_tokens=1,
                do_sample=True,
                **options,  # type: ignore[arg-type]  # as above
            )
