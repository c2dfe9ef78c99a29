"""Explains a CNN's channels with captum, and removes those that say least with torch-pruning.

python examples/explain_and_prune.py    # seconds; needs onnx2nn[all], captum, torch-pruning, scikit-learn
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch_pruning
from captum.attr import LayerConductance
from sklearn.datasets import load_digits
from torch import nn

import onnx2nn

FILE = Path(__file__).with_name("digits") / "digits.onnx"


def main(written: str = "pruned_digits.onnx", removed: int = 16) -> dict[str, float]:
    """Removes channels of a convolution, writes the smaller network; returns accuracies and numbers of weights."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(-1)
    labels = torch.tensor(digits.target)

    def measured(model: nn.Module) -> tuple[float, int]:
        with torch.no_grad():
            right = (model(images).argmax(1) == labels).float().mean().item()
        return right, sum(parameter.numel() for parameter in model.parameters())

    def without(channels: list[int]) -> nn.Module:
        model = onnx2nn.load(FILE)
        layer = model.digits_1.conv2d_1_2  # the author's name, as Keras has it
        graph = torch_pruning.DependencyGraph().build_dependency(model, images[:2])
        graph.get_pruning_group(layer, torch_pruning.prune_conv_out_channels, idxs=channels).prune()
        return model

    model = onnx2nn.load(FILE)
    # What each channel of the layer adds to the probability of the right digit, over a few hundred images.
    conductance = LayerConductance(model, model.digits_1.conv2d_1_2)
    given = conductance.attribute(images[:256], baselines=images[:256] * 0, target=labels[:256], n_steps=16)
    importance = given.sum(dim=(2, 3)).abs().sum(0)  # (32,)
    order = importance.argsort().tolist()
    print("least and most important channels:", order[:4], order[-4:])

    before, weights = measured(model)
    smaller = without(order[:removed])
    after, fewer = measured(smaller)
    opposite, _ = measured(without(order[-removed:]))
    print(f"{before:.1%} with {weights} weights; {after:.1%} with {fewer}; {opposite:.1%} without the most important")
    optimizer = torch.optim.AdamW(smaller.parameters(), 1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.nll_loss(smaller(images[:1200]).clamp(min=1e-9).log(), labels[:1200]).backward()
        optimizer.step()
    tuned, _ = measured(smaller)
    print(f"{tuned:.1%} after 30 steps of training")
    print(onnx2nn.export_onnx(smaller, written))
    return {"before": before, "after": after, "opposite": opposite, "tuned": tuned, "weights": weights, "fewer": fewer}


if __name__ == "__main__":
    main()
