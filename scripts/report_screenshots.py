"""Writes the pictures of docs/report.md: reports of a language model of 48 layers and of a detector, in Chromium.

    python scripts/report_screenshots.py            # docs/images/*.png
    python scripts/report_screenshots.py --out DIR  # there

Needs selenium and Pillow, and Chromium with its driver on the path.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import onnx2nn

DOCS = Path(__file__).resolve().parents[1] / "docs" / "images"


class Attention(nn.Module):
    """Attention with rotary positions and grouped heads."""

    def __init__(self, width: int, heads: int, groups: int):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q_proj = nn.Linear(width, heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, groups * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Returns the new states, (batch, length, width) as `x`."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (part * cos + torch.cat(part.chunk(2, -1)[::-1], -1) * sin for part in (q, k))
        k, v = (part.repeat_interleave(self.heads // self.groups, 1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, width: int):
        super().__init__()
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the new states."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Attention and a feed-forward layer, each around a residual connection."""

    def __init__(self, width: int):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.self_attn, self.mlp = Attention(width, 4, 2), FeedForward(width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Returns the new states."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """A language model of 48 layers, of tiny widths."""

    def __init__(self, layers: int = 48, width: int = 32, words: int = 256):
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(layers))
        self.norm, self.lm_head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("frequencies", 10000 ** -torch.linspace(0, 1, width // 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the scores of the next word, (batch, length, words), for tokens (batch, length)."""
        angles = torch.arange(tokens.size(1))[:, None] * self.frequencies
        cos, sin = angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], -1)
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


class Conv(nn.Sequential):
    """A convolution, a batch normalisation and an activation."""

    def __init__(self, taken: int, given: int, size: int = 1, stride: int = 1):
        super().__init__(nn.Conv2d(taken, given, size, stride, size // 2, bias=False), nn.BatchNorm2d(given), nn.SiLU())


class Bottleneck(nn.Module):
    """Two convolutions around a residual connection."""

    def __init__(self, width: int):
        super().__init__()
        self.cv1, self.cv2 = Conv(width, width, 3), Conv(width, width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the new features."""
        return x + self.cv2(self.cv1(x))


class Partial(nn.Module):
    """A part of the channels passes bottlenecks, all results are joined."""

    def __init__(self, taken: int, given: int, count: int = 1):
        super().__init__()
        self.cv1, self.cv2 = Conv(taken, given), Conv((2 + count) * given // 2, given)
        self.m = nn.ModuleList(Bottleneck(given // 2) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the new features."""
        parts = list(self.cv1(x).chunk(2, 1))
        for bottleneck in self.m:
            parts.append(bottleneck(parts[-1]))
        return self.cv2(torch.cat(parts, 1))


class Head(nn.Module):
    """Boxes and scores at the cells of three grids."""

    def __init__(self, widths: Sequence[int], classes: int, strides: Sequence[int]):
        super().__init__()
        self.box = nn.ModuleList(nn.Sequential(Conv(width, 32, 3), nn.Conv2d(32, 4, 1)) for width in widths)
        self.cls = nn.ModuleList(nn.Sequential(Conv(width, 32, 3), nn.Conv2d(32, classes, 1)) for width in widths)
        self.strides = strides

    def forward(self, features: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns boxes (batch, cells, 4) as corners in pixels, and scores (batch, cells, classes)."""
        boxes, scores = [], []
        for box, cls, stride, x in zip(self.box, self.cls, self.strides, features, strict=True):
            rows, columns = torch.meshgrid(torch.arange(x.size(2)), torch.arange(x.size(3)), indexing="ij")
            centres = (torch.stack([columns, rows], -1).flatten(0, 1) + 0.5) * stride
            sides = F.softplus(box(x)).flatten(2).transpose(1, 2) * stride
            boxes.append(torch.cat([centres - sides[..., :2], centres + sides[..., 2:]], -1))
            scores.append(cls(x).flatten(2).transpose(1, 2).sigmoid())
        return torch.cat(boxes, 1), torch.cat(scores, 1)


class Detector(nn.Module):
    """A detector as YOLO: a backbone, features joined from coarse to fine, a head without anchors."""

    def __init__(self, classes: int = 20):
        super().__init__()
        self.stem = nn.Sequential(Conv(3, 16, 3, 2), Conv(16, 32, 3, 2), Partial(32, 32))
        self.stage3 = nn.Sequential(Conv(32, 64, 3, 2), Partial(64, 64, 2))
        self.stage4 = nn.Sequential(Conv(64, 128, 3, 2), Partial(128, 128, 2))
        self.stage5 = nn.Sequential(Conv(128, 256, 3, 2), Partial(256, 256))
        self.up = nn.Upsample(scale_factor=2)
        self.join4, self.join3 = Partial(384, 128), Partial(192, 64)
        self.head = Head((64, 128, 256), classes, (8, 16, 32))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns boxes and scores of images (batch, 3, height, width)."""
        x3 = self.stage3(self.stem(images))
        x4 = self.stage4(x3)
        x5 = self.stage5(x4)
        y4 = self.join4(torch.cat([self.up(x5), x4], 1))
        y3 = self.join3(torch.cat([self.up(y4), x3], 1))
        return self.head((y3, y4, x5))


def _reported(folder: Path, name: str) -> Path:
    """Returns the page of a model, or of the detector beside a changed one."""
    path = folder / f"{name}.html"
    if path.exists():
        return path
    if name == "comparison":
        left, right = (onnx2nn.load(_exported(folder, "detector")) for _ in range(2))
        with torch.no_grad():
            right.head.box[1][1].bias += 0.5
        right.head.cls[0][0][2] = nn.ReLU()
        onnx2nn.compare(left, right, input_shapes={"images": [2, 3, 256, 256]}).save(path)
        return path
    sizes = {"language_model": {"tokens": [2, 12]}, "detector": {"images": [2, 3, 256, 256]}}
    report = onnx2nn.report(_exported(folder, name), input_shapes=sizes[name])
    print(report)
    report.save(path)
    return path


def _exported(folder: Path, name: str) -> Path:
    """Returns the file of a model, exported with dynamic sizes."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    torch.manual_seed(0)
    batch = torch.export.Dim("batch")
    example: tuple[torch.Tensor, ...]
    if name == "language_model":
        model, example, shapes = Decoder(), (torch.randint(0, 256, (2, 12)),), {0: batch, 1: torch.export.Dim("length")}
        names = {"input_names": ["tokens"], "output_names": ["scores"]}
    else:
        model, example, shapes = Detector(), (torch.rand(2, 3, 256, 256),), {0: batch}
        names = {"input_names": ["images"], "output_names": ["boxes", "scores"]}
    torch.onnx.export(
        model.eval(), example, path, dynamo=True, verbose=False, external_data=False, dynamic_shapes=(shapes,), **names
    )
    return path


PICTURES = {
    "report-language-model": ("language_model", "", "overview", False),
    "report-language-model-block": ("language_model", "m=layers.7.self_attn", "modules", True),
    "report-language-model-error": ("language_model", "", "error", False),
    "report-detector": ("detector", "m=join4", "modules", False),
    "report-detector-weights": ("detector", "m=stage4.0.0&in=stage4.0", "modules", True),
    "report-comparison": ("comparison", "", "overview", False),
}
"""Picture → the model, the choice in the address, the section in view, and whether it is dark."""


def _picture(page: Path, target: Path, choice: str, section: str, dark: bool) -> None:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    size = "--window-size=1440,960"
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=1.5", size):
        options.add_argument(argument)
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    driver: Any = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.get(f"{page.resolve().as_uri()}#{choice}")
        driver.execute_script("document.getElementById(arguments[0]).scrollIntoView()", section)
        time.sleep(0.5)  # scrolling and fonts
        picture = Image.open(io.BytesIO(driver.get_screenshot_as_png()))
        picture.convert("RGB").quantize(192).save(target, optimize=True)
    finally:
        driver.quit()


def main() -> None:
    """Writes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, help="gets the pictures, and keeps the pages and the models, which are then not made again"
    )
    parser.add_argument("--only", choices=sorted({name for name, *_ in PICTURES.values()}), help="one of the models")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        target = arguments.out or DOCS
        target.mkdir(parents=True, exist_ok=True)
        for picture, (name, *view) in PICTURES.items():
            if arguments.only in (None, name):
                _picture(_reported(folder, name), target / f"{picture}.png", *view)


if __name__ == "__main__":
    main()
