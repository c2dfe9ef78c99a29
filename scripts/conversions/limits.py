"""Runs one measurement in a process of its own, ends it at its limits, and makes a fact of whatever ends it.

The limits hold for the process together with those that it starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from scripts.conversions.exported import reason
from scripts.conversions.rows import Facts


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one measurement may take: seconds that pass, and bytes of resident memory."""

    seconds: float = 600
    memory: float = 10e9


def in_process(limits: Limits, function: Callable[..., Facts], *arguments: Any) -> Facts:
    """Returns the facts of a call, or `problem`: its error, the limit that it went over, or how the process ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scripts.conversions.preloaded"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    try:
        return _awaited(process, ours, limits)
    finally:
        process.kill()
        process.join()
        with contextlib.suppress(ProcessLookupError):  # it had not become the leader of a group, or nothing is left
            os.killpg(process.pid, signal.SIGKILL)
        ours.close()


def _awaited(process: Any, connection: Connection, limits: Limits) -> Facts:
    deadline = time.monotonic() + limits.seconds
    while not connection.poll(0.1):
        if time.monotonic() > deadline:
            return {"problem": f"more than {limits.seconds:.0f} s"}
        if _resident(process.pid) > limits.memory:
            return {"problem": f"more than {limits.memory / 1e9:.0f} GB of memory"}
    try:
        found: Facts = connection.recv()
    except EOFError:
        process.join()
        return {"problem": f"the process ended with code {process.exitcode}"}
    return found


def _resident(process: int) -> int:
    """Returns the bytes of a process and its descendants."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (OSError, IndexError):  # it ended
        return 0
    return pages * resource.getpagesize() + sum(_resident(int(child)) for child in children)


def _call(connection: Connection, function: Callable[..., Facts], arguments: tuple[Any, ...]) -> None:
    os.setpgid(0, 0)  # processes that it starts are in its group, which is ended with it
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        found = function(*arguments)
    except Exception as error:  # whatever it is, it is the row's fact
        found = {"problem": reason(error)}
    connection.send(found)
