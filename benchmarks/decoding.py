"""Measures tokens a second of language models beside onnxruntime-genai: a prompt, then one token after the other.

With `--optimum PYTHON`, an interpreter of an environment with `optimum-onnx[onnxruntime]` (`optimum_worker.py` has the
commands), beside Optimum's export of the same model; a second table says which of the builder's files Optimum runs.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import shutil
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
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


def _transformers(source: Path, prompt: np.ndarray, count: int) -> Callable[[], Any]:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    tokens = torch.from_numpy(prompt)
    options = dict(max_new_tokens=count, min_new_tokens=count, do_sample=False, attention_mask=torch.ones_like(tokens))
    return functools.partial(model.generate, tokens, **options)


class Optimum:
    """A process of `optimum_worker.py`.

    Args:
        python: the interpreter.
        threads: of torch, and of ONNX Runtime within an operator.
    """

    def __init__(self, python: str, threads: int):
        self.threads = threads
        command = [python, str(Path(__file__).with_name("optimum_worker.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, **request: Any) -> Any:
        """Returns the answer to a request.

        Raises:
            RuntimeError: the worker's reason for having none.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": "the worker has ended"}
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["answer"]

    def continuation(self, source: Path, prompt: np.ndarray, count: int) -> Callable[[], Any]:
        """Returns a call that continues a prompt with Optimum's export of a model of transformers."""
        self.ask(export=str(source), threads=self.threads)
        return functools.partial(self.ask, prompt=prompt.tolist(), count=count)

    def taken(self, name: str, precision: str) -> str:
        """Returns whether a file of the builder runs, with its model's config.json beside it, or why not."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(language_models.built(name, precision).parent, folder, dirs_exist_ok=True)
            shutil.copy(language_models.original(name) / "config.json", folder)
            try:
                self.ask(open=folder, threads=self.threads)
                self.ask(prompt=[[5, 17, 42]], count=2)
            except RuntimeError as error:
                return str(error)
        return "runs"


def _example(module: Any, prompt: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the arguments of a module for a token behind a prompt."""
    decoder = Decoder.of(module)
    with torch.no_grad():
        _, caches = decoder.step(prompt, 0, decoder.empty(1, prompt.device))
    return decoder.arguments(prompt[:, :1], prompt.shape[1], caches)


def _peers(
    name: str, precision: str, prompt: np.ndarray, count: int, threads: int, optimum: Optimum | None
) -> Iterator[tuple[str, Callable[[], Callable[[], Any]]]]:
    """Yields the name of each peer, and a function that makes its call."""
    path = language_models.built(name, precision)
    yield "onnxruntime-genai", lambda: _genai(path, prompt, count, threads)
    if precision == "fp32":
        source = language_models.original(name)
        yield "transformers", lambda: _transformers(source, prompt, count)
        if optimum is not None:
            yield "optimum", lambda: optimum.continuation(source, prompt, count)


def _forms(path: Path, prompt: np.ndarray) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields the name of each form, and a function that makes its module."""
    tokens = torch.from_numpy(prompt)
    packed = any(node.op_type == "MatMulNBits" for node in language_models.graph(path).node)
    for form, (quantized, mode) in FORMS.items():
        if quantized == "dequantize" or packed:
            yield form, functools.partial(_module, path, tokens, quantized, mode)


def _module(path: Path, tokens: torch.Tensor, quantized: str, mode: str | None) -> Any:
    module = onnx2nn.load(path, quantized=quantized, trainable=False)
    return module if mode is None else onnx2nn.optimize(module, mode, example_inputs=_example(module, tokens))


def _calls(
    name: str, precision: str, prompt: np.ndarray, options: argparse.Namespace, optimum: Optimum | None
) -> Iterator[tuple[str, float, Callable[[], Any] | str]]:
    """Yields the name of each form, the seconds to make it, and its call or the reason of a failure."""
    count = options.tokens
    makers = dict(_peers(name, precision, prompt, count, options.threads, optimum))
    for form, make in _forms(language_models.built(name, precision), prompt):
        makers[form] = functools.partial(_continuation, make, torch.from_numpy(prompt), count)
    for form, maker in makers.items():
        start = time.perf_counter()
        try:
            call = maker()
            made = time.perf_counter() - start
            call()
        except Exception as error:  # of any class: the reason is in the table
            yield form, 0.0, importers.reason(error)
        else:
            yield form, made, call


def _continuation(make: Callable[[], Any], tokens: torch.Tensor, count: int) -> Callable[[], Any]:
    return functools.partial(onnx2nn.generate, make(), tokens, max_new_tokens=count)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens in a call")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of the prompt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch, and of ONNX Runtime within an operator")
    parser.add_argument("--optimum", metavar="PYTHON", help="an interpreter with optimum-onnx[onnxruntime]")
    options = parser.parse_args()
    optimum = Optimum(options.optimum, options.threads) if options.optimum else None
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # of the size of a cache's rows
    name = "llama of 8 layers"
    prefix, common = language_models.ARCHITECTURES["llama"]
    language_models.ARCHITECTURES[name] = (prefix, {**common, **SIZES})
    prompt = np.random.default_rng(0).integers(3, SIZES["vocab_size"], (1, options.prompt))
    table = Table(*COLUMNS)
    for precision in PRECISIONS:
        forms = list(_calls(name, precision, prompt, options, optimum))
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
    if optimum is not None:
        _print_taken(optimum, [each for each in language_models.ARCHITECTURES if each != name])


def _print_taken(optimum: Optimum, names: Sequence[str]) -> None:
    """Prints which files of the builder Optimum runs."""
    table = Table("file of the builder", *PRECISIONS)
    for name in names:
        table.add_row(name, *(optimum.taken(name, precision) for precision in PRECISIONS))
    Console().print(table)


if __name__ == "__main__":
    main()
