"""Loops over the steps of a sequence, in which TensorFlow computes recurrent layers, are these layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from drawn import recurrences
from onnx import numpy_helper, parser
from realmodels import check_against_onnxruntime
from torch import nn

import onnx2nn
from onnx2nn.control_flow import Loop

_CELLS = {
    "LSTM": """i, f, g, o = Split<axis = 1>(sum) p = Sigmoid(f) q = Sigmoid(i) u = Tanh(g) v = Sigmoid(o)
        kept = Mul(p, c) new = Mul(q, u) c2 = Add(kept, new) w = Tanh(c2) h2 = Mul(v, w)""",
    "GRU": """z, r, n = Split<axis = 1>(of_x) s, t, m = Split<axis = 1>(of_h) zs = Add(z, s) rt = Add(r, t)
        update = Sigmoid(zs) reset = Sigmoid(rt) part = Mul(reset, m) all = Add(n, part) new = Tanh(all)
        rest = Sub(float_one, update) a = Mul(update, h) b = Mul(rest, new) h2 = Add(a, b)""",
    "RNN": "h2 = Tanh(sum)",
    "ReLU": "h2 = Relu(sum)",
    "soft": "h2 = Softsign(sum)",
}
_KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN, "ReLU": nn.RNN}


def _loop(cell: str, trips: str = "steps", start: str = "zeros", counted: str = "steps") -> onnx.ModelProto:
    """Returns a model whose loop has the form of tf2onnx's: a counter of its own, weights that it carries along."""
    gates = {"LSTM": 4, "GRU": 3}.get(cell, 1)
    states = [("h", start), ("c", "zeros")] if cell == "LSTM" else [("h", start)]
    typed = ", ".join(f"float[n, 8] {name}" for name, _ in states)
    after = ", ".join(f"float[n, 8] {name}2" for name, _ in states)
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17], producer_name: "tf2onnx">
        graph (float[n, t, 5] x, float[n, 8] given) => (float[n, t, 8] y, float[n, 8] last)
        <int32 zero = {{0}}, int32 one = {{1}}, int64 first = {{0}}, int64 second = {{1}}, int64[1] axis = {{0}},
        int64[1] width = {{8}}, int32 four = {{4}}, int32 six = {{6}}, float float_zero = {{0}},
        float float_one = {{1}}> {{
            turned = Transpose<perm = [1, 0, 2]>(x) sizes = Shape(turned) long = Gather(sizes, first)
            steps = Cast<to = 6>(long) fewer = Min(steps, four)
            row = Gather<axis = 0>(given, first) most = ReduceMax<keepdims = 0>(row) asked = Cast<to = 6>(most)
            is_six = Equal(steps, six) one_less = Cast<to = 6>(is_six) five_of_six = Sub(steps, one_less)
            trips = Cast<to = 7>({trips})
            count = Gather(sizes, second) rows = Unsqueeze(count, axis) shape = Concat<axis = 0>(rows, width)
            zeros = Expand(float_zero, shape) begins = Less(zero, {counted})
            at1, w1, {", ".join(f"{name}1" for name, _ in states)}, all = Loop <body = step (
                int64 iteration, bool go, int32 at, float[5, {8 * gates}] w0, {typed}) => (
                bool more, int32 at2, float[5, {8 * gates}] w0, {after}, float[n, 8] out) {{
                xt = Gather(turned, at) times = MatMul(xt, w0) of_x = Add(times, bias) of_h = MatMul(h, matrix)
                sum = Add(of_x, of_h) {_CELLS[cell]}
                out = Identity(h2) at2 = Add(at, one) more = Less(at2, {counted}) }}>
                (trips, begins, zero, weight, {", ".join(value for _, value in states)})
            y = Transpose<perm = [1, 0, 2]>(all) last = Identity(h1) }}""")
    generator = np.random.default_rng(0)
    for name, shape in (("weight", (5, 8 * gates)), ("matrix", (8, 8 * gates)), ("bias", (8 * gates,))):
        array = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


_INPUTS = torch.randn(3, 6, 5), torch.randn(3, 8)


@pytest.mark.parametrize("start", ["zeros", "given"])
@pytest.mark.parametrize("cell", _KINDS)
def test_a_loop_over_a_sequence_is_a_recurrent_layer(cell: str, start: str, tmp_path: Path) -> None:
    model = _loop(cell, start=start)
    module = onnx2nn.load(model)
    [layer] = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]
    assert isinstance(layer, _KINDS[cell]) and layer.batch_first and list(layer.all_weights) != []
    assert len(module.state_dict()) == 4 and module.meta["onnx2nn"]["raising"]["dropped"] == []
    check_against_onnxruntime(model.SerializeToString(), module, _INPUTS)
    exported = tmp_path / "exported.onnx"
    onnx2nn.export_onnx(module, exported)  # any number of steps, where a Loop has those of the example
    check_against_onnxruntime(exported.read_bytes(), module, _INPUTS)


@pytest.mark.parametrize(
    ("cell", "trips", "counted"),
    [
        ("soft", "steps", "steps"),
        ("LSTM", "fewer", "steps"),
        ("LSTM", "steps", "fewer"),
        ("LSTM", "five_of_six", "steps"),
        ("LSTM", "asked", "steps"),
    ],
)
def test_a_loop_that_computes_otherwise_stays(cell: str, trips: str, counted: str) -> None:
    """It has no layer's activation, or ends before some sequence does."""
    model = _loop(cell, trips, counted=counted)
    module = onnx2nn.load(model)
    assert not any(isinstance(layer, nn.RNNBase) for layer in module.modules())
    check_against_onnxruntime(model.SerializeToString(), module, _INPUTS)


@pytest.mark.parametrize("seed", range(60))
def test_a_step_in_any_of_its_forms_is_a_recurrent_layer(seed: int) -> None:
    """Of one matrix for all gates or of several, with the gates and operands in any order, with and without a batch."""
    _check_drawn(seed)


@pytest.mark.held
@pytest.mark.parametrize("part", range(10))
def test_many_steps_are_recurrent_layers(part: int, request: pytest.FixtureRequest) -> None:
    """As above, of other loops."""
    for number in range(100):
        _check_drawn(10_000 * (request.config.getoption("seed") + 1) + 100 * part + number)


def _check_drawn(seed: int) -> None:
    step = recurrences.draw(seed)
    module = onnx2nn.load(step.model)
    [layer] = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]
    assert isinstance(layer, _KINDS[step.kind]) and not any(isinstance(part, Loop) for part in module.modules())
    _check_runs(step, module, seed)
    changed = recurrences.draw(seed, changed=True)  # a layer or not: it computes what the file does
    _check_runs(changed, onnx2nn.load(changed.model), seed)


def _check_runs(step: recurrences.Step, module: nn.Module, seed: int) -> None:
    for batch in [3, 1] if step.batch is None else [step.batch]:
        shape = [size.dim_value or {"n": batch, "t": 5}[size.dim_param] for size in _dimensions(step.model)]
        x = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
        check_against_onnxruntime(step.model.SerializeToString(), module, (x,))


def _dimensions(model: onnx.ModelProto) -> Any:
    return model.graph.input[0].type.tensor_type.shape.dim


def test_both_directions_of_a_layer_are_one_under_its_name() -> None:
    """tf2onnx gives its nodes no scope, cuts out the directions, and writes the zeros with which each begins."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17], producer_name: "tf2onnx">
        graph (float[n, t, 5] x) => (float[n, t, 16] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] width = {8}, float nothing = {0}> {
            turned = Transpose<perm = [1, 0, 2]>(x) sizes = Shape(turned) rows = Slice(sizes, one, two)
            shape = Concat<axis = 0>(rows, width) zeros = Expand(nothing, shape) part = Unsqueeze(zeros, zero)
            state = Concat<axis = 0>(part, part)
            all = LSTM<direction = "bidirectional", hidden_size = 8>(turned, w, r, b, , state, state)
            back = Slice(all, one, two, one) backward = Squeeze(back, one)
            front = Slice(all, zero, one, one) forward = Squeeze(front, one)
            joined = Concat<axis = 2>(forward, backward) y = Transpose<perm = [1, 0, 2]>(joined) }""")
    for number, node in enumerate(model.graph.node):
        scope = {"turned": "/forward_lstm_1", "joined": ""}.get(node.output[0])
        node.name = f"{node.op_type}__{number}" if scope is None else f"net/both{scope}/{node.op_type}"
    generator = np.random.default_rng(0)
    for name, shape in (("w", (2, 32, 5)), ("r", (2, 32, 8)), ("b", (2, 64))):
        array = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    module = onnx2nn.load(model)
    assert isinstance(module.net.both, nn.LSTM) and module.net.both.bidirectional and module.net.both.batch_first
    assert len(module.state_dict()) == 8  # and no zeros
    check_against_onnxruntime(model.SerializeToString(), module, (torch.randn(3, 6, 5),))
