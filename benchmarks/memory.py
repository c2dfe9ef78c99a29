"""Measures one load in this process and prints it as JSON; `load.py` starts a fresh one for each measurement.

Resident memory counts everything, mapped pages of the model's file too. The process's own is what stands after
importing packages and loading a one-node model, which brings in what importers import late.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path

import importers

FIELDS = {"now": "VmRSS", "peak": "VmHWM"}


def resident() -> dict[str, int]:
    """Resident memory of this process in bytes, now and at its highest since `forget_peak`."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[field].split()[0]) * 1024 for name, field in FIELDS.items()}


def forget_peak() -> None:
    """Sets the highest resident memory to the present one (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def settle() -> None:
    """Gives freed memory back to the system, so that what is left is what the model holds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    """Arguments: an importer's name, a one-node model, the model, the width of its input."""
    name, small, path, width = sys.argv[1:]
    import torch

    inputs = [torch.ones(1, int(width))]
    try:
        load = importers.IMPORTERS[name]()
        load(Path(small))(inputs)
        settle()
        own = resident()["now"]
        forget_peak()
        loaded = load(Path(path))
        peak = resident()["peak"]
        settle()
        after = resident()["now"]
        loaded(inputs)
        settle()
        run = resident()["now"]
    except Exception as error:
        print(json.dumps({"error": importers.reason(error)}))
        return
    print(json.dumps({"peak": peak - own, "after": after - own, "after a run": run - own}))


if __name__ == "__main__":
    main()
