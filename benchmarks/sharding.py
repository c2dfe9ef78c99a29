"""Measures the memory of a Llama of 1 GB that goes from its file to two processes, each with its part of the weights.

A process is measured from the call of `onnx2nn.load(path, device="meta")` to the sharded module with all its weights.
Resident memory is the system's own peak (VmHWM of proc(5)), above what the process has after it did the same with a
small model. It includes pages of mapped files and everything that was allocated meanwhile. "afterwards" is what stays:
private memory (RssAnon) and pages of files (RssFile).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import memory  # first: it makes the checkout importable
import models
import torch
from rich.console import Console
from rich.table import Table

RANKS = 2
GOAL = 0.05
"""Of the file, above the weights that a process holds."""

WAYS = {
    "onnx2nn.load": "the whole module",
    'load(device="meta")': "no weights",
    "init_empty_weights": "no weights",
    "sharded, OnnxReader": "its part",
    "sharded, whole on each": "its part",
}
"""How a module is loaded → what it holds then."""


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
    if way == "sharded, whole on each":
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
    start = time.perf_counter()
    module = _load(way, path)
    seconds, peak = time.perf_counter() - start, memory.resident()["peak"]
    memory.settle()
    after = memory.resident()
    found = {"peak": peak - own, "held": _bytes_held(module), "seconds": seconds}
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
    figures = [found["held"], found["peak"], found["private"], found["files"]]
    return [
        name,
        *(f"{figure / models.MIB:.0f}" for figure in figures),
        f"{over:+.3f}",
        f"{found['seconds']:.1f}",
        equal,
    ]


def main() -> None:
    """Prints the table, or measures in a process of it."""
    if sys.argv[1:2] == ["--worker"]:
        warnings.simplefilter("ignore")
        way, small, path, rank, store, results = sys.argv[2:]
        print(json.dumps(_measure(way, Path(small), Path(path), int(rank), store, results)))
        return
    argparse.ArgumentParser(description=__doc__).parse_args()
    small, path = models.llama(layers=1, width=128, words=512), models.llama()
    size = sum(file.stat().st_size for file in path.parent.iterdir())
    table = Table(title=f"Llama of {size / models.MIB:.0f} MiB; MiB above the process's own")
    for column in ("loaded by", "weights held", "peak", "private afterwards", "of files", "peak - held, x the file"):
        table.add_column(column, justify="left" if column == "loaded by" else "right")
    for column in ("s", "outputs equal"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        plain: Any = None
        for way in WAYS:
            answers, outputs = _run(way, small, path, Path(folder))
            plain = outputs[0] if plain is None else plain
            for rank, found in enumerate(answers):
                equal = ("yes" if torch.equal(outputs[rank], plain) else "NO") if found["held"] else "-"
                name = f"{way}, rank {rank}" if len(answers) > 1 else way
                table.add_row(*_row(name, found, size, equal))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
