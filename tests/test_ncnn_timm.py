"""Measures which models of timm go on to NCNN: the second table of docs/ncnn.md, one model a family.

`pytest -m held tests/test_ncnn_timm.py` compares the layers with the table, `--write` writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ncnn_table import check_or_write, measure
from realmodels import export_torchscript

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


@pytest.mark.held
def test_the_table(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each model has as many layers as the table says; differences and times vary with the machine."""
    torchvision_schemas.predefine()
    timm = pytest.importorskip("timm")
    rows = []
    for name, size in SIZES.items():
        image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1
        path = export_torchscript(f"ncnn_timm_{name}", _model(timm, name), (image,))
        rows.append(measure(name, path, tmp_path / name))
    check_or_write(rows, (START, END), request)
