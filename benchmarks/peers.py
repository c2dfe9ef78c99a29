"""Measures networks beside every peer that runs them, and writes docs/benchmarks.md.

    python benchmarks/peers.py --write resnet18 bert_base   # measures these, keeps the stored results of the others
    python benchmarks/peers.py --page                       # writes the page again from the stored results

In each round every form of a network is called once, in shuffled order, in one process. The results are stored in
`peers.json`; a row is replaced when its network is measured again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import importers
import models
import onnxruntime
import optimized
import torch

from onnx2nn.ground.atomic_files import replacing

RESULTS = Path(__file__).with_name("peers.json")
PAGE = importers.ROOT / "docs" / "benchmarks.md"

SHOWN = ("resnet18", "resnet50", "mobilenet_v2", "vit_b_16", "bert_base", "recogniser", "voice_detector")
"""Networks that every peer runs."""

ZOO = (
    *("squeezenet1_1", "shufflenet_v2_x1_0", "mobilenet_v3_small", "efficientnet_b0", "densenet121", "regnet_x_400mf"),
    *("convnext_tiny", "bert_small", "transformer_48"),
)
"""Further networks, of which the means are."""

ORT, LITERAL, EAGER, COMPILED, FIXED = ("ONNX Runtime", *optimized.FORMS)
ORIGINAL, ORIGINAL_COMPILED = "original module", "original module, torch.compile"
PEERS = ("onnx2torch", "onnx2pytorch", "onnx2fx")

Call = Callable[[], Any]
Row = dict[str, Any]
TITLES = {
    LITERAL: "onnx2nn",
    EAGER: "onnx2nn, eager",
    COMPILED: "onnx2nn, compile",
    FIXED: "onnx2nn, compile, fixed sizes",
}


def measured(name: str, repeats: int, threads: int, peers: bool) -> Row:
    """Returns the milliseconds and ratios of each form of a network, and why a form is missing."""
    with torch.enable_grad():  # without, nn.MultiheadAttention calls what the exporter lacks
        original, path, inputs = models.exported(name, "torchscript")
    calls: dict[str, Call] = {}
    failed: dict[str, str] = {}
    for form, _, call in optimized.forms(str(path), inputs, threads):
        if callable(call):
            calls[form] = call
        else:
            failed[form] = call
    for form, make in _peers(original, path, inputs).items() if peers else ():
        try:
            call = make()
            call()
            calls[form] = call
        except Exception as error:  # of any class: the reason is in the page
            failed[form] = importers.reason(error)
    times = optimized.measure(calls, repeats)
    return {
        "date": datetime.date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1),
        "threads": threads,
        "repeats": repeats,
        "versions": _versions(),
        "machine": _machine(),
        "ms": {form: round(min(busy) * 1e3, 3) for form, (_, busy) in times.items()},
        "passed ms": {form: round(statistics.median(passed) * 1e3, 3) for form, (passed, _) in times.items()},
        "failed": failed,
    }


def _peers(original: torch.nn.Module, path: Path, inputs: models.Tensors) -> dict[str, Callable[[], Call]]:
    def compiled() -> Call:
        module: Any = torch.compile(original, options={"freezing": True})
        return lambda: module(*inputs)

    def of(importer: str) -> Callable[[], Call]:
        def make() -> Call:
            loaded = importers.IMPORTERS[importer]()(path)
            return lambda: loaded(inputs)

        return make

    return {
        ORIGINAL: lambda: lambda: original(*inputs),
        ORIGINAL_COMPILED: compiled,
        **{importer: of(importer) for importer in PEERS},
        "OpenVINO": lambda: _openvino(path, inputs),
    }


def _openvino(path: Path, inputs: models.Tensors) -> Call:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    program = openvino.compile_model(openvino.convert_model(path), "CPU", settings)
    arrays = [tensor.numpy() for tensor in inputs]
    return lambda: program(arrays)


def _versions() -> dict[str, str]:
    packages = {package: importers.title(package).rpartition(" ")[2] for package in (*PEERS, "openvino")}
    return {"torch": torch.__version__, "ONNX Runtime": onnxruntime.__version__} | {
        package: version for package, version in packages.items() if version != package
    }


def _machine() -> str:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    lines = dict(line.split(":", 1) for line in flags.splitlines() if ":" in line)
    model = next((value.strip() for key, value in lines.items() if key.strip() == "model name"), platform.machine())
    return f"{model}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


def page(rows: dict[str, Row]) -> str:
    """Returns the page of stored results."""
    shown = [name for name in SHOWN if name in rows]
    parts = [_HEAD, _conditions(rows), "## Networks\n", _table(rows, shown, _forms(rows, shown))]
    parts += [_missing(rows, shown), "## Means\n", _means(rows)]
    others = [name for name in rows if name not in SHOWN]
    if others:
        parts += ["The means are of the networks above, and of these:\n", _table(rows, others, [*TITLES])]
    return "\n".join(part for part in parts if part)


_HEAD = """# Benchmarks

Processor time of one call, batch 1, without gradients: the fastest of the rounds, divided by ONNX Runtime's in the
same run. Below 1 is faster. `python benchmarks/peers.py --write` measures the networks and writes this page;
[the benchmarks](../benchmarks/README.md) describe the others. The weights are random, and the files are of torch's
older exporter, with a dynamic batch.

`onnx2nn` is the module of `load`; `eager` and `compile` are forms of `optimize` ([speed.md](speed.md)). "Fixed sizes"
is a file whose batch was fixed by `input_shapes`. "original module" is the author's module, from which the file was
exported; torch.compile freezes it for the sizes of the example.
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


def _ratio(row: Row, form: str) -> float | None:
    return row["ms"][form] / row["ms"][ORT] if form in row["ms"] else None


def _table(rows: dict[str, Row], names: list[str], forms: list[str]) -> str:
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    times = (f"{rows[name]['ms'][ORT]:.2f}" for name in names)
    lines.append(f"| ONNX Runtime, ms | {' | '.join(times)} |")
    for form in forms:
        ratios = [_ratio(rows[name], form) for name in names]
        cells = ("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| {TITLES.get(form, form)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _missing(rows: dict[str, Row], names: list[str]) -> str:
    reasons = [
        f"- {TITLES.get(form, form)}, {name}: {_text(reason)}"
        for name in names
        for form, reason in rows[name]["failed"].items()
    ]
    return "\n".join(["Forms that did not run:", "", *reasons, ""]) if reasons else ""


def _text(reason: str) -> str:
    return "`" + reason.replace("`", "'").replace("|", "/")[:160] + "`"


def _means(rows: dict[str, Row]) -> str:
    lines = ["Geometric means of the ratios, by ONNX Runtime's time.", ""]
    groups = {"all": rows, "above 5 ms": {}, "below 5 ms": {}}
    for name, row in rows.items():
        groups["above 5 ms" if row["ms"][ORT] > 5 else "below 5 ms"][name] = row
    groups = {title: group for title, group in groups.items() if group}
    lines += [f"| | {' | '.join(f'{title} ({len(group)})' for title, group in groups.items())} |"]
    lines += [f"|---|{'---:|' * len(groups)}"]
    for form, title in TITLES.items():
        cells = []
        for group in groups.values():
            ratios = [ratio for row in group.values() if (ratio := _ratio(row, form)) is not None]
            cells.append(f"{statistics.geometric_mean(ratios):.2f}" if ratios else "-")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measures, stores and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=(*SHOWN, *ZOO), help=f"of {', '.join(models.ORIGINALS)}")
    parser.add_argument("--repeats", type=int, default=20, help="rounds (default 20)")
    parser.add_argument("--threads", type=int, default=1, help="of every form (default 1)")
    parser.add_argument("--write", action="store_true", help="store the results and write the page")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page of the stored results")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    with torch.no_grad():
        for name in () if arguments.page else arguments.models:
            row = measured(name, arguments.repeats, arguments.threads, name in SHOWN)
            print(name, {form: round(_ratio(row, form) or 0, 3) for form in row["ms"]}, row["failed"], flush=True)
            rows[name] = row
            if arguments.write:
                _store(rows)
    if arguments.page:
        _store(rows)


def _store(rows: dict[str, Row]) -> None:
    ordered = {name: rows[name] for name in (*SHOWN, *ZOO) if name in rows}
    with replacing(RESULTS) as temporary:
        temporary.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    with replacing(PAGE) as temporary:
        temporary.write_text(page(ordered), encoding="utf-8")


if __name__ == "__main__":
    main()
