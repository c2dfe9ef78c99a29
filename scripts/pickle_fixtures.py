"""Saves small imports in every form that names modules of ours, for the test that later versions load them.

    python scripts/pickle_fixtures.py                            # with onnx2nn[all]
    python scripts/pickle_fixtures.py --framework oneflow        # then in OneFlow's environment

Run once per released version: `tests/data/pickles/0.1` holds what 0.1 saved, and stays as it is. Both commands add what
is missing in the folder of the installed version. Beside each model's saved forms stand the file itself (`NAME.onnx`)
and the inputs and outputs of a call (`NAME.torch.npz`: `input0`, `output0`; strings as such).

A pickle names classes and functions by the modules that hold them; the forms here name all that there are: the tracer
that unpickling records with, the operators of `onnx2nn.functional`, the modules of control flow, the hook that renames
inputs, functions that a program calls by name. A `.pt2` and a `.torchscript` name operators of `torch.ops.onnx2nn`,
which `onnx2nn.operators` declares; a `.safetensors` has keys. OneFlow's folders name the bridge's module, its layer and
its control flow, and hold programs in the bridge's namespace.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import behaviour_files
import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnx2nn  # noqa: E402

TEXTS = {
    "labels": """g (float[n, 2] x) => (string[n] label, float[n, 2] scores) {
            label, scores = ai.onnx.ml.LinearClassifier <coefficients = [1.0, -1.0, -0.5, 2.0],
                intercepts = [0.1, 0.2], classlabels_strings = ["no", "yes"]> (x)
        }""",
    "gradient": """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
        g (float[3] x) => (float[3] dx) {
            y = Tanh(x)
            dx = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
        }""",
    "old_revision": """<ir_version: 8, opset_import: ["" : 10]>
        g (float[t, n, 2] x, int32[n] lengths) => (float[t, 1, n, 1] y, float[1, n, 1] h)
        <float[1, 3, 2] w = {0.1, -0.2, 0.3, 0.4, 0.5, -0.6}, float[1, 3, 1] r = {0.5, 1, -1}>
        { y, h = GRU <hidden_size = 1> (x, w, r, "", lengths) }""",
    "sizes": """g (float[n, m] x) => (float[k, m] y)
        <int64 zero = {0}, int64 five = {5}, int64 three = {3}, int64[1] axis = {0}> {
            s = Shape(x)
            n = Gather <axis = 0> (s, zero)
            least = Min(n, five)
            most = Max(least, three)
            end = Unsqueeze(most, axis)
            y = Slice(x, axis, end)
        }""",
    **{
        name: behaviour_files.TEXTS[name]
        for name in ("batched_scan", "detection", "loops", "names", "recurrent", "scans", "sequences")
    },
}
PROGRAMS = ("layers", "detection", "recurrent")
"""Models that are also saved as programs of torch; the last two call operators of ours."""
TORCH_ONLY = ("gradient",)
"""Models that cannot be imported into OneFlow."""


def export(folder: Path) -> None:
    """Writes the models that torch exports: layers, and attention, a layer that the bridge has for OneFlow."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    torch.manual_seed(0)
    convolution = [nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers = nn.Sequential(*convolution, nn.Linear(2, 2))
    made = {"layers": (layers, torch.randn(2, 1, 6, 6)), "attention": (Attention(), torch.randn(3, 2, 8))}
    for name, (module, x) in made.items():
        path, axes = folder / f"{name}.onnx", {"x": {0: "batch"} if name == "layers" else {1: "batch"}}
        if not path.exists():
            options = {"dynamo": False, "input_names": ["x"], "dynamic_axes": axes, "opset_version": 17}
            torch.onnx.export(module.eval(), (x,), str(path), **options)


def values(result: Any) -> Sequence[np.ndarray]:
    """Returns the arrays of a module's outputs; strings as NumPy's fixed-width ones, which no pickle is needed for."""
    results = result if isinstance(result, tuple) else (result,)
    arrays = [value if isinstance(value, np.ndarray) else value.detach().numpy() for value in results]
    return [array.astype(str) if array.dtype == object else array for array in arrays]


def store_call(path: Path, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Writes the inputs and outputs of a call."""
    named = {f"input{i}": value for i, value in enumerate(inputs)} | {
        f"output{i}": value for i, value in enumerate(outputs)
    }
    np.savez_compressed(path, **named)  # type: ignore[arg-type]  # mypy takes an array for `allow_pickle`


def save_torch(path: Path) -> None:
    """Saves an import in the forms that torch has."""
    import torch

    module = onnx2nn.load(path)
    inputs = behaviour_files.random_inputs(onnx.load(str(path)), 3)
    tensors = [torch.from_numpy(value) for value in inputs]
    with torch.set_grad_enabled(path.stem == "gradient"):
        store_call(path.with_suffix(".torch.npz"), inputs, values(module(*tensors)))
    onnx2nn.save(module, path.with_suffix(".pth"))
    if path.stem in PROGRAMS:
        for ending in (".pt2", ".torchscript"):
            onnx2nn.save(module, path.with_suffix(ending), example_inputs=tensors)
            remove_places(path.with_suffix(ending))
    if path.stem == "layers":
        onnx2nn.save(module, path.with_suffix(".safetensors"))


def remove_places(path: Path) -> None:
    """Takes from a program where the code stood that was traced: folders of the machine that wrote it."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if not name.endswith(".debug_pkl")}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            if name.endswith("model.json"):
                content = re.sub(rb'"stack_trace": "(?:[^"\\]|\\.)*"', b'"stack_trace": ""', content)
            archive.writestr(zipfile.ZipInfo(name), content)


def save_oneflow(path: Path) -> None:
    """Saves an import in OneFlow's form, a folder."""
    module = onnx2nn.load(path, framework="oneflow")
    import oneflow as flow  # when the import has prepared its libraries

    inputs = behaviour_files.random_inputs(onnx.load(str(path)), 3)
    with flow.no_grad():
        store_call(path.with_suffix(".oneflow.npz"), inputs, values(module(*map(flow.tensor, inputs))))
    flow.save(module, str(path.with_suffix(".oneflow")))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=["torch", "oneflow"], default="torch")
    kind = parser.parse_args().framework
    version = ".".join(importlib.metadata.version("onnx2nn").split(".")[:2])
    folder = ROOT / "tests" / "data" / "pickles" / version
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "torch":
        for name, text in TEXTS.items():
            if not (folder / f"{name}.onnx").exists():
                behaviour_files.write(folder / f"{name}.onnx", text)
        export(folder)
    for path in sorted(folder.glob("*.onnx")):
        possible = kind == "torch" or path.stem not in TORCH_ONLY
        if possible and not path.with_suffix(f".{kind}.npz").exists():
            (save_torch if kind == "torch" else save_oneflow)(path)
            print(f"{path.stem}: saved by {kind}")


if __name__ == "__main__":
    main()
