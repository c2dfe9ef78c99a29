"""Runs a function on two processes that torch.distributed connects by gloo."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch
from torch import distributed

Work = Callable[..., Any]

RANKS = 2
SECONDS = 60
"""After this time processes that wait for each other are ended."""


def on_ranks(work: Work, *arguments: Any, preload: str = "torch.distributed.tensor") -> list[Any]:
    """Returns what each rank returns.

    Args:
        work: a function of a module; it gets the rank and the arguments.
        arguments: picklable values.
        preload: a module that is imported once for all processes; it takes many seconds.

    Raises:
        RuntimeError: a rank failed, with its last line.
        TimeoutError: the ranks did not end.
    """
    context = _context(preload)
    with tempfile.TemporaryDirectory() as folder:
        ends, processes = [], []
        for rank in range(RANKS):
            here, there = context.Pipe(duplex=False)
            given = (rank, str(Path(folder, "store")), there, work, arguments)
            process = context.Process(target=_rank, args=given, daemon=True)
            process.start()
            there.close()
            ends.append(here)
            processes.append(process)
        try:
            return _answers(ends)
        finally:
            for process in processes:
                process.kill()
                process.join()


@functools.cache
def _context(preload: str) -> ForkServerContext:
    """Returns a server of processes in which packages are imported already; there is one, with the first `preload`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, preload])
    return context


def _answers(ends: list[Connection]) -> list[Any]:
    """Returns what the ranks send, or raises the first error that one of them sends."""
    found: dict[int, Any] = {}
    while len(found) < len(ends):
        ready = wait([end for rank, end in enumerate(ends) if rank not in found], timeout=SECONDS)
        if not ready:
            raise TimeoutError(f"ranks {sorted({0, 1} - found.keys())} did not end in {SECONDS} seconds")
        for end in ready:
            assert isinstance(end, Connection)
            try:
                error, answer = pickle.loads(end.recv_bytes())
            except EOFError:
                raise RuntimeError("a rank ended without an answer") from None
            if error:
                raise RuntimeError(error)
            found[ends.index(end)] = answer
    return [found[rank] for rank in range(len(ends))]


def _rank(rank: int, store: str, end: Connection, work: Work, arguments: tuple[Any, ...]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
        answer = "", work(rank, *arguments)
    except Exception as error:  # the other process raises it
        if os.environ.get("ECOSYSTEM_TRACEBACKS"):
            traceback.print_exc()
        answer = f"{type(error).__name__}: {error}", None
    end.send_bytes(pickle.dumps(answer))
    end.close()
