"""The models of `scripts/behaviour.py`: small random instances of known architectures, exported or written by hand.

Needs `onnx2nn[test]`. Every builder is seeded; a file is made once and kept by the record that it belongs to.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import behaviour_files
import numpy as np
import onnx
import onnx.backend.test
import torch
from torch import nn


def _declare_operators() -> torch.library.Library | None:
    """Declares what `import torchvision` refers to, where its compiled operators are of another build of torch."""
    spec = importlib.util.find_spec("torchvision")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in Path(folder).glob("_C.*"):
            with contextlib.suppress(ImportError, OSError):
                torch.ops.load_library(path)
    if hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


_DECLARED = _declare_operators()  # they stay declared as long as it is held
import torchvision  # noqa: E402
import transformers  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"

Call = list[np.ndarray]
Recipe = Callable[[Path], list[Call]]
"""Writes a model to a path, returns the inputs of the calls to record."""


class Import(NamedTuple):
    """One import to record: the model's name, and what `onnx2nn.load` is given beside the file."""

    model: str
    options: dict[str, Any]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(1))


def _mask(batch: int, length: int) -> torch.Tensor:
    """An attention mask in which every second sequence ends early."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[::2, -2:] = 0
    return mask


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """A model in eval mode with random weights, biases and running statistics."""
    torch.manual_seed(0)
    model = build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.numel() > 1 and parameter.std() == 0:
                parameter += 0.1 * torch.randn_like(parameter)
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.normal_(layer.running_mean, 0, 0.1)
                nn.init.uniform_(layer.running_var, 0.8, 1.2)
    return model


def _export(
    path: Path,
    build: Callable[[], nn.Module],
    calls: Sequence[Sequence[torch.Tensor]],
    axes: Mapping[str, Mapping[int, str]] | None = None,
    *,
    names: Sequence[str] = ("x", "y", "z"),
    exporter: str = "torchscript",
    script: bool = False,
) -> list[Call]:
    """Exports a model with the first call's sizes; `axes`: input name, axis, name of the dynamic dimension."""
    model: Any = _seeded(build)
    inputs, axes = tuple(calls[0]), axes or {}
    options: dict[str, Any] = {"input_names": list(names[: len(inputs)])}
    if exporter == "dynamo":
        dynamic = tuple(dict.fromkeys(axes.get(name, {}), torch.export.Dim.DYNAMIC) for name in options["input_names"])
        options |= {"dynamo": True, "verbose": False, "external_data": False}
        options["dynamic_shapes"] = dynamic if axes else None
    else:
        options |= {"dynamo": False, "dynamic_axes": axes, "opset_version": 17}
    with _quiet():
        torch.onnx.export(torch.jit.script(model) if script else model, inputs, str(path), **options)
    return [[value.numpy() for value in call] for call in calls]


class First(nn.Module):
    """A transformers model with positional inputs and its first output alone."""

    def __init__(self, model: nn.Module, *names: str):
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the first output."""
        return self.model(**dict(zip(self.names, (x, y), strict=False)), return_dict=True)[0]


def _bert() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=40, **sizes)
    return First(transformers.BertModel(config), "input_ids", "attention_mask")


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=50, n_positions=40, n_embd=32, n_layer=2, n_head=4, use_cache=False)
    return First(transformers.GPT2LMHeadModel(config), "input_ids", "attention_mask")


def _llama() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, use_cache=False, **sizes)
    return First(transformers.LlamaForCausalLM(config), "input_ids", "attention_mask")


def _whisper() -> nn.Module:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64}
    config = transformers.WhisperConfig(num_mel_bins=8, max_source_positions=20, **sizes)
    return First(WhisperEncoder(config), "input_features")


class LanguageModel(nn.Module):
    """Embedding, two LSTM layers whose state goes in and out, linear decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 24, num_layers=2)
        self.decoder = nn.Linear(24, 50)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns logarithms of probabilities and the state, for tokens and a state."""
        output, (hidden, cell) = self.rnn(self.encoder(x), (y, z))
        return self.decoder(output).log_softmax(-1), hidden, cell


class Gated(nn.Module):
    """A bidirectional GRU and an Elman network over a batch-first sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 12, batch_first=True, bidirectional=True)
        self.rnn = nn.RNN(24, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the features of each step."""
        return self.rnn(self.gru(x)[0])[0]


class Assignment(nn.Module):
    """Slices, a row and a computed set of places assigned in place."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns `x` with values assigned, some at the places `y`."""
        x = x.clone()
        x[:, 1:3] = x[:, 2:4] * 2
        x[:, 0] = -1.0
        x[:, :, y] = 7.0
        return x


class Patches(nn.Module):
    """A class token before patches, a transformer layer, an image resized to its size in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a vector an image."""
        x = nn.functional.interpolate(x, size=(2 * x.shape[2], 2 * x.shape[3]))
        y = self.patches(x).flatten(2).transpose(1, 2)
        return self.layer(torch.cat([self.token.expand(x.shape[0], -1, -1), y], 1))[:, 0]


class LastStep(nn.Module):
    """A bidirectional LSTM of which the last step is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns scores."""
        return self.head(self.lstm(x)[0][:, -1])


class Repeated(nn.Module):
    """A layer applied as often as the second input says."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: int) -> torch.Tensor:
        """Returns the features."""
        for _ in range(y):
            x = torch.tanh(self.linear(x))
        return x


class Halved(nn.Module):
    """A loop over the rows, whose count is a size, then one that ends when the data say so."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a decaying sum and how often it was halved."""
        total = torch.zeros_like(x[0])
        for row in range(x.size(0)):
            total = total * 0.5 + x[row]
        rounds = torch.zeros((), dtype=torch.int64)
        while bool(total.abs().max() > 1.0):
            total = total * 0.5
            rounds = rounds + 1
        return total, rounds


class Experts(nn.Module):
    """Layers in branches and in a branch of a branch; `shared` is used around them too."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.cold, self.warm, self.hot = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the features that the expert for `x` gives."""
        y = self.shared(x)
        if bool(x.sum() > 0):
            if bool(x.sum() > 10):
                z = self.hot(y)
            else:
                z = self.warm(y)
        else:
            z = self.shared(self.cold(y))
        return z


class Conditional(nn.Module):
    """Layers in the branches of `torch.cond`."""

    def __init__(self) -> None:
        super().__init__()
        self.cold, self.hot = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the layer for `x` gives."""
        return torch.cond(x.sum() > 0, lambda x: self.hot(x) + x, lambda x: self.cold(x), (x,))


def _generator() -> nn.Module:
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(itertools.pairwise([20, 32, 16, 8])):
        stride, padding = (1, 0) if index == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh(), nn.PixelUnshuffle(2))


def _convolutions() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.SiLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def _recipe(build: Callable[[], nn.Module], inputs: Callable[[int], Sequence[torch.Tensor]], exporter: str) -> Recipe:
    """A model with a dynamic batch, called with two batches."""

    def write(path: Path) -> list[Call]:
        pair = zip(("x", "y", "z"), inputs(2), inputs(3), strict=False)
        axes = {
            name: {axis: "batch" for axis, size in enumerate(one.shape) if size != two.shape[axis]}
            for name, one, two in pair
        }
        axes = {name: dims for name, dims in axes.items() if dims}
        return _export(path, build, [inputs(2), inputs(3)], axes, exporter=exporter)

    return write


def _vision(name: str, size: int = 64, **options: Any) -> tuple[Callable[[], nn.Module], Any]:
    build = partial(torchvision.models.get_model, name, weights=None, num_classes=10, **options)
    return build, lambda batch: (_normal(batch, 3, size, size),)


def _swin() -> nn.Module:
    return torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10)


def _vit() -> nn.Module:
    return torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10)


def _densenet() -> nn.Module:
    return torchvision.models.DenseNet(8, (2, 2), 16, num_classes=10)


_NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Sequence[torch.Tensor]]]] = {
    "resnet18": _vision("resnet18"),
    "mobilenet_v3": _vision("mobilenet_v3_small"),
    "shufflenet_v2": _vision("shufflenet_v2_x0_5"),
    "densenet": (_densenet, lambda n: (_normal(n, 3, 64, 64),)),
    "vit": (_vit, lambda n: (_normal(n, 3, 32, 32),)),
    "swin": (_swin, lambda n: (_normal(n, 3, 64, 64),)),
    "bert": (_bert, lambda n: (_tokens(n, 7), _mask(n, 7))),
    "gpt2": (_gpt2, lambda n: (_tokens(n, 7), _mask(n, 7))),
    "whisper_encoder": (_whisper, lambda n: (_normal(n, 8, 40),)),
    "language_model": (LanguageModel, lambda n: (_tokens(5, n), _normal(2, n, 24), _normal(2, n, 24))),
    "generator": (_generator, lambda n: (_normal(n, 20, 1, 1),)),
    "assignment": (Assignment, lambda n: (_normal(n, 5, 4), torch.tensor([0, 2]))),
}


def _ramp(rows: int, scale: float = 1.0) -> torch.Tensor:
    return torch.linspace(-1, 2, rows * 4).reshape(rows, 4) * scale


_ROWS = {"x": {0: "rows"}}
_SCRIPTED: dict[str, Recipe] = {
    "repeated_layer": partial(
        _export, build=Repeated, calls=[(_ramp(2), torch.tensor(3)), (_ramp(1), torch.tensor(0))], axes=_ROWS
    ),
    "halved": partial(_export, build=Halved, calls=[(_ramp(3),), (_ramp(5, 99.0),)], axes=_ROWS),
    "experts": partial(
        _export, build=Experts, calls=[(_ramp(3, 0.1),), (_ramp(3, -1.0),), (_ramp(5, 9.0),)], axes=_ROWS
    ),
}
_FIXED: dict[str, Recipe] = {
    "encoder": partial(
        _export,
        build=lambda: nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)),
        calls=[(_normal(1, 6, 16),), (_normal(4, 9, 16),)],
    ),
    "last_step": partial(_export, build=LastStep, calls=[(_normal(1, 4, 6),), (_normal(3, 4, 6),)]),
    "patches": partial(_export, build=Patches, calls=[(_normal(1, 3, 8, 8),), (_normal(3, 3, 12, 8),)]),
}


def _quantised(path: Path, way: str) -> list[Call]:
    """ONNX Runtime's quantiser: `QDQ`, `QOperator` or `dynamic`, of a small network of convolutions."""
    from onnxruntime import quantization

    class Images(quantization.CalibrationDataReader):
        left = 4

        def get_next(self) -> dict[str, np.ndarray] | None:
            self.left -= 1
            return {"x": _normal(2, 3, 16, 16).numpy() * self.left} if self.left else None

    floats = path.with_name("float.onnx")
    calls = _recipe(_convolutions, lambda n: (_normal(n, 3, 16, 16),), "torchscript")(floats)
    with _quiet():
        if way == "dynamic":
            quantization.quantize_dynamic(str(floats), str(path))
        else:
            form = getattr(quantization.QuantFormat, way)
            quantization.quantize_static(str(floats), str(path), Images(), quant_format=form, per_channel=True)
    floats.unlink()
    return calls


def _copied(path: Path, source: Path) -> list[Call]:
    path.write_bytes(source.read_bytes())
    return [behaviour_files.random_inputs(onnx.load(str(path)), size) for size in (2, 1)]


def recipes() -> dict[str, Recipe]:
    """Returns the recipe of each model, by name."""
    found: dict[str, Recipe] = {"digits": partial(_copied, source=ROOT / "examples" / "digits" / "digits.onnx")}
    for path in sorted((ROOT / "tests" / "data" / "tensorflow").glob("*.onnx")):
        found[f"tensorflow_{path.stem}"] = partial(_copied, source=path)
    for name in ("densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet"):
        found[f"light_{name}"] = partial(_copied, source=LIGHT / f"light_{name}.onnx")
    for name, (build, inputs) in _NETWORKS.items():
        for exporter in ("torchscript", "dynamo"):
            found[f"{name}_{exporter}"] = _recipe(build, inputs, exporter)
    found["llama_dynamo"] = _recipe(_llama, lambda n: (_tokens(n, 7), _mask(n, 7)), "dynamo")
    found["gated_torchscript"] = _recipe(Gated, lambda n: (_normal(n, 5, 8),), "torchscript")
    found["conditional_dynamo"] = _recipe(Conditional, lambda n: (_ramp(n),), "dynamo")
    for name, recipe in _SCRIPTED.items():
        found[f"{name}_scripted"] = partial(recipe, script=True)
    for name, recipe in _FIXED.items():
        for exporter in ("torchscript", "dynamo"):
            found[f"{name}_fixed_{exporter}"] = partial(recipe, exporter=exporter)
    for way in ("QDQ", "QOperator", "dynamic"):
        found[f"quantised_{way.lower()}"] = partial(_quantised, way=way)
    return found | {name: partial(behaviour_files.write, text=text) for name, text in behaviour_files.TEXTS.items()}


def imports() -> dict[str, Import]:
    """Returns what is recorded: every model as it is, some with options."""
    found = {name: Import(name, {}) for name in recipes()}
    for exporter in ("torchscript", "dynamo"):
        freed = {"encoder": {0: "n", 1: "t"}, "last_step": {0: "n"}, "patches": {0: "n", 2: "h"}}
        for name, axes in freed.items():
            model = f"{name}_fixed_{exporter}"
            found[f"{model}+dynamic"] = Import(model, {"dynamic": {"x": axes}})
        found[f"bert_{exporter}+unraised"] = Import(f"bert_{exporter}", {"raise_patterns": False})
    for way in ("qdq", "qoperator", "dynamic"):
        found[f"quantised_{way}+dequantised"] = Import(f"quantised_{way}", {"quantized": "dequantize"})
    found["resnet18_dynamo+frozen"] = Import("resnet18_dynamo", {"trainable": ["norm", "fc.*"]})
    found["resnet18_dynamo+shaped"] = Import("resnet18_dynamo", {"input_shapes": {"x": ["batch", 3, "h", "w"]}})
    found["mixed+dynamic"] = Import("mixed", {"dynamic": {"x": {0: "n"}}})
    return found
