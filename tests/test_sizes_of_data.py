"""Sizes that data decide: how many elements are not zero, how many boxes stay. They may be 0, and differ by call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser

import onnx2nn


def _detector() -> onnx.ModelProto:
    """Boxes that score over 0, the four best of them, overlapping ones dropped, as torchvision's detectors do it."""
    return parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        agraph (float[12,4] boxes, float[12] scores) => (float[k,4] kept, float[] best)
        <int64[1] first = {0}, int64[1] third = {2}, int64[1] one = {1}, int64 zero = {0}, int64 lowest = {1},
         int64 highest = {4}, int64[1] all = {100}, float[1] overlap = {0.5}, float least = {0.0}> {
            over = Greater(scores, least)
            where = NonZero(over)
            chosen = Squeeze(where, first)
            marks = Gather(scores, chosen)
            length = Shape(marks)
            upper = Clip (length, lowest, highest)
            sizes = Concat <axis = 0> (length, upper)
            count = ReduceMin <keepdims = 1> (sizes)
            tops, order = TopK(marks, count)
            found = Gather(chosen, order)
            again = NonZero(over)
            places = Transpose <perm = [1, 0]> (again)
            candidates = GatherND(boxes, places)
            corners = Gather(candidates, order)
            best = ReduceMax <keepdims = 0> (marks)
            number = Size(corners)
            empty = Equal(number, zero)
            kept = If (empty) <
                then_branch = t () => (float[m,4] same) { same = Identity(corners) },
                else_branch = e () => (float[m,4] part) {
                    batch = Unsqueeze(corners, first)
                    class = Unsqueeze(tops, first)
                    classes = Unsqueeze(class, first)
                    selected = NonMaxSuppression(batch, classes, all, overlap)
                    column = Gather <axis = 1> (selected, third)
                    picks = Squeeze(column, one)
                    part = Gather(corners, picks)
                }
            >
        }"""
    )


def _inputs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes, a third of them nearly equal, of which `count` score over 0."""
    generator = torch.Generator().manual_seed(count)
    corner, size = torch.rand(12, 2, generator=generator) * 9, torch.rand(12, 2, generator=generator) + 1
    boxes = torch.cat([corner, corner + size], 1)
    boxes[4:8] = boxes[:4] + 0.01
    scores = torch.rand(12, generator=generator) - 1.5
    scores[torch.randperm(12, generator=generator)[:count]] += 1.6
    return boxes, scores


def _exported(module: torch.nn.Module, inputs: Any, strict: bool) -> Callable[..., Any]:
    return torch.export.export(module, inputs, strict=strict).module()


_WAYS: dict[str, Callable[[torch.nn.Module, Any, Path], Callable[..., Any]]] = {
    "eager": lambda module, inputs, folder: module,
    "exported": lambda module, inputs, folder: _exported(module, inputs, False),
    "exported strictly": lambda module, inputs, folder: _exported(module, inputs, True),
    "compiled": lambda module, inputs, folder: torch.compile(module, fullgraph=True, backend="eager"),
    "traced": lambda module, inputs, folder: torch.jit.trace(module, inputs, check_trace=False),
}


@torch.no_grad()
@pytest.mark.parametrize("way", _WAYS)
def test_a_detector_finds_any_number_of_boxes(way: str, tmp_path: Path) -> None:
    model = _detector()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    module = onnx2nn.load(model)
    assert "functional.Gather" not in module.code  # the sizes are known as numbers: calls of torch are recorded
    assert module.code.count("NonZero(") == 1  # equal calls are recorded once
    program = _WAYS[way](module, _inputs(7), tmp_path)
    for count in (12, 7, 2, 1, *([0] if way != "traced" else [])):
        boxes, scores = _inputs(count)
        expected = session.run(None, {"boxes": boxes.numpy(), "scores": scores.numpy()})
        for actual, wanted in zip(program(boxes, scores), expected, strict=True):
            np.testing.assert_array_equal(actual.numpy(), wanted)


@torch.no_grad()
def test_what_reads_values_is_written_as_the_operator_that_it_is(tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        agraph (float[1,12,4] boxes, float[1,1,12] scores) => (int64[k,3] kept) <int64[1] most = {100}> {
            kept = NonMaxSuppression(boxes, scores, most)
        }"""
    )
    path = tmp_path / "again.onnx"
    inputs = _inputs(7)[0].unsqueeze(0), _inputs(7)[1].reshape(1, 1, 12)
    torch.onnx.export(onnx2nn.load(model), inputs, path, dynamo=True, verbose=False)
    assert [node.op_type for node in onnx.load(path).graph.node] == ["NonMaxSuppression"]
    sessions = [onnxruntime.InferenceSession(source) for source in (path, model.SerializeToString())]
    feeds = dict(zip(("boxes", "scores"), map(torch.Tensor.numpy, inputs), strict=True))
    np.testing.assert_array_equal(*(session.run(None, feeds)[0] for session in sessions))
