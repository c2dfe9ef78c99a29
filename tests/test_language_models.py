"""Language models of onnxruntime-genai's builder: prompts, decoding and chunks, however the module is exported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from tiers import mostly_slow

import onnx2nn
from onnx2nn.errors import InputError
from onnx2nn.importing.inputs import InputSpec
from onnx2nn.language.caches import Decoder
from onnx2nn.optimization.compiled_module import CompiledModule
from scripts import language_models
from scripts.language_models import ARCHITECTURES, built, feeds, session, tensors

STEPS = {"prompts": (2, 6, 0), "a prompt": (1, 7, 0), "decoding": (3, 1, 5), "a chunk": (1, 4, 5)}
"""Batch, new tokens, tokens of the cache. ONNX Runtime takes chunks behind a cache for a batch of 1 only."""

Run = Callable[..., Iterable[torch.Tensor]]


def _eager(path: Path, folder: Path) -> Run:
    return onnx2nn.load(path)


def _exported(path: Path, folder: Path) -> Run:
    shapes = language_models.dynamic_shapes(path)
    program = torch.export.export(onnx2nn.load(path), tensors(feeds(path, 3, 4, 5)), dynamic_shapes=shapes)
    return program.module()


def _compiled(path: Path, folder: Path) -> Run:
    torch._dynamo.reset()
    return torch.compile(onnx2nn.load(path), backend="eager", dynamic=True, fullgraph=True)


def _traced(path: Path, folder: Path) -> Run:
    return torch.jit.trace(onnx2nn.load(path), tensors(feeds(path, 3, 4, 5)), check_trace=False)


def _again(path: Path, folder: Path) -> Run:
    onnx2nn.export_onnx(onnx2nn.load(path), folder / "again.onnx")
    again = onnxruntime.InferenceSession(folder / "again.onnx")

    def run(*inputs: torch.Tensor) -> Iterator[torch.Tensor]:
        given = {value.name: x.numpy() for value, x in zip(again.get_inputs(), inputs, strict=True)}
        return map(torch.from_numpy, again.run(None, given))

    return run


FORMS = {"eager": _eager, "export": _exported, "compile": _compiled, "trace": _traced, "export_onnx": _again}

TOLERANCES = {"fp32": 2e-6, "fp16": 2e-3}
"""The largest difference, relative to the largest element: some units in the last place, of a half two."""


def _check(run: Run, path: Path, step: tuple[int, int, int], tolerance: float) -> None:
    """Compares all outputs; of caches the rows that hold tokens: ONNX Runtime leaves those of a window unwritten."""
    inputs = feeds(path, *step)
    with torch.no_grad():
        found = list(run(*tensors(inputs)))
    tokens = step[1] + step[2]
    for ours, theirs in zip(found, session(path).run(None, inputs), strict=True):
        assert tuple(ours.shape) == theirs.shape
        if theirs.ndim == 4:
            assert not ours[:, :, tokens:].any()
            ours, theirs = ours[:, :, :tokens], theirs[:, :, :tokens]
        scale = np.abs(theirs.astype(np.float32)).max(initial=1)
        np.testing.assert_allclose(ours.float().numpy(), theirs.astype(np.float32), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("name", "form"), mostly_slow([(n, f) for n in ARCHITECTURES for f in FORMS], [("llama", form) for form in FORMS])
)
def test_one_program_takes_prompts_steps_and_chunks(name: str, form: str, tmp_path: Path) -> None:
    path = built(name, "fp32")
    run = FORMS[form](path, tmp_path)
    for step in STEPS.values():
        _check(run, path, step, TOLERANCES["fp32"])


EXACT = ("int4", "accuracy_level=1")
"""By default activations are rounded to int8: where a rounding falls otherwise, a logit moves by 1e-3."""


@pytest.mark.parametrize("form", mostly_slow(FORMS, ["eager"]))
def test_weights_of_int4_stay_packed_in_every_form(form: str, tmp_path: Path) -> None:
    path = built("llama", *EXACT)
    run = FORMS[form](path, tmp_path)
    for step in STEPS.values():
        _check(run, path, step, TOLERANCES["fp32"])


@pytest.mark.parametrize("name", mostly_slow(ARCHITECTURES, ["llama"]))
def test_rounded_activations_are_onnx_runtimes(name: str) -> None:
    path = built(name, "int4")
    for module in (onnx2nn.load(path), onnx2nn.load(path, quantized="dequantize")):
        inputs = feeds(
            path, 1, language_models.WINDOW, 0
        )  # ONNX Runtime leaves rows of a window without tokens as they are
        found = onnx2nn.verify(language_models.without_shapes(path), module, inputs=inputs)
        assert found.ok, str(found)


VARIANTS = {
    "llama": [
        ("int4", "use_qdq=true"),
        ("int4", "is_symmetric=false"),
        ("int4", "algo_config=rtn"),
        ("int4", "block_size=64", "op_types_to_quantize=MatMul/Gather"),
        ("int8",),
    ],
    "gemma": [("int4", "algo_config=rtn")],  # its head and its table are one packed weight
}
"""The builder's ways to write weights of few bits."""


@pytest.mark.parametrize(
    ("name", "variant"),
    mostly_slow([(n, v) for n, vs in VARIANTS.items() for v in vs], [("llama", VARIANTS["llama"][0])]),
)
def test_each_way_to_write_packed_weights_has_the_keys_of_floats(name: str, variant: tuple[str, ...]) -> None:
    path, inputs = built(name, *variant), feeds(built(name, *variant), 2, 6, 0)
    floats: Any = onnx2nn.load(path, quantized="dequantize")
    assert floats.state_dict().keys() == onnx2nn.load(built(name, "fp32")).state_dict().keys()
    assert floats.meta["onnx2nn"]["dequantized"]["kept"] == []
    for module in (floats, onnx2nn.load(path)):
        assert onnx2nn.verify(language_models.without_shapes(path), module, inputs=inputs).ok
    torchaos = onnx2nn.load(path, quantized="torchao")
    for ours, theirs in zip(torchaos(*tensors(inputs)), floats(*tensors(inputs)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "quantized"),
    mostly_slow([("llama", "torchao"), ("llama", "dequantize"), ("gemma", "dequantize")], [("llama", "torchao")]),
)
def test_low_rank_adapters_train_on_int4(name: str, quantized: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs transformers")
    path = built(name, "int4")
    inputs = tensors(feeds(path, 2, 8, 0))
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    model = peft.get_peft_model(onnx2nn.load(path, quantized=quantized, trainable=False), config)
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(adapters) == 2 * 2 * 3
    optimizer, losses = torch.optim.Adam(adapters, 1e-2), []
    for _ in range(10):
        optimizer.zero_grad()
        logits = model(*inputs)[0][:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, inputs[0][:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    if quantized == "dequantize":
        with torch.no_grad():
            adapted = model(*inputs)[0]
            merged = model.merge_and_unload()
            torch.testing.assert_close(merged(*inputs)[0], adapted, rtol=0, atol=1e-4)
        onnx2nn.export_onnx(merged, tmp_path / "merged.onnx")
        again = onnxruntime.InferenceSession(tmp_path / "merged.onnx")
        given = {value.name: x.numpy() for value, x in zip(again.get_inputs(), inputs, strict=True)}
        np.testing.assert_allclose(again.run(None, given)[0], adapted.numpy(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "form"),
    mostly_slow([(n, f) for n in ("llama", "phi3") for f in ("eager", "compile")], [("llama", "eager")]),
)
def test_half_precision_takes_prompts_and_steps(name: str, form: str, tmp_path: Path) -> None:
    """The builder writes MultiHeadAttention with a mask that fits prompts and single tokens alone."""
    path = built(name, "fp16")
    module: Any = onnx2nn.load(path)
    assert not module.meta["onnx2nn"]["fixed"].keys() & {"batch_size", "sequence_length", "past_sequence_length"}
    run = FORMS[form](path, tmp_path)
    for step in ("prompts", "a prompt", "decoding"):
        _check(run, path, STEPS[step], TOLERANCES["fp16"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_half_precision_is_exported_for_prompts_and_for_steps(name: str) -> None:
    """A mask of (length, length) that is expanded to the cache leaves torch.export no program for both."""
    path = built(name, "fp16")
    module = onnx2nn.load(path)
    auto = tuple(dict.fromkeys(axes, torch.export.Dim.AUTO) for axes in language_models.dynamic_shapes(path))
    for example, others in (((2, 6, 0), [(3, 4, 0), (2, 9, 0)]), ((3, 1, 5), [(2, 1, 8), (4, 1, 3)])):
        run = torch.export.export(module, tensors(feeds(path, *example)), dynamic_shapes=auto).module()
        for step in [example, *others]:
            _check(run, path, step, TOLERANCES["fp16"])


def test_a_cache_with_other_rows_is_refused_at_the_entry() -> None:
    path = built("llama", "fp32")
    inputs = feeds(path, 1, 1, 3)
    inputs["past_key_values.0.key"] = inputs["past_key_values.0.key"][..., :8]
    with pytest.raises(ValueError, match=r"kv_cache_dim == 16 .* dimension 3 of input 'past_key_values.0.key', is 8"):
        onnx2nn.load(path)(*tensors(inputs))


def test_a_cache_with_room_keeps_its_rows() -> None:
    """A buffer that is shared by past and present has more rows than there are tokens."""
    path = built("llama", "fp32")
    inputs = feeds(path, 2, 1, 5)
    for name, value in inputs.items():
        if name.startswith("past"):
            inputs[name] = np.pad(value, ((0, 0), (0, 0), (0, 4), (0, 0)))
    module = onnx2nn.load(path)
    found = module(*tensors(inputs))
    for ours, theirs in zip(found, session(path).run(None, inputs), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=0, atol=1e-5)
    assert found[1].shape[2] == 9


@pytest.mark.slow
def test_machine_code_continues_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no empty cache, and no mask of one token: the first ones have rows and places that are no tokens."""
    monkeypatch.setenv("ONNX2NN_CACHE", str(tmp_path / "cache"))
    module, prompt = onnx2nn.load(built("llama", "fp32")), torch.tensor([[5, 17, 42], [9, 8, 7]])
    decoder = Decoder.of(module)
    _, caches = decoder.step(prompt, 0, decoder.empty(2, prompt.device))
    compiled = onnx2nn.optimize(module, "compile", example_inputs=decoder.arguments(prompt[:, :1], 3, caches))
    assert isinstance(compiled, CompiledModule)
    assert all(cache.shape[2] == 2 for cache in Decoder.of(compiled).empty(2, prompt.device).values())
    for length in (1, 2, 3):
        expected = onnx2nn.generate(module, prompt[:, :length], max_new_tokens=8)
        assert torch.equal(onnx2nn.generate(compiled, prompt[:, :length], max_new_tokens=8), expected)


class _Appending(CompiledModule):
    """Code whose attention appends to its cache, as that of no file that AOTInductor takes today."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)

    def forward(self, tokens: torch.Tensor, cache: torch.Tensor) -> Any:
        """Returns logits, and the cache with a row for each token."""
        return torch.zeros(1, tokens.shape[1], 8), torch.cat([cache, torch.zeros(1, 1, tokens.shape[1], 4)], 2)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_rows_of_an_empty_cache_that_would_be_tokens_are_refused(length: int) -> None:
    specs = {name: InputSpec(name, None, None) for name in ("input_ids", "past_key_values.0.key")}
    caches = {"past_key_values.0.key": "present.0.key"}
    decoder = Decoder(_Appending(), specs, ["logits", "present.0.key"], caches)
    with pytest.raises(InputError, match=r"takes each row of .past_key_values\.0\.key. for a token"):
        decoder.step(torch.ones(1, length, dtype=torch.int64), 0, {"past_key_values.0.key": torch.zeros(1, 1, 2, 4)})
