"""The tables that are written from the rows, the case lists and the stored results of ONNX's suite are up to date.

With `--write` they are written instead, which is what `python scripts/tables.py` does.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from onnx2nn.optable.registry import TABLE
from scripts import (
    conformance,
    conformance_document,
    contrib_document,
    edges,
    families,
    language_model_table,
    language_models,
    measured,
    rule_sets,
    shape_rules,
    transfer_table,
)
from scripts.conversions import page, store
from tests import case_tables, edge_cases
from tests.cases import all_cases

ROOT = Path(__file__).parents[1]
REVIEWED = Path(__file__).with_name("reviewed_revisions.txt")
COMMAND = "out of date: python scripts/tables.py"

PINNED = {
    package: pinned
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for package, pinned in re.findall(r'^(onnx|onnxruntime)==([\d.]+)(?:; python_version >= "3.11")?$', line)
}
of_pinned_versions = pytest.mark.skipif(
    any(version(package) != pinned for package, pinned in PINNED.items()),
    reason="the tables are of the versions of onnx and onnxruntime in constraints.txt",
)


@pytest.fixture
def writing(request: pytest.FixtureRequest) -> bool:
    """Whether tables are written rather than compared."""
    return bool(request.config.getoption("--write"))


def settle_text(path: Path, text: str, writing: bool) -> None:
    """Compares a document with what it should be, or writes it."""
    if writing:
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8").splitlines() == text.splitlines(), COMMAND


def settle_section(section: str, found: Mapping[str, Any], writing: bool) -> None:
    """Compares a section of `onnx2nn/optable/measured.json` with what it should be, or writes it."""
    if writing:
        measured.update(section, found)
    assert measured.read()[section] == found, COMMAND


@pytest.mark.pinned("onnx")
def test_every_revision_was_reviewed(writing: bool) -> None:
    """A revision that the installed onnx brings fails here: review it before the command adds its line."""
    lines = REVIEWED.read_text(encoding="utf-8").splitlines()
    settle_text(REVIEWED, "\n".join(case_tables.reviewed(lines)) + "\n", writing)


@of_pinned_versions
@pytest.mark.parametrize(("section", "framework"), [("conformance", "torch"), ("oneflow_import", "oneflow")])
def test_conformance_by_operator(section: str, framework: str, writing: bool) -> None:
    settle_section(section, measured.conformance(conformance.stored(framework)[1]), writing)


def test_families_by_operator(writing: bool) -> None:
    command = [sys.executable, "-m", "scripts.families"]  # in a process that has imported no family
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    settle_text(families.STORED, done.stdout, writing)


def test_what_sets_of_rules_need(writing: bool) -> None:
    settle_text(rule_sets.STORED, rule_sets.text(), writing)


def test_modules_of_shape_rules(writing: bool) -> None:
    settle_text(shape_rules.STORED, shape_rules.text(), writing)


@of_pinned_versions
def test_types(writing: bool) -> None:
    settle_section("types", case_tables.types(), writing)


@of_pinned_versions
def test_layers(writing: bool) -> None:
    settle_section("layers", case_tables.layers(all_cases()), writing)


@of_pinned_versions
def test_exported_of_operators_with_other_cases(writing: bool) -> None:
    """Asks torch.export of the cases of operators that are new to the table or have another number of cases in it."""
    found = measured.read()
    counts = collections.Counter(name for name, _ in case_tables.exportable(all_cases(), found["conformance"]))
    kept = {name: row for name, row in found["exported"].items() if counts.get(name) == row[1]}
    others = [case for case in all_cases() if case_tables.name_of(case) in counts.keys() - kept.keys()]
    settle_section("exported", kept | case_tables.exported(others, found["conformance"]), writing)


@pytest.mark.slow
@of_pinned_versions
def test_exported(writing: bool) -> None:
    """Asks torch.export of the cases of every operator."""
    settle_section("exported", case_tables.exported(all_cases(), measured.read()["conformance"]), writing)


@of_pinned_versions
def test_edges(writing: bool) -> None:
    found = edge_cases.edges()
    settle_text(edges.STORED, edges.text(found), writing)
    assert [edge for edge in found if edge.differs != bool(edge.ruling)] == [], "rulings missing, or needless"


@of_pinned_versions
def test_conformance_document(writing: bool, record_property: Callable[[str, object], None]) -> None:
    onnx_version, results = conformance.stored("torch")
    record_property("score", f"ONNX's conformance suite, as stored: {conformance.score(results)}")
    judges = case_tables.judges(results)
    nobody = [pair for pair, judge in judges.items() if not judge]
    assert len(nobody) < 0.05 * len(judges), nobody
    contrib = case_tables.contrib()
    text = conformance_document.document(onnx_version, results, judges, contrib, edges.stored())
    settle_text(conformance_document.DOCUMENT, text, writing)


@of_pinned_versions
def test_operators_of_onnx_runtime_without_a_row_have_a_reason() -> None:
    reasons = [operator for operators in contrib_document.LEFT_OUT.values() for operator in operators]
    assert sorted(reasons) == [operator for operator, judge in case_tables.contrib().items() if not judge]


def test_what_was_measured_is_about_operators_of_the_table() -> None:
    known = {f"{row.domain}.{row.operator}".lstrip(".") for row in TABLE}
    assert set(measured.read()["layers"]) <= known and set(measured.read()["exported"]) <= known


def test_converted_models(writing: bool) -> None:
    settle_text(page.DOCUMENT, page.document(store.Lines().rows().values()), writing)


def test_transferred_models(writing: bool) -> None:
    text = transfer_table.DOCUMENT.read_text(encoding="utf-8")
    settle_text(transfer_table.DOCUMENT, transfer_table.document(text, transfer_table.stored()), writing)


def test_the_table_of_language_models_is_what_is_stored() -> None:
    """`python scripts/language_model_table.py` asks again and writes it; test_language_models asks most of it."""
    stored = language_model_table.read()
    assert language_model_table.document(stored) == language_model_table.DOCUMENT.read_text(encoding="utf-8")
    columns = list(language_model_table.COLUMNS)
    for name in language_models.ARCHITECTURES:
        for precision in language_model_table.PRECISIONS:
            assert sorted(stored["rows"][name][precision]) == sorted(columns), (name, precision)
