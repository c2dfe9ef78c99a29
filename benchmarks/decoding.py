"""Measures tokens a second of language models beside onnxruntime-genai: a prompt, then one token after the other."""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import importers
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import onnx2nn
from onnx2nn.language.caches import Decoder
from scripts import language_models

SIZES = dict(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=1536, vocab_size=4096)
SIZES |= dict(num_key_value_heads=4, head_dim=64, max_position_embeddings=512)
PRECISIONS = ("fp32", "int4")
FORMS: dict[str, tuple[str, str | None]] = {
    "packed": ("keep", None),
    "packed, eager": ("keep", "eager"),
    "floats": ("dequantize", None),
    "floats, eager": ("dequantize", "eager"),
    "floats, compile": ("dequantize", "compile"),
    "torchao": ("torchao", None),
}
"""Name → `quantized` of `onnx2nn.load`, and the mode of `onnx2nn.optimize`."""

COLUMNS = ("weights", "form", "made in s", "tokens a second", "of genai's")


def _genai(path: Path, prompt: np.ndarray, count: int, threads: int) -> Callable[[], Any]:
    import onnxruntime_genai as genai

    config = genai.Config(str(path.parent))
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    model = genai.Model(config)

    def run() -> list[int]:
        parameters = genai.GeneratorParams(model)
        length = prompt.shape[1] + count
        parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = genai.Generator(model, parameters)
        generator.append_tokens(prompt.astype(np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        return list(generator.get_sequence(0))

    return run


def _example(module: Any, prompt: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the arguments of a module for a token behind a prompt."""
    decoder = Decoder.of(module)
    with torch.no_grad():
        _, caches = decoder.step(prompt, 0, decoder.empty(1, prompt.device))
    return decoder.arguments(prompt[:, :1], prompt.shape[1], caches)


def _forms(
    path: Path, prompt: np.ndarray, count: int, threads: int
) -> Iterator[tuple[str, float, Callable[[], Any] | str]]:
    """Yields the name of each form, the seconds to make it, and its call or the reason of a failure."""
    start = time.perf_counter()
    run = _genai(path, prompt, count, threads)
    yield "onnxruntime-genai", time.perf_counter() - start, run
    tokens = torch.from_numpy(prompt)
    packed = any(node.op_type == "MatMulNBits" for node in language_models.graph(path).node)
    for form, (quantized, mode) in FORMS.items():
        if quantized != "dequantize" and not packed:
            continue
        start = time.perf_counter()
        try:
            module = onnx2nn.load(path, quantized=quantized, trainable=False)
            if mode is not None:
                module = onnx2nn.optimize(module, mode, example_inputs=_example(module, tokens))
            onnx2nn.generate(module, tokens, max_new_tokens=2)
        except Exception as error:  # of any class: the reason is in the table
            yield form, 0.0, importers.reason(error)
            continue
        made = time.perf_counter() - start
        yield form, made, functools.partial(onnx2nn.generate, module, tokens, max_new_tokens=count)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens in a call")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of the prompt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch, and of ONNX Runtime within an operator")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # of the size of a cache's rows
    name = "llama of 8 layers"
    prefix, common = language_models.ARCHITECTURES["llama"]
    language_models.ARCHITECTURES[name] = (prefix, {**common, **SIZES})
    prompt = np.random.default_rng(0).integers(3, SIZES["vocab_size"], (1, options.prompt))
    table = Table(*COLUMNS)
    for precision in PRECISIONS:
        forms = list(_forms(language_models.built(name, precision), prompt, options.tokens, options.threads))
        calls = {form: call for form, _, call in forms if not isinstance(call, str)}
        times: dict[str, list[float]] = {form: [] for form in calls}
        order = list(calls)
        for _ in range(options.repeats):
            random.Random(0).shuffle(order)
            for form in order:
                start = time.perf_counter()
                calls[form]()
                times[form].append(time.perf_counter() - start)
        rates = {form: options.tokens / statistics.median(seconds) for form, seconds in times.items()}
        for form, made, call in forms:
            if isinstance(call, str):
                table.add_row(precision, form, "", call, "")
            else:
                share = rates[form] / rates["onnxruntime-genai"]
                table.add_row(precision, form, f"{made:.1f}", f"{rates[form]:.0f}", f"{share:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
