"""Imports every cached model of the other frameworks to OneFlow and compares it with ONNX Runtime.

    python scripts/oneflow_import.py                  # all files under .cache/zoo, writes docs/oneflow_import.md
    python scripts/oneflow_import.py paddle_unet bert # the files whose name contains one of these, prints their rows

`nox -s zoo_tensorflow zoo_paddle -- --all` and the torch tests write the files. Each is imported in a process of its
own: what OneFlow does to the process that an import runs in is part of the result. Needs `onnx2nn[oneflow]` and
onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("ONNX2NN_ZOO", ROOT / ".cache" / "zoo"))
DOCUMENT = ROOT / "docs" / "oneflow_import.md"
TOLERANCE = 1e-4
"""How far an output may be from ONNX Runtime's, relative to the largest of the output's values."""

OTHERS = ("benchmark_", "export_", "nc-", "ncnn_")
"""How the names of files begin that benchmarks keep in the cache too."""

TIME_LIMIT = 900
OPEN_SIZE = 16
"""Size of a dynamic dimension of which neither the file nor the stored inputs say anything."""


HEAD = """\
# ONNX to OneFlow

`onnx2nn.load(path, framework="oneflow")` gives a `oneflow.nn.Module`: `oneflow.nn` layers and weights under the file's
names, and one forward whose source is `module.code`. It trains, is saved by `oneflow.save` and compiles in
`oneflow.nn.Graph`. What OneFlow 0.9 lacks (Fourier transforms, complex numbers, float8) is reported at import, every
node of it. If, Loop and Scan run as Python, so that a graph cannot trace them, nor can it operators whose result's
shape depends on values.

Written by `scripts/oneflow_import.py`: each file is imported and every output is compared with ONNX Runtime. The
difference is relative to the largest value of an output; a model works where none is above {tolerance:g}. TensorFlow's
and Paddle's files are compared with the framework's own outputs too. PyTorch's come from both of its exporters
(`torchscript`, `dynamo`).

"""


@dataclass(frozen=True)
class Row:
    """What became of one file.

    Attributes:
        family: the framework it comes from, the cache's folder.
        name: the model's name.
        difference: the largest one over all outputs, relative to the output's scale; None where there is no result.
        problem: why not.
    """

    family: str
    name: str
    difference: float | None = None
    problem: str = ""

    @property
    def works(self) -> bool:
        """Whether every output equals ONNX Runtime's."""
        return self.difference is not None and self.difference <= TOLERANCE


def files(names: list[str]) -> list[tuple[str, str, Path]]:
    """Returns family, name and path of the cached files whose name contains one of `names`; of all without any."""
    found = []
    for path in sorted([*CACHE.glob("*/*.onnx"), *CACHE.glob("*/*/model.onnx")]):
        nested = path.name == "model.onnx"
        family = path.parents[1].name if nested else path.parent.name
        name = path.parent.name.rpartition("-")[0] if nested else path.stem
        if name.startswith(OTHERS):
            continue
        if not names or any(wanted in name for wanted in names):
            found.append((family, name, path))
    return found


def inputs_of(path: Path) -> list[np.ndarray[Any, Any]]:
    """Returns the inputs stored beside a file, else seeded ones at a batch of 2."""
    if path.with_suffix(".npz").exists():
        with np.load(path.with_suffix(".npz")) as arrays:
            return [arrays[f"input{i}"] for i in range(sum(key.startswith("input") for key in arrays))]
    from onnx2nn import reader
    from onnx2nn.inputs import example_inputs, input_specs

    specs = input_specs(reader.read(path))
    shapes = {
        spec.name: [
            size if isinstance(size, int) else 2 if axis == 0 else OPEN_SIZE for axis, size in enumerate(spec.shape)
        ]
        for spec in specs
        if spec.shape is not None
    }
    examples = example_inputs(specs, shapes)
    for spec in specs:
        if spec.limit is None and examples[spec.name].dtype.kind == "i":
            examples[spec.name] = examples[spec.name].clip(max=1)  # it may be an index into anything
    return list(examples.values())


def difference(path: Path) -> float:
    """Returns how far the import's outputs are from ONNX Runtime's."""
    import onnxruntime

    import onnx2nn
    from oneflow_bridge.runtime import import_oneflow

    flow = import_oneflow()
    inputs = inputs_of(path)
    module = onnx2nn.load(path, framework="oneflow")
    with flow.no_grad():
        outputs = module(*[flow.tensor(value) for value in inputs])
    if "torch" in sys.modules:
        raise RuntimeError("torch was imported")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Its optimiser makes keras_resnet50_v2 wrong by 2 %; without it all three agree to 1e-6.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {value.name: array for value, array in zip(session.get_inputs(), inputs, strict=True)}
    expected = session.run(None, feeds)
    found = [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]
    if path.with_suffix(".npz").exists():  # what the framework itself gave
        with np.load(path.with_suffix(".npz")) as arrays:
            found, expected = found * 2, [*expected, *(arrays[f"output{i}"] for i in range(len(found)))]
    return max(_difference(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def _difference(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise ValueError(f"{ours.dtype} {ours.shape} instead of {theirs.dtype} {theirs.shape}")
    if not ours.size:
        return 0.0
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return float("inf")
    scale = np.abs(theirs[finite], dtype=np.float64).max(initial=1e-30)
    return float(np.abs(ours[finite].astype(np.float64) - theirs[finite]).max(initial=0.0) / scale)


def row_of(family: str, name: str, path: Path) -> Row:
    """Returns a file's row, from a process of its own."""
    command = [sys.executable, __file__, "--worker", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return Row(family, name, None, f"not done after {TIME_LIMIT} s")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return Row(family, name, None, f"the process ended with code {done.returncode}")
    return Row(family, name, **json.loads(lines[-1]))


def worker(path: Path) -> None:
    """Prints the result for one file as JSON."""
    try:
        result: dict[str, Any] = {"difference": difference(path), "problem": ""}
    except Exception as error:
        result = {"difference": None, "problem": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    print(json.dumps(result), flush=True)


def document(rows: list[Row], conformance: str) -> str:
    """Returns the document."""
    text = HEAD.format(tolerance=TOLERANCE).splitlines()
    if conformance:
        text += ["## ONNX's conformance suite", "", conformance, ""]
    titles = {"torch": "PyTorch", "tensorflow": "TensorFlow and Keras", "paddle": "PaddlePaddle"}
    for family, title in titles.items():
        mine = [row for row in rows if row.family == family]
        works = sum(row.works for row in mine)
        text += [
            f"## {title}: {works} of {len(mine)}",
            "",
            "| model | works | max relative difference |",
            "|---|---|---|",
        ]
        for row in mine:
            cell = row.problem.replace("|", "\\|") if row.difference is None else f"{row.difference:.1e}"
            text.append(f"| {row.name} | {'Yes' if row.works else 'No'} | {cell} |")
        text.append("")
    return "\n".join(text)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names; without any, all files, and the document is written")
    parser.add_argument("--conformance", type=Path, help="what `scripts/conformance.py --framework oneflow` printed")
    parser.add_argument("--rows", type=Path, help="rows that an earlier run printed, which are not made again")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    lines = options.rows.read_text().splitlines() if options.rows else []
    known = {(row.family, row.name): row for row in (Row(**json.loads(line)) for line in lines)}

    def result(job: tuple[str, str, Path]) -> Row:
        row = known.get(job[:2]) or row_of(*job)
        print(json.dumps(asdict(row)), flush=True)
        return row

    with ThreadPool(options.jobs) as pool:
        rows = pool.map(result, files(options.names), chunksize=1)
    if not options.names:
        score = options.conformance.read_text().strip().splitlines()[-1] if options.conformance else ""
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(document(rows, score))
    sys.exit(any(not row.works for row in rows))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
