"""Fine-tunes a network from Keras in PyTorch: scikit-learn's digits, as bright strokes become dark ones.

python examples/fine_tune_keras.py    # seconds; needs onnx2nn[all] and scikit-learn
"""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import onnx2nn

FILE = Path(__file__).with_name("digits") / "digits.onnx"  # trained in Keras, written by tf2onnx


def main(written: str = "dark_digits.onnx", steps: int = 120) -> dict[str, float]:
    """Trains, writes the network as ONNX, and compares it there; returns the accuracies and losses."""
    digits = load_digits()
    images = 16 - torch.tensor(digits.images, dtype=torch.float32).unsqueeze(-1)  # (1797, 8, 8, 1), inverted
    labels = torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(0)
    train, test = torch.randperm(len(images), generator=generator).split([1400, 397])

    model = onnx2nn.load(FILE)

    def accuracy() -> float:
        with torch.no_grad():
            return (model.eval()(images[test]).argmax(1) == labels[test]).float().mean().item()

    before, losses = accuracy(), []
    # The file holds no statistics of its normalisations, so that they keep their values: the model stays in eval mode.
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(steps):
        batch = train[torch.randint(len(train), (128,), generator=generator)]
        loss = F.nll_loss(model(images[batch]).clamp(min=1e-9).log(), labels[batch])  # its outputs are probabilities
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    after = accuracy()
    print(f"dark digits: {before:.1%} before, {after:.1%} after; loss {losses[0]:.2f} → {losses[-1]:.2f}")
    print(onnx2nn.export_onnx(model, written))
    print(onnx2nn.verify(written, model))
    return {"before": before, "after": after, "first_loss": losses[0], "last_loss": losses[-1]}


if __name__ == "__main__":
    main()
