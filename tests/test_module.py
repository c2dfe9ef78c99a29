"""What torch and its tools do with any module works with an imported one."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from onnx import helper, numpy_helper
from torch import nn

import onnx2nn
from onnx2nn.fx.modules.graph_module import lay_out_state
from onnx2nn.fx.modules.module_tree import container, put_module
from onnx2nn.fx.trace_errors import TraceError
from onnx2nn.fx.tracing.layers import Layer
from onnx2nn.fx.tracing.tracer import Tracer
from onnx2nn.fx.values.spec import Spec

DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"


@pytest.fixture(scope="module")
def module() -> torch.fx.GraphModule:
    return onnx2nn.load(DIGITS)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(3, 8, 8, 1, generator=torch.Generator().manual_seed(0))


def test_can_be_scripted(module: torch.fx.GraphModule, images: torch.Tensor) -> None:
    torch.testing.assert_close(torch.jit.script(module)(images), module(images))


def test_state_is_laid_out_as_tools_expect_it(module: torch.fx.GraphModule, tmp_path: Path) -> None:
    """The file holds the matrices of its linear layers transposed; a view of them is refused by these."""
    assert {type(layer) for layer in module.modules()} >= {torch.nn.Linear, torch.nn.Conv2d}
    assert all(tensor.is_contiguous() for tensor in module.state_dict().values())
    safetensors.torch.save_file(module.state_dict(), tmp_path / "state.safetensors")
    vector = torch.nn.utils.parameters_to_vector(module.parameters())
    assert vector.numel() == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peak memory is read from Linux's /proc")
def test_loading_holds_the_weights_once(tmp_path: Path) -> None:
    """Also where a file holds the matrices of linear layers transposed, which are laid out anew."""
    for name, count in (("small", 1), ("large", 24)):
        nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
        weights = [numpy_helper.from_array(np.full((1024, 1024), i, np.float32), f"w{i}") for i in range(count)]
        ends = [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, ["n", 1024]) for x in ("x0", f"x{count}")]
        graph = helper.make_graph(nodes, name, ends[:1], ends[1:], weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / f"{name}.onnx")
    script = Path(__file__).parents[1] / "benchmarks" / "memory.py"
    command = [sys.executable, script, "onnx2nn", tmp_path / "small.onnx", tmp_path / "large.onnx", "1024"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    size = 24 << 22
    assert size / 1.05 < found["after"] <= found["peak"] < 1.3 * size
    assert found["after"] < 1.05 * size


def test_weights_in_two_layouts_share_their_memory() -> None:
    """A table that is looked up, and multiplied with transposed: one weight, which stays one."""
    weights = torch.rand(5, 3, generator=torch.Generator().manual_seed(0)).numpy()
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"]),
        helper.make_node("Gemm", ["x", "table"], ["y"], transB=0),
        helper.make_node("MatMul", ["y", "turned"], ["z"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
    ]
    graph = helper.make_graph(
        [nodes[0], nodes[3], nodes[1], nodes[2]],
        "tied",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [2]),
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 5]),
        ],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("rows", "z")],
        [numpy_helper.from_array(weights, "table")],
    )
    model = onnx2nn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    table = torch.from_numpy(weights)
    rows, z = model(torch.tensor([4, 1]), x := torch.rand(2, 5, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(rows, table[[4, 1]])
    torch.testing.assert_close(z, x @ table @ table.T)
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == 1


@pytest.mark.parametrize("kind", ["context", "default"])
def test_the_default_device_does_not_split_a_module(kind: str, images: torch.Tensor) -> None:
    """The whole state is there; a part of it elsewhere would be of no use."""
    if kind == "context":
        with torch.device("meta"):
            loaded = onnx2nn.load(DIGITS)
    else:
        torch.set_default_device("meta")
        try:
            loaded = onnx2nn.load(DIGITS)
        finally:
            torch.set_default_device(None)
    assert {tensor.device.type for tensor in loaded.state_dict().values()} == {"meta"}
    loaded.load_state_dict(onnx2nn.load(DIGITS).state_dict(), assign=True)
    assert loaded(images).shape == (3, 10)


@pytest.mark.parametrize("names", [["w"], ["x", "w"]])
def test_outputs_that_no_node_makes(names: list[str]) -> None:
    weights = torch.arange(6.0).reshape(2, 3)
    infos = {name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in ("x", "w")}
    graph = helper.make_graph(
        [],
        "g",
        [infos["x"]] * ("x" in names),
        [infos[n] for n in names],
        [numpy_helper.from_array(weights.numpy(), "w")],
    )
    model = onnx2nn.load(helper.make_model(graph))
    results = model(*[-weights] * ("x" in names))
    assert torch.equal(results[-1] if "x" in names else results, weights)
    assert copy.deepcopy(model).state_dict().keys() == model.state_dict().keys()


def test_an_empty_optional_may_be_passed_on() -> None:
    """It is no input that is missing."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[n] x, bool b) => (optional(float[n]) y, bool inside, bool outside) {
            empty = Optional <type = float[n]> ()
            y = Identity (empty)
            chosen = If (b) <
                then_branch = t () => (optional(float[n]) t) { t = Identity (empty) },
                else_branch = e () => (optional(float[n]) e) { e = Optional (x) }
            >
            inside = OptionalHasElement (chosen)
            outside = OptionalHasElement (y)
        }""")
    module = onnx2nn.load(model)
    for chosen in (False, True):
        empty, inside, outside = module(torch.zeros(2), torch.tensor(chosen))
        assert empty is None
        assert (bool(inside), bool(outside)) == (not chosen, False)


def test_without_inputs_back_to_onnx(tmp_path: Path) -> None:
    model = onnx2nn.load(
        onnx.parser.parse_model("""
            <ir_version: 8, opset_import: ["" : 17]>
            graph () => (float[3] y) <float[3] w = {-1.0, 0.0, 2.0}> { y = Relu (w) }
        """)
    )
    assert "agrees" in onnx2nn.export_onnx(model, tmp_path / "again.onnx")
    assert torch.equal(onnx2nn.load(tmp_path / "again.onnx")(), torch.tensor([0.0, 0.0, 2.0]))


def test_what_no_output_needs_is_not_in_the_module() -> None:
    """Weights and layers of nodes that nothing reads, and the modules made around them; not those beside them."""
    nodes = [
        helper.make_node("Conv", ["x", "unread.conv.weight"], ["a"]),
        helper.make_node("Mul", ["a", "unread.deep.scale"], ["b"]),
        helper.make_node("Add", ["x", "block.shift"], ["c"]),
        helper.make_node("Mul", ["x", "block.scale"], ["y"]),
    ]
    shapes = {
        "unread.conv.weight": (2, 3, 1, 1),
        "unread.deep.scale": (1, 2, 1, 1),
        "block.shift": (3, 1, 1),
        "block.scale": (3, 1, 1),
    }
    graph = helper.make_graph(
        nodes,
        "unread",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.full(shape, 2, np.float32), name) for name, shape in shapes.items()],
    )
    model = onnx2nn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert list(model.state_dict()) == ["block.scale"]
    assert [name for name, _ in model.named_modules()] == ["", "block"]
    assert torch.equal(model(torch.ones(1, 3, 4, 4)), torch.full((1, 3, 4, 4), 2.0))


def test_laying_out_state_writes_to_no_memory_that_others_have() -> None:
    """Two arrays over one memory have storages of their own; a part of a table gets memory of its own.

    Of two matrices of one size, one gets the memory that the other had.
    """
    shared, own, other, table = (np.arange(24, dtype=np.float32) + 100 * i for i in range(4))
    module = torch.nn.Module()
    for name, tensor in {
        "turned": torch.from_numpy(shared).reshape(4, 6).T,
        "tail": torch.from_numpy(shared[6:]),
        "matrix": torch.from_numpy(own).reshape(4, 6).T,
        "other": torch.from_numpy(other).reshape(6, 4).T,
        "columns": torch.from_numpy(table).reshape(4, 6)[:, 1:3],
        "expanded": torch.from_numpy(np.ones((3, 1), np.float32)).expand(3, 5),
    }.items():
        module.register_parameter(name, torch.nn.Parameter(tensor))
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    addresses = {name: parameter.data_ptr() for name, parameter in module.named_parameters()}
    lay_out_state(module)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name]), name
    found = {name for name, parameter in module.named_parameters() if parameter.is_contiguous()}
    assert found == {"tail", "matrix", "other", "columns", "expanded"}
    now = {name: parameter.data_ptr() for name, parameter in module.named_parameters()}
    assert (now["matrix"] == addresses["other"]) != (now["other"] == addresses["matrix"])
    assert (shared == np.arange(24)).all()
    assert (table == np.arange(24) + 300).all()
    assert module.columns.untyped_storage().nbytes() == 8 * 4


@pytest.mark.parametrize("order", [("call_module", "get_attr"), ("get_attr", "call_module")])
def test_an_unused_layer_goes_with_its_weight(order: tuple[str, str]) -> None:
    tracer = Tracer()
    x = tracer.placeholder("x", Spec(((2, 3),), torch.float32))
    tracer.root.add_module("block", torch.nn.Module())
    tracer.root.block.add_module("linear", torch.nn.Linear(3, 3))
    tracer.root.block.add_module("other", torch.nn.Linear(3, 3))
    for kind in order:
        target, arguments = ("block.linear", (x,)) if kind == "call_module" else ("block.linear.weight", ())
        tracer.record(kind, target, arguments)
    weight = tracer.record("get_attr", "block.other.weight", ())
    tracer.record("call_module", "block.other", (x,))
    module = tracer.finish(tracer.wrap(weight, Spec(((3, 3),), torch.float32)))
    assert set(dict(module.named_parameters())) == {"block.other.weight", "block.other.bias"}
    assert module(torch.zeros(2, 3)) is module.block.other.weight


@pytest.mark.parametrize("layer_first", [True, False])
def test_an_unused_layer_goes_with_a_constant_that_it_does_not_compute_with(layer_first: bool) -> None:
    """Such as the state from which the author's recurrent layer starts."""
    tracer = Tracer()
    x = tracer.placeholder("x", Spec(((2, 3),), torch.float32))
    weight, bias = torch.ones(3, 3), torch.ones(3)
    path = tracer.held.add_layer(
        Layer(torch.nn.Linear, {"in_features": 3, "out_features": 3}, {"weight": weight, "bias": bias}, (x,))
    )
    tracer.root.get_submodule(path).register_buffer("start", torch.zeros(3))
    calls = [("call_module", path, (x,)), ("get_attr", f"{path}.start", ())]
    for call in calls if layer_first else reversed(calls):
        tracer.record(*call)
    module = tracer.finish(x)
    assert not module.state_dict() and not list(module.children())


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_takes_no_constants_inside_of_a_weight(bias: bool) -> None:
    root = nn.Module()
    holder, name = container(root, "a.bias.0")
    holder.register_buffer(name, torch.ones(3))
    with pytest.raises(TraceError, match="'bias'"):
        put_module(root, "a", nn.Linear(3, 3, bias=bias))
    assert set(root.state_dict()) == {"a.bias.0"}


def test_statistics_that_the_graph_computes() -> None:
    """So torch's older exporter writes instance normalisation with running statistics, whose gradient torch lacks."""
    module = onnx2nn.load(
        onnx.parser.parse_model("""
            <ir_version: 8, opset_import: ["": 15]>
            g (float[1, C, S] x, int64[1] times) => (float[1, C, S] y)
            <float[2] mean = {0.5, -0.25}, float[2] var = {1, 2}, float[2] scale = {1, 2}, float[2] bias = {1, 0}> {
                m = Tile(mean, times) v = Tile(var, times) s = Tile(scale, times) b = Tile(bias, times)
                y = BatchNormalization(x, s, b, m, v)
            }
        """)
    )
    x = torch.arange(20.0).reshape(1, 4, 5)
    y = module(x, torch.tensor([2]))
    rows = zip(x[0], (0.5, -0.25) * 2, (1.0, 2.0) * 2, (1.0, 2.0) * 2, (1.0, 0.0) * 2, strict=True)
    expected = [(row - mean) / (var + 1e-5) ** 0.5 * scale + bias for row, mean, var, scale, bias in rows]
    torch.testing.assert_close(y[0], torch.stack(expected))
    y.sum().backward()
    assert module.scale.grad is not None


def test_a_layer_takes_over_the_constants_that_stand_at_its_place() -> None:
    """Where it has another tensor of that name itself, both stay what they were."""
    constant = torch.ones(3)
    for name, fits in (("shift", True), ("weight", False)):
        tracer = Tracer()
        holder, _ = container(tracer.root, f"part.{name}")
        holder.register_buffer(name, constant)
        layer = torch.nn.Linear(3, 3)
        if fits:
            tracer.call_module(["part"], layer, (), None, own=True)
            assert tracer.root.part is layer and layer.shift is constant
        else:
            with pytest.raises(TraceError, match="another 'weight'"):
                tracer.call_module(["part"], layer, (), None, own=True)
            assert tracer.root.part.weight is constant


def test_instance_norm_has_the_authors_keys(tmp_path: Path) -> None:
    """A normalisation without running statistics counts no batches."""
    original = nn.Sequential(nn.InstanceNorm2d(3, affine=True), nn.Conv2d(3, 2, 1)).eval()
    torch.onnx.export(original, (torch.rand(1, 3, 4, 4),), str(tmp_path / "m.onnx"), dynamo=False)
    assert list(onnx2nn.load(tmp_path / "m.onnx").state_dict()) == list(original.state_dict())


def test_a_number_is_written_on_either_side() -> None:
    """A number on the left of a quotient is none: torch multiplies its reciprocal, which rounds twice."""
    module = onnx2nn.load(
        onnx.parser.parse_model("""
            <ir_version: 8, opset_import: ["" : 17]>
            g (float[n] x) => (float[n] y, bool[n] z) {
                one = Constant <value_float = 1.0> ()
                three = Constant <value_float = 3.0> ()
                d = Sub (one, x)
                m = Mul (three, d)
                y = Div (three, m)
                z = Less (three, x)
            }""")
    )
    assert "1.0 - x" in module.code and "3.0 * sub" in module.code and "3.0 < x" in module.code
    assert len([*module.buffers()]) == 1
    x = torch.tensor([0.3, 4.0, -7.0])
    y, z = module(x)
    assert torch.equal(y, torch.tensor(3.0) / (3.0 * (1.0 - x))) and z.tolist() == [False, True, False]
