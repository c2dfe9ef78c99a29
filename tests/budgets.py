"""How much of the processor's time a piece of code may take, whatever ran in the process before."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator


@contextlib.contextmanager
def processor_time_below(seconds: float) -> Iterator[None]:
    """Asserts that the body takes less than so many seconds of the processor, in its own thread.

    The garbage collector is off meanwhile: one collection searches all that earlier tests of the process left, which
    takes seconds of its own. The wall's clock, other threads and the machine's other processes do not count.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.thread_time()
        yield
        spent = time.thread_time() - start
    finally:
        if enabled:
            gc.enable()
    assert spent < seconds, f"{spent:.3f} s of the processor, allowed are {seconds}"
