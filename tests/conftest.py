"""How a run is spread over processes, where a test's random numbers come from, and what a run says at its end."""

from __future__ import annotations

import random
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

try:
    import torch
except ImportError:  # OneFlow's environment has none
    torch = None

_PINS = (Path(__file__).resolve().parents[1] / "constraints.txt").read_text(encoding="utf-8")
PINNED_TORCH = tuple(map(int, re.findall(r"^torch==(\d+)\.(\d+)", _PINS, re.MULTILINE)[0]))


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


_LACKING = re.compile(r'PyTorch \S+ has no|"\w+" not implemented for|torch\.onnx\.export cannot export')
"""How messages begin that say what an older PyTorch lacks: an element type, a kernel for one, an operator's export."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Skips, under a PyTorch older than the pinned one, what that one lacks, with its own words as the reason."""
    try:
        return (yield)
    except Exception as error:
        if torch is None or tuple(map(int, torch.__version__.split(".")[:2])) >= PINNED_TORCH:
            raise
        of_exporter = isinstance(error, getattr(torch.onnx, "OnnxExporterError", ()))
        if of_exporter or _LACKING.search(str(error)):
            pytest.skip(f"PyTorch {torch.__version__}: {str(error).strip().splitlines()[0][:200]}")
        raise


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
