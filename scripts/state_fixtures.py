"""Writes small files of torch's exporters beside the state and gradients of their modules, to tests/data/torch.

    python scripts/state_fixtures.py

OneFlow's tests have no torch beside them; tests/oneflow/test_author_state.py compares imports with these files. For
each module and exporter there is `NAME-EXPORTER.onnx` with dynamic sizes, and beside it `NAME-EXPORTER.npz`:

* `input0` and `output0`,
* `state/KEY`: the state dict; several keys have a weight that is tied,
* `cotangent`, and `gradient/KEY`: the gradient of `(output * cotangent).sum()`,
* `other/KEY` and `other_output`: another state dict, and the output with it.

Square weights show which way round they are held.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "torch"


class Tokens(nn.Module):
    """Tied embeddings, learned positions and a token before them, attention by hand.

    Args:
        padding: the row of the embeddings without a gradient, of which files of the older exporter say nothing.
    """

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.tok = nn.Embedding(8, 8, padding_idx=padding)
        self.start = nn.Parameter(torch.randn(8))
        self.positions = nn.Parameter(torch.randn(1, 12, 8))
        self.to_q, self.to_kv = nn.Linear(8, 8, bias=False), nn.Linear(8, 16)
        self.norm = nn.LayerNorm(8)
        self.feed = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the logits `(batch, length + 1, 8)` of tokens `(batch, length)`."""
        x = torch.cat([self.start.expand(tokens.shape[0], 1, -1), self.tok(tokens)], 1)
        x = x + self.positions[:, : x.shape[1]]
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, -1)
        x = x + (q @ k.transpose(1, 2) / 8**0.5).softmax(-1) @ v
        return self.head(x + self.feed(self.norm(x)))


class Images(nn.Module):
    """A block of ConvNeXt between normalisations, at images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 2, 2), nn.PReLU(8))
        self.depthwise, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.LayerNorm(8)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.randn(8))
        self.groups, self.act = nn.GroupNorm(2, 8), nn.PReLU()
        self.shift = nn.Parameter(torch.randn(8, 1, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns `(batch, 8, height // 2, width // 2)` of images `(batch, 3, height, width)`."""
        x = self.stem(image)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.second(F.gelu(self.first(y)))
        return self.act(self.groups(x + y.permute(0, 3, 1, 2))) + self.shift


class Series(nn.Module):
    """A recurrent layer, two linear layers with one weight, and matrices that are no layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 3, batch_first=True, bidirectional=True)
        self.left = nn.Sequential(nn.Linear(6, 6, bias=False), nn.LayerNorm(6))
        self.right = nn.Sequential(nn.Linear(6, 6, bias=False), nn.LayerNorm(6))
        self.right[0].weight = self.left[0].weight
        self.mix = nn.Parameter(torch.randn(6, 6))
        self.latents = nn.Parameter(torch.randn(4, 6))

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Returns `(batch, 4, 6)` of series `(batch, length, 6)`."""
        x = self.lstm(series)[0]
        x = (self.left(x) + self.right(x.tanh())) @ self.mix
        return (self.latents.expand(series.shape[0], -1, -1) @ x.transpose(1, 2)).softmax(-1) @ x


MODULES: dict[str, tuple[Callable[[bool], nn.Module], torch.Tensor, dict[int, str]]] = {
    "tokens": (
        lambda dynamo: Tokens(0 if dynamo else None),
        torch.tensor([[0, 3, 7, 1, 0], [2, 2, 0, 5, 6]]),
        {0: "batch", 1: "length"},
    ),
    "images": (
        lambda dynamo: Images(),
        torch.linspace(-1, 1, 2 * 3 * 8 * 6).sin().reshape(2, 3, 8, 6),
        {0: "batch", 2: "h", 3: "w"},
    ),
    "series": (
        lambda dynamo: Series(),
        torch.linspace(-3, 3, 2 * 5 * 6).sin().reshape(2, 5, 6),
        {0: "batch", 1: "length"},
    ),
}


SYMMETRIC = frozenset({"second.weight", "feed.2.weight", "mix"})
"""Weights whose values do not tell which way round they are, as those that begin as zeros or identities."""


def filled(build: Callable[[bool], nn.Module], dynamo: bool, seed: int) -> nn.Module:
    """Returns a module in evaluation mode, every weight and statistic random."""
    torch.manual_seed(seed)
    module = build(dynamo).eval()
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5 if name.endswith("running_var") else torch.randn_like(value) / 2)
            if name in SYMMETRIC and not seed:
                value.copy_((value + value.T) / 2)
    return module


def write(name: str, dynamo: bool) -> None:
    """Writes the file of one module by one exporter, and what lies beside it."""
    build, value, dynamic = MODULES[name]
    module, other = filled(build, dynamo, 0), filled(build, dynamo, 1)
    path = FOLDER / f"{name}-{'dynamo' if dynamo else 'torchscript'}.onnx"
    if dynamo:
        shapes = ({axis: torch.export.Dim(size) for axis, size in dynamic.items()},)
        if name == "images":
            shapes = ({0: torch.export.Dim("batch"), 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC},)
        program = torch.onnx.export(module, (value,), dynamo=True, dynamic_shapes=shapes, verbose=False)
        assert program is not None
        program.save(str(path), external_data=False)
        _drop_places(path)
    else:
        torch.onnx.export(
            module, (value,), str(path), dynamo=False, input_names=["value"], dynamic_axes={"value": dynamic}
        )
    output = module(value)
    cotangent = torch.randn_like(output)
    (output * cotangent).sum().backward()
    arrays = {"input0": value, "output0": output, "cotangent": cotangent, "other_output": other(value)}
    arrays |= {f"state/{key}": tensor for key, tensor in module.state_dict().items()}
    arrays |= {f"other/{key}": tensor for key, tensor in other.state_dict().items()}
    for key, parameter in module.named_parameters(remove_duplicate=False):
        assert parameter.grad is not None, key
        arrays[f"gradient/{key}"] = parameter.grad
    np.savez_compressed(path.with_suffix(".npz"), **{key: tensor.detach().numpy() for key, tensor in arrays.items()})


def _drop_places(path: Path) -> None:
    """Removes the notes of the folders in which the file was made."""
    model = onnx.load(path)
    for node in [*model.graph.node, *(node for function in model.functions for node in function.node)]:
        kept = [note for note in node.metadata_props if note.key != "pkg.torch.onnx.stack_trace"]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(model, path)


def main() -> int:
    """Writes all files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in MODULES:
        for dynamo in (True, False):
            write(name, dynamo)
    return 0


if __name__ == "__main__":
    sys.exit(main())
