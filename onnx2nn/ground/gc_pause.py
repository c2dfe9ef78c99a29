"""Pauses Python's cyclic garbage collector while many long-lived objects are made at once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Runs no cyclic collection inside: each would search the thousands of nodes of a graph and free none."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def set_aside() -> None:
    """Spares the next collections the search of all objects that exist by now, as they would survive it."""
    if not gc.isenabled() and not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()  # now they are in the oldest generation; nothing was searched


def collect_young() -> None:
    """Frees the objects that were made and dropped during the pause."""
    if not gc.isenabled():
        gc.collect(1)
