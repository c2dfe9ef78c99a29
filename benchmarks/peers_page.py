"""The page of `peers.py`: its stored results as Markdown. It imports nothing that was measured."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from stored import DOCS, quoted

RESULTS = Path(__file__).with_name("peers.json")
PAGE = DOCS / "benchmarks.md"

SHOWN = ("resnet18", "resnet50", "mobilenet_v2", "vit_b_16", "bert_base", "recogniser", "voice_detector")
"""Networks that every peer runs."""

ZOO = (
    *("squeezenet1_1", "shufflenet_v2_x1_0", "mobilenet_v3_small", "efficientnet_b0", "densenet121", "regnet_x_400mf"),
    *("convnext_tiny", "bert_small", "transformer_48"),
)
"""Further networks, of which the means are."""

TIMM = (
    *("mobilenetv4_conv_small", "repvgg_a0", "resnet26d", "deit_tiny_patch16_224", "convnextv2_atto", "mixer_s32_224"),
)
"""Networks of timm, which are measured beside the author's module."""

ORT = "ONNX Runtime"
ORIGINAL = "original module"

CUDA = ("resnet50", "mobilenet_v2", "vit_b_16", "bert_base")
"""Networks that are measured on a GPU, beside the author's module."""


def on_cuda(name: str) -> str:
    """Returns the key of a network's results on a GPU."""
    return f"{name}, cuda"


ORDER = (*SHOWN, *ZOO, *TIMM, *map(on_cuda, CUDA))
"""Keys of the stored results."""

ABOVE_5_MS = (
    "resnet18", "resnet50", "vit_b_16", "bert_base", "recogniser", "efficientnet_b0", "densenet121", "regnet_x_400mf",
    "convnext_tiny", "repvgg_a0", "resnet26d", "deit_tiny_patch16_224", "convnextv2_atto", "mixer_s32_224",
)  # fmt: skip
"""The networks of which ONNX Runtime needs more than 5 ms."""

FLOOR_RESULTS = Path(__file__).with_name("floors.json")

Row = dict[str, Any]
TITLES = {
    "literal": "onnx2nn",
    "eager": "onnx2nn, eager",
    "compile": "onnx2nn, compile",
    "compile, fixed sizes": "onnx2nn, compile, fixed sizes",
}


def floors() -> list[Row]:
    """Returns the stored results of `floors.py`."""
    found: list[Row] = json.loads(FLOOR_RESULTS.read_text(encoding="utf-8")) if FLOOR_RESULTS.exists() else []
    return found


def page(rows: dict[str, Row], floor_rows: list[Row]) -> str:
    """Returns the page of stored results: of `peers.py`, and of `floors.py`."""
    there = {name: rows[on_cuda(name)] for name in CUDA if on_cuda(name) in rows}
    rows = {name: row for name, row in rows.items() if row not in there.values()}
    shown = [name for name in SHOWN if name in rows]
    parts = [_HEAD, _conditions(rows), "## Networks\n", _table(rows, shown, _forms(rows, shown))]
    parts += [_missing(rows, shown), "## Means\n", _means(rows)]
    others = [name for name in ZOO if name in rows]
    if others:
        parts += ["The means are of the networks above, of those of timm, and of these:\n"]
        parts += [_table(rows, others, [*TITLES])]
    timm = [name for name in TIMM if name in rows]
    if timm:
        parts += ["## Networks of timm\n", _table(rows, timm, _forms(rows, timm)), _missing(rows, timm)]
    if there:
        forms = [form for form in _forms(there, [*there]) if form != ORIGINAL]
        parts += [_ON_CUDA, _conditions(there), _table(there, [*there], forms), _missing(there, [*there])]
    if floor_rows:
        parts += [_FLOORS, _floor_table(floor_rows)]
    return "\n".join(part for part in parts if part)


_HEAD = """# Benchmarks

Processor time of one call, batch 1, without gradients: the fastest of the rounds, divided by ONNX Runtime's in the
same run. Below 1 is faster. `python benchmarks/peers.py --write` measures the networks and writes this page;
[the benchmarks](../benchmarks/README.md) describe the others. The weights are random, and the files are of torch's
older exporter, with a dynamic batch.

`onnx2nn` is the module of `load`; `eager` and `compile` are forms of `optimize` ([speed.md](speed.md)). "Fixed sizes"
is a file whose batch was fixed by `input_shapes`. "original module" is the author's module, from which the file was
exported. "frozen" is torch.compile under `torch._inductor.config.patch(freezing=True)`; without the word, it got
`options={"freezing": True}`, which does not freeze: Dynamo makes inputs of the weights before options are applied.
"""


def _conditions(rows: dict[str, Row]) -> str:
    lines = ["| networks | date | machine | threads | rounds | load | versions |", "|---|---|---|---|---|---|---|"]
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, row in rows.items():
        versions = ", ".join(f"{package} {version}" for package, version in row["versions"].items())
        groups.setdefault((row["date"], row["machine"], row["threads"], row["repeats"], versions), []).append(name)
    for (date, machine, threads, repeats, versions), names in groups.items():
        loads = [rows[name]["load"] for name in names]
        load = f"{min(loads)} to {max(loads)}"
        lines.append(f"| {', '.join(names)} | {date} | {machine} | {threads} | {repeats} | {load} | {versions} |")
    return "\n".join([*lines, ""])


def _forms(rows: dict[str, Row], names: list[str]) -> list[str]:
    found = dict.fromkeys(form for name in names for form in (*rows[name]["ms"], *rows[name]["failed"]))
    return [form for form in found if form != ORT]


def ratio(row: Row, form: str) -> float | None:
    """Returns the time of a form, divided by ONNX Runtime's, by the author's module's where that did not run.

    None where the form did not run.
    """
    return row["ms"][form] / row["ms"][_base(row)] if form in row["ms"] else None


def _base(row: Row) -> str:
    return ORT if ORT in row["ms"] else ORIGINAL


def _table(rows: dict[str, Row], names: list[str], forms: list[str]) -> str:
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    base = _base(rows[names[0]])
    times = (f"{rows[name]['ms'][base]:.2f}" for name in names)
    lines.append(f"| {base}, ms | {' | '.join(times)} |")
    for form in forms:
        ratios = [ratio(rows[name], form) for name in names]
        cells = ("-" if found is None else f"{found:.2f}" for found in ratios)
        lines.append(f"| {TITLES.get(form, form)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _missing(rows: dict[str, Row], names: list[str]) -> str:
    reasons = [
        f"- {TITLES.get(form, form)}, {name}: {quoted(reason)}"
        for name in names
        for form, reason in rows[name]["failed"].items()
    ]
    return "\n".join(["Forms that did not run:", "", *reasons, ""]) if reasons else ""


_ON_CUDA = """## On a GPU

Time of one call until the GPU is done, the fastest of the rounds, divided by the author's module's in the same run
(`python benchmarks/peers.py --device cuda --write`). Products of float32 as torch computes them by default. ONNX
Runtime is not among the forms: its package for GPUs was not at hand.
"""

_FLOORS = """## What torch's kernels alone take

Ratios to ONNX Runtime's time of the same run, of one thread: of a form, and of the calls of torch in it, which a form
cannot be faster than (`python benchmarks/floors.py --write`). Processor time of the form, the least of the rounds; a
part is the sum of the times that torch's profiler counts, of each call the least of the rounds. "Kernels of oneDNN" are
the convolutions and products that the machine code calls, with their packed weights and the activations and sums that
they compute; "loops" are inductor's own, with the copies of the outputs that each block of steps of an LSTM makes. Of
many short calls the form also takes time between them, which the parts do not have. A literal module computes files
with pairs of QuantizeLinear and DequantizeLinear by torch's layers of floats. The steps of an LSTM need six calls of
torch each, which were called alone, and more for quantising.
"""


def _floor_table(rows: list[Row]) -> str:
    lines = ["| network | form | ONNX Runtime, ms | form | parts | rounds | date | load | machine | versions |"]
    lines += ["|---|---|---:|---:|---|---|---|---|---|---|"]
    for row in rows:
        ratios = {key: f"{ms / row['ms'][ORT]:.2f}" for key, ms in row["ms"].items()}
        shown = ", ".join(f"{key} {found}" for key, found in ratios.items() if key not in (ORT, row["form"]))
        versions = ", ".join(f"{package} {version}" for package, version in row["versions"].items())
        cells = [row["name"], row["form"], f"{row['ms'][ORT]:.2f}", ratios[row["form"]], shown]
        cells += [str(row[key]) for key in ("repeats", "date", "load", "machine")]
        lines.append(f"| {' | '.join([*cells, versions])} |")
    large = [row for row in rows if row["name"] in ABOVE_5_MS]
    if large:
        form, floor = (statistics.geometric_mean(numbers) for numbers in zip(*map(_ratios_of_form, large), strict=True))
        lines += [
            "",
            f"Geometric means of the {len(large)} networks of which ONNX Runtime needs more than 5 ms: the form "
            f"{form:.2f}, its parts {floor:.2f}.",
        ]
    return "\n".join([*lines, ""])


def _ratios_of_form(row: Row) -> tuple[float, float]:
    """Returns the ratios of a form, and of the sum of its parts."""
    parts = sum(ms for key, ms in row["ms"].items() if key not in (ORT, row["form"]))
    return row["ms"][row["form"]] / row["ms"][ORT], parts / row["ms"][ORT]


def _means(rows: dict[str, Row]) -> str:
    lines = [
        "Geometric means of the ratios, by ONNX Runtime's time; of as many as is said where some were not measured.",
        "",
    ]
    groups = {"all": rows, "above 5 ms": {}, "below 5 ms": {}}
    for name, row in rows.items():
        groups["above 5 ms" if row["ms"][ORT] > 5 else "below 5 ms"][name] = row
    groups = {title: group for title, group in groups.items() if group}
    lines += [f"| | {' | '.join(f'{title} ({len(group)})' for title, group in groups.items())} |"]
    lines += [f"|---|{'---:|' * len(groups)}"]
    for form, title in TITLES.items():
        cells = []
        for group in groups.values():
            ratios = [found for row in group.values() if (found := ratio(row, form)) is not None]
            count = "" if len(ratios) == len(group) else f" of {len(ratios)}"
            cells.append(f"{statistics.geometric_mean(ratios):.2f}{count}" if ratios else "-")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
