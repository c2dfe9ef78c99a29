"""Exports flowvision's models with a dynamic batch and compares each with ONNX Runtime at a batch that was not traced.

    python scripts/oneflow_zoo.py                       # the whole list, writes docs/oneflow_zoo.md
    python scripts/oneflow_zoo.py --resume              # models that the written table lacks
    python scripts/oneflow_zoo.py squeezenet1_1 vgg11   # some models, prints their rows
    python scripts/oneflow_zoo.py --resume vgg11        # likewise, and replaces them in the written table

Each model runs in a process of its own: OneFlow ends the process on errors that an exception would report elsewhere.
A process that takes more than 10 minutes or 10 GB is ended. Weights are random, batch statistics are perturbed. Needs
the packages of `onnx2nn[oneflow]`, flowvision 0.2.2, scipy.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "oneflow_zoo.md"

CI_MODELS = (
    *("squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x0_5", "levit_128s", "mobilevit_xx_small"),
    *("deit_tiny_patch16_224", "googlenet", "rexnet_lite_1_0", "swin_tiny_patch4_window7_224"),
)

MODELS = (
    *("alexnet", "densenet121", "densenet169", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "mnasnet0_5", "mnasnet0_75"),
    *("mnasnet1_0", "resnet18", "resnet34", "resnet50", "resnet101", "resnext50_32x4d", "wide_resnet50_2"),
    *("inception_v3", "googlenet", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "mobilenet_v2"),
    *("mobilenet_v3_small", "mobilenet_v3_large", "squeezenet1_0", "squeezenet1_1", "convmixer_768_32_relu"),
    *("convmixer_1024_20", "swin_tiny_patch4_window7_224", "swin_small_patch4_window7_224"),
    *("crossformer_tiny_patch4_group7_224", "crossformer_small_patch4_group7_224", "pvt_tiny", "pvt_small"),
    *("cswin_tiny_224", "cswin_small_224", "resmlp_12_224", "resmlp_12_distilled_224", "resmlp_24_224"),
    *("regionvit_tiny_224", "regionvit_small_224", "mlp_mixer_s16_224", "mlp_mixer_s32_224", "mlp_mixer_b32_224"),
    *("gmlp_ti16_224", "gmlp_s16_224", "rexnetv1_1_0", "rexnetv1_1_3", "rexnet_lite_1_0", "rexnet_lite_1_3"),
    *("ghostnet", "res2net50_26w_4s", "res2net50_14w_8s", "res2net50_48w_2s", "efficientnet_b0", "efficientnet_b1"),
    *("efficientnet_b2", "regnet_y_400mf", "regnet_y_800mf", "regnet_x_400mf", "regnet_x_800mf"),
    *("vit_tiny_patch16_224", "vit_small_patch32_224", "vit_small_patch16_224", "vit_base_patch32_224"),
    *("vit_tiny_patch16_384", "deit_tiny_patch16_224", "deit_small_patch16_224", "deit_tiny_distilled_patch16_224"),
    *("convnext_tiny_224", "convnext_small_224", "convnext_iso_small_224", "poolformer_s12", "poolformer_s24"),
    *("resnest50", "resnest101", "uniformer_small", "uniformer_small_plus", "senet154", "se_resnet50"),
    *("se_resnext50_32x4d", "van_tiny", "van_small", "levit_128s", "levit_128", "levit_192", "levit_256"),
    *("mobilevit_xx_small", "mobilevit_x_small", "mobilevit_small", "deit_small_patch16_LS_224", "cait_XS24_384"),
    *("cait_S24_224", "dla34", "dla46_c", "dla46x_c", "dla60x_c", "dla60", "genet_small", "genet_normal"),
    *("fan_tiny_12_p16_224", "fan_small_12_p16_224", "fast_neural_style", "fcn_resnet50_coco"),
    *("deeplabv3_resnet50_coco", "deeplabv3_mobilenet_v3_large_coco", "lraspp_mobilenet_v3_large_coco", "iresnet50"),
    *("iresnet101", "hrnet_w18_small", "hrnet_w18_small_v2", "fan_tiny_8_p4_hybrid"),
    *("fasterrcnn_mobilenet_v3_large_320_fpn", "maskrcnn_resnet50_fpn", "ssd300_vgg16"),
    *("ssdlite320_mobilenet_v3_large", "retinanet_resnet50_fpn", "fcos_resnet50_fpn"),
)
"""At least one model of each module of flowvision; its other models (of 295) are wider, deeper or trained otherwise."""

COLUMNS = ("model", "nodes", "megabytes", "seconds", "scale", "difference", "equal")
TIME_LIMIT, MEMORY_LIMIT = 600, 10e9
"""Seconds and bytes that one model may take."""

_SIZES = {"inception_v3": 299, "iresnet50": 112, "iresnet101": 112}


def input_size(name: str) -> int:
    """Returns the height and width of a model's input."""
    return _SIZES.get(name, 384 if "384" in name else 224)


def flowvision_models() -> Any:
    """Imports flowvision's models; flowvision 0.2.2 needs a name that OneFlow 0.9 does not have."""
    if "oneflow" not in sys.modules:
        from oneflow_bridge.runtime import import_oneflow

        import_oneflow()
    import oneflow.jit

    if not hasattr(oneflow.jit, "_script_if_tracing"):
        oneflow.jit._script_if_tracing = lambda function: function
    import flowvision.models

    return flowvision.models


def create(name: str) -> Any:
    """Returns a model with random weights, in eval mode."""
    creator = flowvision_models().ModelCreator
    options = {"pretrained_backbone": False} if name.endswith(("_coco", "_fpn")) or name.startswith("ssd") else {}
    return seeded(lambda: creator.create_model(name, pretrained=False, **options))


def seeded(build: Callable[[], Any]) -> Any:
    """Returns the model of `build` in eval mode, with random weights, none of them constant."""
    import numpy as np
    import oneflow as flow

    flow.manual_seed(0)
    model = build().eval()
    generator = np.random.default_rng(0)
    for key, buffer in model.named_buffers():
        if key.endswith("running_mean"):
            buffer.copy_(flow.tensor(generator.normal(0, 0.1, tuple(buffer.shape)).astype(np.float32)))
        if key.endswith("running_var"):
            buffer.copy_(flow.tensor(generator.uniform(0.5, 1.5, tuple(buffer.shape)).astype(np.float32)))
    for parameter in model.parameters():
        if not parameter.numpy().any():  # a head or a gate of zeros would hide the layers before it
            parameter.data.copy_(flow.tensor(generator.normal(0, 0.02, tuple(parameter.shape)).astype(np.float32)))
    return model


def normalise(module: Any, images: Any) -> None:
    """Gives batch normalization the statistics of images, without which deep networks overflow or ignore an input."""
    import oneflow as flow

    layers = [layer for layer in module.modules() if isinstance(layer, flow.nn.BatchNorm2d)]
    for layer in layers:
        layer.momentum = 1.0
    if layers:
        with flow.no_grad():
            module.train()(flow.tensor(images))
        module.eval()


def measure(name: str) -> dict[str, Any]:
    """Exports one model and compares it at batch 1; larger batches were traced."""
    import numpy as np

    from oneflow_bridge.to_onnx import check
    from oneflow_bridge.to_onnx.arguments import Arguments
    from oneflow_bridge.to_onnx.exporter import export

    model = create(name)
    size = input_size(name)
    images = np.random.default_rng(1).normal(size=(4, 3, size, size)).astype(np.float32)
    normalise(model, images)
    image = images[:2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        start = time.perf_counter()
        proto = export(model, image, path, dynamic=True, check=False)
        seconds = time.perf_counter() - start
        differences = check.compare(model, Arguments.of(model, image[:1]), {}, path)
        megabytes = path.stat().st_size / 1e6
    worst = max(differences, key=lambda d: d.relative)
    if not 0 < worst.scale < np.inf:
        raise ValueError(f"{name} gives zeros, or no numbers: nothing is compared")
    return {
        "model": name,
        "nodes": len(proto.graph.node),
        "megabytes": round(megabytes, 1),
        "seconds": round(seconds, 2),
        "scale": float(f"{worst.scale:.3g}"),
        "difference": float(f"{worst.relative:.2g}"),
        "equal": "Yes",
    }


def definitions() -> dict[str, list[str]]:
    """Returns all names that flowvision registers, by the file of flowvision.models that defines them."""
    found: dict[str, list[str]] = {}
    for name, function in flowvision_models().ModelCreator._model_entrypoints.items():
        path = function.__module__.removeprefix("flowvision.models.").replace(".", "/")
        found.setdefault(f"{path}.py", []).append(name)
    return {path: sorted(names) for path, names in sorted(found.items())}


def in_process(name: str) -> dict[str, Any]:
    """`measure` in a process of its own; a failure is a row too."""
    from scripts.conversions.limits import Limits, in_process

    found = dict(in_process(Limits(TIME_LIMIT, MEMORY_LIMIT), measure, name))
    return {"model": name, "equal": f"No: {found['problem']}"} if "problem" in found else found


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown page."""
    good = sum(row["equal"] == "Yes" for row in rows)
    lines = [
        "# flowvision models, exported and compared",
        "",
        f"Generated by `scripts/oneflow_zoo.py`. Of its {len(MODELS)} models {len(rows)} were run; {good} are equal to",
        "OneFlow's at batch 1. The job was traced at two batches, weights are random. Seconds: the export, both",
        "traces included, on a busy machine. Scale: the largest magnitude of the output. Difference: the largest one",
        "over the scale: at most 1e-4, or what the model's own rounding explains. Batch normalizations have",
        "random statistics, rows of later runs those of random images. Where a reason stands, OneFlow itself cannot",
        "trace the model, or it took",
        f"more than {TIME_LIMIT} s or {MEMORY_LIMIT / 1e9:.0f} GB. Names that share a definition with these are listed",
        "at the end.",
        "",
        "The detectors cannot be recorded from a run in place of the trace: OneFlow 0.9 has no CPU kernel for `nms`,",
        "which each of them calls for its boxes, nor for `roi_align` (`op_kernel_not_found_error`), and flowvision's",
        "RetinaNet gives `topk` a `dim` that OneFlow refuses. FCOS runs as long as it finds no box. Where these ops",
        "run, a record would hold the boxes of one image: their number decides shapes, which a job states as numbers.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    lines += ["| " + " | ".join(str(row.get(column, "")) for column in COLUMNS) + " |" for row in rows]
    return "\n".join([*lines, "", *_shared_definitions()]) + "\n"


def _shared_definitions() -> list[str]:
    """The names that were not run, each beside those that were and that the same file of flowvision defines."""
    files = definitions()
    count = sum(map(len, files.values()))
    shared = sum(name not in MODELS for names in files.values() for name in names)
    lines = [
        "## Names that share a definition",
        "",
        f"flowvision {version('flowvision')} registers {count} names. The {shared} that are not",
        "in the table are built by the same file as models that are: wider, deeper, for larger images, or with weights",
        "from other images.",
        "",
        "| file of flowvision.models | in the table | share its definitions |",
        "|---|---|---|",
    ]
    for path, names in files.items():
        run = [name for name in names if name in MODELS]
        others = [name for name in names if name not in MODELS]
        assert run, f"no model of {path} is in the list"
        if others:
            lines.append(f"| `{path}` | {', '.join(run)} | {', '.join(others)} |")
    return lines


def written() -> dict[str, dict[str, Any]]:
    """The rows of the table as it stands, by model."""
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ", len(COLUMNS) - 1)]
        for line in lines
        if line.startswith("| ")
    ]
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in cells if row[0] in MODELS}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="flowvision models; none runs the whole list and writes the table")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the written table")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    known = {name: row for name, row in written().items() if name not in options.models} if options.resume else {}
    rows = {}
    for name in options.models or MODELS:
        rows[name] = known.get(name) or in_process(name)
        print(json.dumps(rows[name]), flush=True)
        if options.resume or not options.models:  # written after each model: an interrupted run keeps its results
            TABLE.write_text(table([row for n in MODELS if (row := rows.get(n) or known.get(n))]))
    if any(row["equal"] != "Yes" for row in rows.values() if options.models):
        sys.exit(1)


if __name__ == "__main__":
    main()
