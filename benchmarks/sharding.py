"""Measures the memory of a Llama of 1 GB that goes from its file to two processes, each with its part of the weights.

A process is measured from the call of `onnx2nn.load(path, device="meta")` to the sharded module with all its weights.
Resident memory is the system's own peak (VmHWM of proc(5)), above what the process has after it did the same with a
small model. It includes pages of mapped files and everything that was allocated meanwhile. "afterwards" is what stays:
private memory (RssAnon) and pages of files (RssFile); "read" is what was read of files. "over held" is the peak above
the weights that the process holds, as a share of the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import memory  # first: it makes the checkout importable
import models
import torch

RANKS = 2
WAYS = ("load", "load to meta", "init_empty_weights", "sharded, OnnxReader", "sharded, load on each")
"""How a module is loaded; the last is what users do without a reader."""

COLUMNS = (
    "loaded by",
    "weights held",
    "peak",
    "private afterwards",
    "of files",
    "read",
    "over held",
    "s",
    "outputs equal",
)

README = Path(__file__).with_name("README.md")
HEADING = "## Sharded loading, measured"


def _load(way: str, path: Path) -> torch.nn.Module:
    import onnx2nn

    if way == "init_empty_weights":
        from accelerate import init_empty_weights

        with init_empty_weights(include_buffers=True):
            return onnx2nn.load(path)
    if way == "sharded, OnnxReader":
        from torch.distributed import checkpoint

        module = _sharded(onnx2nn.load(path, device="meta"))
        state = module.state_dict()
        checkpoint.load(state, storage_reader=onnx2nn.OnnxReader(path))
        module.load_state_dict(state, assign=True)
        return module
    if way == "sharded, load on each":
        return _sharded(onnx2nn.load(path))
    return onnx2nn.load(path, device="meta" if "meta" in way else "cpu")


def _sharded(module: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in getattr(getattr(module, "model", module), "layers", ()):
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def _bytes_held(module: torch.nn.Module) -> int:
    """Returns the bytes of the weights that this process has."""
    tensors = (getattr(p, "to_local", lambda p=p: p)() for p in module.parameters())
    return sum(tensor.nbytes for tensor in tensors if tensor.device.type != "meta")


def _bytes_read() -> int:
    """Returns the bytes that this process has read of files (rchar of proc(5)); pages that are mapped do not count."""
    lines = dict(line.split(":") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def _measure(way: str, small: Path, path: Path, rank: int, store: str, results: str) -> dict[str, Any]:
    """Loads in this process; returns bytes, and writes the outputs for some tokens."""
    from torch import distributed

    if "sharded" in way:
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    _load(way, small)
    memory.settle()
    before = memory.resident()
    own = before["now"]
    memory.forget_peak()
    start, read = time.perf_counter(), _bytes_read()
    module = _load(way, path)
    seconds, peak, read = time.perf_counter() - start, memory.resident()["peak"], _bytes_read() - read
    memory.settle()
    after = memory.resident()
    found = {"peak": peak - own, "held": _bytes_held(module), "read": read, "seconds": seconds}
    found |= {kind: after[kind] - before[kind] for kind in ("private", "files")}
    if found["held"]:
        with torch.no_grad():
            torch.save(module(models.llama_tokens()), results)
    return found


def _run(way: str, small: Path, path: Path, folder: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Returns what fresh processes measure, and their outputs."""
    ranks = range(RANKS if "sharded" in way else 1)
    store, outputs = folder / f"store-{way}", [folder / f"outputs-{rank}" for rank in ranks]
    runs = []
    for rank in ranks:
        worker = [sys.executable, __file__, "--worker", way, str(small), str(path), str(rank)]
        command = [*worker, str(store), str(outputs[rank])]
        runs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    answers = [json.loads(run.communicate()[0].splitlines()[-1]) for run in runs]
    return answers, [torch.load(file) for file in outputs if file.exists()]


def _row(name: str, found: dict[str, Any], size: int, equal: str) -> list[str]:
    over = (found["peak"] - found["held"]) / size
    figures = [found[measure] for measure in ("held", "peak", "private", "files", "read")]
    return [
        name,
        *(f"{figure / models.MIB:.0f}" for figure in figures),
        f"{over:.3f}",
        f"{found['seconds']:.1f}",
        equal,
    ]


def _rows(small: Path, path: Path, size: int) -> Iterator[list[str]]:
    plain: Any = None
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            answers, outputs = _run(way, small, path, Path(folder))
            plain = outputs[0] if plain is None else plain
            for rank, found in enumerate(answers):
                equal = ("yes" if torch.equal(outputs[rank], plain) else "NO") if found["held"] else "-"
                yield _row(f"{way}, rank {rank}" if len(answers) > 1 else way, found, size, equal)


def _text(rows: list[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    )
    return "\n".join("    " + "  ".join(line).rstrip() for line in lines)


def _write(text: str) -> None:
    """Replaces the table in the README."""
    before, heading, after = README.read_text().partition(f"{HEADING}\n")
    lines = after.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("    "))
    last = next(number for number, line in enumerate([*lines, ""]) if number > first and not line.startswith("    "))
    README.write_text("\n".join([before + heading.rstrip("\n"), *lines[:first], text, *lines[last:]]) + "\n")


def main() -> None:
    """Prints the table, or measures in a process of it."""
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["--worker"]:
        way, small, path, rank, store, results = sys.argv[2:]
        print(json.dumps(_measure(way, Path(small), Path(path), int(rank), store, results)))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into README.md too")
    arguments = parser.parse_args()
    few, many = models.llama(layers=1, width=128, words=512), models.llama()
    size = sum(file.stat().st_size for file in many.parent.iterdir())
    rows = [COLUMNS, *_rows(few, many, size)]
    text = f"    Llama of {size / models.MIB:.0f} MiB\n{_text(rows)}"
    print(text)
    if arguments.write:
        _write(text)


if __name__ == "__main__":
    main()
