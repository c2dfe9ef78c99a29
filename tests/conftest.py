"""How a run is spread over processes, and what it says at its end."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's, which a run on one process does without
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Lets a process that has no tests left take some of another's: those on real models take minutes together."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests noted by `record_property("score", ...)`, and the pairs that nobody could verify.

    The notes travel with the tests' reports, from other processes too.
    """
    noted: dict[str, list[str]] = {"score": [], "unverified": []}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, text in getattr(report, "user_properties", ()):
                if key in noted:
                    noted[key].append(str(text))
    for line in dict.fromkeys(noted["score"]):
        terminalreporter.write_line(line)
    pairs = sorted(set(noted["unverified"]))
    if pairs:
        terminalreporter.write_line(f"{len(pairs)} cases at revisions without an oracle: {', '.join(pairs)}")
