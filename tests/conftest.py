"""Fixtures for all tests."""

from __future__ import annotations

import pytest

UNVERIFIED: list[str] = []


@pytest.fixture
def unverified() -> list[str]:
    """Collects the pairs of operator and revision that no oracle could judge."""
    return UNVERIFIED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Ends the run with what nobody could verify."""
    if UNVERIFIED:
        terminalreporter.write_line(f"{len(UNVERIFIED)} pairs without an oracle: {', '.join(sorted(UNVERIFIED))}")
