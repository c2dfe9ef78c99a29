"""How a run is spread over processes, where a test's random numbers come from, and what a run says at its end."""

from __future__ import annotations

import argparse
import getpass
import os
import random
import re
import tempfile
import zlib
from collections.abc import Generator
from typing import Any

import installed
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from tiers import in_shard

try:
    import torch
except ImportError:  # OneFlow's environment has none
    torch = None

if torch and "PYTEST_XDIST_WORKER" in os.environ:  # a process a core: threads of torch's would wait for each other
    torch.set_num_threads(1)

# Hypothesis fails an example that takes 200 ms, and drawing that takes long, which on a busy machine any may.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

LISTED = {
    "unverified": "cases at revisions without an oracle",
    "newer": "operators of this ONNX Runtime take more than their rows, which were reviewed with an older one",
}
"""What tests note about single operators → how the list of them begins at the end of a run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="other random numbers for every test than those of seed 0")
    parser.addoption("--shard", type=_shard, help="run one part of the tests: 1/4 to 4/4 run all of them")
    parser.addoption(
        "--write", action="store_true", help="write tables instead of comparing them, see scripts/tables.py"
    )


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 1/4")
    return int(index), int(count)


@pytest.hookimpl(trylast=True)  # after -m and -k have made their choice
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests of one shard, which their names decide."""
    shard = config.getoption("--shard")
    if shard is None:
        return
    index, count = shard
    chosen: list[list[pytest.Item]] = [[], []]
    for item in items:
        chosen[in_shard(item.nodeid, index, count)].append(item)
    config.hook.pytest_deselected(items=chosen[False])
    items[:] = chosen[True]


@pytest.fixture(scope="session", autouse=True)
def _temporary() -> Generator[None, None, None]:
    """Puts what this process and those it starts leave in the folder of temporary files into one that goes with it.

    AOTInductor never removes the packages that it unpacks, and a process of pytest-xdist ends before what runs at exit.
    Compiled kernels stay where they are, for all processes.
    """
    kernels = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", kernels))
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


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
    if torch:  # not torch.manual_seed, which notes the whole stack for each kind of device that is not started yet
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


_LACKING = {
    "torch": re.compile(
        r'PyTorch \S+ has no|"\w+" not implemented for|torch\.onnx\.export cannot export|eps must be positive|'
        r"could not create a memory|Guard failed: |op returned non-Tensor|"
        r"Could not (guard on|extract specialized integer from) data-dependent"
    ),
    "onnxruntime": re.compile("ValidateOpsetForDomain"),
    "onnx": re.compile(r"\[ParseError at|^FLOAT8E8M0$|the installed onnx has no|^no revision \d+ of"),
}
"""Package → how messages begin that say what an older one lacks.

PyTorch: an element type, a kernel for one, an operator's export; of what 2.11 lacks beside 2.13: norms without epsilon,
packed convolutions with a sum in one pixel, exports with some conditions on sizes. onnx: names of nodes in the text
that its parser reads, an element type, a schema. ONNX Runtime: an opset.
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pinned(*packages): holds with the versions of constraints.txt or newer ones")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Any:
    for package in (name for mark in item.iter_markers("pinned") for name in mark.args):
        if installed.is_older(package):
            pytest.skip(f"{package} {_dotted(package)} is older than what is compared with")
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    return (yield from _skipping())


def _skipping() -> Generator[None, Any, Any]:
    """Skips what a package older than the pinned one lacks, with that one's own words as the reason."""
    try:
        return (yield)
    except Exception as error:
        for package, words in _LACKING.items():
            if installed.is_older(package) and (words.search(str(error)) or _of_exporter(package, error)):
                pytest.skip(f"{package} {_dotted(package)}: {str(error).strip().splitlines()[0][:200]}")
        raise


def _dotted(package: str) -> str:
    return ".".join(map(str, installed.version(package)))


def _of_exporter(package: str, error: Exception) -> bool:
    return package == "torch" and isinstance(error, getattr(torch.onnx, "OnnxExporterError", ()))


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's, which a run on one process does without
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Lets a process that has no tests left take some of another's: those on real models take minutes together."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests noted by `record_property`: scores, and lists of what a person should look at.

    The notes travel with the tests' reports, from other processes too.
    """
    noted: dict[str, set[str]] = {"score": set(), **{key: set() for key in LISTED}}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, text in getattr(report, "user_properties", ()):
                if key in noted:
                    noted[key].add(str(text))
    for line in sorted(noted["score"]):
        terminalreporter.write_line(line)
    for key, title in LISTED.items():
        if noted[key]:
            terminalreporter.write_line(f"{len(noted[key])} {title}: {', '.join(sorted(noted[key]))}")
