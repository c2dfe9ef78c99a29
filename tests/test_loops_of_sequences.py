"""Loops that carry a sequence: torch's older exporter writes `tensor_split`, and lists that scripted functions fill."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from realmodels import check_against_onnxruntime, check_travels
from torch import nn

import onnx2nn
from onnx2nn.control_flow import Loop
from onnx2nn.errors import UnsupportedModelError


class Split(nn.Module):
    """Computes with parts of its input, as MViT's attention does with the class token and the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, others, last = torch.tensor_split(x, (1, 3), dim=1)
        return torch.cat([others, first * 2, last.flip(1)], 1)


@torch.jit.script
def _doubles(x: torch.Tensor, count: int) -> torch.Tensor:
    found: list[torch.Tensor] = []
    for start in range(count):
        x = x * 2
        found.append(x[:, start:])
    return torch.cat(found, 1)


class Doubles(nn.Module):
    """Calls a scripted function that fills a list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubles: torch.Tensor = _doubles(x, 3)
        return doubles


@pytest.mark.parametrize("model", [Split(), Doubles()], ids=lambda model: type(model).__name__)
def test_what_torch_writes_is_plain_code(model: nn.Module, tmp_path: Path) -> None:
    path, axes = tmp_path / "split.onnx", {"x": {0: "n", 1: "width"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), (torch.randn(2, 6),), path, dynamo=False, input_names=["x"], dynamic_axes=axes)
    assert "Loop" in {node.op_type for node in onnx.load(path).graph.node}
    module = onnx2nn.load(path)
    assert not [*module.children()]
    assert "functional" not in module.code
    for shape in ((2, 6), (1, 4), (3, 9)):
        check_against_onnxruntime(path, module, (torch.randn(shape),))
    check_travels(module, (torch.randn(2, 6),), (torch.randn(5, 8),))


INSERTED = {
    "x": "",
    "taken": "taken = Mul (x, half)",
    "row": "row = Gather <axis = 0> (x, i)",
    "counted": "number = Cast <to = 1> (i) counted = Add (x, number)",
}
"""What an iteration puts into the sequence, and how it is computed."""

CONDITIONS = {
    "the same": "d = Identity (c)",
    "ends behind the first": "d = Not (c)",
    "counts": "d = Less (i, one)",
    "always": "d = Identity (yes)",
}


def _loop(trips: int, start: bool, inserted: str, condition: str, vectors: bool) -> onnx.ModelProto:
    size = "[1]" if vectors else ""
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[4, 4] x) => (float[m, k] y) <
            int64{size} trips = {{{trips}}}, bool{size} begin = {{{int(start)}}}, bool{size} yes = {{1}},
            int64{size} one = {{1}}, float half = {{0.5}}
        > {{
            s = SequenceConstruct (x)
            r, last = Loop (trips, begin, s, x) <
                body = step (int64{size} i, bool{size} c, seq(float[a, b]) l, float[e, f] before)
                    => (bool{size} d, seq(float[a, b]) o, float[e, f] after) {{
                    {CONDITIONS[condition]}
                    {INSERTED[inserted]}
                    o = SequenceInsert (l, {inserted})
                    after = Add (before, before)
                }}
            >
            joined = ConcatFromSequence <axis = 0> (r)
            y = Concat <axis = 0> (joined, last)
        }}
    """)


@given(
    trips=st.integers(0, 4),
    start=st.booleans(),
    inserted=st.sampled_from(sorted(INSERTED)),
    condition=st.sampled_from(sorted(CONDITIONS)),
    vectors=st.booleans(),
)
def test_every_iteration_counts(trips: int, start: bool, inserted: str, condition: str, vectors: bool) -> None:
    model = _loop(trips, start, inserted, condition, vectors or inserted == "row")
    check_against_onnxruntime(model.SerializeToString(), onnx2nn.load(model), (torch.randn(4, 4),))


def test_many_iterations_stay_a_loop() -> None:
    model = _loop(3000, True, "x", "the same", vectors=False)
    module = onnx2nn.load(model)
    assert [type(child).__name__ for child in module.children()] == [Loop.__name__]
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(4, 4),))


def test_a_sequence_that_no_iteration_fills_is_refused() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[4, 4] x) => (float[m, k] y) <int64 trips = {0}, bool begin = {1}> {
            s = SequenceEmpty ()
            r = Loop (trips, begin, s) <
                body = step (int64 i, bool c, seq(float[a, b]) l) => (bool d, seq(float[a, b]) o) {
                    d = Identity (c)
                    o = SequenceInsert (l, x)
                }
            >
            y = ConcatFromSequence <axis = 0> (r)
        }
    """)
    with pytest.raises(UnsupportedModelError, match="expected a non-empty list"):
        onnx2nn.load(model)
