"""The processor time of each pass of an import or an export: a benchmark listens, and the passes tell."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar


class PassTimes(dict[str, float]):
    """Processor seconds of this process by pass, in the order of their first starts.

    A pass inside another one counts alone while it runs, so that the seconds add up to those of all passes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: list[str] = []
        self._since = 0.0

    def start(self, name: str) -> None:
        """Notes the start of a pass."""
        self._count()
        self._running.append(name)
        self.setdefault(name, 0.0)

    def stop(self) -> None:
        """Notes the end of the pass that started last."""
        self._count()
        self._running.pop()

    def _count(self) -> None:
        now = time.process_time()
        if self._running:
            self[self._running[-1]] += now - self._since
        self._since = now


_times: ContextVar[PassTimes | None] = ContextVar("times", default=None)


@contextlib.contextmanager
def recorded() -> Iterator[PassTimes]:
    """Yields the seconds of the passes that run inside."""
    token = _times.set(found := PassTimes())
    try:
        yield found
    finally:
        _times.reset(token)


class timed(contextlib.ContextDecorator):
    """A pass, as a context manager or a decorator of the function that runs it.

    Args:
        name: of the pass.
    """

    __slots__ = ("_name", "_times")

    def __init__(self, name: str):
        self._name = name

    def _recreate_cm(self) -> timed:  # of ContextDecorator: a decorated function may call itself, and run in threads
        return timed(self._name)

    def __enter__(self) -> None:
        self._times = _times.get()
        if self._times is not None:
            self._times.start(self._name)

    def __exit__(self, *_: object) -> None:
        if self._times is not None:
            self._times.stop()
