"""Tools of PyTorch do on imports what the stored results say; `python -m tests.ecosystem --write` stores them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.ecosystem import stored
from tests.ecosystem.document import COMMAND, DOCUMENT, document
from tests.installed import is_installed
from tests.realmodels import require_transformers

STORED = stored.read()

_SCREEN = 60
"""The most lines of a program that is read at once."""


def test_document() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(STORED), f"out of date: {COMMAND}"


@pytest.mark.slow
@pytest.mark.pinned("torch", "torchvision", "transformers")
def test_prints() -> None:
    from tests.ecosystem import prints

    require_transformers()
    assert prints.DOCUMENT.read_text(encoding="utf-8") == prints.document(), f"out of date: {prints.COMMAND}"


@pytest.mark.slow
@pytest.mark.pinned("torch", "torchvision", "transformers")
def test_containers_can_be_called() -> None:
    """In each import nine of ten containers can be called or are lists of modules, and so they are in other files."""
    from tests.ecosystem import prints

    require_transformers()
    counts = {
        (model, exporter): prints.containers_of_subject(model, exporter)
        for model in prints.SUBJECTS
        for exporter in prints.EXPORTER_TITLES
    }
    counts |= {("data", framework): prints.containers_of_data(framework) for framework in prints.FRAMEWORKS}
    assert all(10 * found.good >= 9 * found.all for found in counts.values()), counts
    assert sum(found.all for found in counts.values()) > 200


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Threads of small models wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _installed() -> None:
    _require_packages("torchvision")


def _require_packages(*packages: str) -> None:
    for package in packages:
        if not is_installed(package):
            pytest.skip(f"{package} is not installed; `nox -s ecosystem` has the tools of all cells")


pinned = pytest.mark.pinned(*stored.PACKAGES)


def _require(model: str) -> None:
    from tests.ecosystem.subjects.subject import SUBJECTS

    if SUBJECTS[model].transformers:
        require_transformers()


@pytest.mark.slow
@pinned
@pytest.mark.usefixtures("_installed", "_one_thread")
def test_every_pair_is_stored() -> None:
    from tests.ecosystem import cells

    assert [(name, model) for name, row in STORED.cells.items() for model in row] == cells.pairs()
    assert STORED.tools == {name: cells.described(name) for name in STORED.cells}
    assert STORED.dates.keys() == {name for name, tool in STORED.tools.items() if tool.held}


def _pairs() -> Iterator[Any]:
    for name, row in STORED.cells.items():
        tool = STORED.tools[name]
        marks = pytest.mark.held if tool.held else pytest.mark.slow, pytest.mark.pinned(*tool.packages)
        yield from (pytest.param(name, model, marks=marks) for model in row)


@pinned
@pytest.mark.usefixtures("_installed", "_one_thread")
@pytest.mark.parametrize(("name", "model"), list(_pairs()))
def test_tool(name: str, model: str) -> None:
    """Both exporters, since the original's run is shared; reasons may be worded otherwise."""
    from tests.ecosystem import cells

    _require_packages(*STORED.tools[name].packages)
    _require(model)
    found = cells.cells(name, model)
    lacking = [cell.reason for cell in found.values() if "could not create a primitive" in cell.reason]
    # Nothing can be compared where the original does not run: oneDNN has no LSTM of bfloat16 for some processors.
    if lacking and all(cell.status == "original fails" for cell in found.values()):
        pytest.skip(f"oneDNN has no kernel for the original on this processor: {lacking[0]}")
    expected = STORED.cells[name][model]
    assert {e: cell.status for e, cell in found.items()} == {e: cell.status for e, cell in expected.items()}, (
        f"{found}; if this is right: {COMMAND}"
    )


@pytest.mark.slow
@pinned
@pytest.mark.usefixtures("_installed", "_one_thread")
@pytest.mark.parametrize("model", list(STORED.modules))
def test_modules_that_run(model: str) -> None:
    from tests.ecosystem import cells

    _require(model)
    assert cells.modules(model) == STORED.modules[model], COMMAND


@pytest.mark.slow
@pinned
@pytest.mark.usefixtures("_installed", "_one_thread")
@pytest.mark.parametrize("model", list(STORED.calls))
def test_calls(model: str) -> None:
    from tests.ecosystem import cells

    _require(model)
    assert cells.calls(model) == STORED.calls[model], COMMAND


def test_programs_are_as_short_as_the_authors() -> None:
    """At most a tenth more calls than the original makes, and programs that fit a screen."""
    assert STORED.calls.keys() == STORED.modules.keys()
    for model, by in STORED.calls.items():
        for exporter, (theirs, own, lines) in by.items():
            assert own <= 1.1 * theirs and lines <= _SCREEN, (model, exporter)
