"""Writes what is generated of docs/how_it_works.md: the picture of the data flow, and models before and after.

python scripts/how_it_works.py          # docs/images/how-it-works.svg, and the gallery in the page
python scripts/how_it_works.py --check  # exit status 1 where one of them is not current
"""

from __future__ import annotations

import argparse
import io
import sys
import textwrap
from collections import Counter
from html import escape
from pathlib import Path

import onnx
import torch
from torch import nn

import onnx2nn
from scripts.torch_exports import quiet, seeded

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how_it_works.md"
PICTURE = ROOT / "docs" / "images" / "how-it-works.svg"
SECTION = "<!-- gallery: written by scripts/how_it_works.py -->\n"

STEPS = (
    ("read", "structure and sizes checked, weights left in the file"),
    ("recover names", "keys and modules from metadata, nodes and paths"),
    ("free sizes", "only with dynamic=: constants that a size explains"),
    ("raise", "groups of nodes become the layers that they were"),
    ("import", "each node by its row; constants and shapes computed"),
    ("fold into blocks", "calls under one path become a module"),
)
"""What an import does, in its order."""
TABLE = ("the table of operators", "one function for each operator", "and revision, used by", "import and evaluation")
RESULT = ("torch.fx.GraphModule", "print(model), print(model.code)")
WAYS = (
    ("verify, report", "against ONNX Runtime"),
    ("train, LoRA, prune", "an nn.Module"),
    ("optimize", "faster kernels"),
    ("export, save", "ONNX, .pt2, Python, NCNN"),
)
"""What is done with the result."""

_STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2933; } .small { font-size: 12px; fill: #52606d; }
rect { fill: #eef4fb; stroke: #5b7c99; rx: 6px; } .end { fill: #dcefe0; stroke: #4d8a5b; } .side { fill: #fdf1dc; stroke: #b08a45; }
path { stroke: #5b7c99; stroke-width: 1.5; fill: none; marker-end: url(#head); } .optional { stroke-dasharray: 5 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb; } .small { fill: #b8c2cc; } rect { fill: #243b53; } .end { fill: #20452b; } .side { fill: #4a3b1c; }
}"""  # noqa: E501  # a rule a line
_WIDTH, _STEP, _BOX, _CENTRE = 760, 62, 44, 250


def picture() -> str:
    """Returns the data flow as SVG."""
    parts, y = [_box(_CENTRE, 10, 190, ("M.onnx", "a path, a URL, bytes"), "end")], 10 + _STEP
    for title, text in STEPS:
        parts += [_arrow(_CENTRE, y - _STEP + _BOX, _CENTRE, y)]
        parts += [_box(_CENTRE, y, 400, (title, text), "optional" if "only with" in text else "")]
        y += _STEP
    parts += [_arrow(_CENTRE, y - _STEP + _BOX, _CENTRE, y), _box(_CENTRE, y, 260, RESULT, "end")]
    middle = 10 + _STEP * (1 + [title for title, _ in STEPS].index("import"))
    parts += [_box(630, middle - 24, 230, TABLE, "side", height=92), _arrow(515, middle + 22, 454, middle + 22)]
    for index, way in enumerate(WAYS):
        x = 100 + index * 187
        parts += [_arrow(_CENTRE, y + _BOX, x, y + _STEP + 24), _box(x, y + _STEP + 24, 172, way, "")]
    height = y + _STEP + 24 + _BOX + 10
    head = '<marker id="head" markerWidth="9" markerHeight="9" refX="7" refY="4" orient="auto">'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">',
        f"<title>How a model is imported</title><style>{_STYLE}</style>",
        f'<defs>{head}<path d="M0,0 L8,4 L0,8 z" style="fill:#5b7c99;stroke:none;marker-end:none"/></marker></defs>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _box(x: int, y: int, width: int, lines: tuple[str, ...], kind: str, *, height: int = _BOX) -> str:
    """Returns a box whose middle is at `x`; the first line is its title."""
    texts = [
        f'<text x="{x}" y="{y + 18 + 19 * index}" text-anchor="middle"{"" if not index else " class=" + repr("small")}>'
        f"{escape(line)}</text>"
        for index, line in enumerate(lines)
    ]
    shown = f'<rect x="{x - width // 2}" y="{y}" width="{width}" height="{height}" class="{kind}"/>'
    return "".join([shown, *texts])


def _arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    return f'<path d="M{x},{y} L{to_x},{to_y - 1 if to_y != y else to_y}"/>'


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the new states, (batch, length, 64) as `x`."""
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


def gallery() -> str:
    """Returns the page's models before and after."""
    file = io.BytesIO()
    axes = {"x": {0: "batch", 1: "length"}}
    example = (torch.zeros(2, 10, 64),)
    with quiet():
        torch.onnx.export(
            seeded(Block, 0), example, file, dynamo=False, opset_version=16, input_names=["x"], dynamic_axes=axes
        )
    digits = ROOT / "examples" / "digits" / "digits.onnx"
    return "\n".join(
        [
            _shown("A block of a transformer, by torch's older exporter", onnx.load_from_string(file.getvalue())),
            _shown("The digits of `examples/digits`, by Keras and tf2onnx", onnx.load(digits)),
        ]
    )


def _shown(title: str, proto: onnx.ModelProto) -> str:
    kinds = Counter(node.op_type for node in proto.graph.node)
    counts = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in sorted(kinds.items()))
    weights = ", ".join(tensor.name for tensor in proto.graph.initializer)
    module = onnx2nn.load(proto)
    nodes = f"{len(proto.graph.node)} nodes: {counts}. Weights: {weights}."
    children = list(module.children())
    inner = children[0] if len(children) == 1 else module  # the file's only block says what the program does
    after = f"{module!r}\n\n{inner.code.strip()}"
    lines = [f"## {title}", "", "Before:", "", "```text", textwrap.fill(nodes, 110), "```", ""]
    return "\n".join([*lines, "After:", "", "```text", after, "```", ""])


def page(text: str) -> str:
    """Returns the page with today's gallery behind its heading."""
    return text.partition(SECTION)[0] + SECTION + "\n" + gallery()


def main() -> int:
    """Writes or checks the picture and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    checks = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    for path, text in ((PICTURE, picture()), (PAGE, page(old))):
        if not checks:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)} is not current")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
