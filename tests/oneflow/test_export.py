"""The exporter's options, what it raises to layers, and its errors."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from oneflow_bridge import export
from oneflow_bridge.cli import oneflow2onnx
from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx import check, write
from onnx2nn.errors import InputError, ModelFileError, UnsupportedModelError, VerificationError

flow = import_oneflow()
nn = flow.nn
F = nn.functional


def _normal(*shape: int) -> Any:
    return flow.tensor(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def _ops(proto: onnx.ModelProto) -> Counter:
    return Counter(node.op_type for node in proto.graph.node)


class Lambda(nn.Module):
    def __init__(self, function: Any):
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


RAISED = [
    (nn.LayerNorm(4), (2, 3, 4), 17, {"LayerNormalization": 1}),
    (nn.LayerNorm(4, elementwise_affine=False), (2, 3, 4), 17, {"LayerNormalization": 1}),
    (nn.LayerNorm((3, 4)), (2, 3, 4), 22, {"LayerNormalization": 1}),
    (nn.GroupNorm(2, 4), (2, 4, 5, 5), 21, {"GroupNormalization": 1}),
    (nn.GroupNorm(2, 4, affine=False), (2, 4, 5, 5), 22, {"GroupNormalization": 1}),
    (nn.InstanceNorm2d(3, affine=True), (2, 3, 5, 5), 17, {"InstanceNormalization": 1}),
    (nn.InstanceNorm1d(3), (2, 3, 5), 17, {"InstanceNormalization": 1}),
    (Lambda(lambda x: x * 0.5 * (1 + flow.erf(x / 2**0.5))), (2, 3), 20, {"Gelu": 1}),
    (Lambda(lambda x: x * (1 + flow.erf(x * 0.5**0.5)) / 2), (2, 3), 20, {"Gelu": 1}),
    (Lambda(lambda x: 0.5 * x * (1 + flow.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))), (2, 3), 20, {"Gelu": 1}),
    (
        Lambda(lambda x: (x - x.mean(-1, True)) / (x.var(-1, False, True) + 1e-6).sqrt()),
        (2, 3, 4),
        17,
        {"LayerNormalization": 1},
    ),
    (nn.GELU(), (2, 3), 20, {"Gelu": 1}),
    (nn.SiLU(), (2, 3), 17, {"Sigmoid": 1, "Mul": 1}),
    (nn.Linear(4, 6), (2, 4), 17, {"Gemm": 1}),
    (nn.Linear(4, 6), (2, 3, 4), 17, {"Transpose": 1, "MatMul": 1, "Add": 1}),
    (nn.Conv2d(3, 4, 3), (2, 3, 8, 8), 17, {"Conv": 1}),
    (nn.ConvTranspose2d(3, 4, 3), (2, 3, 8, 8), 17, {"ConvTranspose": 1}),
    (Lambda(lambda x: x.mean((2, 3), True)), (2, 3, 8, 8), 17, {"GlobalAveragePool": 1}),
    (Lambda(lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2) * 2), (2, 3, 4, 5), 17, {"Mul": 1}),
    (Lambda(lambda x: x.reshape(2, 60).reshape(4, 30) * 2), (2, 3, 4, 5), 17, {"Reshape": 1, "Mul": 1}),
    (Lambda(lambda x: flow.exp(x) + flow.exp(x)), (2, 3), 17, {"Exp": 1, "Add": 1}),
    (Lambda(lambda x: x + (flow.ones(3) * 2 + 1)), (2, 3), 17, {"Add": 1}),
]


@pytest.mark.parametrize(("module", "shape", "opset", "expected"), RAISED)
def test_raised(module: Any, shape: tuple[int, ...], opset: int, expected: dict[str, int], tmp_path: Path) -> None:
    proto = export(module.eval(), _normal(*shape), tmp_path / "m.onnx", opset=opset)
    assert _ops(proto) == expected


def test_what_looks_like_a_layer_but_is_none_is_left() -> None:
    near_gelu = Lambda(lambda x: x * 0.5 * (1 + flow.erf(x / 1.5)))
    unbiased = Lambda(lambda x: (x - x.mean(-1, True)) / (x.var(-1, True, True) + 1e-6).sqrt())
    other_axis = Lambda(lambda x: (x - x.mean(1, True)) / (x.var(1, False, True) + 1e-6).sqrt())
    for module in (near_gelu, unbiased, other_axis):
        ops = _ops(export(module.eval(), _normal(2, 3, 4), opset=20))
        assert not ops.keys() & {"Gelu", "LayerNormalization"}


@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"bidirectional": True},
        {"batch_first": True},
        {"num_layers": 3},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
    ],
)
def test_lstm(opset: int, options: dict[str, Any], tmp_path: Path) -> None:
    module = nn.LSTM(3, 4, **options).eval()
    proto = export(module, _normal(5, 2, 3), tmp_path / "m.onnx", opset=opset)
    ops = _ops(proto)
    assert ops["LSTM"] == options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    assert not ops["Sigmoid"]
    weights = {tensor.name for tensor in proto.graph.initializer}
    assert set(module.state_dict()) <= weights, "the author's weights stay what they are"


class InnerState(nn.Module):
    """Reads one step of an LSTM besides its sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4)

    def forward(self, x: Any) -> Any:
        y, (h, c) = self.lstm(x)
        return y[2] + h[0], c, y


def test_lstm_whose_steps_are_read(tmp_path: Path) -> None:
    assert _ops(export(InnerState().eval(), _normal(5, 2, 3), tmp_path / "m.onnx"))["LSTM"] == 1


@pytest.mark.parametrize("steps", [128, 129, 200, 257])
def test_lstm_of_many_steps(steps: int, tmp_path: Path) -> None:
    """OneFlow stacks 128 tensors at a time, and concatenates the stacks."""
    ops = _ops(export(nn.LSTM(3, 4, num_layers=2).eval(), _normal(steps, 2, 3), tmp_path / "m.onnx"))
    assert ops["LSTM"] == 2
    assert ops["Slice"] == 0 and sum(ops.values()) < 40


def test_steps_of_sequences_of_other_lengths_are_no_sequence(tmp_path: Path) -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4)

        def forward(self, x: Any, y: Any) -> Any:
            z = self.lstm(x)[0]
            return flow.stack([flow.cat([z[t], y[t]], 1) for t in range(3)], 0)

    ops = _ops(export(Joined().eval(), (_normal(3, 2, 3), _normal(5, 2, 6)), tmp_path / "m.onnx"))
    assert ops["LSTM"] == 1


def test_lstm_layers_that_start_from_given_states(tmp_path: Path) -> None:
    class States(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, num_layers=2)

        def forward(self, x: Any, h: Any, c: Any) -> Any:
            return self.lstm(x, (h, c))

    inputs = (_normal(5, 2, 3), _normal(2, 2, 4), _normal(2, 2, 4))
    dynamic = {"x": {1: "batch"}, "h": {1: "batch"}, "c": {1: "batch"}}
    ops = _ops(export(States().eval(), inputs, tmp_path / "m.onnx", dynamic=dynamic))
    assert ops["LSTM"] == 2 and not ops["Sigmoid"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = F.softmax(flow.matmul(q, k.transpose(-2, -1)) * 0.5, -1)
        return self.out(flow.matmul(mixed, v).transpose(1, 2).reshape(b, n, c))


DYNAMIC = [
    (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
        ),
        (1, 3, 9, 9),
        {"input": {0: "n", 2: "h", 3: "w"}},
    ),
    (Attention(), (2, 5, 8), {0: {0: "batch"}}),
    (Attention(), (2, 5, 8), {0: {0: "batch", 1: "length"}}),
    (nn.LSTM(3, 4, batch_first=True), (2, 5, 3), True),
    (nn.GroupNorm(2, 4), (2, 4, 5, 5), {0: {0: "n", 2: "h"}}),
    (nn.InstanceNorm2d(3), (2, 3, 5, 5), {0: {2: "h", 3: "w"}}),
    (Lambda(lambda x: x.reshape(-1, 4, 3).expand(-1, 4, 3).flatten()), (2, 3, 4), True),
    (Lambda(lambda x: x + flow.zeros(x.shape[0], 4)), (2, 4), True),
    (Lambda(lambda x: x + flow.arange(x.shape[1])), (2, 4), {0: {1: "length"}}),
    (Lambda(lambda x: x.var((1, 2))), (2, 4, 3), {0: {1: "length"}}),
    (Lambda(lambda x: flow.cat([x[:, 1:], x[:, :1]], 1)), (2, 4, 3), {0: {0: "n", 1: "length"}}),
    (nn.Upsample(scale_factor=2), (2, 3, 4, 4), {0: {0: "n", 2: "h", 3: "w"}}),
    (Lambda(lambda x: F.interpolate(x, size=(7, 9), mode="bilinear")), (2, 3, 4, 4), True),
    (Lambda(lambda x: x * x.shape[1] + x.sum(1, True) / len(x) - x.numel()), (2, 4), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: x ** x.shape[1] + (x.shape[1] - x) // x.shape[0]), (2, 3), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: flow.full((x.shape[0], 2), x.shape[1])), (2, 3), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: flow.full((2,), x.shape[1]) + x[0, 0]), (2, 3), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: x.std(1, keepdim=True) + x.std((0, 2), keepdim=True)), (3, 4, 2), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: x.std(1, unbiased=False) / x.std()), (3, 4), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: flow.sort(x, 1)), (3, 4), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: x.argsort(0, descending=True)), (3, 4), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: x.topk(2, dim=1, largest=False)), (3, 4), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: x.topk(3, dim=1)[1]), (3, 2), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: x.topk(x.shape[1], dim=1)), (3, 2), {0: {0: "n", 1: "m"}}),
    (Lambda(lambda x: x.repeat_interleave(2, 1)), (2, 3, 4), {0: {0: "n", 1: "m"}}),
]


@pytest.mark.parametrize(("module", "shape", "dynamic"), DYNAMIC)
@pytest.mark.parametrize("opset", [11, 17, 22])
def test_dynamic(module: Any, shape: tuple[int, ...], dynamic: Any, opset: int, tmp_path: Path) -> None:
    """`check` runs a size that was not traced."""
    proto = export(module.eval(), _normal(*shape), tmp_path / "m.onnx", dynamic=dynamic, opset=opset)
    names = {d.dim_param for d in proto.graph.input[0].type.tensor_type.shape.dim if d.dim_param}
    assert names == ({"batch"} if dynamic is True else set(next(iter(dynamic.values())).values()))


def test_names_and_structure(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, left: Any, right: Any) -> Any:
            return {"total": left + right, "same": left, "pair": [left * 2, right * 3]}

    proto = export(Two().eval(), (_normal(2, 3), _normal(2, 3)), tmp_path / "m.onnx")
    assert [v.name for v in proto.graph.input] == ["left", "right"]
    assert [v.name for v in proto.graph.output] == ["total", "same", "pair_0", "pair_1"]
    proto = export(
        Two().eval(),
        {"left": _normal(2, 3), "right": _normal(2, 3)},
        tmp_path / "m.onnx",
        input_names=["a", "b"],
        output_names=["c", "d", "e", "f"],
    )
    assert [v.name for v in proto.graph.input] + [v.name for v in proto.graph.output] == list("abcdef")


class Scale(nn.Module):
    """Its weights are called as its input and its outputs are by default."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.output, self.y = (nn.Parameter(_normal(3)) for _ in range(3))

    def forward(self, x: Any, named: Any = None) -> Any:
        scaled = x * self.x + self.output + self.y
        return scaled if named is None else {"y": scaled + named, "x": x}


def test_names_that_weights_have(tmp_path: Path) -> None:
    module, x = Scale().eval(), _normal(2, 3)
    proto = export(module, x, tmp_path / "m.onnx", dynamic={"x": {0: "batch"}})
    assert [v.name for v in (*proto.graph.input, *proto.graph.output)] == ["x_1", "output_1"]
    assert {tensor.name for tensor in proto.graph.initializer} == set(module.state_dict())
    proto = export(module, {"x": x, "named": x}, tmp_path / "m.onnx")
    assert [v.name for v in (*proto.graph.input, *proto.graph.output)] == ["x_1", "named", "y_1", "x_2"]
    for names in ({"input_names": ["y"]}, {"output_names": ["y"]}, {"output_names": ["x_1"]}, {"output_names": [""]}):
        with pytest.raises(InputError, match=r"has the (empty )?name"):
            export(module, x, check=False, **names)


def test_names_that_come_twice(tmp_path: Path) -> None:
    class Nested(nn.Module):
        def forward(self, x: Any, x_0: Any) -> Any:
            return {"a": [x[0], x[1] + x_0], "a_0": x_0 * 2}

    proto = export(Nested().eval(), ([_normal(2), _normal(2)], _normal(2)), tmp_path / "m.onnx")
    assert [v.name for v in proto.graph.input] == ["x_0", "x_1", "x_0_1"]
    assert [v.name for v in proto.graph.output] == ["a_0", "a_1", "a_0_1"]


def _graph(module: Any) -> Any:
    class Graph(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.net = module
            self.factor = 3.0

        def build(self, image: Any) -> Any:
            return self.scaled(self.net(image))

        def scaled(self, y: Any) -> Any:
            return y * self.factor

    return Graph()


@pytest.mark.parametrize("state", ["new", "built", "run"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_graph(state: str, dynamic: Any, tmp_path: Path) -> None:
    module, x = nn.Conv2d(3, 4, 3).eval(), _normal(2, 3, 6, 6)
    graph = _graph(module)
    if state == "built":
        graph.build_graph(x)
    if state == "run":
        graph(x)
    proto = export(graph, x, tmp_path / "m.onnx", dynamic=dynamic)
    assert {t.name for t in proto.graph.initializer} >= {"weight", "bias"}


def test_external_data(tmp_path: Path) -> None:
    module = nn.Linear(300, 400).eval()
    proto = export(module, _normal(2, 300), tmp_path / "m.onnx", external_data=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert any(t.external_data for t in proto.graph.initializer)
    _, values = check.run_file(tmp_path / "m.onnx", {"x": _normal(2, 300).numpy()})
    np.testing.assert_allclose(values[0], module(_normal(2, 300)).numpy(), rtol=1e-4, atol=1e-5)


def test_above_the_limit_of_protobuf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "PROTOBUF_LIMIT", write._MARGIN + 1000)
    export(nn.Linear(30, 40).eval(), _normal(2, 30), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").exists()
    with pytest.raises(InputError, match="2 GB"):
        export(nn.Linear(30, 40).eval(), _normal(2, 30), tmp_path / "n.onnx", external_data=False)
    assert not (tmp_path / "n.onnx").exists()


def test_streamed_file_is_the_returned_proto(tmp_path: Path) -> None:
    proto = export(nn.Sequential(nn.Linear(30, 40), nn.LayerNorm(40)).eval(), _normal(2, 30), tmp_path / "m.onnx")
    assert onnx.load(str(tmp_path / "m.onnx")) == proto


class Unmapped(nn.Module):
    def forward(self, x: Any) -> Any:
        decoded, score = F.ctc_greedy_decoder(x, flow.tensor([4, 4]))
        return decoded, score, flow.linalg.inv(flow.ones(20, 20) + x.sum())


def test_unmapped_ops_are_listed_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        export(Unmapped().eval(), _normal(4, 2, 3), tmp_path / "m.onnx")
    assert {problem.operator for problem in caught.value.problems} == {"ctc_greedy_decoder", "inv"}
    assert not list(tmp_path.iterdir())
    proto = export(Unmapped().eval(), _normal(4, 2, 3), tmp_path / "m.onnx", continue_on_error=True)
    assert {node.op_type for node in proto.graph.node if node.domain == "oneflow"} == {"ctc_greedy_decoder", "inv"}
    assert {o.domain for o in proto.opset_import} == {"", "oneflow"}


def test_the_default_opset_rises_to_what_the_model_needs() -> None:
    class Deformed(nn.Module):
        def forward(self, x: Any) -> Any:
            return flow.nn.functional.deform_conv2d(x, flow.zeros(2, 18, 6, 6), flow.ones(4, 3, 3, 3))

    assert export(Deformed().eval(), _normal(2, 3, 8, 8), check=False).opset_import[0].version == 19
    assert export(nn.ReLU().eval(), _normal(2, 3)).opset_import[0].version == 17


def _fails(x: Any) -> Any:
    raise ValueError("this model is broken")


OUTSIDE = flow.tensor([0, -1])

ERRORS = [
    (lambda: (Lambda(_fails).eval(), _normal(2, 3)), {}, InputError, "this model is broken"),
    (lambda: (nn.Linear(4, 5).eval(), _normal(2, 3)), {}, InputError, r"\[2, 3\]"),
    (lambda: (nn.Linear(4, 5), _normal(2, 4)), {}, InputError, "training mode"),
    (lambda: (nn.Linear(4, 5).eval(), flow.zeros(0, 4)), {}, InputError, "empty"),
    (lambda: (nn.Linear(4, 5).eval(), 3), {}, InputError, "tensors"),
    (lambda: ("model", _normal(2, 4)), {}, InputError, "nn.Module"),
    (lambda: (nn.ReLU().eval(), _normal(2, 4)), {"opset": 8}, InputError, "opset 8"),
    (lambda: (nn.ReLU().eval(), _normal(2, 4)), {"opset": 99}, InputError, "opset 99"),
    (lambda: (nn.ReLU().eval(), _normal(2, 4)), {"dynamic": {"y": {0: "n"}}}, InputError, "'y'"),
    (lambda: (nn.ReLU().eval(), _normal(2, 4)), {"dynamic": {0: {2: "n"}}}, InputError, "axis 2"),
    (lambda: (nn.ReLU().eval(), _normal(2, 4)), {"input_names": ["a", "b"]}, InputError, "2 names"),
    (lambda: (nn.ReLU().eval(), _normal(2, 4)), {"output_names": ["a", "b"]}, InputError, "2 names"),
    (lambda: (Lambda(lambda x: flow.matmul(x[0], x.unsqueeze(0))).eval(), _normal(4, 4)), {}, InputError, "unsqueeze"),
    (lambda: (Lambda(lambda x: x // flow.full((1,), 4.0)).eval(), _normal(4, 4)), {}, InputError, "one shape"),
    (lambda: (Lambda(lambda x: flow.topk(x, 0)).eval(), _normal(4, 4)), {}, InputError, "k=0"),
    (lambda: (Lambda(lambda x: F.embedding(OUTSIDE, x)).eval(), _normal(3, 4)), {}, InputError, "indices -1 to 0"),
    (lambda: (Lambda(lambda x: flow.index_select(x, 0, OUTSIDE)).eval(), _normal(3, 4)), {}, InputError, "indices -1"),
    (lambda: (Lambda(lambda x: F.relu(x.half())).eval(), _normal(3, 4)), {}, InputError, "check=False"),
    (lambda: (Lambda(lambda x: x.to("cuda")).eval(), _normal(4, 4)), {}, InputError, "cuda"),
    (lambda: (nn.Linear(4, 4).half().eval(), _normal(2, 4).half()), {"opset": 9, "check": False}, None, ""),
]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: flow.tensor(x.shape[1]) * x,
        lambda x: x + flow.tensor([float(i) for i in range(x.shape[1])]),
        lambda x: x + flow.from_numpy(np.full((1, 1), x.shape[1], np.float32)),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_constants_of_numbers_that_follow_a_dynamic_size(function: Any, check: bool) -> None:
    """The file would hold those of the first trace."""
    with pytest.raises(InputError, match=r"others with \{'m': 9\}"):
        export(Lambda(function).eval(), _normal(2, 4), dynamic={0: {1: "m"}}, check=check)


@pytest.mark.parametrize(("make", "options", "error", "text"), ERRORS)
def test_errors(make: Any, options: dict[str, Any], error: Any, text: str, tmp_path: Path) -> None:
    model, inputs = make()
    if error is None:
        export(model, inputs, tmp_path / "m.onnx", **options)
        return
    with pytest.raises(error, match=text):
        export(model, inputs, tmp_path / "m.onnx", **options)
    assert not list(tmp_path.iterdir()), "nothing half written"
    export(nn.ReLU().eval(), _normal(2, 3))  # the process goes on


def test_unwritable_places(tmp_path: Path) -> None:
    for place in (tmp_path / "missing" / "m.onnx", tmp_path):
        with pytest.raises(ModelFileError, match="cannot be written"):
            export(nn.ReLU().eval(), _normal(2, 3), place)


def test_a_failed_check_leaves_the_old_file(tmp_path: Path) -> None:
    class Counting(nn.Module):
        """Other results at every call."""

        calls = 0

        def forward(self, x: Any) -> Any:
            Counting.calls += 1
            return x * float(Counting.calls)

    (tmp_path / "m.onnx").write_text("old")
    with pytest.raises(VerificationError, match="differ in 1 of 1"):
        export(Counting().eval(), _normal(2, 3), tmp_path / "m.onnx")
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("m.onnx", "old")]


def test_random_models_are_written_unchecked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    proto = export(Lambda(lambda x: x + flow.randn(2, 3)).eval(), _normal(2, 3), tmp_path / "m.onnx")
    assert "RandomNormal" in _ops(proto) and "random numbers" in caplog.text


def test_half_precision_weights(tmp_path: Path) -> None:
    proto = export(nn.Linear(4, 4).half().eval(), _normal(2, 4).half(), tmp_path / "m.onnx", check=False)
    assert {t.data_type for t in proto.graph.initializer} == {onnx.TensorProto.FLOAT16}


def _masked(x: Any) -> Any:
    return x[x > 0]


def _branching(x: Any) -> Any:
    return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize("function", [_masked, _branching])
def test_a_model_whose_values_decide_is_refused_with_its_line(function: Any) -> None:
    with pytest.raises(InputError, match=rf"test_export\.py, line \d+, in {function.__name__}: `return x.*no values"):
        export(Lambda(function).eval(), _normal(2, 3))


def test_further_operator_sets(tmp_path: Path) -> None:
    proto = export(nn.Linear(4, 5).eval(), _normal(2, 4), tmp_path / "m.onnx", extra_opsets={"com.microsoft": 1})
    assert {item.domain: item.version for item in proto.opset_import} == {"": 17, "com.microsoft": 1}
    for wrong in ({"": 18}, {"com.microsoft": 0}):
        with pytest.raises(InputError, match="extra_opsets"):
            export(nn.Linear(4, 5).eval(), _normal(2, 4), extra_opsets=wrong)


class Own(nn.LayerNorm):
    """A norm over rows of halves."""

    def forward(self, x: Any) -> Any:
        return super(Own, self).forward(x * 0.5)  # noqa: UP008, the form that OneFlow's proxies refused


class AskingForTypes(nn.Module):
    """Takes the input itself, twice the layer's value or the value, by the layers' types."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), Own(4), nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            if not isinstance(layer, nn.Identity):
                x = x + (layer(x) if isinstance(layer, nn.LayerNorm) else 2 * layer(x) * len(self.layers))
        return x + 1 if isinstance(self.layers, nn.ModuleList) else x


def test_modules_have_their_types_in_a_trace(tmp_path: Path) -> None:
    proto = export(AskingForTypes().eval(), _normal(2, 4), tmp_path / "m.onnx", dynamic=True)
    assert [node.op_type for node in proto.graph.node].count("LayerNormalization") == 1
    from oneflow.nn.graph.proxy import ProxyModule

    assert "__getattribute__" not in vars(ProxyModule)


def test_hooks(tmp_path: Path) -> None:
    normed = nn.utils.weight_norm(nn.Linear(3, 4))
    with flow.no_grad():
        normed.weight_g.mul_(3.0)  # the hook before the next call computes the weight from it
    hooked = nn.Sequential(nn.Linear(3, 3), normed)
    hooked[0].register_forward_hook(lambda module, inputs, output: output * 2 + inputs[0] * module.bias)
    hooked.register_forward_pre_hook(lambda module, inputs: inputs[0] + 1)
    proto = export(hooked.eval(), _normal(2, 3), tmp_path / "m.onnx", dynamic=True)
    assert {"1.weight_g", "1.weight_v"} <= {tensor.name for tensor in proto.graph.initializer}
    from oneflow.nn.graph.proxy import ProxyModule

    assert ProxyModule.__call__.__name__ == "__call__"


def make_model() -> Any:
    """For the command line."""
    return nn.Linear(4, 5)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    target = str(tmp_path / "m.onnx")
    arguments = [f"{__name__}:make_model", "--input", "x:2,4", "--dynamic", "x:0=batch", "-o", target]
    assert oneflow2onnx(arguments) == 0 and os.path.exists(target)
    assert "opset 17" in capsys.readouterr().out
    assert oneflow2onnx([f"{__name__}:nothing", "--input", "x:2,4", "-o", target]) == 2
    assert "nothing" in capsys.readouterr().err
    twice, weights = ["--input", "x:2,4", "--input", "x:2,4"], ["--input", "x:2,4", "--weights", str(tmp_path / "no")]
    wrong = [["--input", text] for text in ("x", "x:a", "x:2:nope", "x:2,3", "x:-2,4", "x:0,4")]
    wrong += [["--input", "x:2,4", "--extra-opset", text] for text in ("com.microsoft", ":1", "a:b")]
    for broken in (*wrong, [], twice, weights):
        assert oneflow2onnx([f"{__name__}:make_model", *broken, "-o", target]) == 2, broken


def test_a_report_beside_the_file(tmp_path: Path) -> None:
    pytest.importorskip("torch")  # not in CI's environment, as its wheel for Python 3.10 has CUDA
    target, page = tmp_path / "m.onnx", tmp_path / "m.html"
    arguments = [f"{__name__}:make_model", "--input", "x:2,4", "-o", str(target), "--report", str(page)]
    assert oneflow2onnx(arguments) == 0
    assert target.exists() and page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_report_without_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: Any) -> None:
    """It is refused before the export."""
    monkeypatch.setitem(sys.modules, "torch", None)
    target = tmp_path / "m.onnx"
    arguments = [f"{__name__}:make_model", "--input", "x:2,4", "-o", str(target)]
    assert oneflow2onnx([*arguments, "--report", str(tmp_path / "m.html")]) == 2
    assert "--report needs torch" in capsys.readouterr().err and not target.exists()
