"""Nodes alike are recorded alike, without running the row's body for each; every one as its body would record it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from realmodels import seeded
from torch import nn

import onnx2nn
from onnx2nn import functional
from onnx2nn.fx.blocks.flattening import flattened
from onnx2nn.fx.constants import Constant
from onnx2nn.fx.repeated_nodes import Repeats
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.spec import Spec

DOMAIN = "test.repeats"
NODES = 5


def _model(
    nodes: Sequence[onnx.NodeProto], weights: dict[str, np.ndarray[Any, Any]], shape: Sequence[int | str] = ("n", 3)
) -> onnx.ModelProto:
    """The nodes between x and y; both have the same shape."""
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy"]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "repeats", ends[:1], ends[1:], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _chain(
    operator: str, weights: Sequence[np.ndarray[Any, Any]] = (), domain: str = DOMAIN, first: bool = False
) -> onnx.ModelProto:
    """Node after node of one operator, each with a weight of its own if any, as its second input or its first."""
    count = len(weights) or NODES
    names = ["x", *(f"h{i}" for i in range(1, count)), "y"]
    nodes = []
    for i in range(count):
        inputs = [names[i], f"w{i}"] if weights else [names[i]]
        nodes.append(helper.make_node(operator, inputs[:: -1 if first else 1], [names[i + 1]], f"n{i}", domain=domain))
    return _model(nodes, {f"w{i}": weight for i, weight in enumerate(weights)})


def _weights(count: int = NODES, sign: float = 1.0) -> list[np.ndarray[Any, Any]]:
    return [np.asarray([i + 1, -2, sign * (i + 1)], np.float32) for i in range(count)]


def _loaded(model: onnx.ModelProto, body: Callable[..., Any]) -> tuple[Any, int]:
    """The module, and how often the body ran."""
    runs: Counter[str] = Counter()

    @functools.wraps(body)
    def counted(F: Any, *inputs: Any, **attributes: Any) -> Any:
        runs["body"] += 1
        return body(F, *inputs, **attributes)

    with onnx2nn.register(DOMAIN, "Op")(counted):
        return onnx2nn.load(model), runs["body"]


@pytest.mark.parametrize("first", [False, True], ids=["second", "first"])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Mod"])
def test_a_chain_is_as_onnxruntime_computes_it(operator: str, first: bool) -> None:
    model = _chain(operator, _weights(), "", first)
    if operator == "Mod":
        for node in model.graph.node:
            node.attribute.append(helper.make_attribute("fmod", 1))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    module = onnx2nn.load(model)
    for size in (1, 4):
        x = torch.rand(size, 3) + 0.5
        (expected,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(module(x).numpy(force=True), expected, rtol=1e-5)


TWICE: dict[str, Callable[..., Any]] = {
    "function": lambda F, a, b: F.sub(a, b),
    "operator": lambda F, a, b: a - b,
    "form": lambda F, a, b: F.sub(a, b) if a.ndim != b.ndim and a.dtype == b.dtype else a,
}


@pytest.mark.parametrize("first", [False, True], ids=["second", "first"])
@pytest.mark.parametrize("body", TWICE.values(), ids=TWICE)
def test_a_body_runs_for_the_first_two_of_nodes_alike(body: Callable[..., Any], first: bool) -> None:
    module, runs = _loaded(_chain("Op", _weights(), first=first), body)
    assert runs == 2
    x = expected = torch.randn(2, 3)
    for weight in map(torch.from_numpy, _weights()):
        expected = body(torch, *((weight, expected) if first else (expected, weight)))
    torch.testing.assert_close(module(x), expected)


def test_a_repeated_call_says_what_it_was_and_holds_its_own_weight() -> None:
    module, _ = _loaded(_chain("Op", _weights()), lambda F, a, b: a * b)
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert [node.meta["onnx"] for node in calls] == [(DOMAIN, "Op", f"n{i}") for i in range(NODES)]
    assert [node.meta["onnx_outputs"] for node in calls] == [*((f"h{i}",) for i in range(1, NODES)), ("y",)]
    assert [node.args[1].target for node in calls] == [f"w{i}" for i in range(NODES)]
    for i, weight in enumerate(_weights()):
        np.testing.assert_array_equal(module.get_parameter(f"w{i}").numpy(force=True), weight)


LOOKS: dict[str, Callable[[Any], bool]] = {
    "item": lambda w: w[2].item() < 0,
    "tolist": lambda w: min(w.tolist()[2:]) < 0,
    "numpy": lambda w: bool(w.numpy()[2] < 0),
    "asarray": lambda w: bool(np.asarray(w)[2] < 0),
    "comparison": lambda w: bool((w < 0)[2]),
    "float": lambda w: float(w[2]) < 0,
    "iteration": lambda w: list(w)[2] < 0,
    "function": lambda w: bool(torch.any(w[2:] < 0)),
    "equal": lambda w: not torch.equal(w.abs()[2:], w[2:]),
    "data": lambda w: w.data.tolist()[2] < 0,
    "storage": lambda w: w.untyped_storage().tolist()[11] > 127,
    "view": lambda w: w.view(torch.int32).tolist()[2] < 0,
    "dispatcher": lambda w: torch.ops.aten.lt.Scalar(w, 0).tolist()[2],
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_body_that_looks_at_constants_runs_for_each_node(look: Callable[[Any], bool]) -> None:
    def body(F: Any, a: Any, b: Any) -> Any:
        return F.sub(a, b) if look(b) else F.add(a, b)

    weights = [*_weights(3), *_weights(3, sign=-1.0)]
    module, runs = _loaded(_chain("Op", weights), body)
    assert runs == len(weights)
    signs = [-1 if weight[2] < 0 else 1 for weight in weights]
    assert signs == [1, 1, 1, -1, -1, -1]
    x = torch.randn(2, 3)
    added = sum(torch.from_numpy(weight) * sign for weight, sign in zip(weights, signs, strict=True))
    torch.testing.assert_close(module(x), x + added)


BODIES: dict[str, Callable[..., Any]] = {
    "two calls": lambda F, a: F.relu(a) * 2.0,
    "a number": lambda F, a: a * 2.0,
    "an option": lambda F, a: F.nn.functional.gelu(a, approximate="tanh"),
    "a layer": lambda F, a: F.nn.functional.linear(a, F.ones(3, 3)),
    "nothing": lambda F, a: a,
    "a size": lambda F, a: a / a.shape[0],
    "a made tensor": lambda F, a: F.add(a, F.arange(3)),
    "facts": lambda F, a, *, _outputs: F.relu(a),
    "an attribute": lambda F, a, *, alpha=1.0: F.relu(a),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_what_is_more_than_one_call_of_the_inputs_is_recorded_by_the_body(body: Callable[..., Any]) -> None:
    model = _chain("Op")
    if "alpha" in body.__code__.co_varnames:
        for node in model.graph.node:
            node.attribute.append(helper.make_attribute("alpha", 2.0))
    module, runs = _loaded(model, body)
    assert runs == NODES
    x = expected = torch.randn(2, 3)
    for _ in range(NODES):
        expected = body(torch, expected, **({"_outputs": 1} if body is BODIES["facts"] else {}))
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize("late", [False, True])
def test_what_a_body_demands_of_sizes_is_guarded_once(late: bool) -> None:
    def body(F: Any, a: Any) -> Any:
        if late:
            result = F.neg(a)
        if isinstance(a, torch.Tensor):
            return F.neg(a)
        assert a.shape[0] > 1
        return result if late else F.neg(a)

    module, _ = _loaded(_chain("Op"), body)
    assert [node.target for node in module.graph.nodes].count(functional.onnx2nn__Require) == 1
    with pytest.raises(ValueError, match=r"> 1|>= 2"):
        module(torch.zeros(1, *module.meta["onnx2nn"]["signature"][0]["shape"][1:]))


def test_calls_of_operators_stay_marked() -> None:
    with onnx2nn.register(DOMAIN, "Op", opaque=True)(lambda F, a: F.neg(a)):
        module = onnx2nn.load(_chain("Op"))
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert [node.meta.get("opaque") for node in calls] == [True] * NODES


def test_one_element_under_a_made_up_name_becomes_a_number_though_others_are_weights() -> None:
    names = ["scale", "shift", "val_1"]
    values = ["x", "h1", "h2", "y"]
    nodes = [helper.make_node("Mul", [values[i], names[i]], [values[i + 1]]) for i in range(3)]
    module = onnx2nn.load(_model(nodes, {name: np.full(1, i + 2, np.float32) for i, name in enumerate(names)}))
    assert [node.args[1] for node in module.graph.nodes if node.op == "call_function"][2] == 4.0
    assert [name for name, _ in module.named_parameters()] == names[:2]


class _FixedTwice(nn.Module):
    """Embeddings, of which two look up what the module holds alone: no layers, but the third is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("index", torch.arange(6).reshape(2, 3) % 4)
        self.table = nn.ModuleList(nn.Embedding(9, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = self.index + 1
        return self.table[0](held) + self.table[1](held) * self.table[2](x) + self.table[3](x)


def test_a_layer_stays_one_behind_calls_of_its_function() -> None:
    original = seeded(_FixedTwice)
    x = torch.arange(6).reshape(2, 3)
    program = torch.onnx.export(original, (x,), dynamo=True, optimize=False, verbose=False)
    assert program is not None
    model = program.model_proto
    for node in model.graph.node:
        if node.op_type == "Gather":  # whose attributes say that it is no call of its inputs alone
            node.op_type, node.domain = "Op", DOMAIN
            del node.attribute[:]
    model.opset_import.add(domain=DOMAIN, version=1)
    module, _ = _loaded(model, lambda F, weight, ids: F.nn.functional.embedding(ids, weight))
    nodes = flattened(module).graph.nodes
    calls = [node for node in nodes if node.target is nn.functional.embedding]
    assert len(calls) == 2
    assert [node.target for node in nodes if node.op == "call_module"] == ["table.2", "table.3"]
    torch.testing.assert_close(module(x), original(x))


def test_layers_stay_layers_of_their_own() -> None:
    weights = [np.eye(3, dtype=np.float32) * (i + 1) for i in range(NODES)]
    module, _ = _loaded(_chain("Op", weights), lambda F, a, w: F.nn.functional.linear(a, w))
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    assert [layer.weight[0, 0].item() for layer in layers] == [1, 2, 3, 4, 5]


def test_other_shapes_and_orders_are_others() -> None:
    """One operator, whose nodes take the same values in turn, one of them twice, and weights of other shapes."""
    arrays = {"row": np.arange(3), "tall": np.arange(12).reshape(4, 1, 3), "cell": np.full((1, 3), 3)}
    weights = {name: array.astype(np.float32) for name, array in arrays.items()}
    first, second = ["x row", "x row", "x cell", "x tall"], ["row x", "row x", "tall x", "cell x"]
    pairs = [*first, *second, "x h", "x h", "x x", "h x", "h h"] * 3
    nodes = [helper.make_node("Neg", ["x"], ["h"])]
    nodes += [helper.make_node("Op", pair.split(), [f"d{i}"], domain=DOMAIN) for i, pair in enumerate(pairs)]
    nodes += [helper.make_node("Shape", [f"d{i}"], [f"s{i}"]) for i in range(len(pairs))]
    model = _model(nodes, weights)
    del model.graph.output[:]
    outputs = [(name, i) for i in range(len(pairs)) for name in "ds"]
    model.graph.output.extend(onnx.ValueInfoProto(name=f"{name}{i}") for name, i in outputs)

    def body(F: Any, a: Any, b: Any) -> Any:
        return F.neg(a) if a is b else F.sub(a, b)

    module, runs = _loaded(model, body)
    assert runs < len(pairs)
    x = torch.randn(2, 3)
    values = {"x": x, "h": -x, **{name: torch.from_numpy(weight) for name, weight in weights.items()}}
    results = module(x)
    for i, pair in enumerate(pairs):
        expected = body(torch, *(values[name] for name in pair.split()))
        torch.testing.assert_close(results[2 * i], expected)
        assert results[2 * i + 1].tolist() == list(expected.shape)


def test_what_decides_a_call() -> None:
    """The node's operator in its version, and the shapes and types of its inputs, of which one is recorded."""
    tracer, repeats = Tracer(), Repeats()
    inputs = [tracer.placeholder("x", Spec(((2, 3),), torch.float32)), Constant.of(torch.ones(3))]
    node = ir.Node("", "Add", [])
    key = repeats.key(node, 17, inputs, tracer)
    assert key == repeats.key(ir.Node("", "Add", [], name="other"), 17, inputs, tracer)
    other = [
        repeats.key(node, 18, inputs, tracer),
        repeats.key(ir.Node("", "Add", [], overload="float"), 17, inputs, tracer),
        repeats.key(ir.Node(DOMAIN, "Add", []), 17, inputs, tracer),
        repeats.key(ir.Node("", "Sub", []), 17, inputs, tracer),
        repeats.key(node, 17, [inputs[0], Constant.of(torch.ones(3, dtype=torch.int64))], tracer),
    ]
    assert len({key, *other}) == 6
    assert None not in (key, *other)
    for none in ([inputs[1], Constant.of(torch.ones(3))], [inputs[0], None], [inputs[0], Constant.of(torch.ones(1))]):
        assert repeats.key(node, 17, none, tracer) is None


def test_a_choice_by_a_size_holds_behind_sizes_that_data_decide() -> None:
    """A body that chooses by a size is guarded once; data decide another size, which is no reason to ask again."""
    nodes = [
        helper.make_node("Op", ["x"], ["h1"], domain=DOMAIN),
        helper.make_node("Op", ["h1"], ["h2"], domain=DOMAIN),
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Shape", ["places"], ["size"], start=1),
        helper.make_node("Cast", ["size"], ["count"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["h2", "count"], ["h3"]),
        helper.make_node("Op", ["h3"], ["y"], domain=DOMAIN),
    ]
    module, _ = _loaded(_model(nodes, {}), lambda F, a: F.neg(a) if a.shape[0] > 1 else F.abs(a))
    calls = [node for node in module.graph.nodes if node.meta.get("onnx", ("",))[0] == DOMAIN]
    assert [node.target for node in calls if node.target is torch.neg] == [torch.neg] * 3


def test_a_vector_keeps_what_is_known_of_its_elements() -> None:
    """Of sizes that data decide one, and a constant is the other: only the former is read from the vector."""
    nodes = [helper.make_node("Concat", ["size", "seven"], ["s0"], axis=0)]
    nodes += [helper.make_node("Op", [f"s{i}", "x"], [f"s{i + 1}"], domain=DOMAIN) for i in range(NODES)]
    nodes.append(helper.make_node("ConstantOfShape", [f"s{NODES}"], ["y"]))
    model = _model(nodes, {"seven": np.asarray([7])}, [2])
    model.graph.input.append(helper.make_tensor_value_info("size", onnx.TensorProto.INT64, [1]))
    model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="y"))
    with onnx2nn.register(DOMAIN, "Op", on_shape_values=lambda a, b: np.broadcast_to(a, b.shape))(
        lambda F, a, b: a.expand_as(b)
    ):
        module = onnx2nn.load(model)
    reads = [node.kwargs["index"] for node in module.graph.nodes if node.target is functional.onnx2nn__SizeAt]
    assert reads == [0]
    assert module(torch.zeros(2), torch.tensor([3])).shape == (3, 7)


def test_an_operator_is_learned_anew_with_every_model() -> None:
    model = _chain("Op")
    x = torch.randn(2, 3)
    for function in (torch.relu, torch.neg):
        with onnx2nn.register(DOMAIN, "Op")(lambda F, a, name=function.__name__: getattr(F, name)(a)):
            module = onnx2nn.load(model)
        assert {node.target for node in module.graph.nodes if node.op == "call_function"} == {function}
        assert module(x).shape == x.shape
