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
from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.spec import Spec
from onnx2nn.fx.values.tensor import Tensor
from onnx2nn.sizes.expression import Symbol, of_symbol


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


def _transform() -> onnx.ModelProto:
    """An image brought to a size by floats, as torchvision's detectors do it, padded to whole blocks; a convolution."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        agraph (float[1,3,h,w] image) => (float[1,4,a,b] features, float[1,3,c,d] resized)
        <float shortest = {20.0}, float longest = {33.0}, int64[2] kept = {1, 3}, float[1] block = {8.0},
         int64[6] front = {0, 0, 0, 0, 0, 0}> {
            size = Shape <start = 2> (image)
            sides = Cast <to = 1> (size)
            smallest = ReduceMin <keepdims = 0> (sides)
            largest = ReduceMax <keepdims = 0> (sides)
            under = Reciprocal(smallest)
            over = Reciprocal(largest)
            up = Mul(under, shortest)
            down = Mul(over, longest)
            factor = Min(up, down)
            scaled = Mul(sides, factor)
            whole = Floor(scaled)
            lengths = Cast <to = 7> (whole)
            sizes = Concat <axis = 0> (kept, lengths)
            resized = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (image, , , sizes)
            now = Shape <start = 2> (resized)
            numbers = Cast <to = 1> (now)
            blocks = Div(numbers, block)
            up_blocks = Ceil(blocks)
            full = Mul(up_blocks, block)
            padded = Cast <to = 7> (full)
            lacking = Sub(padded, now)
            pads = Concat <axis = 0> (front, lacking)
            filled = Pad(resized, pads)
            features = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (filled, weight)
        }"""
    )
    weight = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    return model


@torch.no_grad()
@pytest.mark.parametrize("way", ["eager", "compiled", "traced"])
def test_what_follows_a_resize_to_a_computed_size_is_layers(way: str, tmp_path: Path) -> None:
    model = _transform()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    module = onnx2nn.load(model)
    assert [type(layer) for layer in module.children()] == [torch.nn.Conv2d]
    assert "functional.Resize" not in module.code and "functional.Pad" not in module.code
    program = _WAYS[way](module, (torch.rand(1, 3, 30, 28),), tmp_path)
    for size in ((16, 24), (40, 21), (9, 50), (20, 20)):
        image = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0))
        for actual, wanted in zip(program(image), session.run(None, {"image": image.numpy()}), strict=True):
            np.testing.assert_allclose(actual.numpy(), wanted, rtol=1e-5, atol=1e-5)


_DECIDED = {
    "Slice": ("y = Slice(x, n, m, axes)", "int64[1] axes = {1}", ([1], [3]), ([0], [4])),
    "Slice of all axes": ("y = Slice(x, n, m)", "", ([0, 1, 1], [2, 3, 4]), ([1, 0, 0], [2, 2, 2])),
    "Reshape": ("all = Concat <axis = 0> (n, known) y = Reshape(x, all)", "int64[2] known = {2, -1}", ([3],), ([6],)),
    "Reshape, a dimension kept": (
        "all = Concat <axis = 0> (k, n) y = Reshape(x, all)",
        "int64[1] k = {0}",
        ([6, 2],),
        ([3, 4],),
    ),
    "Expand": ("all = Concat <axis = 0> (n, k) y = Expand(x, all)", "int64[3] k = {1, 3, 1}", ([2],), ([1],)),
    "Expand inside": (
        "one = Slice(x, first, second, axis) all = Concat <axis = 0> (k, n, last) y = Expand(one, all)",
        "int64[1] k = {2}, int64[1] last = {4}, int64[1] first = {0}, int64[1] second = {1}, int64[1] axis = {1}",
        ([3],),
        ([1],),
    ),
    "Expand of what is there": (
        "all = Concat <axis = 0> (k, n) y = Expand(x, all)",
        "int64[2] k = {2, 3}",
        ([1],),
        ([4],),
    ),
    "Tile": ("all = Concat <axis = 0> (k, n) y = Tile(x, all)", "int64[2] k = {1, 2}", ([2],), ([1],)),
    "ConstantOfShape": (
        "all = Concat <axis = 0> (k, n) y = ConstantOfShape(all)",
        "int64[2] k = {1, 2}",
        ([2],),
        ([5],),
    ),
    "TopK": ("y, where = TopK <axis = 1> (x, n)", "", ([2],), ([3],)),
    "Pad": ("all = Concat <axis = 0> (k, n) y = Pad(x, all)", "int64[5] k = {0, 1, 0, 0, 2}", ([2],), ([-1],)),
    "Resize": ("all = Concat <axis = 0> (k, n) y = Resize(x, , , all)", "int64[2] k = {2, 3}", ([2],), ([9],)),
    "Resize by a factor": (
        "factor = Cast <to = 1> (n) all = Concat <axis = 0> (k, factor) y = Resize(x, , all)",
        "float[2] k = {1, 1}",
        ([2],),
        ([3],),
    ),
    "Range": (
        "start = Squeeze(n) stop = Squeeze(m) y = Range(start, stop, k)",
        "int64 k = {1}",
        ([1], [5]),
        ([2], [3]),
    ),
    "Split": ("all = Concat <axis = 0> (n, m) y, z = Split <axis = 2> (x, all)", "", ([1], [3]), ([2], [2])),
}
"""Nodes, constants, and two values each of the numbers that are inputs: of `x`, (2, 3, 4)."""


@torch.no_grad()
@pytest.mark.parametrize("case", _DECIDED)
def test_what_is_known_of_a_shape_that_data_decide(case: str) -> None:
    nodes, constants, *values = _DECIDED[case]
    declared = "".join(f", int64[{len(value)}] {name}" for name, value in zip("nm", values[0], strict=False))
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        agraph (float[2,3,4] x{declared}) => (float[a,b] result) <{constants}> {{
            {nodes}
            numbers = Cast <to = 1> (y)
            flat = Flatten <axis = -1> (numbers)
            result = Softmax <axis = -1> (flat)
        }}"""
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]  # what the file says of y is nothing
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    module = onnx2nn.load(model)
    assert "functional.Softmax" not in module.code, "its rank is known"
    x = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0))
    for numbers in values:
        feeds = {"x": x.numpy(), **{name: np.array(value) for name, value in zip("nm", numbers, strict=False)}}
        (expected,) = session.run(None, feeds)
        actual = module(*(torch.from_numpy(value) for value in feeds.values()))
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-6)


def test_a_split_into_one_part_of_unknown_rank() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 11]>
        agraph (float x) => (float y) { part = Split <axis = 1> (x) y = Squeeze <axes = [1]> (part) }"""
    )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    x = torch.rand(3, 1)
    assert torch.equal(onnx2nn.load(model)(x), x[:, 0])


def test_a_limit_on_sizes_of_data_is_none_however_many_there_are() -> None:
    least = ", ".join(f"float least{i} = {{{i / 14}}}" for i in range(14))
    levels = "".join(
        f"""over{i} = Greater(x, least{i}) where{i} = NonZero(over{i}) chosen{i} = Squeeze(where{i}, zero)
            marks{i} = Gather(x, chosen{i}) length{i} = Shape(marks{i}) both{i} = Concat <axis = 0> (length{i}, limit)
            count{i} = ReduceMin <keepdims = 1> (both{i}) tops{i}, order{i} = TopK(marks{i}, count{i})
            size{i} = Shape(tops{i}) y{i} = Reshape(tops{i}, size{i})
        """
        for i in range(14)
    )
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        agraph (float[40] x) => ({", ".join(f"float[n{i}] y{i}" for i in range(14))})
        <int64[1] zero = {{0}}, int64[1] limit = {{20}}, {least}>
        {{ {levels} }}"""
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = torch.rand(40, generator=torch.Generator().manual_seed(0))
    for actual, expected in zip(onnx2nn.load(model)(x), session.run(None, {"x": x.numpy()}), strict=True):
        np.testing.assert_array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("length", ["40", "m"])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_small_limit_on_sizes_of_data_is_none_where_there_is_less(limit: int, length: str) -> None:
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        agraph (float[{length}] x, float least) => (float[n] y)
        <int64[1] zero = {{0}}, int64[1] limit = {{{limit}}}> {{
            over = Greater(x, least) where = NonZero(over) chosen = Squeeze(where, zero)
            marks = Gather(x, chosen) length = Shape(marks) both = Concat <axis = 0> (length, limit)
            count = ReduceMin <keepdims = 1> (both) tops, order = TopK(marks, count)
            size = Shape(tops) y = Reshape(tops, size)
        }}"""
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    module, x = onnx2nn.load(model), torch.arange(40.0)
    for count in (0, 1, 2, 3, 40):
        least = torch.tensor(39.5 - count)
        (expected,) = session.run(None, {"x": x.numpy(), "least": least.numpy()})
        assert len(expected) == min(count, limit)
        np.testing.assert_array_equal(module(x, least).numpy(), expected)


@pytest.mark.parametrize("node", ["y = Unique(x)", "y = Unique <axis = 1> (x)"])
def test_the_first_of_several_outputs_alone(node: str) -> None:
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        agraph (float[2,3] x) => (float[] y) {{ {node} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = torch.tensor([[2.0, 1.0, 2.0], [4.0, 3.0, 4.0]])
    (expected,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_array_equal(onnx2nn.load(model)(x).numpy(), expected)


class _Written(torch.nn.Module):
    """Writes one number where a mask says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[y < 0] = 0.5
        return y


class _Copied(torch.nn.Module):
    """Writes as many numbers as the mask has places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, mask = torch.zeros_like(x), x > 0
        y[mask] = x[mask] * 2
        return y


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("kind", [_Written, _Copied])
def test_what_is_written_where_a_mask_says(kind: type[torch.nn.Module], way: str, tmp_path: Path) -> None:
    path, x = tmp_path / "mask.onnx", torch.randn(6, 3)
    torch.onnx.export(kind(), (x,), str(path), dynamo=True, verbose=False)
    program = _WAYS[way](onnx2nn.load(path), (x,), tmp_path)
    for values in (x, torch.randn(6, 3), x.abs(), -x.abs()):
        assert torch.equal(program(values), kind()(values))


def test_a_size_beside_what_is_no_number_yet() -> None:
    """A number that data decide has a placeholder, which is moved but not computed with: no program may hold it."""
    tracer = Tracer()
    x = tracer.placeholder("x", Spec((of_symbol(Symbol("n")),), torch.float32))
    assert isinstance(x, Tensor)
    tracer.guards.declare(x, ("x", 0), "n", None)
    (n,) = x.shape
    unknown: Any = object()
    for compute in (lambda: n.least(unknown), lambda: n.most(unknown), lambda: (n == 0).choose(n, unknown)):
        with pytest.raises(TraceError):
            compute()


@pytest.mark.filterwarnings("ignore")  # torch.export's own
@pytest.mark.parametrize("way", ["compile", "export", "strict export", "onnx"])
def test_a_range_up_to_the_largest_element_goes_onward(way: str, tmp_path: Path) -> None:
    """A mask of lengths, as speech models make it: torch.compile's and torch.export's numbers are its limit."""
    module = onnx2nn.load(
        parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 17]>
            agraph (int64[n] lengths) => (bool[n,m] mask) <int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}> {
                largest = ReduceMax <keepdims = 0> (lengths)
                places = Range(zero, largest, one)
                rows = Unsqueeze(lengths, axis)
                mask = GreaterOrEqual(places, rows)
            }"""
        )
    )
    given, other = torch.tensor([3, 5]), torch.tensor([3, 2, 6])
    sizes = ({0: torch.export.Dim.DYNAMIC},)
    onward: Callable[..., Any]
    if way == "compile":
        torch._dynamo.reset()
        onward = torch.compile(module, backend="eager", fullgraph=True, dynamic=True)
    elif way == "onnx":
        file = str(tmp_path / "m.onnx")
        torch.onnx.export(module, (given,), file, dynamo=True, dynamic_shapes=sizes, input_names=["x"], verbose=False)
        session = onnxruntime.InferenceSession(file)

        def onward(x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])

    else:
        onward = torch.export.export(module, (given,), dynamic_shapes=sizes, strict=way == "strict export").module()
    for lengths in (given, other):
        assert torch.equal(onward(lengths), module(lengths))


@pytest.mark.filterwarnings("ignore")  # torch.export's own
@pytest.mark.parametrize("way", ["compile", "export", "strict export"])
def test_a_slice_from_where_data_say_goes_onward(way: str) -> None:
    """As JAX's `dynamic_slice` is written: torch's programs hold no condition on such a start or end."""
    module = onnx2nn.load(
        parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 18]>
            agraph (float[r,5] x, int64[1] start) => (float[m,l] part, float[n,5] rest, float[k,5] before)
            <int64[1] width = {2}, int64[1] far = {9223372036854775807}, int64[1] zero = {0}> {
                starts = Concat <axis = 0> (start, start)
                ends = Add(starts, width)
                part = Slice(x, starts, ends)
                rest = Slice(x, start, far, zero)
                before = Slice(x, zero, start, zero)
            }"""
        )
    )
    given, sizes = (torch.randn(6, 5), torch.tensor([1])), ({0: torch.export.Dim.DYNAMIC}, None)
    onward: Callable[..., Any]
    if way == "compile":
        torch._dynamo.reset()
        onward = torch.compile(module, backend="eager", fullgraph=True, dynamic=True)
    else:
        onward = torch.export.export(module, given, dynamic_shapes=sizes, strict=way == "strict export").module()
    for rows in (6, 3):
        for start in (0, 1, 4, -1, -3, -9, 7):
            x, first = torch.randn(rows, 5), torch.tensor([start])
            for found, expected in zip(onward(x, first), module(x, first), strict=True):
                assert torch.equal(found, expected), f"{rows} rows from {start} on"
