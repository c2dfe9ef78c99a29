"""What draws the calls of each operator, of all files of calls."""

from __future__ import annotations

from tests.drawn import contrib, draw, elementwise, layout, ml, norms, others, products, recurrent, reductions, windows

FILES = (contrib, elementwise, layout, ml, norms, others, products, recurrent, reductions, windows)
"""They fill `CALLS` when they are imported."""

CALLS = draw.CALLS
