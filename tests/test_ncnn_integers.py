"""8-bit integers in NCNN: the arithmetic of a layer to the letter, thresholds, files that come back, accuracy."""

import io
from collections.abc import Callable
from pathlib import Path

import ncnn_models
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn
from torch.nn import functional as F

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import InputError, NcnnError
from onnx2nn.output.ncnn import NcnnModel, integers, model_files


def _loaded(network: nn.Module, *shape: int) -> torch.nn.Module:
    file = io.BytesIO()
    torch.onnx.export(network.eval(), (torch.rand(shape),), file, dynamo=False, input_names=["x"])
    module: torch.nn.Module = onnx2nn.load(file.getvalue())
    return module


def _samples(*shape: int, count: int = 8) -> list[list[np.ndarray]]:
    random = np.random.default_rng(0)
    return [[random.standard_normal(shape).astype(np.float32)] for _ in range(count)]


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(3, 8, 3, padding=1), (1, 3, 9, 11)),
    "with steps, without bias": (lambda: nn.Conv2d(5, 7, (3, 2), 2, dilation=(1, 2), bias=False), (1, 5, 9, 11)),
    "of points": (lambda: nn.Conv2d(16, 32, 1), (1, 16, 8, 8)),
    "depthwise": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), (1, 16, 8, 8)),
    "linear": (lambda: nn.Linear(40, 12), (1, 40)),
    "linear of rows": (lambda: nn.Linear(40, 12), (1, 7, 40)),
}


def _integers(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.clip(integers.rounded((values * scale).numpy()), -127, 127)).double()


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_with_its_integers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, samples = make(), _samples(*shape)
    model = onnx2nn.to_ncnn(_loaded(layer, *shape), tmp_path, calibration=samples)
    (found,) = (one for one in _read_int8(model) if one["scale"] is not None)
    x = torch.from_numpy(samples[0][0])
    weight = layer.weight.detach()
    rows = weight.reshape(len(weight), -1)
    product = name == "linear of rows"
    scales = 127 / (rows.abs().amax() if product else rows.abs().amax(1))
    np.testing.assert_allclose(found["scales"], scales, rtol=1e-6)
    whole = _integers(rows, scales if product else scales[:, None]).reshape(weight.shape)
    scale = 127 / x.abs().amax(-1, keepdim=True) if product else torch.tensor(found["scale"])
    read = _integers(x, scale)
    if isinstance(layer, nn.Conv2d):
        sums = F.conv2d(read, whole, None, layer.stride, layer.padding, layer.dilation, layer.groups)
        scales, bias = scales[:, None, None], 0 if layer.bias is None else layer.bias.detach()[:, None, None]
    else:
        sums, bias = F.linear(read, whole), layer.bias.detach()
    expected = sums / (scales.double() * scale)
    ((result,),) = model.run([samples[0]], int8=True)
    # ncnn's depthwise kernels on x86 take 1 / scales from an instruction that gives 12 bits (rcpps).
    digits = 4e-4 if name == "depthwise" else 1e-5
    np.testing.assert_allclose(result - np.asarray(bias), expected.numpy(), rtol=digits, atol=1e-5)
    assert all(output.max_difference < 0.05 * output.scale for output in model.int8)


def _read_int8(model: NcnnModel) -> list[dict[str, np.ndarray | float | None]]:
    """The scales of each layer of the written files, whose weights are bytes behind their tag."""
    assert model.int8_param is not None and model.int8_weights is not None
    data, found, at = model.int8_weights.read_bytes(), [], 0
    for layer in model_files.read(model.param, model.weights):
        row: dict[str, np.ndarray | float | None] = {"scales": None, "scale": None}
        for position, (tagged, array) in enumerate(layer.weights):
            if not position and data[at : at + 4] == model_files.INT8:
                at += 4 + len(array) + -len(array) % 4
            else:
                at += 4 * tagged + 4 * len(array)
        if layer.weights:
            channels = 1 if layer.kind == "Gemm" else layer.number(7) or layer.number(0)
            row["scales"] = np.frombuffer(data, "<f4", channels, at)
            at += 4 * channels
            row["scale"] = 0.0
            if layer.kind != "Gemm":
                row["scale"] = float(np.frombuffer(data, "<f4", 1, at)[0])
                at += 4
        found.append(row)
    assert at == len(data)
    return found


@given(arrays.arrays(np.int64, integers.BINS, elements=st.integers(0, 1000)), st.floats(1e-6, 1e6))
@settings(max_examples=50, derandomize=True)
def test_the_threshold_has_the_least_error(counts: np.ndarray, largest: float) -> None:
    middles, ends = (np.arange(integers.BINS) + 0.5) / integers.BINS, np.arange(1, integers.BINS + 1) / integers.BINS

    def error(end: float) -> float:
        below = middles < end
        return float(counts[below].sum() * (end / 127) ** 2 / 12 + (counts * (middles - end) ** 2)[~below].sum())

    found = integers.threshold(counts, largest) / largest
    least = min(error(end) for end in ends[64:])
    assert error(found) <= least * (1 + 1e-6) + 1e-12


def test_a_value_far_off_does_not_decide() -> None:
    """Of a million small values and one of 1000, the steps are those of the small ones."""
    counts = np.zeros(integers.BINS, np.int64)
    counts[:200], counts[-1] = 5_000, 1
    assert 90 < integers.threshold(counts, 1000.0) < 600


@pytest.mark.parametrize("name", ncnn_models.MODELS)
def test_files_come_back(name: str, tmp_path: Path) -> None:
    """Every layer's weights are known: what was read is written again, to the byte."""
    model = ncnn_models.convert(ncnn_models.MODELS[name](), tmp_path)
    layers = model_files.read(model.param, model.weights)
    again = tmp_path / "again.param", tmp_path / "again.bin"
    model_files.write(layers, *again)
    assert again[1].read_bytes() == model.weights.read_bytes()
    assert [line.split() for line in again[0].read_text().splitlines()] == [
        line.split() for line in model.param.read_text().splitlines()
    ]


def test_weights_that_are_not_known_are_refused(tmp_path: Path) -> None:
    model = onnx2nn.to_ncnn(_loaded(nn.Conv2d(3, 8, 3), 1, 3, 8, 8), tmp_path)
    for change in (lambda data: data + b"\0" * 8, lambda data: data[:-8], lambda data: b"\1" + data[1:]):
        wrong = tmp_path / "wrong.bin"
        wrong.write_bytes(change(model.weights.read_bytes()))
        with pytest.raises(NcnnError, match="not known"):
            model_files.read(model.param, wrong)


def test_digits_are_read_as_well_with_integers(tmp_path: Path) -> None:
    with np.load(ncnn_models.DIGITS / "digits_test.npz") as digits:
        samples, labels = [[image] for image in digits["image"].astype(np.float32)[:, None]], digits["label"]
    module = onnx2nn.load(ncnn_models.DIGITS / "digits.onnx", input_shapes={"image": [1, 8, 8, 1]})
    model = onnx2nn.to_ncnn(module, tmp_path, calibration=samples[:64])
    assert model.int8_weights is not None and model.half_weights.stat().st_size > model.int8_weights.stat().st_size
    right = [
        np.mean(
            [
                run[0].argmax() == label
                for run, label in zip(model.run(samples[64:], int8=whole), labels[64:], strict=True)
            ]
        )
        for whole in (False, True)
    ]
    assert right[0] > 0.97 and right[1] > right[0] - 0.01


def test_what_calibration_asks_for(tmp_path: Path) -> None:
    module = _loaded(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), 1, 3, 8, 8)
    with pytest.raises(InputError, match="no samples"):
        onnx2nn.to_ncnn(module, tmp_path / "a", calibration=[])
    with pytest.raises(NcnnError, match="No layer computes with 8-bit integers"):
        onnx2nn.to_ncnn(module, tmp_path / "b", calibration=_samples(1, 3, 8, 8))
    assert not (tmp_path / "b").exists()
    model = onnx2nn.to_ncnn(module, tmp_path / "c")
    with pytest.raises(InputError, match="no files with 8-bit integers"):
        model.run(_samples(1, 3, 8, 8), int8=True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.onnx"
    torch.onnx.export(nn.Conv2d(3, 4, 3).eval(), (torch.rand(1, 3, 8, 8),), file, dynamo=False, input_names=["x"])
    samples = np.stack([sample[0] for (sample,) in _samples(1, 3, 8, 8)])
    command = ["ncnn", str(file), "-o", str(tmp_path / "out"), "--calibration", str(tmp_path / "samples.npz")]
    np.savez(tmp_path / "samples.npz", x=samples)
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(".fp16.bin, .int8.param and .int8.bin")
    assert {path.suffix for path in (tmp_path / "out").glob("m.int8.*")} == {".param", ".bin"}
    for wrong, words in (
        ({"y": samples}, "needs an array for each input, x"),
        ({"x": samples[:, :2]}, "needs the shape"),
    ):
        np.savez(tmp_path / "samples.npz", **wrong)
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    (tmp_path / "samples.npz").write_bytes(b"no file of numpy")
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Cannot read" in line
