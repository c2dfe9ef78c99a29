"""OneFlow's half of the round trips in tests/test_round_trips.py.

    python scripts/oneflow_round_trip.py export FOLDER            # models to ONNX, and back to OneFlow
    python scripts/oneflow_round_trip.py import M/model.onnx ...  # files of another framework, to OneFlow

Beside a file `M/model.onnx` lie an input and output of its model (`model.npz`: input0, output0) and its state
(`model.json`: shapes by key); the first command writes them. Both print for each file a line of JSON with the
differences of the import from them. Needs `onnx2nn[oneflow]` and flowvision 0.2.2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]


def models() -> dict[str, tuple[int, Callable[[], Any]]]:
    """Returns the image size and the builder of each model; of transformers the tiny size, less deep."""
    import oneflow_zoo

    zoo = oneflow_zoo.flowvision_models()
    return {
        "alexnet": (224, zoo.alexnet),
        "resnet50": (32, zoo.resnet50),
        "mobilenet_v2": (32, zoo.mobilenet_v2),
        "vit_tiny": (
            32,
            lambda: zoo.vision_transformer.VisionTransformer(
                img_size=32, patch_size=16, embed_dim=192, depth=2, num_heads=3
            ),
        ),
        "swin_tiny": (
            56,
            lambda: zoo.swin_transformer.SwinTransformer(
                img_size=56, patch_size=4, window_size=7, embed_dim=96, depths=(2, 2), num_heads=(3, 6)
            ),
        ),
        "convnext_tiny": (32, lambda: zoo.convnext.ConvNeXt(depths=[1, 1, 2, 1], dims=[96, 192, 384, 768])),
    }


def export(folder: Path) -> list[Path]:
    """Exports the models with their outputs for an image; returns the files' paths."""
    import oneflow_zoo

    from oneflow_bridge.to_onnx.exporter import export as to_onnx

    paths = []
    for name, (size, build) in models().items():
        model = oneflow_zoo.seeded(build)
        import oneflow as flow

        image = np.random.default_rng(1).normal(size=(1, 3, size, size)).astype(np.float32)
        path = folder / name / "model.onnx"
        path.parent.mkdir()
        to_onnx(model, image, path, dynamic=True, check=False)
        with flow.no_grad():
            np.savez(path.with_suffix(".npz"), input0=image, output0=model(flow.tensor(image)).numpy())
        path.with_suffix(".json").write_text(json.dumps(_state(model)))
        paths.append(path)
    return paths


def _state(module: Any) -> dict[str, list[int]]:
    return {key: list(tensor.shape) for key, tensor in module.state_dict().items()}


def imported(path: Path) -> dict[str, Any]:
    """Imports a file to OneFlow; returns the differences of its output and of its state from the stored ones."""
    from oneflow_bridge.runtime import import_oneflow

    flow = import_oneflow()
    import onnx2nn

    module = onnx2nn.load(path, framework="oneflow")
    with np.load(path.with_suffix(".npz")) as arrays, flow.no_grad():
        expected = arrays["output0"]
        found = module(flow.tensor(arrays["input0"])).numpy()
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise ValueError(f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}")
    state, known = _state(module), json.loads(path.with_suffix(".json").read_text())
    return {
        "name": path.parent.name,
        "difference": float(np.abs(found - expected).max() / np.abs(expected).max()),
        "different": sorted(key for key in {*state, *known} if state.get(key) != known.get(key)),
        "torch": "torch" in sys.modules,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("export").add_argument("folder", type=Path)
    commands.add_parser("import").add_argument("paths", type=Path, nargs="+")
    options = parser.parse_args()
    for path in export(options.folder) if options.command == "export" else options.paths:
        print(json.dumps(imported(path)), flush=True)


if __name__ == "__main__":
    main()
