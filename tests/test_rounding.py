"""Rows that compute in a wider type give the exact result, rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch

import onnx2nn


def assert_rounded_once(actual: np.ndarray[Any, Any], exact: np.ndarray[Any, Any], error: float) -> None:
    """Asserts that `actual` is `exact`, rounded after an `error` relative to the largest magnitude."""
    half = np.spacing(np.abs(exact).astype(actual.dtype)).astype(np.float64) / 2
    distance = np.abs(actual.astype(np.float64) - exact)
    assert (distance <= half + error * np.abs(exact).max()).all(), (distance / half).max()


@pytest.mark.parametrize(
    "attributes", ["is_causal = 0", "is_causal = 1", "softmax_precision = 1", "softmax_precision = 10"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_attention_of_short_floats(dtype: torch.dtype, attributes: str) -> None:
    name = str(dtype).removeprefix("torch.")
    attributes = attributes if dtype == torch.float16 else attributes.replace("10", "16")
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 23]>
        attention ({name}[2,3,20,16] q, {name}[2,3,20,16] k, {name}[2,3,20,16] v) => ({name}[2,3,20,16] y) {{
            y = Attention <{attributes}> (q, k, v)
        }}""")
    torch.manual_seed(0)
    q, k, v = (torch.rand(2, 3, 20, 16).to(dtype) for _ in range(3))
    y = onnx2nn.load(model)(q, k, v)
    assert y.dtype == dtype
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal="is_causal = 1" in attributes
    )
    if dtype == torch.float16:
        assert_rounded_once(y.numpy(), exact.numpy(), 1e-6)
    else:
        assert ((y.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-6).all()


@pytest.mark.parametrize("masked", ["", "mask"])
def test_scores_of_short_floats(masked: str) -> None:
    """The outputs beside the result have the inputs' type, rounded once too."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 23]>
        attention (float16[1,2,6,8] q, float16[1,2,6,8] k, float16[1,2,6,8] v, float16[6,6] mask)
            => (float16[1,2,6,8] y, float16[1,2,6,6] scores) {{
            y, k2, v2, scores = Attention <softcap = 2.0, qk_matmul_output_mode = 0> (q, k, v, {masked})
        }}""")
    torch.manual_seed(0)
    q, k, v = (torch.rand(1, 2, 6, 8).half() for _ in range(3))
    mask = torch.rand(6, 6).half()
    y, scores = onnx2nn.load(model)(q, k, v, mask)
    raw = q.double() @ k.double().mT * 8**-0.5
    assert scores.dtype == y.dtype == torch.float16
    assert_rounded_once(scores.numpy(), raw.numpy(), 1e-6)
    weights = (torch.tanh(raw / 2) * 2 + (mask.double() if masked else 0)).softmax(-1)
    assert_rounded_once(y.numpy(), (weights @ v.double()).numpy(), 1e-6)


@pytest.mark.parametrize("length", [10, 97, 1000])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms(inverse: int, length: int) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 20]>
        transform (float[2,{length},2] x) => (float[2,{length},2] y) {{ y = DFT <inverse = {inverse}> (x) }}""")
    x = np.random.default_rng(0).random((2, length, 2), np.float32)
    y = onnx2nn.load(model)(torch.from_numpy(x)).numpy()
    signal = x[..., 0].astype(np.float64) + 1j * x[..., 1]
    exact = np.fft.ifft(signal) if inverse else np.fft.fft(signal)
    assert_rounded_once(y, np.stack([exact.real, exact.imag], -1), 1e-15)


def test_a_frequency_that_cancels_out() -> None:
    """A line's spectrum has no imaginary part in the middle; float32's roundings give it one of 2e-7 or 7e-6."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        transform (float[1,10,10,2] x, int64 axis) => (float[1,10,10,2] y) { y = DFT <inverse = 1> (x, , axis) }""")
    x = torch.stack([torch.arange(100.0).reshape(1, 10, 10), torch.zeros(1, 10, 10)], -1)
    y = onnx2nn.load(model)(x, torch.tensor(1))
    assert y[0, 5, :, 1].abs().max() < 1e-14


def test_frames() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        frames (float[2,400] x, float[64] window) => (float[2,n,33,2] y) <int64 step = {16}> {
            y = STFT (x, step, window)
        }""")
    draw = np.random.default_rng(0)
    x, window = draw.random((2, 400), np.float32), draw.random(64, np.float32)
    y = onnx2nn.load(model)(torch.from_numpy(x), torch.from_numpy(window)).numpy()
    rows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), 64, axis=1)[:, ::16] * window
    exact = np.fft.rfft(rows)
    assert_rounded_once(y, np.stack([exact.real, exact.imag], -1), 1e-15)
