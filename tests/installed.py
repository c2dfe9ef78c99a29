"""Which packages are older than the ones that the tests were written with, those of constraints.txt."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from pathlib import Path

_PINS = (Path(__file__).resolve().parents[1] / "constraints.txt").read_text(encoding="utf-8")


@functools.cache
def is_installed(package: str) -> bool:
    """Returns whether a package is installed, by the name that pip knows."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@functools.cache  # reading it takes as long as a test of one operator
def version(package: str) -> tuple[int, int]:
    """Returns the first two numbers of the installed version."""
    return _numbers(importlib.metadata.version(package))


@functools.cache
def pinned(package: str) -> tuple[int, int]:
    """Returns the first two numbers of the version in constraints.txt, the first where Pythons have their own."""
    (text, *_) = re.findall(rf"^{package}==(\S+?);?(?:\s|$)", _PINS, re.MULTILINE)
    return _numbers(text)


def is_older(package: str) -> bool:
    """Returns whether the package is installed and older than the pinned one."""
    return is_installed(package) and version(package) < pinned(package)


def _numbers(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
