"""Tools of PyTorch do on imports what the stored results say; `python -m tests.ecosystem --write` stores them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from tests.ecosystem import stored
from tests.ecosystem.document import COMMAND, DOCUMENT, document
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


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Threads of small models wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _installed() -> None:
    for package in stored.PACKAGES:
        if package != "transformers" and importlib.util.find_spec(package.replace("-", "_")) is None:
            pytest.skip(f"{package} is not installed: the oldest versions of everything have no such tools")


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
    assert STORED.titles == {name: cells.tool(name).TITLE for name in STORED.cells}
    assert STORED.texts == {name: cells.text(name) for name in STORED.cells}


@pytest.mark.slow
@pinned
@pytest.mark.usefixtures("_installed", "_one_thread")
@pytest.mark.parametrize(("name", "model"), [(name, model) for name, row in STORED.cells.items() for model in row])
def test_tool(name: str, model: str) -> None:
    """Both exporters, since the original's run is shared; reasons may be worded otherwise."""
    from tests.ecosystem import cells

    _require(model)
    found = cells.cells(name, model)
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
