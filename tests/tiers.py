"""Which parameters of a test run in the fast tier, where all of them together would take minutes."""

from __future__ import annotations

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
