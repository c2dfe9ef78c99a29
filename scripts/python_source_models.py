"""Writes every real model that the tests use as source, runs the files and says how long they are.

python scripts/python_source_models.py         # all; those of Keras and Paddle from .cache/zoo, where nox left them
python scripts/python_source_models.py resnet  # only those whose name holds the word
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # before the imports that it makes possible

from realmodels import EXPORTERS, Tensors, check_same, run, seeded  # noqa: E402
from test_torch_models import CASES, RUNS  # noqa: E402

import onnx2nn  # noqa: E402
from onnx2nn.errors import Onnx2nnError  # noqa: E402


def models(word: str) -> Iterable[tuple[str, Path, list[Tensors]]]:
    """Yields name, file and inputs of the models whose name holds `word`."""
    for name, exporter in RUNS:
        if word in f"{name} {exporter}":
            case = CASES[name]
            inputs = [case.inputs(size) for size in case.sizes]
            yield f"{name} {exporter}", EXPORTERS[exporter](name, seeded(case.build), *inputs[:2]), inputs
    for path in sorted((ROOT / ".cache" / "zoo").glob("*/*.onnx")):
        if word in path.stem:
            with np.load(path.with_suffix(".npz")) as arrays:
                count = sum(key.startswith("input") for key in arrays)
                yield path.stem, path, [tuple(torch.from_numpy(arrays[f"input{index}"]) for index in range(count))]


def measure(path: Path, inputs: list[Tensors], folder: Path) -> str:
    """Writes one model, runs the file beside the import; returns what `to_python` says, and of what ruff complains."""
    module = onnx2nn.load(path)
    told = onnx2nn.to_python(module, folder).split(": ", 1)[1].split(";")[0]
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    model = written.load_model()
    assert set(model.state_dict()) == set(module.state_dict()), "other keys"
    for values in inputs:
        check_same(run(model, values), run(module, values), "against the import")
    for arguments in (["check", "--isolated"], ["format", "--isolated", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *arguments, str(folder / "model.py")], capture_output=True)
        told += f", ruff {arguments[0]} complains" if done.returncode else ""
    return told


def main() -> int:
    """Prints a line for each model; returns 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="")
    word = parser.parse_args().word
    torch.set_num_threads(1)
    counts = {"written": 0, "refused": 0, "wrong": 0}
    for name, path, inputs in models(word):
        with tempfile.TemporaryDirectory() as folder:
            try:
                result, verdict = "written", measure(path, inputs, Path(folder))
            except Onnx2nnError as error:
                result, verdict = "refused", f"refused: {error}"
            except Exception as error:  # the next model is measured all the same
                result, verdict = "wrong", f"WRONG: {type(error).__name__}: {str(error)[:300]}"
        counts[result] += 1
        print(f"{name}: {verdict}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
