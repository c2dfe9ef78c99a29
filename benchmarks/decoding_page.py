"""The page of `decoding.py`: its stored results as Markdown. It imports nothing that was measured."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from stored import DOCS, quoted

RESULTS = Path(__file__).with_name("decoding.json")
PAGE = DOCS / "decoding.md"

PRECISIONS = ("fp32", "int4")
GENAI = "onnxruntime-genai"
FORMS: dict[str, tuple[str, str | None]] = {
    "onnx2nn": ("keep", None),
    "onnx2nn, eager": ("keep", "eager"),
    "onnx2nn, compile": ("keep", "compile"),
    "onnx2nn, dequantised": ("dequantize", None),
    "onnx2nn, dequantised, eager": ("dequantize", "eager"),
    "onnx2nn, dequantised, compile": ("dequantize", "compile"),
    "onnx2nn, torchao": ("torchao", None),
}
"""Name → `quantized` of `onnx2nn.load`, and the mode of `onnx2nn.optimize`."""

Run = dict[str, Any]


def forms(precision: str) -> list[str]:
    """Returns the names of the forms of a file; weights of fp32 are the same in all ways to load them."""
    return [form for form, (quantized, _) in FORMS.items() if precision == "int4" or quantized == "keep"]


def page(run: Run) -> str:
    """Returns the page of a stored run."""
    parts = [_HEAD.format(**run["model"], **run), _conditions(run)]
    for precision in PRECISIONS:
        parts += [f"## {precision}\n", _table(run["rates"][precision]), _missing(run["failed"][precision])]
    if run["files"]:
        parts += [_FILES, _files(run["files"])]
    return "\n".join(part for part in parts if part)


_HEAD = """# Speed of decoding

A Llama of {num_hidden_layers} layers with {hidden_size} features and random weights, in files of onnxruntime-genai's
builder, continues a prompt of {prompt} tokens by {tokens} in a batch of 1. The command
`python benchmarks/decoding.py --write --optimum PYTHON` measures everything in one run and writes this page;
[language models](language_models.md) describes the forms. The weights of int4 are in groups of 32, and the file has
`accuracy_level=4`: onnxruntime-genai, and onnx2nn where it keeps packed weights, round activations to int8.
"transformers" is the model that the builder read; of int4 it has weights of torchao's `IntxWeightOnlyConfig`.
"Optimum's export" is Optimum's own export of that model, "the builder's file" the file of all others in Optimum.
Compiled programs hold the weights of int4 as floats: inductor computes them while it compiles.

"Tokens a second" are of the fastest round, prompt and decoding together; the ratios are to onnxruntime-genai's, of the
fastest rounds and of the medians.
"""

_FILES = """## Files that Optimum runs

Files of the builder for small models with random weights, with their config.json beside them. onnx2nn runs all of
them ([table](language_models.md#what-works)).
"""


def _conditions(run: Run) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
    lines = ["| date | machine | threads | rounds | load | versions |", "|---|---|---|---|---|---|"]
    cells = (run["date"], run["machine"], run["threads"], run["repeats"], run["load"], versions)
    return "\n".join([*lines, f"| {' | '.join(map(str, cells))} |", ""])


def _table(rates: dict[str, list[float]]) -> str:
    lines = ["| | tokens a second | of genai's | of the medians |", "|---|---:|---:|---:|"]
    fastest, median = max(rates[GENAI]), statistics.median(rates[GENAI])
    for form, found in rates.items():
        ratios = (max(found) / fastest, statistics.median(found) / median)
        lines.append(f"| {form} | {max(found):.0f} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    return "\n".join([*lines, ""])


def _missing(failed: dict[str, str]) -> str:
    reasons = [f"- {form}: {quoted(reason)}" for form, reason in failed.items()]
    return "\n".join(["Forms that did not run:", "", *reasons, ""]) if reasons else ""


def _files(files: dict[str, dict[str, str]]) -> str:
    lines = [f"| file | {' | '.join(PRECISIONS)} |", f"|---|{'---|' * len(PRECISIONS)}"]
    for name, found in files.items():
        cells = (found[each] if found[each] == "runs" else quoted(found[each]) for each in PRECISIONS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
