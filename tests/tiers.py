"""Which tests run: the fast tier's share of a test's parameters, and the parts into which a run is cut."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(parameters: Iterable[Any], fast: Collection[Any]) -> list[Any]:
    """Returns the parameters, one or a tuple of them each, of which all but `fast` are marked slow."""
    parameters = list(parameters)
    unknown = [parameter for parameter in fast if parameter not in parameters]
    if unknown:
        raise ValueError(f"{unknown} are no parameters")
    return [
        pytest.param(*given, marks=() if parameter in fast else pytest.mark.slow)
        for parameter in parameters
        for given in [parameter if isinstance(parameter, tuple) else (parameter,)]
    ]


def in_shard(nodeid: str, index: int, count: int) -> bool:
    """Returns whether a test, by its name, belongs to part `index` of `count`, counted from 1."""
    return zlib.crc32(nodeid.encode()) % count == index - 1
