"""convert_models.md, from the stored rows and the tables that other scripts measured."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from scripts import oneflow_tables, oneflow_zoo
from scripts.conversions import wanted
from scripts.conversions.directions import PEERS
from scripts.conversions.rows import EXPORT, File, Row

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "convert_models.md"

TITLES = {"PyTorch": "→ PyTorch", "ONNX": "→ ONNX again", "source": "→ Python source", "NCNN": "→ NCNN"}
"""What the page calls the directions of this project."""

SOURCES = {
    "definitions": "`scripts/zoo/torch_definitions`, models that no package has",
    "files": "files of other exporters: ONNX's light models, Keras, Paddle, OneFlow, the example",
    "torch": "`scripts/zoo/torch_models.py`: definitions and single operators of PyTorch",
    "torchvision": "torchvision",
    "timm": "timm, the smallest architecture of each module",
    "transformers": "transformers, small configurations",
    "keras": "keras.applications",
    "tensorflow": "`scripts/zoo/tensorflow_models.py`: Keras models and single operators of TensorFlow",
    "paddle_vision": "paddle.vision.models",
    "paddle": "`scripts/zoo/paddle_models.py`: PaddleClas's models and single operators of PaddlePaddle",
    "flowvision": "flowvision, exported by this project",
}
"""Sources in the order of the page."""

HEAD = """\
# Models converted

Written by `scripts/convert_models.py`, from {count} rows that it measured and stored. A row is one model, written by
one exporter, converted in one direction, in a process of its own with limits of time and memory. This command measures
one again:

    python scripts/convert_models.py --only torchvision/resnet18/dynamo/PyTorch

In the tables, the first column and the name of a direction (`PyTorch`, `ONNX`, `source`, `NCNN`) are what stands behind
`--only`. `--run SOURCE` measures the rows of a source that are missing: more models are in its list than were run so
far, see `--list SOURCE`. Rows that fail stay here with their reason. Versions: {versions}.

Weights are random, none of them constant. Images are small where the architecture permits (64 by 64), so that a row
takes seconds; **inputs** has the sizes. Where the exporter left dimensions open, the file is compared at sizes that the
exporter did not see. `@small` and `@own` are timm's models at small images and at those that they were made for,
`@cache` decoders that are given the keys and values of earlier positions.

## How many
"""

LEGEND = """\
- **difference**: the largest of an element between the module and ONNX Runtime, relative to its output's largest
  magnitude; **original**, the same to the author's own model.
- **noise**: how far the same outputs move where every weight and input moves by one unit in the last place.
- **right**: whether `onnx2nn.verify` accepts every output; **open**: the file's open dimensions, **guards** on them.
- **in blocks**: the share of the calls that are in blocks which can be called alone.
- **keys**: how many keys of the author's state_dict the module has. The older exporter folds batch normalisations and
  keeps no list of keys. In brackets: the keys that were restored from weights under other names or in other layouts.
- **seconds**: of the processor, for `onnx2nn.load`; **MB**: the resident memory that it adds at its peak, and the file.
- **onnx2torch, onnx2pytorch, onnx2fx**: the difference of their modules of the same file to ONNX Runtime, or why there
  is none.
"""

COLUMNS = (
    *(
        "row",
        "inputs",
        "right",
        "difference",
        "original",
        "noise",
        "nodes",
        "open, guards",
        "in blocks",
        "keys",
        "seconds",
    ),
    *("MB, file", *PEERS),
)
"""Of the tables of files that became modules of PyTorch."""


def document(rows: Collection[Row]) -> str:
    """Returns the page."""
    known = {row.name: row for row in rows}
    files = sorted({row.file for row in rows}, key=lambda file: (list(SOURCES).index(file.source), file))
    versions = sorted({f"{p} {v}" for r in rows if r.direction == EXPORT for p, v in r.facts.items() if p != "problem"})
    count = sum(row.direction != EXPORT for row in rows)
    lines = HEAD.format(count=count, versions=", ".join(versions)).splitlines()
    lines += ["", *_counts(known, files), "", *_wanted(rows), "", "## → PyTorch", "", *LEGEND.splitlines()]
    for source, title in SOURCES.items():
        lines += _pytorch(title, [file for file in files if file.source == source], known)
    lines += ["", *_others(known, files), "", *_fixed(known, files), "", *_not_exported(files, known)]
    return "\n".join(lines).rstrip() + "\n"


def _counts(known: Mapping[str, Row], files: Sequence[File]) -> list[str]:
    """A table of sources and directions, and a line for each table that another script measured."""
    directions = [*TITLES, *PEERS]
    lines = ["| source | files |" + "".join(f" {TITLES.get(name, name)} |" for name in directions)]
    lines.append("|---" * (len(directions) + 2) + "|")
    for source in [*SOURCES, ""]:
        mine = [f for f in files if source in ("", f.source) and not known[f"{f}/{EXPORT}"].problem]
        cells = [
            _right([known[name] for f in mine if (name := f"{f}/{direction}") in known]) for direction in directions
        ]
        if mine:
            lines.append(f"| {source or '**all**'} | {len(mine)} | {' | '.join(cells)} |")
    return [*lines, "", "Measured by other scripts, in environments of their own:", "", *_elsewhere()]


def _right(rows: Sequence[Row]) -> str:
    return f"{sum(not row.problem for row in rows)} of {len(rows)}" if rows else ""


def _elsewhere() -> Iterator[str]:
    oneflow = (ROOT / "docs" / "oneflow.md").read_text("utf-8")
    for family, right, count in re.findall(r"^### (.+): (\d+) of (\d+) files$", oneflow, flags=re.M):
        yield f"- {family} → OneFlow: {right} of {count} files ([docs/oneflow.md](docs/oneflow.md))"
    zoo = oneflow_zoo.written().values()
    right = sum(row["equal"] == "Yes" for row in zoo)
    yield f"- flowvision, OneFlow → ONNX: {right} of {len(zoo)} models ([docs/oneflow_zoo.md](docs/oneflow_zoo.md))"
    ncnn = (ROOT / "docs" / "ncnn.md").read_text("utf-8").partition("<!-- measured -->")[2].partition("<!-- end")[0]
    models = re.findall(r"^\| .+ \| \d+ \|", ncnn, flags=re.M)
    yield f"- → NCNN, in both precisions: {len(models)} files ([docs/ncnn.md](docs/ncnn.md))"


def _wanted(rows: Collection[Row]) -> Iterator[str]:
    """The lists of the systems that this project succeeds."""
    yield "## The lists of the systems before"
    for title, models in wanted.LISTS.items():
        yield from ("", f"### {title}", "", "| model | imported right | shown by |", "|---|---|---|")
        for model, pattern in models.items():
            found = [r for r in rows if r.direction == "PyTorch" and re.fullmatch(pattern, str(r.file))]
            right = "not measured" if not found else "No" if any(row.problem for row in found) else "Yes"
            shown = ", ".join(f"`{row.file}`" for row in found[:2]) + (f" and {len(found) - 2} more" * (len(found) > 2))
            yield f"| {model} | {right} | {shown} |"
    yield from ("", "### oneflow2onnx", "", "| model | exported right | shown by |", "|---|---|---|")
    zoo = oneflow_zoo.written()
    for title, name in oneflow_tables.MODELS.items():
        shown = f"`{name}`" if (right := zoo.get(name, {}).get("equal", "not measured")) == "Yes" else ""
        yield f"| {title} | {right} | {shown} of [docs/oneflow_zoo.md](docs/oneflow_zoo.md) |"
    yield ""
    yield "X2OneFlow's models → OneFlow are a table of [docs/oneflow.md](docs/oneflow.md)."


def _pytorch(title: str, files: Sequence[File], known: Mapping[str, Row]) -> Iterator[str]:
    rows = [known[name] for file in files if (name := f"{file}/PyTorch") in known]
    if not rows:
        return
    yield from ("", f"### {title}: {_right(rows)}", "", f"| {' | '.join(COLUMNS)} |")
    yield "|---" * len(COLUMNS) + "|"
    for row in rows:
        peers = " | ".join(_peer(known.get(f"{row.file}/{peer}")) for peer in PEERS)
        yield f"| `{row.file}` | {' | '.join(_cells(row))} | {peers} |"


def _cells(row: Row) -> Iterator[str]:
    """The cells between a row's name and its peers."""
    facts = row.facts
    yield ", ".join("x".join(map(str, shape)) for shape in facts.get("inputs", ()))
    yield f"No: {_plain(row.problem)}" if row.problem else "Yes"
    for name in ("difference", "to_framework", "noise"):
        yield f"{facts[name]:.1e}" if name in facts else ""
    yield str(facts.get("nodes", ""))
    guards = f", {facts['guards']} guards" if facts.get("guards") else ""
    yield f"{len(facts['open']) or 'none'}{guards}" if "open" in facts else ""
    inside, calls = facts.get("in_blocks", (0, 0))
    yield f"{100 * inside / calls:.0f} %" if calls else ""
    have, theirs, _ = facts.get("keys", (0, 0, 0))
    restored = f" ({facts['restored']})" if facts.get("restored") else ""
    yield (f"{have} of {theirs}" if theirs else "") + restored
    yield str(facts.get("seconds", ""))
    yield f"{facts['peak_mb']:g}, {facts['mb']:g}" if "peak_mb" in facts else ""


def _peer(row: Row | None) -> str:
    if row is None:
        return ""
    if row.problem and "difference" in row.facts:
        return f"{row.facts['difference']:.1e}, {_plain(row.problem)}"
    return _plain(row.problem, 60) if row.problem else f"{row.facts['difference']:.1e}"


def _plain(text: str, length: int = 200) -> str:
    """Returns a reason for a cell of a table, without the colours that torch's exporters give it."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    short = text if len(text) <= length else f"{text[:length]}..."
    return re.sub(r"([|<>*_`])", r"\\\1", re.sub(r"/\S*/(?=\S)", "", short))


def _others(known: Mapping[str, Row], files: Iterable[File]) -> Iterator[str]:
    """The directions after PyTorch."""
    rows = [known[name] for file in files for way in TITLES if way != "PyTorch" and (name := f"{file}/{way}") in known]
    if not rows:
        return
    yield from ("## Onwards from PyTorch", "", "Seconds: of the conversion alone, from the imported module.", "")
    yield from ("| row | right | difference | seconds | |", "|---|---|---|---|---|")
    units = {"nodes": "nodes", "lines": "lines", "layers": "layers"}
    for row in rows:
        size = next((f"{row.facts[key]} {unit}" for key, unit in units.items() if key in row.facts), "")
        found = f"{row.facts['difference']:.1e}" if "difference" in row.facts else ""
        right = f"No: {_plain(row.problem)}" if row.problem else "Yes"
        yield f"| `{row.name}` | {right} | {found} | {row.facts.get('seconds', '')} | {size} |"


def _fixed(known: Mapping[str, Row], files: Iterable[File]) -> Iterator[str]:
    """Why files have no open dimensions."""
    rows = [known[name] for file in files if (name := f"{file}/PyTorch") in known]
    if rows := [row for row in rows if "fixed" in row.facts]:
        yield from ("## Dimensions that the exporter fixed", "")
        yield "Asked for an open batch (and length), the exporter failed or wrote another model: these sizes are fixed."
        yield from ("", "| file | reason |", "|---|---|")
        yield from (f"| `{row.file}` | {_plain(row.facts['fixed'])} |" for row in rows)


def _not_exported(files: Iterable[File], known: Mapping[str, Row]) -> Iterator[str]:
    """What counts neither for nor against an importer."""
    rows = [row for file in files if (row := known[f"{file}/{EXPORT}"]).problem]
    if rows:
        yield from ("## Not written by their own exporter", "", "They are in none of the numbers above.", "")
        yield from ("| file | reason |", "|---|---|")
        yield from (f"| `{row.file}` | {_plain(row.problem)} |" for row in rows)
