"""Where the commands start: an interrupt ends them with one line and a status from here on.

Python's own modules alone are imported at the top, as loading numpy, onnx and this package takes a second or two.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from onnx2nn.commands.statuses import INTERRUPTED


def onnx2nn() -> int:
    """The command `onnx2nn`; returns its exit status."""
    with _leaving("onnx2nn"):
        from onnx2nn.commands.main import main
    return main()


def onnx2pytorch() -> int:
    """The command `onnx2pytorch`; returns its exit status."""
    with _leaving("onnx2pytorch"):
        from onnx2nn.commands import onnx2pytorch as command
    return command.onnx2pytorch()


@contextlib.contextmanager
def _leaving(program: str) -> Iterator[None]:
    """Ends the process at SIGINT: nothing is open yet, and some libraries make an ImportError of an exception."""

    def leave(*_: Any) -> NoReturn:
        os.write(sys.stderr.fileno(), f"{program}: error: interrupted\n".encode())
        os._exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as behind `nohup`
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
