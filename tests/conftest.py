"""How a run is spread over processes, where a test's random numbers come from, and what a run says at its end."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import pytest

try:
    import torch
except ImportError:  # OneFlow's environment has none
    torch = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="other random numbers for every test than those of seed 0")


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Random numbers that depend on the test and on --seed, not on what ran before it in the process.

    A module's own generator is its `RNG`.
    """
    seed = zlib.crc32(request.node.nodeid.encode()) + request.config.getoption("--seed")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if isinstance(own := getattr(request.module, "RNG", None), np.random.Generator):
        own.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    if torch:
        torch.manual_seed(seed)


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
