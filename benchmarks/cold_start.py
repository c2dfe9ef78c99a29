"""Measures the first load and call of a model in fresh processes, beside ONNX Runtime.

    python benchmarks/cold_start.py                       # the digits of the examples, 20 processes of each
    python benchmarks/cold_start.py a.onnx --repeats 10

Counted is processor time behind `import torch` (for ONNX Runtime behind `import numpy`): of importing what the load
needs, of the load, and of the first call. The processes take turns; the first of each compiles modules and is not
counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import importers
from rich.console import Console
from rich.progress import track
from rich.table import Table

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.onnx"

_PROGRAMS = {
    "onnx2nn": (
        "import torch, time, sys; start = time.process_time(); import onnx2nn; "
        "module = onnx2nn.load(sys.argv[1]); loaded = time.process_time(); "
        "numbers = {'float32': torch.rand, 'int64': lambda *size: torch.zeros(size, dtype=torch.int64)}; "
        "module(*[numbers[kind](*size) for kind, size in eval(sys.argv[2])]); "
    ),
    "ONNX Runtime": (
        "import numpy, time, sys; start = time.process_time(); import onnxruntime; "
        "session = onnxruntime.InferenceSession(sys.argv[1]); loaded = time.process_time(); "
        "feeds = [numpy.zeros(size, kind) for kind, size in eval(sys.argv[2])]; "
        "session.run(None, dict(zip([value.name for value in session.get_inputs()], feeds))); "
    ),
}
_END = "print(loaded - start, time.process_time() - loaded)"


def inputs_of(path: Path) -> str:
    """Returns dtypes and sizes of a model's inputs, 1 for each dynamic dimension but 64 behind the first two."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights, found = {tensor.name for tensor in graph.initializer}, []
    for value in graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            sizes = [d.dim_value or (1 if axis < 2 else 64) for axis, d in enumerate(tensor.shape.dim)]
            found.append((onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, sizes))
    return repr(found)


def measure(path: Path, repeats: int) -> Table:
    """Returns a table with the least and the median seconds of each."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in _PROGRAMS}
    given = inputs_of(path)
    with tempfile.TemporaryDirectory() as folder:  # compiled modules, whatever the environment says of them
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPYCACHEPREFIX": folder}
        for _ in track(range(repeats + 1), f"fresh processes for {path.name}", transient=True):
            for name, program in _PROGRAMS.items():
                command = [sys.executable, "-c", program + _END, str(path), given]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                load, call = map(float, done.stdout.split())
                seconds[name].append((load, call))
    load = os.getloadavg()[0]
    table = Table(title=f"First load of {path.name}, processor ms, least (median) of {repeats}; load {load:.0f}")
    for column in ("importer", "load", "first call", "x ONNX Runtime"):
        table.add_column(column, justify="left" if column == "importer" else "right")
    totals = {name: min(sum(one) for one in found[1:]) for name, found in seconds.items()}
    for name, found in seconds.items():
        cells = []
        for part in zip(*found[1:], strict=True):
            cells.append(f"{1000 * min(part):.0f} ({1000 * statistics.median(part):.0f})")
        table.add_row(importers.title(name), *cells, f"{totals[name] / totals['ONNX Runtime']:.2f}")
    return table


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="models; by default the digits of the examples")
    parser.add_argument("--repeats", type=int, default=20, help="processes of each that are counted (default: 20)")
    options = parser.parse_args()
    for path in options.files or [DIGITS]:
        Console().print(measure(path, options.repeats))


if __name__ == "__main__":
    main()
