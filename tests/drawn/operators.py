"""What draws the calls of each operator, of all files of calls."""

from __future__ import annotations

from collections.abc import Container

import pytest

from tests.drawn import contrib, draw, elementwise, layout, ml, norms, others, products, recurrent, reductions, windows

FILES = (contrib, elementwise, layout, ml, norms, others, products, recurrent, reductions, windows)
"""They fill `CALLS` when they are imported."""

CALLS = draw.CALLS


def parameters(keys: Container[tuple[str, str]] = CALLS) -> list[object]:
    """Returns the parameters `domain` and `op` of a test of each operator among `keys`."""
    return [pytest.param(*key, id=".".join(key).lstrip(".")) for key in sorted(CALLS) if key in keys]


def held_seeds(request: pytest.FixtureRequest, fast: int, held: int) -> range:
    """Returns the seeds of a held run, behind those of the fast tier: other ones for each `--seed`."""
    first = fast + held * request.config.getoption("--seed")
    return range(first, first + held)
