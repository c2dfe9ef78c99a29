"""Measures one load in this process and prints it as JSON. `load.py` starts a fresh process for each measurement.

Resident memory includes mapped pages of the model's file. The process's own memory is measured after importing packages
and loading a one-node model, because importers import some modules at their first load.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from pathlib import Path

import importers

FIELDS = {"now": "VmRSS", "peak": "VmHWM", "private": "RssAnon", "files": "RssFile"}


def resident() -> dict[str, int]:
    """Returns the resident memory of this process in bytes: now, its peak since `forget_peak`, and of which kinds."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[field].split()[0]) * 1024 for name, field in FIELDS.items()}


def forget_peak() -> None:
    """Resets the peak of resident memory to the present value (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def settle() -> None:
    """Returns freed memory to the system, so that the rest belongs to the model."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    """Runs one measurement.

    The command line's arguments are an importer's name, a one-node model, the model, and the width of its input.
    """

    name, small, path, width = sys.argv[1:]
    import torch

    inputs = [torch.ones(1, int(width))]
    try:
        load = importers.MEMORY[name]()
        load(Path(small))(inputs)
        settle()
        own = resident()["now"]
        forget_peak()
        start = time.perf_counter()
        loaded = load(Path(path))
        seconds = time.perf_counter() - start
        peak = resident()["peak"]
        settle()
        after = resident()["now"]
        loaded(inputs)
        settle()
        run = resident()["now"]
    except Exception as error:
        print(json.dumps({"error": importers.reason(error)}))
        return
    print(json.dumps({"peak": peak - own, "after": after - own, "after a run": run - own, "seconds": seconds}))


if __name__ == "__main__":
    main()
