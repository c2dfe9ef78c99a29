"""docs/conformance.md: the score in ONNX's suite, and who judges every revision of every operator."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from onnx import defs

from onnx2nn.optable.registry import TABLE
from scripts.conformance import Result
from scripts.contrib_document import section as contrib_section
from scripts.edges import Edge, section

Pair = tuple[str, str, int]
"""Domain, operator, revision."""

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "conformance.md"

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")

OTHERS = {
    "onnx.reference": (2021, None),
    "onnx2pytorch 0.6": (1735, 42),
    "ONNX Runtime 1.31": (1611, None),
    "tinygrad": (1501, 39),
    "onnx2torch 1.5": (414, None),
}
"""Passed, and silently wrong where counted, in the 2033 cases of onnx 1.23.2, each run once by the same suite."""


def revisions() -> list[Pair]:
    """Returns every operator and revision of the standard that is not deprecated."""
    schemas = defs.get_all_schemas_with_history()
    return sorted({(s.domain, s.name, s.since_version) for s in schemas if s.domain in DOMAINS and not s.deprecated})


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def _counts(results: Sequence[Result]) -> list[object]:
    verdicts = collections.Counter(result.verdict for result in results)
    exported = collections.Counter(result.exported for result in results)
    eligible = exported["passed"] + exported["failed"]
    wrong = verdicts["wrong"] + verdicts["failed"]
    return [
        len(results),
        verdicts["passed"],
        verdicts["refused"],
        wrong,
        f"{exported['passed']} of {eligible}" if eligible else "",
    ]


_COUNTED = ["cases", "passed", "refused", "wrong", "torch.export"]


def _grouped(results: Sequence[Result], field: str) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = collections.defaultdict(list)
    for result in results:
        groups[getattr(result, field)].append(result)
    return groups


def document(
    version: str,
    results: Sequence[Result],
    judges: dict[Pair, str],
    contrib: Mapping[str, str],
    edges: Sequence[Edge],
) -> str:
    """Returns the text of docs/conformance.md.

    Args:
        version: of onnx, whose suite was run.
        results: of the suite's cases.
        judges: who judges each pair: `onnxruntime`, `reference`, `stored` data or a `distribution`; `""` for nobody.
        contrib: who judges each operator of ONNX Runtime's own domain, see `contrib_document.section`.
        edges: what operators answer at the edges of their numbers.
    """
    kinds = _grouped(results, "kind")
    passed = sum(result.verdict == "passed" for result in results)
    wrong = sum(result.verdict in ("wrong", "failed") for result in results)
    lines = ["# Conformance", ""]
    lines += [
        f"ONNX's own suite (onnx {version}), run through `onnx2nn.backend`: **{passed} of {len(results)}**.",
        "`torch.export` is asked of every module whose output shapes do not depend on data; its program has to give",
        "the same values. Random operators are judged on dtype, shape and distribution, as the suite itself says.",
        "Written by `python scripts/tables.py`, from what `python scripts/conformance.py --write` stored;",
        "`tests/test_conformance.py` runs every case again.",
        "",
        *_table(["kind", *_COUNTED], [[kind, *_counts(kinds[kind])] for kind in sorted(kinds)]),
        _table(["kind"], [["**all**"]])[-1].removesuffix(" |") + f" | {' | '.join(map(str, _counts(results)))} |",
        "",
        "## Beside others",
        "",
        *_table(
            ["importer or runtime", "passed", "silently wrong"],
            [
                ["**onnx2nn**", passed, wrong],
                *([name, *("" if cell is None else cell for cell in cells)] for name, cells in OTHERS.items()),
            ],
        ),
        "",
    ]
    lines += _misses(results)
    lines += _matrix(judges)
    lines += contrib_section(contrib)
    lines += section(edges)
    operators = _grouped(results, "operator")
    lines += ["## By operator", "", "The last operator of a case's model.", ""]
    lines += _table(["operator", *_COUNTED], [[name, *_counts(operators[name])] for name in sorted(operators)])
    return "\n".join(lines) + "\n"


def _misses(results: Sequence[Result]) -> list[str]:
    missed = [(r.name, r.verdict, r.reason) for r in results if r.verdict != "passed"]
    stuck = [(r.name, r.export_reason) for r in results if r.exported == "failed"]
    lines = ["## Not passed", ""]
    lines += [f"- `{name}` ({verdict}): {_cell(reason)}" for name, verdict, reason in missed] or ["None."]
    lines += ["", "## Passed, but not by torch.export", ""]
    lines += [f"- `{name}`: {_cell(reason)}" for name, reason in stuck] or ["None."]
    left = collections.Counter(r.operator for r in results if r.exported == "not eligible")
    lines += ["", f"Not asked of {sum(left.values())} cases, by operator: "]
    return [*lines[:-1], lines[-1] + ", ".join(f"{n} {count}" for n, count in sorted(left.items())) + ".", ""]


def _cell(reason: str) -> str:
    return reason.replace("|", "\\|")


def _matrix(found: dict[Pair, str]) -> list[str]:
    without = [pair for pair in found if TABLE.find(*pair) is None]
    counts = collections.Counter(found.values())
    nobody = [pair for pair, judge in found.items() if not judge]
    share = 100 * len(nobody) / len(found)
    return [
        "## Every revision of every operator",
        "",
        f"{len(found)} pairs of operator and revision stand in the standard. Their cases are judged by ONNX Runtime"
        f" ({counts['onnxruntime']}), else onnx.reference ({counts['reference']}), else data stored"
        f" in the suite or in the case ({counts['stored']}), or by their distribution ({counts['distribution']}).",
        f"Nobody could verify {len(nobody)} ({share:.1f} %): {_pairs(nobody)}.",
        f"Without a row of their own, so that their schema's function serves: {_pairs(without)}.",
        "",
    ]


def _pairs(pairs: Sequence[Pair]) -> str:
    names: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for domain, operator, version in pairs:
        names[domain, operator].append(version)
    return (
        ", ".join(
            f"{domain + '.' if domain else ''}{operator} {'/'.join(map(str, versions))}"
            for (domain, operator), versions in sorted(names.items())
        )
        or "none"
    )
