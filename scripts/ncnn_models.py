"""Measures which models go on to NCNN, and writes the table of docs/ncnn.md from what came out.

python scripts/ncnn_models.py            # all models; those of Keras and Paddle from .cache/zoo, where nox left them
python scripts/ncnn_models.py resnet18   # only those whose name holds the word; docs/ncnn.md stays as it is
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torchvision_schemas  # noqa: E402
from realmodels import export_dynamo, export_torchscript, seeded  # noqa: E402

torchvision_schemas.predefine()
import test_ncnn  # noqa: E402
import torchvision  # noqa: E402

import onnx2nn  # noqa: E402
from onnx2nn.errors import Onnx2nnError  # noqa: E402
from onnx2nn.importing import inputs  # noqa: E402

DOCUMENT = ROOT / "docs" / "ncnn.md"
START, END = "<!-- measured -->", "<!-- end of what was measured -->"
VISION = ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5", "efficientnet_b0")
ZOO = (  # without Keras's EfficientNet: its softmax over random logits is one-hot, which proves nothing
    "tensorflow/keras_mobilenet_v2",
    "tensorflow/keras_mobilenet_v3_small",
    "paddle/paddle_resnet18",
    "paddle/paddle_mobilenet_v3_small",
    "paddle/paddle_ghostnet",
    "paddle/paddle_repvgg",
)


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, or why the model does not go."""

    model: str
    layers: str = ""
    fp32: str = ""
    fp16: str = ""
    megabytes: str = ""
    reason: str = ""


def models() -> dict[str, Callable[[], Path]]:
    """Returns for every model a function that gives its ONNX file."""
    found: dict[str, Callable[[], Path]] = {"Keras digits (examples/digits)": lambda: test_ncnn.DIGITS / "digits.onnx"}
    image = (torch.linspace(-1, 1, 3 * 96 * 96).reshape(1, 3, 96, 96),)
    for exporter, export in (("TorchScript", export_torchscript), ("dynamo", export_dynamo)):
        for name in VISION:
            found[f"torchvision {name}, {exporter}"] = lambda name=name, export=export: export(
                f"ncnn_{name}_96", test_ncnn._vision(name), image
            )
        found[f"ViT, 2 layers, {exporter}"] = lambda export=export: export("ncnn_vit_96", seeded(vit), image)
    for name, written in test_ncnn.MODELS.items():
        if name in ("detector", "recurrent"):
            found[{"detector": "YOLO-style detector head", "recurrent": "LSTM language model"}[name]] = written
    for name in ZOO:
        path = ROOT / ".cache" / "zoo" / f"{name}.onnx"
        if path.exists():
            found[path.stem.replace("_", " ", 1).capitalize()] = lambda path=path: path
    return found


def vit() -> nn.Module:
    """A vision transformer of two layers."""
    return torchvision.models.VisionTransformer(96, 16, 2, 3, 48, 96, num_classes=10)


def measure(name: str, path: Path) -> Row:
    """Converts one file in a folder that is deleted afterwards."""
    try:
        specs = inputs.input_specs(onnx2nn.reading.reader.read(path))
        sizes = inputs.resolve_shapes(specs)
        module = onnx2nn.load(path, input_shapes=sizes)
        with tempfile.TemporaryDirectory() as folder:
            model = onnx2nn.to_ncnn(module, folder)
            half, full = (file.stat().st_size / 1e6 for file in (model.half_weights, model.weights))
    except Onnx2nnError as error:
        return Row(name, reason=" ".join(str(error).split()))
    errors = [max(o.max_difference / max(o.scale, 1e-12) for o in outputs) for outputs in (model.fp32, model.fp16)]
    return Row(name, str(sum(model.layers.values())), *(f"{e:.1e}" for e in errors), f"{_short(full)} / {_short(half)}")


def _short(megabytes: float) -> str:
    return f"{megabytes:.1f}" if megabytes >= 1 else f"{megabytes:.2g}"


def table(rows: list[Row]) -> str:
    """Returns the rows as Markdown."""
    lines = ["| model | layers | fp32 | fp16 | MB fp32 / fp16 |", "|---|---|---|---|---|"]
    lines += [f"| {r.model} | {r.layers} | {r.fp32} | {r.fp16} | {r.megabytes} |" for r in rows if not r.reason]
    failed = [f"- {row.model}: {row.reason}" for row in rows if row.reason]
    return "\n".join([*lines, *(["", "These do not go:", "", *failed] if failed else [])])


def main() -> None:
    """Measures, prints, and writes the document where all models were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only models whose name holds it")
    word = parser.parse_args().word
    rows = []
    for name, file in models().items():
        if word.lower() in name.lower():
            start = time.monotonic()
            rows.append(measure(name, file()))
            print(f"{rows[-1]}  {time.monotonic() - start:.1f} s", flush=True)
    if not word:
        head, _, rest = DOCUMENT.read_text().partition(START)
        DOCUMENT.write_text(f"{head}{START}\n\n{table(rows)}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
