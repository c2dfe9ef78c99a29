"""Programs of torch.export follow the lengths of sequences through recurrent layers, as loops."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import onnx2nn
from onnx2nn.output.loops_over_time import LoopsOverTime


@pytest.mark.slow
@settings(max_examples=10)
@given(
    st.sampled_from([nn.LSTM, nn.GRU, nn.RNN, lambda *a, **b: nn.RNN(*a, nonlinearity="relu", **b)]),
    st.integers(1, 3),
    st.tuples(*[st.booleans()] * 4),
    st.integers(1, 9),
)
def test_a_loop_computes_what_the_function_does(
    kind: type[nn.RNNBase], layers: int, flags: tuple[bool, bool, bool, bool], steps: int
) -> None:
    bias, batch_first, bidirectional, given_state = flags
    torch.manual_seed(0)
    layer = kind(3, 4, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional).double().eval()
    x = torch.randn(2, steps, 3) if batch_first else torch.randn(steps, 2, 3)
    state = torch.randn(layers * (1 + bidirectional), 2, 4).double()
    hx = ((state, -state) if kind is nn.LSTM else state) if given_state else None
    with torch.no_grad():
        expected = layer(x.double(), hx)
        with LoopsOverTime():
            found = layer(x.double(), hx)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_packed_sequences_stay() -> None:
    layer = nn.LSTM(3, 4).eval()
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3), torch.tensor([5, 2]))
    with LoopsOverTime():
        found, _ = layer(packed)
    torch.testing.assert_close(found.data, layer(packed)[0].data)


class Tagger(nn.Module):
    """A recurrent layer between linear ones."""

    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.before, self.over, self.after = nn.Linear(3, 4), kind(4, 4, 2, bidirectional=True), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.over(self.before(x).relu())[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_program_takes_sequences_of_every_length(kind: type[nn.RNNBase], tmp_path: Path) -> None:
    original, x = Tagger(kind).eval(), torch.randn(5, 4, 3)
    axes = {"x": {0: "steps", 1: "batch"}}
    torch.onnx.export(original, (x,), tmp_path / "a.onnx", dynamo=False, input_names=["x"], dynamic_axes=axes)
    module = onnx2nn.load(tmp_path / "a.onnx")
    said = onnx2nn.save(module, tmp_path / "a.pt2", example_inputs=[x], dynamic_axes=[{0: "steps", 1: "batch"}])
    assert "fixed although" not in said and "refuses" not in said
    program = torch.export.load(tmp_path / "a.pt2").module()
    for sizes in ((5, 4), (1, 1), (2, 3), (30, 2)):
        values = torch.randn(*sizes, 3)
        torch.testing.assert_close(program(values), module(values))
