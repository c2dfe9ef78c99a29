"""How far long work is: the commands listen, and loops over nodes tell."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_listener: ContextVar[Callable[[int, int], None] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(listener: Callable[[int, int], None]) -> Iterator[None]:
    """Inside, `listener` is told how many of how many items a loop has done."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tracked(items: Sequence[T]) -> Iterator[T]:
    """Yields the items and tells the listener how many are done; of the loops inside each other the outermost does."""
    listener = _listener.get()
    if listener is None:
        yield from items
        return
    _listener.set(None)
    try:
        for done, item in enumerate(items):
            listener(done, len(items))
            yield item
        listener(len(items), len(items))
    finally:
        _listener.set(listener)
