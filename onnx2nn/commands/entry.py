"""Where the commands start: an interrupt ends them with one line and a status from here on, closed streams are opened.

Python's own modules alone are imported at the top, as loading numpy, onnx and this package takes a second or two.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from onnx2nn.commands.statuses import INTERRUPTED


def onnx2nn() -> int:
    """The command `onnx2nn`; returns its exit status."""

    def load() -> Callable[[], int]:
        from onnx2nn.commands.main import main

        return main

    return _started("onnx2nn", load)


def onnx2pytorch() -> int:
    """The command `onnx2pytorch`; returns its exit status."""

    def load() -> Callable[[], int]:
        from onnx2nn.commands.onnx2pytorch import onnx2pytorch as command

        return command

    return _started("onnx2pytorch", load)


def _started(program: str, load: Callable[[], Callable[[], int]]) -> int:
    _open_closed_streams()
    with _leaving(program):
        from onnx2nn.ground.deferred_import import import_onnx_ir

        import_onnx_ir()
        command = load()
    try:
        return command()
    except KeyboardInterrupt:  # before the command's own handling, while its parser is made
        os.write(sys.stderr.fileno(), f"{program}: error: interrupted\n".encode())
        return INTERRUPTED


def _open_closed_streams() -> None:
    """Opens /dev/null where the caller closed stdin, stdout or stderr (`>&-`): Python's stream is None there.

    Also, the next file that is opened would get the stream's number, and whatever a library prints.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115  # to the end


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
