"""An LSTM with 8-bit weights in few calls gives the numbers of the loop that its operators define."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx2nn import functional
from onnx2nn.errors import OperatorError
from onnx2nn.ops import quantize, quantized_steps

Case = tuple[tuple[torch.Tensor | None, ...], dict[str, str]]


@st.composite
def layers(draw: Any) -> Case:
    """Draws the inputs of a DynamicQuantizeLSTM; numbers of the weights are often the largest ones."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    ways, hidden, features = 1 + (direction == "bidirectional"), draw(st.sampled_from([1, 3, 16, 64, 129, 300])), 5
    steps, batch = draw(st.sampled_from([1, 2, 7])), draw(st.sampled_from([1, 3, 130]))
    dtype = draw(st.sampled_from([torch.int8, torch.uint8]))
    limits, extreme = torch.iinfo(dtype), draw(st.booleans())

    def weights(*shape: int) -> torch.Tensor:
        found = torch.randint(limits.min, limits.max + 1, shape, dtype=dtype, generator=generator)
        return torch.where(found % 2 == 0, limits.min, limits.max).to(dtype) if extreme else found

    def of_channels() -> tuple[int, ...]:
        return (ways, 4 * hidden) if draw(st.booleans()) else (ways,)

    size = draw(st.sampled_from([1e-38, 1e-3, 1.0, 1e3, 1e38, 3e38]))
    state = torch.randn(ways, batch, hidden, generator=generator) * size if draw(st.booleans()) else None
    scales = [torch.rand(of_channels(), generator=generator) * 0.02 for _ in range(2)]
    zeros = [
        weights(*scale.shape) if draw(st.booleans()) else torch.zeros(scale.shape, dtype=dtype) for scale in scales
    ]
    B = torch.randn(ways, 8 * hidden, generator=generator) if draw(st.booleans()) else None
    X = torch.randn(steps, batch, features, generator=generator)
    W, R = weights(ways, features, 4 * hidden), weights(ways, hidden, 4 * hidden)
    inputs = (X, W, R, B, None, state, None if state is None else state.sign(), None)
    return (*inputs, scales[0], zeros[0], scales[1], zeros[1]), {"direction": direction}


@settings(max_examples=150)
@given(layers())
def test_few_calls_give_the_same(case: Case) -> None:
    inputs, options = case
    found = functional.com_microsoft__DynamicQuantizeLSTM(*inputs, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_steps, "serves", lambda *_: False)
        expected = functional.com_microsoft__DynamicQuantizeLSTM(*inputs, **options)
    for ours, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=0, equal_nan=True)


def layer(hidden: int) -> list[torch.Tensor | None]:
    weights = torch.ones(1, hidden, 4 * hidden, dtype=torch.int8)
    one, zero = torch.tensor([0.01]), torch.tensor([0], dtype=torch.int8)
    return [torch.ones(4, 2, hidden), weights, weights, None, None, None, None, None, one, zero, one, zero]


def test_what_the_few_calls_do_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is not finite, whose numbers DynamicQuantizeLinear defines, and gradients: the loop runs."""
    ran = []
    lstm = quantized_steps.lstm
    monkeypatch.setattr(quantized_steps, "lstm", lambda *given: ran.append(lstm(*given)) or ran[-1])
    inputs = layer(3)
    functional.com_microsoft__DynamicQuantizeLSTM(*inputs)
    assert ran.pop() is not None
    states = torch.full((1, 2, 3), torch.nan), torch.zeros(1, 2, 3)
    y, *_ = functional.com_microsoft__DynamicQuantizeLSTM(*inputs[:5], *states, *inputs[7:])
    assert ran.pop() is None and bool(y.isfinite().all())
    x = torch.ones(4, 2, 3, requires_grad=True)
    y, *_ = functional.com_microsoft__DynamicQuantizeLSTM(x, *inputs[1:])
    assert not ran and y.requires_grad
    with pytest.raises(OperatorError, match="an initial state has 3 sequences instead of 2"):
        functional.com_microsoft__DynamicQuantizeLSTM(
            *inputs[:5], torch.zeros(1, 3, 3), torch.zeros(1, 3, 3), *inputs[7:]
        )


def changed(x: torch.Tensor, draw: Any) -> torch.Tensor:
    """Returns numbers, often whole ones, of one sign, or with one that is none."""
    x = x.abs() if draw(st.booleans()) else x
    x = x.round() if draw(st.booleans()) else x
    x = -x if draw(st.booleans()) else x
    x[0] = draw(st.sampled_from([x[0].item(), torch.nan, torch.inf, 0.0]))
    return x


@settings(max_examples=300)
@given(st.data())
def test_numbers_over_their_range(data: st.DataObject) -> None:
    """DynamicQuantizeLinear in few calls gives the numbers of its formula, at every magnitude."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 30)))
    size, power = data.draw(st.integers(1, 40)), data.draw(st.integers(-40, 38))
    x = changed(torch.randn(size, generator=generator) * 10.0**power, data.draw)
    found = functional.DynamicQuantizeLinear(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "_quantized_over_its_range", lambda *_: None)
        expected = functional.DynamicQuantizeLinear(x)
    for ours, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=0, equal_nan=True)
