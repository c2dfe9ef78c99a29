"""Loops whose condition counts, as TensorFlow writes every one: how often they run is known before, so they export."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from realmodels import Tensors, check_against_onnxruntime, check_travels

import onnx2nn

LOOP = """
<ir_version: 8, opset_import: ["": 18]>
counting (float[rows, 3] x) => (int32[1] last, float[rows, 3] y, float[n, rows, 3] all)
<int64 limit = LIMIT, bool true = {1}, int32[1] start = START, int32[1] step = STEP> {
    shape = Shape <start = 0, end = 1> (x)
    rows = Cast <to = 6> (shape)
    last, rows_after, step_after, y, all = Loop (limit, true, start, rows, step, x) <body = body
        (int64 round, bool going, int32[1] counter, int32[1] rows_before, int32[1] by, float[a, 3] state)
        => (bool goes_on, int32[1] next, int32[1] rows_kept, int32[1] by_kept, float[b, 3] new, float[c, 3] kept)
        <int32 one = {1}, int32 minus = {-1}, int32 three = {3}, int64 no = {0}, float half = {4.5}, float two = {2},
         float unit = {1}> {
        next = Add (counter, by)
        by_kept = Identity (by)
        as_float = Cast <to = 1> (next)
        rounds = Cast <to = 6> (round)
        rows_kept = Identity (rows_before)
        CONDITION
        item = Cast <to = 1> (counter)
        sum = Add (state, item)
        new = Tanh (sum)
        kept = Identity (new)
    }>
}
"""
CONDITIONS = {
    "less": "a = Less (next, three) goes_on = Squeeze (a)",
    "less_or_equal": "goes_on = LessOrEqual (rounds, three)",
    "greater": "a = Greater (half, as_float) goes_on = Squeeze (a)",
    "greater_or_equal": "b = Sub (counter, minus) a = GreaterOrEqual (three, b) goes_on = Squeeze (a)",
    "half": "a = LessOrEqual (as_float, half) goes_on = Squeeze (a)",
    "both": "a = Less (as_float, half) c = Squeeze (a) b = Less (rounds, one) goes_on = And (c, b)",
    "size": "a = Less (next, rows) b = Less (next, rows_before) c = And (a, b) goes_on = Squeeze (c)",
    "float_sum": "a = Add (as_float, two) b = Less (a, half) goes_on = Squeeze (b)",
    "plus_0": "a = Less (next, three) b = Cast <to=7> (a) c = Squeeze (b) d = Add (no, c) goes_on = Cast <to=9> (d)",
    "times_1": "b = Mul (as_float, unit) c = Mul (unit, b) a = Less (c, half) goes_on = Squeeze (a)",
    "always": "goes_on = Identity (going)",
}
INPUTS = [(torch.linspace(-1, 1, rows * 3).reshape(rows, 3),) for rows in (3, 5)]
ENDLESS = 2**63 - 1


def _file(folder: Path, condition: str, step: int = 1, limit: int = ENDLESS, start: int = 0) -> Path:
    text = LOOP.replace("CONDITION", condition)
    for name, value in {"STEP": step, "LIMIT": limit, "START": start}.items():
        text = text.replace(name, f"{{{value}}}")
    path = folder / "counting.onnx"
    onnx.save(onnx.parser.parse_model(text), str(path))
    return path


@pytest.mark.parametrize(("step", "start", "limit"), [(1, 0, 4), (2, -3, ENDLESS), (1, 9, ENDLESS), (1, 0, 0)])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_runs_as_often_as_onnxruntime(condition: str, step: int, start: int, limit: int, tmp_path: Path) -> None:
    if condition == "always" and limit == ENDLESS:
        limit = 7  # nothing else would end it
    path = _file(tmp_path, CONDITIONS[condition], step, limit, start)
    module = onnx2nn.load(path)
    for inputs in INPUTS:
        check_against_onnxruntime(path, module, inputs)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_can_be_exported_and_compiled(condition: str, tmp_path: Path) -> None:
    limit = 7 if condition == "always" else ENDLESS
    module = onnx2nn.load(_file(tmp_path, CONDITIONS[condition], limit=limit))
    compiled = ("torch.compile",) if condition == "size" else ()
    check_travels(module, INPUTS[0], travels=("torch.export", *compiled))


def test_what_a_loop_collects_is_as_long_as_it_runs(tmp_path: Path) -> None:
    """Keras adds what two loops over time collected, the one backwards, of layers with a mask."""
    text = LOOP.replace("CONDITION", CONDITIONS["size"]).replace("float[n, rows, 3] all)", "float[n, rows, 3] sum)")
    for name, value in {"STEP": 1, "LIMIT": ENDLESS, "START": 0}.items():
        text = text.replace(name, f"{{{value}}}")
    more = "squares = Concat <axis = 0> (shape, shape, last_dim) others = ConstantOfShape (squares)"
    text = text.rstrip().removesuffix("}") + f"{more} sum = Add (all, others) }}"
    path = tmp_path / "collecting.onnx"
    onnx.save(
        onnx.parser.parse_model(text.replace("<int64 limit", "<int64[1] last_dim = {3}, int64 limit", 1)), str(path)
    )
    module = onnx2nn.load(path)
    assert not any("opaque" in node.meta for node in module.graph.nodes)
    for inputs in INPUTS:
        check_against_onnxruntime(path, module, inputs)
    check_travels(module, INPUTS[0], travels=("torch.export", "torch.compile"))


@pytest.mark.parametrize(
    ("condition", "step"),
    [
        ("a = Greater (next, minus) goes_on = Squeeze (a)", -1),  # counts down
        ("a = ReduceMax <keepdims = 0> (state) b = Cast <to = 6> (a) goes_on = Less (b, one)", 1),  # data
        ("a = Less (three, next) b = Not (a) goes_on = Squeeze (b)", 1),
        (
            "a = Less (next, one) b = Cast <to = 7> (a) c = Sub (b, round) d = Cast <to = 9> (c) goes_on = Squeeze (d)",
            1,
        ),
        ("a = Div (as_float, two) b = Add (a, half) c = Less (b, half) goes_on = Squeeze (c)", 1),
        ("a = Cast <to = 3> (next) b = Cast <to = 6> (a) c = Less (b, three) goes_on = Squeeze (c)", 100),  # overflows
    ],
)
def test_others_keep_their_condition(condition: str, step: int, tmp_path: Path) -> None:
    path = _file(tmp_path, condition, step, limit=6)
    module = onnx2nn.load(path)
    inputs: Tensors = INPUTS[0]
    check_against_onnxruntime(path, module, inputs)


def test_counts_as_paddle_writes_a_while(tmp_path: Path) -> None:
    """The step is added in float32, and what is carried goes through an addition of 0, the condition as a number."""
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    paddle (float[rows, 3] x) => (int64[1] last, float[rows, 3] y)
    <int64[1] limit = {1024}, bool[1] true = {1}, int64[1] start = {0}> {
        last, y = Loop (limit, true, start, x) <body = body
            (int64[1] round, bool[1] going, int64[1] counter, float[a, 3] state)
            => (bool[1] goes_on, int64[1] next, float[b, 3] new)
            <float one = {1}, int64 four = {4}, int64[1] zero = {0}, float[1] nothing = {0}> {
            t = Tanh (state)
            as_float = Cast <to = 1> (counter)
            sum = Add (as_float, one)
            whole = Cast <to = 7> (sum)
            less = Less (whole, four)
            a = Unsqueeze (whole, zero)
            b = Add (a, zero)
            next = Squeeze (b, zero)
            c = Unsqueeze (t, zero)
            d = Add (c, nothing)
            new = Squeeze (d, zero)
            truth = Cast <to = 7> (less)
            same = Add (truth, zero)
            goes_on = Cast <to = 9> (same)
        }>
    }
    """
    path = tmp_path / "paddle.onnx"
    onnx.save(onnx.parser.parse_model(text), str(path))
    module = onnx2nn.load(path)
    check_against_onnxruntime(path, module, INPUTS[0])
    check_travels(module, INPUTS[0], travels=("torch.export", "torch.compile"))


def test_a_body_may_declare_its_number_with_one_dimension(tmp_path: Path) -> None:
    """ONNX Runtime gives it as declared; what tf2onnx writes for CropAndResize slices with it."""
    text = """
    <ir_version: 8, opset_import: ["": 18]>
    rows (float[rows, 3] x) => (float[n, k, 3] y)
    <int64 limit = {2}, bool true = {1}, int64[1] one = {1}, int64[1] first = {0}> {
        y = Loop (limit, true) <body = body (int64[1] round, bool going) => (bool goes_on, float[k, 3] row) {
            goes_on = Identity (going)
            end = Add (round, one)
            row = Slice (x, round, end, first)
        }>
    }
    """
    path = tmp_path / "rows.onnx"
    onnx.save(onnx.parser.parse_model(text), str(path))
    check_against_onnxruntime(path, onnx2nn.load(path), INPUTS[0])


def test_a_function_may_give_the_number_and_the_condition(tmp_path: Path) -> None:
    """What it gives is known at import, as a number of the file is."""
    text = """
    <ir_version: 8, opset_import: ["": 18, "own": 1]>
    counted (float[rows, 3] x) => (float[n, rows, 3] y, int64[3] sizes) {
        limit, going = own.Limit (x)
        y = Loop (limit, going) <body = body (int64 round, bool going) => (bool goes_on, float[k, 3] row) {
            goes_on = Identity (going)
            number = Cast <to = 1> (round)
            row = Add (x, number)
        }>
        sizes = Shape (y)
    }
    <domain: "own", opset_import: ["": 18]> Limit (a) => (limit, going) {
        limit = Constant <value = int64 {2}> ()
        going = Constant <value = bool {1}> ()
    }
    """
    path = tmp_path / "counted.onnx"
    onnx.save(onnx.parser.parse_model(text), str(path))
    module = onnx2nn.load(path)
    check_against_onnxruntime(path, module, INPUTS[0])
    check_travels(module, INPUTS[0], travels=("torch.export", "torch.compile"))
