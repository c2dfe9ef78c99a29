"""ONNX to OneFlow: layers and names, training, graphs, saved modules, refusals; everything against ONNX Runtime."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from oneflow_bridge.runtime import import_oneflow
from onnx2nn.errors import InputError, Onnx2nnError, OperatorError, UnsupportedModelError

flow = import_oneflow()
ort = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[Any, ...]],
    weights: dict[str, np.ndarray] | None = None,
    outputs: tuple[str, ...] = ("y",),
    types: dict[str, int] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info(n, (types or {}).get(n, TensorProto.FLOAT), list(s)) for n, s in inputs.items()
    ]
    results = [helper.make_tensor_value_info(n, (types or {}).get(n, TensorProto.FLOAT), None) for n in outputs]
    stored = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "graph", infos, results, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def agree(proto: onnx.ModelProto, *inputs: np.ndarray, module: Any = None, tolerance: float = 1e-5) -> Any:
    """Imports a model unless a module is given, compares it with ONNX Runtime and returns it."""
    module = module or onnx2nn.load(proto, framework="oneflow")
    with flow.no_grad():
        found = module(*[flow.tensor(value) for value in inputs])
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {v.name: a for v, a in zip(session.get_inputs(), inputs, strict=True)})
    for ours, theirs in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        assert ours.numpy().dtype == theirs.dtype and ours.numpy().shape == theirs.shape
        scale = np.abs(theirs).max(initial=1e-30)
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=tolerance, atol=tolerance * scale)
    return module


@functools.cache
def small_network() -> onnx.ModelProto:
    """A convolution padded unevenly, a norm, a residual branch, a pool and a linear layer, the batch dynamic."""
    nodes = [
        helper.make_node("Conv", ["x", "stem.conv.weight", "stem.conv.bias"], ["a"], pads=[1, 1, 2, 2], name="/stem/c"),
        helper.make_node("BatchNormalization", ["a", *(f"stem.bn.{n}" for n in _STATISTICS)], ["b"], name="/stem/bn/B"),
        helper.make_node("Relu", ["b"], ["c"], name="/stem/r"),
        helper.make_node("Conv", ["c", "blocks.0.weight"], ["d"], pads=[1, 1, 1, 1], group=2, name="/blocks.0/Conv"),
        helper.make_node("Add", ["d", "c"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Shape", ["f"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["f", "to"], ["g"]),
        helper.make_node("Gemm", ["g", "head.weight", "head.bias"], ["y"], transB=1, name="/head/Gemm"),
    ]
    weights = {
        "stem.conv.weight": normal(4, 3, 4, 4),
        "stem.conv.bias": normal(4),
        **{f"stem.bn.{name}": np.abs(normal(4)) + 0.5 for name in _STATISTICS},
        "blocks.0.weight": normal(4, 2, 3, 3),
        "head.weight": normal(5, 4),
        "head.bias": normal(5),
        "zero": np.array(0),
        "axes": np.array([0]),
        "rest": np.array([-1]),
    }
    return model(nodes, {"x": ("N", 3, 9, 9)}, weights)


_STATISTICS = ("weight", "bias", "running_mean", "running_var")


def test_layers_names_and_dynamic_batch():
    module = agree(small_network(), normal(1, 3, 9, 9))
    agree(small_network(), normal(7, 3, 9, 9), module=module)
    assert isinstance(module.stem.conv, flow.nn.Conv2d) and isinstance(module.stem.bn, flow.nn.BatchNorm2d)
    assert isinstance(module.blocks._modules["0"], flow.nn.Conv2d) and isinstance(module.head, flow.nn.Linear)
    learned = {"stem.conv.weight", "stem.conv.bias", "stem.bn.weight", "stem.bn.bias", "blocks.0.weight"}
    assert {name for name, _ in module.named_parameters()} == learned | {"head.weight", "head.bias"}
    extra = {"stem.bn.running_mean", "stem.bn.running_var", "stem.bn.num_batches_tracked"}
    assert set(module.state_dict()) == learned | {"head.weight", "head.bias"} | extra


def test_names_of_values_that_end_in_numbers_stay_apart():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Expand", ["one", "s"], ["a_1"]),
        helper.make_node("Neg", ["a_1"], ["b_1"]),
        helper.make_node("Abs", ["x"], ["b"]),
        helper.make_node("Sum", ["a", "a_1", "b", "b_1"], ["y"]),
    ]
    agree(model(nodes, {"x": ("N", 2)}, {"one": np.float32([[1, 5]])}), normal(3, 2))


def test_the_source_of_forward_holds_the_calls():
    module = onnx2nn.load(small_network(), framework="oneflow")
    assert "block(self.stem, " in module.code and "call(self.head, " in module.code
    assert "call(self.conv, " in module.stem.code and "F.relu(" in module.stem.code


def test_outputs_shapes_and_inputs_by_name():
    nodes = [helper.make_node("Split", ["in put", "parts"], ["first", "second"], axis=1)]
    proto = model(nodes, {"in put": (2, 5)}, {"parts": np.array([2, 3])}, ("first", "second"))
    module, x = onnx2nn.load(proto, framework="oneflow"), normal(2, 5)
    first, second = module(**{"in put": flow.tensor(x)})
    np.testing.assert_array_equal(first.numpy(), x[:, :2])
    np.testing.assert_array_equal(second.numpy(), x[:, 2:])
    with pytest.raises(InputError, match=r"in put.*shape \(3, 5\)"):
        module(flow.tensor(normal(3, 5)))
    with pytest.raises(InputError, match="dtype"):
        module(flow.tensor(x.astype(np.float64)))
    with pytest.raises(InputError, match="missing"):
        module()
    with pytest.raises(InputError, match="unknown"):
        module(flow.tensor(x), other=flow.tensor(x))


def test_a_step_of_training():
    module = onnx2nn.load(small_network(), framework="oneflow").train()
    optimizer = flow.optim.SGD(module.parameters(), lr=1e-3)
    before = {name: value.numpy().copy() for name, value in module.named_parameters()}
    x, target = flow.tensor(normal(6, 3, 9, 9)), flow.tensor(normal(6, 5))
    losses = []
    for _ in range(5):
        loss = ((module(x) - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.numpy()))
    assert losses[-1] < losses[0]
    # A bias in front of a batch norm that takes the batch's own mean has no gradient.
    moved = {name for name, value in module.named_parameters() if np.abs(value.numpy() - before[name]).max() > 1e-6}
    assert moved >= set(before) - {"stem.conv.bias"}
    assert int(module.stem.bn.num_batches_tracked.numpy()) == 5


class _Graph(flow.nn.Graph):  # type: ignore[misc]
    def __init__(self, module: Any):
        super().__init__()
        self.module = module

    def build(self, *inputs: Any) -> Any:
        return self.module(*inputs)


def test_compiles_in_a_graph():
    module, x = onnx2nn.load(small_network(), framework="oneflow"), flow.tensor(normal(3, 3, 9, 9))
    with flow.no_grad():
        eager = module(x).numpy()
    np.testing.assert_allclose(_Graph(module)(x).numpy(), eager, rtol=1e-5, atol=1e-5)


def test_saves_loads_and_copies(tmp_path: Path):
    module, x = onnx2nn.load(small_network(), framework="oneflow"), flow.tensor(normal(2, 3, 9, 9))
    with flow.no_grad():
        expected = module(x).numpy()
        flow.save(module.state_dict(), str(tmp_path / "state"))
        fresh = onnx2nn.load(small_network(), framework="oneflow")
        for parameter in fresh.parameters():
            parameter.zero_()
        assert np.abs(fresh(x).numpy() - expected).max() > 1e-3
        fresh.load_state_dict(flow.load(str(tmp_path / "state")))
        np.testing.assert_array_equal(fresh(x).numpy(), expected)
        flow.save(module, str(tmp_path / "module"))
        np.testing.assert_array_equal(flow.load(str(tmp_path / "module"))(x).numpy(), expected)
        twin = copy.deepcopy(module)
        np.testing.assert_array_equal(twin(x).numpy(), expected)
        twin.head.weight.zero_()
        np.testing.assert_array_equal(module(x).numpy(), expected)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers(kind: str, gates: int, direction: str):
    ways, hidden = 1 + (direction == "bidirectional"), 4
    weights = {"W": normal(ways, gates * hidden, 3), "R": normal(ways, gates * hidden, hidden)}
    weights["B"] = normal(ways, 2 * gates * hidden)
    attributes = {"linear_before_reset": 1} if kind == "GRU" else {}
    outputs = ["y", "h", "c"] if kind == "LSTM" else ["y", "h"]
    node = helper.make_node(
        kind, ["x", "W", "R", "B"], outputs, direction=direction, hidden_size=hidden, name="rnn", **attributes
    )
    module = agree(model([node], {"x": ("T", "N", 3)}, weights, tuple(outputs)), normal(5, 2, 3))
    assert isinstance(module.rnn, getattr(flow.nn, kind))
    agree(model([node], {"x": ("T", "N", 3)}, weights, tuple(outputs)), normal(9, 1, 3), module=module)


def test_embedding_takes_negative_indices_and_refuses_those_outside():
    proto = model(
        [helper.make_node("Gather", ["table.weight", "x"], ["y"])],
        {"x": (4,)},
        {"table.weight": normal(6, 3)},
        types={"x": TensorProto.INT64},
    )
    module = agree(proto, np.array([0, 5, -1, -6]))
    assert isinstance(module.table, flow.nn.Embedding)
    with pytest.raises(OperatorError, match="Index 6"):
        module(flow.tensor(np.array([0, 1, 2, 6])))


def test_sizes_that_decide_what_an_operator_does():
    """SAME padding is even at one size and uneven at another: the calls of no one size are taken for all."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2])
    proto = model([node], {"x": (1, 2, "H", "W")}, {"w": normal(3, 2, 3, 3)})
    module = agree(proto, normal(1, 2, 5, 7))
    for height, width in [(6, 6), (5, 8), (17, 12)]:
        agree(proto, normal(1, 2, height, width), module=module)


def test_a_size_that_the_file_says_is_dynamic_and_is_not():
    nodes = [helper.make_node("Reshape", ["x", "to"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    proto = model(nodes, {"x": ("N", "L")}, {"to": np.array([2, 6]), "w": normal(6, 3)})
    module = agree(proto, normal(3, 4))
    agree(proto, normal(2, 6), module=module)


@functools.cache
def _branches() -> onnx.ModelProto:
    def branch(name: str, operator: str) -> onnx.GraphProto:
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
        return helper.make_graph([helper.make_node(operator, ["x", "w"], [name])], name, [], [info])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch("t", "Add"), else_branch=branch("e", "Mul")),
    ]
    return model(nodes, {"x": (2,)}, {"w": normal(2), "zero": np.float32([0])[0:1].reshape(())})


def test_branches_and_loops():
    module = agree(_branches(), np.float32([1, 2]))
    agree(_branches(), np.float32([-1, -2]), module=module)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["a", "x"], ["b"]),
            helper.make_node("Mul", ["b", "two"], ["scan"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("scan", TensorProto.FLOAT, [2]),
        ],
    )
    loop = helper.make_node("Loop", ["trips", "", "x"], ["last", "y"], body=body)
    weights = {"two": np.float32([2, 3])}
    proto = model([loop], {"x": (2,), "trips": ()}, weights, ("last", "y"), types={"trips": TensorProto.INT64})
    module = agree(proto, np.float32([1, 2]), np.array(3))
    agree(proto, np.float32([1, 2]), np.array(0), module=module)


def test_a_map_over_a_sequence_reads_values_around_it():
    """As `torch.hstack` is exported: a branch in the map's body, and numbers of the graph around both."""
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        maps (float[N] x, int64[K] lengths) => (float[A] y) <float[1] two = {2.0}> {
            items = SplitToSequence (x, lengths)
            results = SequenceMap (items, two) <body = each (float[M] item, float[1] all) => (float[M] z) {
                least = ReduceMin <keepdims = 0> (item)
                nothing = Sub (least, least)
                negative = Less (least, nothing)
                z = If (negative) <then_branch = t () => (float[M] a) { a = Mul (item, all) },
                                   else_branch = e () => (float[M] b) { b = Sub (item, two) }>
            }>
            y = ConcatFromSequence <axis = 0> (results)
        }
    """)
    x, module = np.float32([-1, 2, 3, 4]), None
    for lengths in ([1, 3], [2, 1, 1]):
        module = agree(proto, x, np.array(lengths), module=module)


def test_operators_that_read_values():
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["x", "rows"], ["found"]),
        helper.make_node("Shape", ["found"], ["count"]),
        helper.make_node("Mul", ["count", "two"], ["y"]),
    ]
    types = {"y": TensorProto.INT64}
    proto = model(nodes, {"x": (3, 4)}, {"two": np.array([2])}, ("found", "y"), types)
    module = agree(proto, np.maximum(normal(3, 4), 0))
    agree(proto, np.zeros((3, 4), np.float32), module=module)


@pytest.mark.parametrize("names", [["y"], ["y", "where"]])
def test_the_first_of_several_outputs(names: list[str]):
    proto = model([helper.make_node("Unique", ["x"], names)], {"x": (6,)}, outputs=("y",))
    agree(proto, np.array([3, 1, 3, 2, 1, 0], np.float32))


def test_everything_that_cannot_be_imported_is_named():
    nodes = [
        helper.make_node("DFT", ["x", "prime"], ["f"], axis=1, name="fourier"),
        helper.make_node("Cast", ["x"], ["e"], to=TensorProto.FLOAT8E4M3FN, name="narrow"),
        helper.make_node("Nothing", ["x"], ["y"], name="unknown"),
    ]
    proto = model(nodes, {"x": (1, 4, 1)}, {"prime": np.array(8191)}, outputs=("f", "y"), opset=19)
    with pytest.raises(UnsupportedModelError) as caught:
        onnx2nn.load(proto, framework="oneflow")
    text = str(caught.value)
    for part in ("fourier", "Fourier transforms", "narrow", "float8_e4m3fn", "unknown", "there is no such operator"):
        assert part in text


def test_memory_that_a_file_asks_for_is_limited():
    proto = model(
        [helper.make_node("ConstantOfShape", ["n"], ["a"]), helper.make_node("Add", ["x", "a"], ["y"])],
        {"x": (1,)},
        {"n": np.array([1 << 20, 1 << 20])},
    )
    with pytest.raises(UnsupportedModelError, match="limit"):
        onnx2nn.load(proto, framework="oneflow")


def test_no_torch_is_imported(tmp_path: Path):
    path = tmp_path / "model.onnx"
    onnx.save(small_network(), path)
    code = f"import sys, onnx2nn; onnx2nn.load({str(path)!r}, framework='oneflow'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == 0


def test_round_trip_through_the_exporter(tmp_path: Path):
    from oneflow_bridge.to_onnx.exporter import export

    class Network(flow.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = flow.nn.Embedding(11, 8)
            self.norm = flow.nn.LayerNorm(8)
            self.layers = flow.nn.Sequential(flow.nn.Linear(8, 16), flow.nn.GELU(), flow.nn.Linear(16, 8))

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            return x + self.layers(self.norm(x))

    original, tokens = Network().eval(), flow.tensor(np.array([[1, 2, 10], [0, 4, 5]]))
    export(original, tokens, tmp_path / "model.onnx")
    module = onnx2nn.load(tmp_path / "model.onnx", framework="oneflow")
    with flow.no_grad():
        np.testing.assert_allclose(module(tokens).numpy(), original(tokens).numpy(), rtol=1e-5, atol=1e-6)
    assert set(module.state_dict()) == set(original.state_dict())
    original.load_state_dict(module.state_dict())


def test_tied_weights_keep_all_their_keys(tmp_path: Path):
    from oneflow_bridge.to_onnx.exporter import export

    class Tied(flow.nn.Module):  # type: ignore[misc]  # OneFlow comes without types
        def __init__(self) -> None:
            super().__init__()
            self.embed = flow.nn.Embedding(5, 4)
            self.first, self.second = flow.nn.Linear(4, 4), flow.nn.Linear(4, 4)
            self.head = flow.nn.Linear(4, 5, bias=False)
            self.second.weight, self.head.weight = self.first.weight, self.embed.weight

        def forward(self, tokens: Any) -> Any:
            return self.head(self.second(self.first(self.first(self.embed(tokens)))))

    original, tokens = Tied().eval(), flow.tensor(np.array([[0, 1, 4]]))
    export(original, tokens, tmp_path / "model.onnx")
    module = onnx2nn.load(tmp_path / "model.onnx", framework="oneflow")
    with flow.no_grad():
        np.testing.assert_allclose(module(tokens).numpy(), original(tokens).numpy(), rtol=1e-5, atol=1e-6)
    assert set(module.state_dict()) == set(original.state_dict())
    assert module.head.weight is module.embed.weight and module.second.weight is module.first.weight


def _computed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> sizes {text}')


def test_numbers_that_are_the_same_at_some_sizes_only():
    """The larger of a size and 4 is 4 at small sizes, and half of a distance is rounded towards zero."""
    proto = _computed("""(float[n] x) => (float[k] y, int64[1] half, float[l] part)
        <int64[1] four = {4}, int64[1] zero = {0}, int64[1] forty = {40}, int64[1] two = {2}> {
            size = Shape (x)
            end = Max (size, four)
            y = ConstantOfShape (end)
            distance = Sub (size, forty)
            half = Div (distance, two)
            part = Slice (x, zero, four)
        }""")
    module = None
    for size in (1, 3, 4, 39, 41, 300):
        module = agree(proto, normal(size), module=module)


def test_a_size_that_only_the_shape_of_a_sum_restricts():
    """The shape of the sum is known where its operands fit; where they do not, the sum fails as it does elsewhere."""
    proto = _computed("""(float[n] x) => (int64[1] y) <float[4] other = {1, 2, 3, 4}> {
            sum = Add (x, other)
            y = Shape (sum)
        }""")
    module = agree(proto, normal(4))
    agree(proto, normal(1), module=module)
    with pytest.raises(Exception, match=r"size of tensor|broadcast|[Ss]hape"):
        module(flow.tensor(normal(3)))


def test_a_norm_over_a_size_that_is_the_weight_s():
    """The last size is a quotient of others; OneFlow's LayerNorm ended the process where it was given that."""
    proto = _computed("""(float[b, n, 4] x) => (float[d, e, f] y) <float[4] w = {1, 2, 3, 4}, float[4] v = {4, 3, 2, 1},
        int64[1] first = {0}, int64[1] end = {2}, int64[2] rows = {-1, 4}, int64[1] rest = {-1}> {
            s = Shape (x)
            outer = Slice (s, first, end)
            flat = Reshape (x, rows)
            sizes = Concat <axis = 0> (outer, rest)
            again = Reshape (flat, sizes)
            y = LayerNormalization (again, w, v)
        }""")
    module = agree(proto, normal(2, 3, 4))
    agree(proto, normal(3, 5, 4), module=module)
    assert [type(part).__name__ for part in module.children()] == ["LayerNorm"]


def test_dimensions_of_one_name_may_differ():
    """The file says that both are `n`, which nothing checks, so that nothing relies on it."""
    proto = _computed("""(float[n] x, float[n] y) => (float[k] z, int64[1] same) {
            z = Concat <axis = 0> (x, y)
            first = Shape (x)
            second = Shape (y)
            same = Sub (first, second)
        }""")
    module = agree(proto, normal(3), normal(3))
    with flow.no_grad():
        z, same = module(flow.tensor(normal(3)), flow.tensor(normal(5)))
    assert tuple(z.shape) == (8,) and same.numpy().tolist() == [-2]


def test_layers_behind_sizes_that_are_read_at_run_time():
    """A Reshape to computed sizes is one line, and the layers behind it stay layers."""
    proto = _computed("""(float[n, t, 6] x) => (float[a, b, c] y)
        <int64[1] rest = {-1}, int64[1] six = {6}, float[6] scale = {1, 2, 3, 4, 5, 6},
         float[6] bias = {0, 1, 2, 3, 4, 5},
         int64[1] zero = {0}, int64[1] one = {1}> {
            size = Shape (x)
            batch = Slice (size, zero, one)
            to = Concat <axis = 0> (batch, rest, six)
            flat = Reshape (x, to)
            y = LayerNormalization <axis = -1> (flat, scale, bias)
        }""")
    module = agree(proto, normal(2, 3, 6))
    agree(proto, normal(5, 1, 6), module=module)
    assert any(isinstance(layer, flow.nn.LayerNorm) for layer in module.modules()), module.code


def test_a_demand_of_sizes_that_a_trial_must_fulfil():
    """Squeeze demands a height of 1 behind three strides of 2: of a dynamic height most values do not give it."""
    convolutions = [
        helper.make_node("Conv", ["xabc"[i], f"w{i}"], ["abc"[i]], strides=[2, 1], pads=[1, 1, 1, 1]) for i in range(3)
    ]
    nodes = [*convolutions, helper.make_node("Squeeze", ["c", "two"], ["d"])]
    nodes += [helper.make_node("Transpose", ["d"], ["y"], perm=[2, 0, 1])]
    weights = {f"w{i}": normal(2, 2, 3, 3) for i in range(3)} | {"two": np.array([2])}
    proto = model(nodes, {"x": ("N", 2, "H", "W")}, weights)
    module = agree(proto, normal(2, 2, 8, 5))
    agree(proto, normal(1, 2, 3, 4), module=module)
    with pytest.raises(OperatorError, match="size 1"):
        module(flow.tensor(normal(1, 2, 9, 4)))


def test_the_batch_of_a_first_state_is_that_of_the_input():
    """The row demands it, so that a trial at another batch, where OneFlow broadcasts the state, says nothing."""
    node = helper.make_node("GRU", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=3)
    weights = {"w": normal(1, 9, 4), "r": normal(1, 9, 3)}
    proto = model([node], {"x": ("T", "N", 4), "h": (1, 1, 3)}, weights)
    module = agree(proto, normal(5, 1, 4), normal(1, 1, 3))
    with pytest.raises(OperatorError, match="an initial state has 1 sequences instead of 2"):
        module(flow.tensor(normal(5, 2, 4)), flow.tensor(normal(1, 1, 3)))


def test_a_stack_of_recurrent_layers_with_states_of_one_sample():
    """Two layers become one call. Nothing demands the batch of the states before it runs: a trial must fit it."""
    nodes = [
        helper.make_node("Split", ["h", "parts"], ["h0", "h1"], axis=0),
        helper.make_node("GRU", ["x", "w0", "r0", "b0", "", "h0"], ["a", "n0"], hidden_size=3, linear_before_reset=1),
        helper.make_node("Squeeze", ["a", "one"], ["b"]),
        helper.make_node("GRU", ["b", "w1", "r1", "b1", "", "h1"], ["c", "n1"], hidden_size=3, linear_before_reset=1),
        helper.make_node("Squeeze", ["c", "one"], ["y"]),
        helper.make_node("Concat", ["n0", "n1"], ["n"], axis=0),
    ]
    weights = {f"{k}{i}": normal(1, *shape) for i in (0, 1) for k, shape in {"r": (9, 3), "b": (18,)}.items()}
    weights |= {"w0": normal(1, 9, 4), "w1": normal(1, 9, 3), "parts": np.array([1, 1]), "one": np.array([1])}
    proto = model(nodes, {"x": ("T", "N", 4), "h": (2, 1, 3)}, weights, outputs=("y", "n"))
    module = agree(proto, normal(5, 1, 4), normal(2, 1, 3))
    with pytest.raises(RuntimeError, match=r"Expected hidden size \(1, 2, 3\)"):  # of OneFlow's own layer
        module(flow.tensor(normal(5, 2, 4)), flow.tensor(normal(2, 1, 3)))


def test_a_spectrogram():
    """STFT with a window, from a signal of any length, then the power of its frequencies, beside float64.

    ONNX Runtime's own transform is less exact where the length is no power of 2: it differs by 2e-5 of the largest.
    """
    nodes = [
        helper.make_node("STFT", ["x", "step", "window"], ["s"]),
        helper.make_node("ReduceSumSquare", ["s"], ["y"], axes=[-1], keepdims=0),
    ]
    window = np.hanning(400).astype(np.float32)
    proto = model(nodes, {"x": ("N", "L")}, {"step": np.array(160), "window": window})
    module = onnx2nn.load(proto, framework="oneflow")
    for signal in (normal(2, 1000), normal(1, 1600)):
        frames = np.lib.stride_tricks.sliding_window_view(signal, 400, 1)[:, ::160].astype(np.float64)
        expected = np.abs(np.fft.rfft(frames * window)) ** 2
        found = module(flow.tensor(signal)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * expected.max())
    graph = _Graph(module)
    np.testing.assert_allclose(graph(flow.tensor(signal)).numpy(), found, rtol=1e-6, atol=1e-6)


FAILING = {
    "sizes that do not broadcast": (
        "(float[n, 4] x, float[m, 4] z) => (float[a, b] y)",
        "r = Relu(x) y = Add(r, z)",
        ((2, 4), (3, 4)),
        r"^Node 'y' \(Add\) .*: RuntimeError: The size of tensor a \(2\) must match",
    ),
    "products that do not fit": (
        "(float[n, m] x, float[a, b] z) => (float[a, c] y)",
        "r = Relu(z) y = MatMul(x, r)",
        ((2, 4), (3, 4)),
        r"^Node 'y' \(MatMul\): matmul of shapes",
    ),
    "in a branch": (
        "(float[n, 4] x, float[m, 4] z) => (float[a, b] y)",
        "s = ReduceSum<keepdims = 0>(x) c = Cast<to = 9>(s) y = If(c) <then_branch = p () => (float[d, e] u)"
        " { u = Add(x, z) }, else_branch = e () => (float[f, h] w) { w = Relu(x) }>",
        ((2, 4), (3, 4)),
        r"^Node 'u' \(Add\) ",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_error_of_a_call_names_the_node(name: str) -> None:
    """It is an error of ours, and of the class of OneFlow's error, which is its cause."""
    signature, nodes, shapes, message = FAILING[name]
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {{ {nodes} }}')
    module = onnx2nn.load(proto, framework="oneflow")
    for taken in (module, copy.deepcopy(module)):
        with pytest.raises(Onnx2nnError, match=message) as error:
            taken(*(flow.ones(shape) for shape in shapes))
        assert isinstance(error.value, type(error.value.__cause__))


def test_errors_of_hooks_are_unchanged() -> None:
    def hook(*_: object) -> None:
        raise RuntimeError("of the caller")

    text = "(float[2, 4] x) => (float[2, 3] y) <float[3, 4] w> { y = Gemm<transB = 1>(x, w) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    proto.graph.initializer.append(numpy_helper.from_array(normal(3, 4), "w"))
    module = onnx2nn.load(proto, framework="oneflow")
    (layer,) = (part for part in module.modules() if isinstance(part, flow.nn.Linear))
    layer.register_forward_hook(hook)
    with pytest.raises(RuntimeError, match=r"^of the caller$"):
        module(flow.ones(2, 4))
