"""The models of `scripts/behaviour.py`: small random instances of known architectures, exported or written by hand.

Needs `onnx2nn[test]`. Every builder is seeded; a file is made once and kept by the record that it belongs to.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import behaviour_files
import behaviour_networks as networks
import numpy as np
import onnx
import onnx.backend.test
import torch
from torch import nn

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
    build = partial(networks.vision, name, **options)
    return build, lambda batch: (_normal(batch, 3, size, size),)


_NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Sequence[torch.Tensor]]]] = {
    "resnet18": _vision("resnet18"),
    "mobilenet_v3": _vision("mobilenet_v3_small"),
    "shufflenet_v2": _vision("shufflenet_v2_x0_5"),
    "densenet": (networks.densenet, lambda n: (_normal(n, 3, 64, 64),)),
    "efficientnet_b0": _vision("efficientnet_b0"),
    "convnext": (networks.convnext, lambda n: (_normal(n, 3, 64, 64),)),
    "vit": (networks.vit, lambda n: (_normal(n, 3, 32, 32),)),
    "swin": (networks.swin, lambda n: (_normal(n, 3, 64, 64),)),
    "bert": (networks.bert, lambda n: (_tokens(n, 7), _mask(n, 7))),
    "gpt2": (networks.gpt2, lambda n: (_tokens(n, 7), _mask(n, 7))),
    "whisper_encoder": (networks.whisper, lambda n: (_normal(n, 8, 40),)),
    "language_model": (networks.LanguageModel, lambda n: (_tokens(5, n), _normal(2, n, 24), _normal(2, n, 24))),
    "generator": (networks.generator, lambda n: (_normal(n, 20, 1, 1),)),
    "assignment": (networks.Assignment, lambda n: (_normal(n, 5, 4), torch.tensor([0, 2]))),
}


def _ramp(rows: int, scale: float = 1.0) -> torch.Tensor:
    return torch.linspace(-1, 2, rows * 4).reshape(rows, 4) * scale


def _sound(batch: int, length: int, rate: int) -> tuple[torch.Tensor, ...]:
    wave = torch.linspace(-1, 2, batch * length).reshape(batch, length).sin()
    return wave, torch.linspace(-1, 1, 6 * batch).reshape(2, batch, 3), torch.tensor(rate)


_ROWS = {"x": {0: "rows"}}
_SCRIPTED: dict[str, Recipe] = {
    "repeated_layer": partial(
        _export, build=networks.Repeated, calls=[(_ramp(2), torch.tensor(3)), (_ramp(1), torch.tensor(0))], axes=_ROWS
    ),
    "halved": partial(_export, build=networks.Halved, calls=[(_ramp(3),), (_ramp(5, 99.0),)], axes=_ROWS),
    "experts": partial(
        _export, build=networks.Experts, calls=[(_ramp(3, 0.1),), (_ramp(3, -1.0),), (_ramp(5, 9.0),)], axes=_ROWS
    ),
}
_SCRIPTED["voice_detector"] = partial(
    _export,
    build=networks.VoiceDetector,
    calls=[_sound(2, 40, 16), _sound(3, 47, 16), _sound(5, 17, 8)],
    axes={"x": {0: "batch", 1: "length"}, "y": {1: "states"}},
)
_FIXED: dict[str, Recipe] = {
    "encoder": partial(
        _export,
        build=lambda: nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)),
        calls=[(_normal(1, 6, 16),), (_normal(4, 9, 16),)],
    ),
    "last_step": partial(_export, build=networks.LastStep, calls=[(_normal(1, 4, 6),), (_normal(3, 4, 6),)]),
    "patches": partial(_export, build=networks.Patches, calls=[(_normal(1, 3, 8, 8),), (_normal(3, 3, 12, 8),)]),
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
    calls = _recipe(networks.convolutions, lambda n: (_normal(n, 3, 16, 16),), "torchscript")(floats)
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
    found["llama_dynamo"] = _recipe(networks.llama, lambda n: (_tokens(n, 7), _mask(n, 7)), "dynamo")
    found["gated_torchscript"] = _recipe(networks.Gated, lambda n: (_normal(n, 5, 8),), "torchscript")
    found["conditional_dynamo"] = _recipe(networks.Conditional, lambda n: (_ramp(n),), "dynamo")
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
