"""Measures tokens a second of language models beside onnxruntime-genai: a prompt, then one token after the other.

    python benchmarks/decoding.py --write --optimum PYTHON  # stores the run in `decoding.json`, writes docs/decoding.md
    python benchmarks/decoding.py --page                    # writes the page again from the stored run

In each round every form continues the prompt once, in shuffled order. With `--optimum PYTHON`, an interpreter of an
environment with `optimum-onnx[onnxruntime]` (`optimum_worker.py` has the commands), beside Optimum; a second table says
which of the builder's files Optimum runs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib.metadata
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import importers
import numpy as np
import stored
import torch
from decoding_page import FORMS, GENAI, PAGE, PRECISIONS, RESULTS, Run, forms, page
from turns import turns

import onnx2nn
from onnx2nn.language.caches import Decoder
from scripts import language_models

SIZES = dict(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=1536, vocab_size=4096)
SIZES |= dict(num_key_value_heads=4, head_dim=64, max_position_embeddings=512)
PACKAGES = ("torch", "onnxruntime", "onnxruntime-genai", "transformers", "torchao")


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


def _transformers(source: Path, precision: str, prompt: np.ndarray, count: int) -> Callable[[], Any]:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    if precision == "int4":
        from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_

        quantize_(model, IntxWeightOnlyConfig(torch.int4, granularity=PerGroup(32)))
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

    def continuation(self, prompt: np.ndarray, count: int, **model: str) -> Callable[[], Any]:
        """Returns a call that continues a prompt with a model: `export=` of transformers, `open=` a file's folder."""
        self.ask(**model, threads=self.threads)
        return functools.partial(self.ask, **model, prompt=prompt.tolist(), count=count, threads=self.threads)

    @contextlib.contextmanager
    def folder(self, name: str, precision: str) -> Iterator[str]:
        """Yields a folder with a file of the builder and the config.json of its model."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(language_models.built(name, precision).parent, folder, dirs_exist_ok=True)
            shutil.copy(language_models.original(name) / "config.json", folder)
            yield folder

    def taken(self, name: str, precision: str) -> str:
        """Returns whether a file of the builder runs, or why not."""
        with self.folder(name, precision) as folder:
            try:
                self.continuation(np.array([[5, 17, 42]]), 2, open=folder)()
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
    name: str, precision: str, prompt: np.ndarray, options: argparse.Namespace, optimum: Optimum | None
) -> Iterator[tuple[str, Callable[[], Callable[[], Any]]]]:
    """Yields the name of each peer, and a function that makes its call."""
    path, source, count = language_models.built(name, precision), language_models.original(name), options.tokens
    yield GENAI, lambda: _genai(path, prompt, count, options.threads)
    yield "transformers", lambda: _transformers(source, precision, prompt, count)
    if optimum is None:
        return
    if precision == "fp32":
        yield "Optimum's export", lambda: optimum.continuation(prompt, count, export=str(source))
    with optimum.folder(name, precision) as folder:
        yield "Optimum, the builder's file", lambda: optimum.continuation(prompt, count, open=folder)


def _module(path: Path, tokens: torch.Tensor, form: str) -> Any:
    quantized, mode = FORMS[form]
    module = onnx2nn.load(path, quantized=quantized, trainable=False)
    return module if mode is None else onnx2nn.optimize(module, mode, example_inputs=_example(module, tokens))


def _ours(path: Path, prompt: np.ndarray, count: int, form: str) -> Callable[[], Any]:
    tokens = torch.from_numpy(prompt)
    return functools.partial(onnx2nn.generate, _module(path, tokens, form), tokens, max_new_tokens=count)


def _calls(
    name: str, precision: str, prompt: np.ndarray, options: argparse.Namespace, optimum: Optimum | None
) -> Iterator[tuple[str, Callable[[], Any] | str]]:
    """Yields the name of each form, and its call or the reason of a failure."""
    path = language_models.built(name, precision)
    ours = {form: functools.partial(_ours, path, prompt, options.tokens, form) for form in forms(precision)}
    for form, maker in itertools.chain(_peers(name, precision, prompt, options, optimum), ours.items()):
        if options.form and form not in options.form and form != GENAI:
            continue
        start = time.perf_counter()
        try:
            call = maker()
            call()
        except Exception as error:  # of any class: the reason is in the page
            yield form, importers.reason(error)
        else:
            print(f"{precision}, {form}: made in {time.perf_counter() - start:.1f} s", flush=True)
            yield form, call


def _rates(calls: dict[str, Callable[[], Any]], options: argparse.Namespace) -> dict[str, list[float]]:
    """Returns the tokens a second of each form in each round."""
    rates: dict[str, list[float]] = {form: [] for form in calls}
    for form, _ in turns(calls, options.repeats):
        start = time.perf_counter()
        calls[form]()
        rates[form].append(round(options.tokens / (time.perf_counter() - start), 2))
    return rates


def measured(options: argparse.Namespace) -> Run:
    """Returns a run: the rates of each form, why a form is missing, and what Optimum runs of the builder's files."""
    optimum = Optimum(options.optimum, options.threads) if options.optimum else None
    name, small = "llama of 8 layers", list(language_models.ARCHITECTURES)
    prefix, common = language_models.ARCHITECTURES["llama"]
    language_models.ARCHITECTURES[name] = (prefix, {**common, **SIZES})
    prompt = np.random.default_rng(0).integers(3, SIZES["vocab_size"], (1, options.prompt))
    rates, failed = {}, {}
    for precision in PRECISIONS:
        made = dict(_calls(name, precision, prompt, options, optimum))
        failed[precision] = {form: call for form, call in made.items() if isinstance(call, str)}
        rates[precision] = _rates({form: call for form, call in made.items() if not isinstance(call, str)}, options)
    files = {each: {of: optimum.taken(each, of) for of in PRECISIONS} for each in small} if optimum else {}
    return {
        "date": datetime.date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1),
        "threads": options.threads,
        "repeats": options.repeats,
        "prompt": options.prompt,
        "tokens": options.tokens,
        "model": SIZES,
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES}
        | (optimum.ask(versions=True) if optimum else {}),
        "machine": stored.machine(),
        "rates": rates,
        "failed": failed,
        "files": files,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens in a call")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of the prompt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch, and of ONNX Runtime within an operator")
    parser.add_argument("--form", action="append", help="measure this form beside genai: all")
    parser.add_argument("--optimum", metavar="PYTHON", help="an interpreter with optimum-onnx[onnxruntime]")
    parser.add_argument("--write", action="store_true", help="store the run and write the page")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page of the stored run")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # of the size of a cache's rows
    run = json.loads(RESULTS.read_text(encoding="utf-8")) if options.page else measured(options)
    if options.page or options.write:
        stored.store(RESULTS, run, PAGE, page(run))
    else:
        print(page(run))


if __name__ == "__main__":
    main()
