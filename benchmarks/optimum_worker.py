"""Decodes with Optimum's models for `decoding.py`, in an environment of its own: Optimum needs an older transformers.

    python -m venv build/optimum && build/optimum/bin/pip install "optimum-onnx[onnxruntime]"
    python benchmarks/decoding.py --optimum build/optimum/bin/python

Takes requests of JSON from standard input, a line each, and answers each with a line:

    {"export": folder, "threads": 1}                       exports the model of transformers in a folder
    {"open": folder, "threads": 1}                         opens a folder with an ONNX file
    {"open": folder, ..., "prompt": [[...]], "count": 32}  continues a prompt with the model of such a request
    {"versions": true}                                     names the versions of the packages
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import sys
from collections.abc import Callable
from typing import Any

import onnxruntime
import torch
from optimum.onnxruntime import ORTModelForCausalLM


def _model(folder: str, threads: int, export: bool) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    torch.set_num_threads(threads)
    return ORTModelForCausalLM.from_pretrained(folder, export=export, session_options=options)


def _continued(model: Any, prompt: list[list[int]], count: int) -> list[int]:
    tokens = torch.tensor(prompt)
    options = dict(max_new_tokens=count, min_new_tokens=count, do_sample=False, attention_mask=torch.ones_like(tokens))
    found: list[int] = model.generate(tokens, **options)[0].tolist()
    return found


def _answer(request: dict[str, Any], model: Callable[..., Any]) -> Any:
    if "versions" in request:
        names = {"optimum-onnx": "optimum-onnx", "transformers": "transformers of Optimum"}
        return {title: importlib.metadata.version(package) for package, title in names.items()}
    made = model(request.get("export") or request["open"], request["threads"], "export" in request)
    return _continued(made, request["prompt"], request["count"]) if "prompt" in request else "made"


def main() -> None:
    """Answers requests until the input ends."""
    model = functools.cache(_model)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                answer = _answer(request, model)
            reply = {"answer": answer}
        except Exception as error:  # of any class: the reason is in the table
            reply = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
