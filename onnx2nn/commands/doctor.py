"""The command `onnx2nn doctor`: what is installed, and what each command lacks."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from packaging.requirements import Requirement

from onnx2nn.commands import check, compare, compile, convert, ncnn, ops, report, simplify, transfer, verify
from onnx2nn.commands.options import add_debug
from onnx2nn.commands.statuses import FAILED, OK
from onnx2nn.ground.terminal import Terminal

EXAMINED: tuple[ModuleType, ...] = (
    convert,
    compile,
    check,
    verify,
    report,
    compare,
    transfer,
    simplify,
    ncnn,
    ops,
)
"""The modules of the commands; `EXTRAS` of each names the extras that it needs."""

_HIDDEN = frozenset({"all", "test", "docs", "dev", "ecosystem", "ray"})
"""Extras that are for work on the repository, or that consist of others."""

_COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class Package:
    """A package that onnx2nn can use.

    Attributes:
        requirement: name and versions.
        extra: the extra that installs it, `""` where every installation has it.
        installed: its version here, None where it is missing.
    """

    requirement: Requirement
    extra: str
    installed: str | None

    @property
    def state(self) -> str:
        """Whether it is missing, of another version than is needed, or there."""
        if self.installed is None:
            return "missing"
        return "ok" if self.requirement.specifier.contains(self.installed, prereleases=True) else "wrong version"


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser(
        "doctor",
        help="show versions, the processor's features, and what is missing for which command",
        description="Shows what a report of a fault should contain. The status is 1 if a package has a version that "
        "does not work; a missing one is no fault.",
    )
    parser.set_defaults(command=run)
    add_debug(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Prints the system, the packages and the commands."""
    for title, value in system():
        terminal.line(f"{title}: {value}")
    terminal.line("")
    found = list(packages())
    rows = [
        [str(p.requirement.name), p.installed or "-", str(p.requirement.specifier), p.extra, p.state] for p in found
    ]
    bad = [p.state == "wrong version" or (p.state == "missing" and not p.extra) for p in found]
    terminal.table(["package", "installed", "needed", "extra", "state"], rows, numeric=(), bad=bad)
    terminal.line("")
    for name, lacks in lacking(found):
        terminal.line(f"onnx2nn {name}: {lacks or 'ready'}")
    wrong = [str(p.requirement) for p, is_bad in zip(found, bad, strict=True) if is_bad]
    terminal.verdict(f"NEEDED: {', '.join(wrong)}" if wrong else "OK", good=not wrong)
    return FAILED if wrong else OK


def system() -> Iterator[tuple[str, str]]:
    """Yields what the machine has: name and value."""
    yield "onnx2nn", _version("onnx2nn") or "(not installed)"
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    if importlib.util.find_spec("torch") is not None:
        import torch

        features = torch.backends.cpu.get_cpu_capability()
        yield "torch on the processor", f"{features}, {torch.get_num_threads()} threads"
        yield "GPUs", str(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    yield "C++ compiler", compiler() or "none: `compile` falls back to eager mode"
    if (cache := os.environ.get("ONNX2NN_CACHE")) is not None:
        yield "ONNX2NN_CACHE", cache


def compiler() -> str | None:
    """Returns the path of the C++ compiler that torch takes: `$CXX`, else the first usual one."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else _COMPILERS
    return next(filter(None, map(shutil.which, names)), None)


def packages() -> Iterator[Package]:
    """Yields the packages of this Python's requirements, in the order of the metadata."""
    for text in importlib.metadata.requires("onnx2nn") or ():
        requirement = Requirement(text)
        extras = sorted(_extras() - _HIDDEN)
        for extra in ("", *extras):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                yield Package(requirement, extra, _version(requirement.name))
                break


def _extras() -> set[str]:
    return set(importlib.metadata.metadata("onnx2nn").get_all("Provides-Extra") or ())


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def lacking(found: list[Package]) -> Iterator[tuple[str, str]]:
    """Yields the name of each command, and what to install for it: `""` where nothing is missing."""
    for command in EXAMINED:
        name = command.__name__.rpartition(".")[2]
        needed = [extra for extra in command.EXTRAS if any(p.extra == extra and p.state != "ok" for p in found)]
        missing = [p.requirement.name for p in found if p.extra in needed and p.state != "ok"]
        what = f"needs {', '.join(missing)}: pip install 'onnx2nn[{','.join(needed)}]'" if needed else ""
        yield name, what
