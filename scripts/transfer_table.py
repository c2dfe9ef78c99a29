"""Fills models of torchvision and timm from ONNX files without their names: the rows of docs/transfer.md.

    python scripts/transfer_table.py --run            # rows that are missing
    python scripts/transfer_table.py --run resnet     # rows of models with this in their names, again

`python scripts/tables.py` writes the document from the stored rows. Each model has random weights, none constant,
and statistics of batch normalisations that were measured on random images, so that no layer is dead. Its file is made
in one of these forms; then a fresh model is filled from it, and must give the outputs of the first one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch

from scripts import torchvision_schemas
from scripts.torch_exports import seeded, write_dynamo, write_torchscript

ROOT = Path(__file__).resolve().parents[1]
STORED = Path(__file__).with_name("transfer_rows.json")
DOCUMENT = ROOT / "docs" / "transfer.md"
SECTION = "<!-- rows: written by scripts/tables.py -->\n"

# fmt: off
TORCHVISION = (
    "alexnet", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "mnasnet0_5", "mobilenet_v2",
    "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf", "resnet18", "resnet50", "resnext50_32x4d",
    "shufflenet_v2_x0_5", "squeezenet1_1", "vgg11_bn", "convnext_tiny", "swin_t", "vit_b_32", "wide_resnet50_2",
)
# fmt: on
# fmt: off
TIMM = (
    "vit_tiny_patch16_224", "deit_tiny_patch16_224", "convnext_atto", "mobilevit_xxs", "repvgg_a0", "mixer_s32_224",
    "resnet26d", "seresnet18", "skresnet18", "efficientnet_lite0", "ghostnet_100", "hardcorenas_a", "lcnet_050",
    "tinynet_e", "mobilenetv4_conv_small", "poolformer_s12", "edgenext_xx_small", "fastvit_t8", "pit_ti_224",
    "dla34",
)
# fmt: on
OWN_SIZES = {"inception_v3": 96, "alexnet": 224, "vgg11_bn": 224, "swin_t": 64, "mobilevit_xxs": 128}
"""Edges of the images; 224 for transformers with a fixed size, 64 for others.

MobileViT's last attention has one key at 64: onnxsim folds its softmax to 1, and the file lacks queries and keys.
"""

FORMS = ("onnxsim", "dynamo", "torchscript")
"""How a file is made: TorchScript's exporter simplified by onnxsim, torch.export's, TorchScript's alone.

All of them fold batch normalisations, and are renamed: initializers `t0`, `t1`..., nodes `n0`..., no metadata.
"""


def main() -> int:
    """Command line; runs rows and stores each as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="*", metavar="PART", required=True, help="parts of names; none: missing rows")
    parser.add_argument("--form", choices=FORMS, action="append", help="form of the files (default: all)")
    options = parser.parse_args()
    torchvision_schemas.predefine()
    for form in options.form or FORMS:
        for source, name in names():
            rows = stored()
            key = f"{source}/{name}/{form}"
            if any(part in name for part in options.run) if options.run else key not in rows:
                row = measured(source, name, form)
                rows = stored() | {key: row}
                STORED.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n", encoding="utf-8")
                print(key, row, flush=True)
    return 0


def names() -> list[tuple[str, str]]:
    """Returns the models, by package and name."""
    return [*(("torchvision", name) for name in TORCHVISION), *(("timm", name) for name in TIMM)]


def stored() -> dict[str, dict[str, Any]]:
    """Returns the stored rows."""
    found: dict[str, dict[str, Any]] = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    return found


def measured(source: str, name: str, form: str) -> dict[str, Any]:
    """Returns a row: what became of one file."""
    import onnx2nn

    started = time.perf_counter()
    try:
        build = _builder(source, name)
        model = seeded(build, 1)
        edge = OWN_SIZES.get(name, 224 if "224" in name or name.startswith("vit") else 64)
        images = torch.randn(4, 3, edge, edge, generator=torch.Generator().manual_seed(0))
        _measure_statistics(model, images)
        file = _file(model, images[:1], form)
    except Exception as error:  # of the packages that make the file: not this project's row to lose
        return {"ok": False, "reason": f"no file: {type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    fresh = seeded(build, 2)
    made = time.perf_counter()
    try:
        report = onnx2nn.transfer(file, fresh)
    except Exception as error:  # the row stays, with the reason
        lines = str(error).splitlines() or [""]
        return {"ok": False, "reason": f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"}
    with torch.no_grad():
        expected, found = model(images[1:]), fresh(images[1:])
    apart = float((found - expected).abs().max() / expected.std())
    return {
        "ok": apart < 1e-3,
        "placed": len(report.placed),
        "solved": sum(bool(weight.how) for weight in report.placed),
        "kept": len(report.kept),
        "difference": report.difference,
        "new_images": apart,
        "seconds": round(time.perf_counter() - made, 1),
        "seconds_file": round(made - started, 1),
        "reason": "" if apart < 1e-3 else "other outputs on new images",
    }


def _builder(source: str, name: str) -> Callable[[], torch.nn.Module]:
    if source == "timm":
        import timm

        return lambda: timm.create_model(name)
    import torchvision

    more = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return lambda: getattr(torchvision.models, name)(weights=None, **more)


def _measure_statistics(model: torch.nn.Module, images: torch.Tensor) -> None:
    """Sets the statistics of batch normalisations to those of some images."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.train()
            module.momentum = 0.9
    with torch.no_grad():
        model(images)
    model.eval()


def _file(model: torch.nn.Module, images: torch.Tensor, form: str) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        (write_dynamo if form == "dynamo" else write_torchscript)(path, model, (images,))
        proto = onnx.load(path)
    if form == "onnxsim":
        import onnxsim

        proto, _ = onnxsim.simplify(proto)
    return renamed(proto)


def renamed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Takes the names of weights and nodes from a file, and what exporters note."""
    graph = proto.graph
    new = {tensor.name: f"t{index}" for index, tensor in enumerate(graph.initializer)}
    for tensor in graph.initializer:
        tensor.name = new[tensor.name]
    for index, node in enumerate(graph.node):
        node.name = f"n{index}"
        del node.metadata_props[:]
        node.input[:] = [new.get(name, name) for name in node.input]
    del graph.value_info[:]
    return proto


def document(text: str, rows: dict[str, dict[str, Any]]) -> str:
    """Returns the document with the table of some rows behind its heading."""
    head, _, _ = text.partition(SECTION)
    right = [row for row in rows.values() if row["ok"]]
    models = {key.rpartition("/")[0] for key in rows}
    whole = {m for m in models if all(row["ok"] for key, row in rows.items() if key.rpartition("/")[0] == m)}
    lines = [
        f"{len(right)} of {len(rows)} files filled their model; {len(whole)} of {len(models)} models from every form "
        "that was run.",
        "",
        "| model | file | weights | of them solved | difference, float64 | new images, float32 | seconds | |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for key, row in sorted(rows.items()):
        name, _, form = key.rpartition("/")
        cells = [name, form]
        if "placed" in row:
            cells += [row["placed"], row["solved"], f"{row['difference']:.0e}", f"{row['new_images']:.0e}"]
            cells += [row["seconds"]]
        else:
            cells += [""] * 5
        lines.append(f"| {' | '.join(map(str, [*cells, row['reason'].replace('|', '/')]))} |")
    return head + SECTION + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
