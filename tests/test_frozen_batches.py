"""Models that exporters wrote with a batch of 1: with a free batch each sample has the file's result on it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
import torch
from realmodels import (
    EXPORTERS,
    Tensors,
    as_tuple,
    check_same,
    input_names,
    require_transformers,
    run_onnxruntime,
    seeded,
)
from tiers import mostly_slow
from torch import nn

import onnx2nn
from scripts import torchvision_schemas

torchvision_schemas.predefine()
from torchvision import models  # noqa: E402

DATA = Path(__file__).parent / "data"
BATCH = 3


class Crnn(nn.Module):
    """The text recogniser of Shi, Bai and Yao (2015): convolutions, columns as a sequence, two bidirectional LSTMs.

    Between the LSTMs, time and batch are merged for a linear layer and split again, as in the authors' code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d((4, 1)),
            nn.Conv2d(16, 16, (4, 1)),
        )
        self.first = nn.LSTM(16, 12, bidirectional=True)
        self.between = nn.Linear(24, 12)
        self.second = nn.LSTM(12, 12, bidirectional=True)
        self.head = nn.Linear(24, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolutions(x).squeeze(2).permute(2, 0, 1)
        for recurrent, linear in ((self.first, self.between), (self.second, self.head)):
            y, _ = recurrent(y)
            time, batch, size = y.shape
            y = linear(y.view(time * batch, size)).view(time, batch, -1)
        return y


class ColumnsAsRows(nn.Module):
    """A recogniser whose columns are rows of a matrix, `[T, C * H]`, between the convolution and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3, (2, 4), 1)
        self.embed = nn.Linear(64, 16)
        self.recurrent = nn.GRU(16, 8, bidirectional=True)
        self.head = nn.Linear(16, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.convolution(x)).permute(3, 0, 1, 2)
        rows = y.reshape(y.shape[0] * y.shape[1], -1)
        y = self.embed(rows).view(y.shape[0], y.shape[1], 16)
        return self.head(self.recurrent(y)[0]).log_softmax(2)


class Strips(nn.Module):
    """A reader of number plates: five strips of the image are rows of a matrix, then a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.embed = nn.Linear(8 * 16 * 4, 32)
        self.recurrent = nn.LSTM(32, 12, bidirectional=True)
        self.head = nn.Linear(24, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x).relu()
        batch, channels, height, width = y.shape
        y = y.reshape(batch, channels, height, 5, width // 5).permute(3, 0, 1, 2, 4).reshape(5 * batch, -1)
        return self.head(self.recurrent(self.embed(y).reshape(5, batch, 32))[0])


class Quantised(nn.Module):
    """Rounds its input to steps of the largest magnitude, of all samples together."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = x.abs().max() / 127
        return self.linear((x / step).round() * step)


class Best(nn.Module):
    """The best of all pairs of time and class, as a beam search takes them: the largest of the flattened scores."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores, places = self.linear(x).flatten().topk(4)
        return scores[None], (places // 7)[None]


class Gate(nn.Module):
    """Dark images are brightened first: data decide for the whole batch which branch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.mean() > 0.0, lambda x: x * 2.0, lambda x: x.sin() + 1.0, (x,))
        return self.head(self.stem(y).relu().mean((2, 3)))


class Sampled(nn.Module):
    """Picks pixels of the flattened image by stored indices, which count from the start of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.register_buffer("places", torch.randint(0, 4 * 8 * 8, (6, 5)))
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stem(x).reshape(-1)[self.places])[None]


class Hyperbolic(nn.Module):
    """Distances from the origin of the Poincaré ball; inputs outside the unit ball, such as random ones, have none."""

    def __init__(self) -> None:
        super().__init__()
        self.curvature = nn.Parameter(torch.tensor([0.9]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        root = self.curvature.sqrt()
        length = root * (x * x).sum(-1).sqrt()
        return ((1 + length).log() - (1 - length).log()) / root


class Detector(nn.Module):
    """An SSD: heads on two levels, reshaped to rows of boxes and of scores, and boxes decoded with stored anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)])
        self.boxes = nn.ModuleList([nn.Conv2d(8, 3 * 4, 3, padding=1) for _ in range(2)])
        self.scores = nn.ModuleList([nn.Conv2d(8, 3 * 6, 3, padding=1) for _ in range(2)])
        self.register_buffer("anchors", torch.rand(1, 3 * (64 + 16), 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        boxes, scores = [], []
        for level, box, score in zip(self.levels, self.boxes, self.scores, strict=True):
            x = level(x).relu()
            boxes.append(box(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4))
            scores.append(score(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 6))
        offsets = torch.cat(boxes, 1)
        centres = self.anchors[..., :2] + offsets[..., :2] * self.anchors[..., 2:]
        sizes = self.anchors[..., 2:] * offsets[..., 2:].exp()
        return torch.cat([centres - sizes / 2, centres + sizes / 2], 2), torch.cat(scores, 1).softmax(2)


def shufflenet() -> nn.Module:
    return models.shufflenet_v2_x0_5(num_classes=7)


def swin() -> nn.Module:
    return models.SwinTransformer([4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=5)


def vit() -> nn.Module:
    return models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5)


def bert() -> nn.Module:
    """Its weights are large enough for the masks of the samples to show in the output."""
    require_transformers()
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
        return_dict=False,
        initializer_range=0.5,
    )
    return BertForSequenceClassification(config)


def gru() -> nn.Module:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.GRU(6, 8, 2, batch_first=True)
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y, state = self.layers(x)
            return self.head(y[:, -1]), state

    return Last()


def in_the_ball() -> Tensors:
    return (0.9 * nn.functional.normalize(torch.randn(BATCH, 5, 64), dim=-1),)


def words() -> Tensors:
    ids = torch.randint(0, 40, (BATCH, 9))
    mask = (torch.arange(9) < torch.tensor([[9], [5], [7]])).long()
    return ids, mask, torch.randint(0, 2, (BATCH, 9))


@dataclass
class Case:
    """A model with a fixed batch of 1.

    Attributes:
        build: makes it.
        inputs: makes a batch of inputs.
        way: how its batch becomes dynamic.
        axes: the axis of the batch in each output.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensors]
    way: str = "constants"
    axes: tuple[int, ...] = (0,)


def image(*sizes: int) -> Callable[[], Tensors]:
    return lambda: (torch.randn(BATCH, *sizes),)


CASES = {
    "ShuffleNet": Case(shufflenet, image(3, 64, 64)),
    "CRNN": Case(Crnn, image(1, 32, 40), axes=(1,)),
    "columns as rows": Case(ColumnsAsRows, image(1, 16, 40), axes=(1,)),
    "strips as rows": Case(Strips, image(3, 16, 20), axes=(1,)),
    "Swin": Case(swin, image(3, 32, 32)),
    "one scale of all samples": Case(Quantised, image(4, 6), way="vmap"),
    "the best of all samples": Case(Best, image(4, 6), way="vmap", axes=(0, 0)),
    "decision by data": Case(Gate, image(3, 8, 8), way="loop"),
    "indices into the batch": Case(Sampled, image(1, 8, 8), way="vmap"),
    "no numbers on random inputs": Case(Hyperbolic, in_the_ball, way="vmap"),
    "SSD": Case(Detector, image(3, 16, 16), axes=(0, 0)),
    "ViT": Case(vit, image(3, 32, 32)),
    "BERT": Case(bert, words),
    "GRU": Case(gru, image(5, 6), axes=(0, 1)),
}
RUNS = [(name, exporter) for name in CASES for exporter in EXPORTERS]
RUNS.remove(("decision by data", "torchscript"))  # the older exporter has no torch.cond
QUICK = ("columns as rows", "decision by data", "indices into the batch")
OTHERS = ["tensorflow/keras_images", "tensorflow/keras_images_literal", "paddle/paddle_attention"]
OTHERS += ["oneflow/flowvision_shufflenet"]


def exported(name: str, exporter: str) -> tuple[Path, Tensors, dict[str, dict[int, str]]]:
    """Returns a model's file with a batch of 1, a batch of inputs, and the dimensions to make dynamic."""
    case = CASES[name]
    inputs = case.inputs()
    model = seeded(case.build)
    path = EXPORTERS[exporter](f"batch_{name}", model, tuple(x[:1] for x in inputs))
    return path, inputs, {key: {0: "batch"} for key in input_names(model, inputs)}


def alone(path: Path | bytes, inputs: Tensors, axes: tuple[int, ...]) -> Tensors:
    """Returns what ONNX Runtime gives for each sample alone, as batches."""
    runs = [run_onnxruntime(path, tuple(x[i : i + 1] for x in inputs)) for i in range(BATCH)]
    return tuple(torch.cat(column, axis) for column, axis in zip(zip(*runs, strict=True), axes, strict=True))


@pytest.mark.parametrize(
    ("name", "exporter"), mostly_slow(RUNS, [run for run in RUNS if run[0] in QUICK or run[1] == "torchscript"])
)
def test_each_sample_has_its_own_result(name: str, exporter: str) -> None:
    path, inputs, dynamic = exported(name, exporter)
    module = onnx2nn.load(path, dynamic=dynamic)
    assert module.meta["onnx2nn"]["thawed"]["way"] == CASES[name].way
    with torch.no_grad():
        check_same(as_tuple(module(*inputs)), alone(path, inputs, CASES[name].axes), "against ONNX Runtime")


@pytest.mark.parametrize("name", mostly_slow(OTHERS, ["tensorflow/keras_images_literal"]))
def test_files_that_a_simplifier_froze(name: str) -> None:
    """onnxsim folds the sizes in files of other frameworks to constants; TensorFlow's hold channels last."""
    path = DATA / f"{name}.onnx"
    (value,) = onnx.load(path).graph.input
    key, shape = value.name, [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    frozen = onnx2nn.simplify(path, input_shapes={key: [1, *shape[1:]]}).model.SerializeToString()
    module = onnx2nn.load(frozen, dynamic={key: {0: "batch"}})
    inputs = (torch.randn(BATCH, *shape[1:]),)
    with torch.no_grad():
        outputs = as_tuple(module(*inputs))
        check_same(outputs, alone(frozen, inputs, (0,) * len(outputs)), "against ONNX Runtime")
    assert module.meta["onnx2nn"]["thawed"]["way"] == "constants"


CONSTANTS = [(name, exporter) for name, exporter in RUNS if CASES[name].way == "constants"]
CONSTANTS.remove(("Swin", "dynamo"))  # its as_strided is a Reshape before the raising


@pytest.mark.parametrize(
    ("name", "exporter"), mostly_slow(CONSTANTS, [("columns as rows", "dynamo"), ("CRNN", "torchscript")])
)
def test_patterns_are_raised_as_in_the_file(name: str, exporter: str) -> None:
    path, _, dynamic = exported(name, exporter)
    literal, freed = (onnx2nn.load(path, dynamic=free) for free in (None, dynamic))
    assert freed.meta["onnx2nn"]["raising"] == literal.meta["onnx2nn"]["raising"]
    assert list(freed.state_dict()) == list(literal.state_dict())


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_recurrent_layers_whose_output_is_reshaped_to_rows(exporter: str) -> None:
    """The reshape of the directions and the one to rows are two; merged, they would hide the layer."""
    path, _, _ = exported("CRNN", exporter)
    module = onnx2nn.load(path)
    assert module.meta["onnx2nn"]["raising"] == {"raised": {"LSTM": 2}, "dropped": []}
