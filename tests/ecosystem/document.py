"""The text of docs/ecosystem.md, from the stored results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.ecosystem.stored import DIFFERS, FAILS, ORIGINAL_FAILS, SAME, Cell, Results

DOCUMENT = Path(__file__).parents[2] / "docs" / "ecosystem.md"

COMMAND = "python -m tests.ecosystem --write"

MODEL_TITLES = {
    "resnet18": "ResNet-18",
    "mobilenet_v2": "MobileNet V2",
    "vit": "ViT",
    "unet": "U-Net",
    "lstm": "LSTM tagger",
    "bert": "BERT",
    "llama": "Llama",
    "gpt2": "GPT-2",
}

EXPORTER_TITLES = {"torchscript": "old", "dynamo": "new"}

_HEAD = """\
# Tools of PyTorch on imports

<!-- Written by `{command}`; do not edit. -->

Each tool is used on a model as its author wrote it, and on the import of the file that `torch.onnx.export` writes of
it. The models are small and have random weights. Where both give the same results, within rounding, the cell says
*same*; otherwise the import *differs* or *fails*, and the list below the table says how. Where the tool fails on the
original there is nothing to compare: *original fails*. Where the two exporters, the old one (`dynamo=False`) and the
new one (`dynamo=True`), give files with which a tool does differently, both are named. A hyphen stands where a tool
has nothing to do.

Exporters fold batch norms into convolutions. What a tool sees of a module is compared where the module has the
original's weights; a block, and the model, is compared in any case.

Versions: {versions}.

{summary}
"""

_LEFT_OUT = """\
## Not in the table

- Netron 9.3.3 shows no tree of an ONNX file, as its reader leaves out the groups of nodes. What `export_onnx` writes
  has the modules in the nodes' metadata, which Netron lists for each node.
"""


def document(results: Results) -> str:
    """Returns the whole text."""
    names = sorted(results.tools, key=lambda name: results.tools[name].title.strip("`").casefold())
    versions = ", ".join(f"{package} {version.partition('+')[0]}" for package, version in results.versions.items())
    parts = [
        _HEAD.format(command=COMMAND, versions=versions, summary=_summary(results)),
        _table(results, names),
        _modules(results),
        _calls(results),
        _tools(results, names),
        _reasons(results, names, "## What differs or fails", (DIFFERS, FAILS)),
        _reasons(results, names, "## Where the original fails", (ORIGINAL_FAILS,)),
        _LEFT_OUT,
    ]
    return "\n".join(parts)


def _summary(results: Results) -> str:
    cells = [cell for models in results.cells.values() for by in models.values() for cell in by.values()]
    counts = {status: sum(cell.status == status for cell in cells) for status in (SAME, DIFFERS, FAILS)}
    return (
        f"Of {sum(counts.values())} combinations of a tool, a model and an exporter that work with the original,\n"
        f"{counts[SAME]} give the same with the import, {counts[DIFFERS]} differ and {counts[FAILS]} fail."
    )


def _table(results: Results, names: list[str]) -> str:
    models = [model for model in MODEL_TITLES if any(model in row for row in results.cells.values())]
    lines = [f"| tool | {' | '.join(MODEL_TITLES[model] for model in models)} |", f"|---{'|---' * len(models)}|"]
    for name in names:
        row = results.cells[name]
        words = [_word(row[model]) if model in row else "-" for model in models]
        lines.append(f"| {results.tools[name].title} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def _word(cells: Mapping[str, Cell]) -> str:
    words = {exporter: cell.status.removeprefix("import ") for exporter, cell in cells.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{EXPORTER_TITLES[exporter]}: {word}" for exporter, word in words.items())


def _modules(results: Results) -> str:
    lines = [
        "## Modules that run\n",
        "How many of the modules that run in the original run in the import, under the same name. Dropout, which no "
        "file holds, and folded norms are among those that do not.\n",
        "| model | old exporter | new exporter |",
        "|---|---|---|",
    ]
    for model, by in results.modules.items():
        counts = [f"{by[exporter][0]} of {by[exporter][1]}" for exporter in EXPORTER_TITLES]
        lines.append(f"| {MODEL_TITLES[model]} | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n"


def _calls(results: Results) -> str:
    lines = [
        "## Calls\n",
        "How many calls of torch with tensors as results one forward of the import makes for each that the original "
        "makes, and how many lines the longest program of a module in the import has.\n",
        "| model | calls of the original | old exporter | new exporter | lines, old exporter | lines, new exporter |",
        "|---|---|---|---|---|---|",
    ]
    for model, by in results.calls.items():
        found = [by[exporter] for exporter in EXPORTER_TITLES]
        ratios = [f"{own / theirs:.2f}" for theirs, own, _ in found]
        words = [str(found[0][0]), *ratios, *(str(lines) for *_, lines in found)]
        lines.append(f"| {MODEL_TITLES[model]} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def _tools(results: Results, names: list[str]) -> str:
    lines = []
    for name in names:
        tool = results.tools[name]
        held = f" In the held tests alone; used on {results.dates[name]}." if tool.held else ""
        lines.append(f"- {tool.title}: {tool.text}{held}")
    return "## Tools\n\n" + "\n".join(lines) + "\n"


def _reasons(results: Results, names: list[str], title: str, wanted: tuple[str, ...]) -> str:
    lines = []
    for name in names:
        for model, by in results.cells[name].items():
            reasons: dict[str, list[str]] = {}
            for exporter, cell in by.items():
                if cell.status in wanted:
                    reasons.setdefault(cell.reason, []).append(EXPORTER_TITLES[exporter])
            for reason, exporters in reasons.items():
                which = "" if len(exporters) == len(EXPORTER_TITLES) else f", {exporters[0]} exporter"
                quoted = reason.replace("`", "'")
                lines.append(f"- {results.tools[name].title}, {MODEL_TITLES[model]}{which}: `{quoted}`")
    return f"{title}\n\n" + ("\n".join(lines) or "Nothing.") + "\n"
