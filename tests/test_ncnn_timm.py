"""Measures which models of timm go on to NCNN: the second table of docs/ncnn.md, one model a family.

`pytest -m held tests/test_ncnn_timm.py` compares the layers with the table, `--write` writes it.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from realmodels import export_torchscript
from test_ncnn_models import DOCUMENT, short

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from onnx2nn.output.ncnn import NcnnModel
from scripts import torchvision_schemas

START, END = "<!-- measured with timm -->", "<!-- end of what was measured with timm -->"
SIZES = {
    "botnet26t_256": 128, "crossvit_9_240": 240, "deit_tiny_distilled_patch16_224": 64, "edgenext_xx_small": 64,
    "levit_128s": 64, "mixer_s32_224": 64, "mobilevitv2_050": 64, "swin_tiny_patch4_window7_224": 64,
    "tiny_vit_5m_224": 224, "xcit_nano_12_p16_224": 64,
}  # fmt: skip
"""Model → width and height of its images, as small as its family allows."""

WITHOUT_SIZE = {"crossvit_9_240", "edgenext_xx_small", "mobilevitv2_050", "tiny_vit_5m_224",
                "xcit_nano_12_p16_224"}  # fmt: skip
"""Models that are built for all sizes of images, or for theirs."""


def _model(timm: Any, name: str) -> torch.nn.Module:
    """Random weights, and random statistics in place of zeros and ones, which would hide a lost layer."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10, **({} if name in WITHOUT_SIZE else {"img_size": SIZES[name]}))
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "running_mean", None) is not None:
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
        for parameter in model.parameters():
            if parameter.unique().numel() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def _row(name: str, path: Path, image: torch.Tensor, folder: Path) -> str:
    try:
        module = onnx2nn.load(path)
        model = onnx2nn.to_ncnn(module, folder, example_inputs=[image])
    except Onnx2nnError as error:
        return f"| {name} | | | | | {' '.join(str(error).split())} |"
    half, full = (file.stat().st_size / 1e6 for file in (model.half_weights, model.weights))
    fp32, fp16 = (max(o.max_difference / max(o.scale, 1e-12) for o in outputs) for outputs in (model.fp32, model.fp16))
    layers = sum(model.layers.values())
    ratio = _ratio(module, model, image)
    return f"| {name} | {layers} | {fp32:.1e} | {fp16:.1e} | {short(full)} / {short(half)} | {ratio:.2g} |"


def _ratio(module: torch.nn.Module, model: NcnnModel, image: torch.Tensor) -> float:
    """Returns the processor time of NCNN in half precision over that of the module: one thread, the best of five."""
    import ncnn

    net = ncnn.Net()
    net.opt.use_vulkan_compute, net.opt.num_threads = False, 1
    assert not net.load_param(str(model.half_param)) and not net.load_model(str(model.half_weights))
    mat = ncnn.Mat(image.numpy(), batch_index=model.input_axes["in0"]).clone()

    def on_ncnn() -> None:
        extractor = net.create_extractor()
        extractor.input("in0", mat)
        assert extractor.extract("out0")[0] == 0

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        times = [[_seconds(run) for run in (on_ncnn, functools.partial(module, image))] for _ in range(6)]
    torch.set_num_threads(threads)
    ours, torch_s = np.min(times[1:], axis=0)  # the first run prepares
    return float(ours / torch_s)


def _seconds(run: Callable[[], Any]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


@pytest.mark.held
def test_the_table(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each model has as many layers as the table says; differences and times vary with the machine."""
    torchvision_schemas.predefine()
    timm = pytest.importorskip("timm")
    rows = []
    for name, size in SIZES.items():
        image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1
        path = export_torchscript(f"ncnn_timm_{name}", _model(timm, name), (image,))
        rows.append(_row(name, path, image, tmp_path / name))
    head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(START)
    if request.config.getoption("--write"):
        titles = "| model | layers | fp32 | fp16 | MB fp32 / fp16 | time NCNN / PyTorch |\n|---|---|---|---|---|---|"
        table = "\n".join([titles, *rows])
        DOCUMENT.write_text(f"{head}{START}\n\n{table}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
        return
    layers = [re.findall(r"^\| ([^|]+) \| (\d*) ?\|", text, flags=re.MULTILINE) for text in ("\n".join(rows), rest)]
    assert layers[0] == layers[1]
