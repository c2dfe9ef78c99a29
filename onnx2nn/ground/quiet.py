"""Keeps what a library prints, warns of and logs from the terminal."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps what torch prints and warns of to itself: it writes to stderr where a call fails, which is tried often.

    torch.onnx logs, too, which packages it misses (torchvision); the stream of its handler is not sys.stderr's.
    """
    nowhere, log = io.StringIO(), logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
