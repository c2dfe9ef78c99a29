"""Python's cyclic garbage collector, held back while many long-lived objects are made at once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Runs no cyclic collection inside; a graph of thousands of nodes would be searched again and again for nothing."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collect_young() -> None:
    """Frees what was made and dropped while collections were held back."""
    if not gc.isenabled():
        gc.collect(1)
