"""The containers of an import are modules that run, as their author wrote them."""

from __future__ import annotations

import copy
import functools
import io
import math
import pickle
import runpy
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from realmodels import EXPORTERS, check_same, run, run_onnxruntime, seeded
from torch import fx, nn
from torch.nn import functional as F

import onnx2nn
from onnx2nn.fx.blocks.flattening import flattened
from onnx2nn.fx.tracing.tracer import ASSERTIONS
from onnx2nn.importing.plan import LIST


class Positions(nn.Module):
    """A module whose buffer is in no state_dict, as rotary embeddings are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.linspace(0.1, 1, 8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cos(torch.arange(x.size(1), device=x.device)[:, None] * self.steps)


class Residual(nn.Module):
    """A block whose one activation is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        heads = self.act(self.first(x)).reshape(x.size(0), x.size(1), 4, 4)
        return self.act(x + self.second(heads.transpose(2, 3).reshape(x.size(0), x.size(1), 16)) * positions)


class Model(nn.Module):
    """Two equal blocks in a list, a module without weights before them, and a function that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions()
        self.layers = nn.ModuleList(Residual() for _ in range(2))
        self.head = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = self.positions(x)
        for layer in self.layers:
            x = layer(x, positions)
        return F.silu(self.head(x))


def _inputs(batch: int, length: int = 5) -> tuple[torch.Tensor]:
    return (torch.randn(batch, length, 8, generator=torch.Generator().manual_seed(batch)),)


def _path(exporter: str) -> Path:
    return EXPORTERS[exporter]("blocks", seeded(Model), _inputs(2), _inputs(3, 7))


both = pytest.mark.parametrize("exporter", sorted(EXPORTERS))


@both
def test_modules_are_the_authors(exporter: str) -> None:
    """Each module of the original is there; blocks give what the original's give, for what they take."""
    original, module = seeded(Model).eval(), onnx2nn.load(_path(exporter))
    assert [name for name, _ in original.named_modules()] == [
        name for name in dict(original.named_modules()) if name in dict(module.named_modules())
    ]
    names = {name: type(m) for name, m in original.named_modules() if type(m).__module__.startswith("torch.nn")}
    assert {name: type(module.get_submodule(name)) for name in names} == names
    (x,) = _inputs(3, 6)
    positions = original.positions(x)
    check_same(run(module.positions, (x,)), (positions,), "a module without weights")
    for layer in "01":
        ours, theirs = module.layers.get_submodule(layer), original.layers.get_submodule(layer)
        check_same(run(ours, (x, positions)), (theirs(x, positions),), "a block with two arguments")
    check_same(run(module.head, (x,)), (original.head(x),), "a list of modules")


@both
def test_calls_are_the_originals(exporter: str) -> None:
    """Hooks see the same modules in the same order, a shared activation twice in each block."""
    seen: dict[str, list[tuple[str, torch.Tensor]]] = {}
    for kind, model in {"theirs": seeded(Model).eval(), "ours": onnx2nn.load(_path(exporter))}.items():
        calls = seen.setdefault(kind, [])
        for name, inner in model.named_modules():
            inner.register_forward_hook(lambda m, args, result, name=name, calls=calls: calls.append((name, result)))
        model(*_inputs(3, 6))
    assert [name for name, _ in seen["ours"]] == [name for name, _ in seen["theirs"]]
    assert [name for name, _ in seen["ours"]].count("layers.0.act") == 2
    for (name, ours), (_, theirs) in zip(seen["ours"], seen["theirs"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


class Shortcut(nn.Module):
    """A block that calls a module before those whose results it takes first, as ResNet V2's do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.downsample = nn.LayerNorm(8), nn.Linear(8, 8)
        self.inner, self.act, self.gate = nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        shortcut = self.downsample(x)
        gate = self.gate(x)
        return self.act(self.inner(x)) * gate + shortcut


@both
def test_calls_of_a_block_are_in_its_authors_order(exporter: str) -> None:
    """Hooks see modules in the order of the file, also where results are used in another one."""
    path = EXPORTERS[exporter](
        "shortcuts", seeded(lambda: nn.Sequential(Shortcut(), Shortcut())), _inputs(2), _inputs(3, 7)
    )
    module, seen = onnx2nn.load(path), list[str]()
    for name, inner in module.named_modules():
        inner.register_forward_pre_hook(lambda m, args, name=name: seen.append(name))
    run(module, _inputs(3))
    order = ("", "norm", "downsample", "gate", "inner", "act")
    assert seen == ["", *(f"{block}.{name}".strip(".") for block in "01" for name in order)]
    assert type(module.get_submodule("0")) is type(module.get_submodule("1"))


class RowNorm(nn.LayerNorm):
    """Normalises the second dimension, which it puts last for that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, weight, bias = [8], self.weight, self.bias
        return F.layer_norm(x.transpose(1, 2), size, weight, bias, self.eps).transpose(1, 2)


class Channels(nn.Module):
    """Modules that begin with a transpose, and a caller that transposes, behind a module that ends with one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.mix = RowNorm(8), RowNorm(8), nn.Conv1d(8, 8, 3, padding=1)
        self.inner = nn.Sequential(RowNorm(8), nn.Conv1d(8, 8, 1), nn.GELU())
        self.rows = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.last(x + self.inner(x))
        return self.mix(x) + self.rows(x.transpose(1, 2)).transpose(1, 2)


@both
def test_modules_transpose_what_their_author_did(exporter: str) -> None:
    """The older exporter cancels the transposes at the end of one module and at the beginning of the next."""
    original, inputs = seeded(Channels).eval(), (torch.randn(2, 8, 5),)
    module = onnx2nn.load(EXPORTERS[exporter]("channels", original, inputs, (torch.randn(3, 8, 7),)))
    seen: dict[str, list[tuple[str, torch.Tensor]]] = {"theirs": [], "ours": []}
    for kind, model in (("theirs", original), ("ours", module)):
        for name, inner in model.named_modules():
            inner.register_forward_hook(lambda m, args, result, name=name, kind=kind: seen[kind].append((name, result)))
        model(*inputs)
    assert [name for name, _ in seen["ours"]] == [name for name, _ in seen["theirs"]]
    for (name, ours), (_, theirs) in zip(seen["ours"], seen["theirs"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    for name in ("first", "inner"):
        check_same(run(module.get_submodule(name), inputs), (original.get_submodule(name)(*inputs),), "called alone")


def test_a_transpose_behind_what_reads_its_value_is_cancelled_too() -> None:
    """In the file another module goes on with a value before its own module transposes it."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17], producer_name: "pytorch"> g (float[n, 3, 2] x) => (float[n, 2, 3] y)
            <float[2, 2] matrix = {1, 2, 3, 4}> {
            ["/a/fc/MatMul"] first = MatMul (x, matrix)
            ["/a/Relu"] relu = Relu (first)
            ["/b/fc/MatMul"] second = MatMul (relu, matrix)
            ["/a/Transpose"] a = Transpose <perm = [0, 2, 1]> (relu)
            ["/b/Transpose"] b = Transpose <perm = [0, 2, 1]> (second)
            ["/Add"] y = Add (a, b)
        }""")
    matrix = model.graph.initializer.pop()
    for node, name in ((model.graph.node[0], "a.fc.weight"), (model.graph.node[2], "b.fc.weight")):
        model.graph.initializer.add().CopyFrom(matrix)
        model.graph.initializer[-1].name = node.input[1] = name
    module, x = onnx2nn.load(model), torch.randn(4, 3, 2)
    check_same(run(module, (x,)), run_onnxruntime(model.SerializeToString(), (x,)), "all")
    a = module.a(x)
    assert isinstance(a, torch.Tensor) and a.shape == (4, 2, 3)
    torch.testing.assert_close(module(x), a + module.b(a))


@both
def test_equal_blocks_are_one_class(exporter: str) -> None:
    """Blocks, imports and copies of equal programs have one class each, so that their states can be stacked."""
    module, again = onnx2nn.load(_path(exporter)), onnx2nn.load(_path(exporter))
    first, second = module.layers.get_submodule("0"), module.layers.get_submodule("1")
    assert type(first) is type(second) is type(again.layers.get_submodule("0"))
    assert type(module) is type(again) is type(copy.deepcopy(module))
    torch.func.stack_module_state([module, again])
    state, _ = torch.func.stack_module_state([first, second])
    x, positions = torch.randn(2, 3, 6, 8), torch.randn(6, 8)
    together = torch.func.vmap(lambda s, x: torch.func.functional_call(first, s, (x, positions)))(state, x)
    check_same(run(second, (x[1], positions)), (together[1],), "one of the stack")


@both
def test_what_a_block_takes(exporter: str) -> None:
    """Sizes are read from the tensors that are there: a block takes the author's two tensors and nothing else."""
    module = onnx2nn.load(_path(exporter))
    graph = flattened(module).graph
    assert {node.target for node in graph.nodes if node.op == "call_module"} >= {"layers.0.act", "layers.1.first"}
    for layer in "01":
        block = module.layers.get_submodule(layer)
        arguments = [node for node in block.graph.nodes if node.op == "placeholder"]
        assert [argument.type for argument in arguments] == [None, None], block.code
    assert set(module.meta["onnx2nn"]["tree"]["flat"]) <= {"layers"}


@pytest.mark.parametrize(("one", "two"), [("/6/Conv", "/6/Conv_1"), ("/Class/Conv", "/If/Conv")])
def test_an_argument_has_a_name_of_python(one: str, two: str) -> None:
    """An argument is named after the module that gives it: `6_1` for a second layer at one place, or a class `If`."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        graph (float[n, 1, h] x) => (float[n, 1, h] y)
        <float[1, 1, 1] k = {{2.0}}, float[1, 1, 1] l = {{3.0}},
         float[1, 1, 1] m = {{4.0}}, float[1, 1, 1] o = {{5.0}}> {{
            ["{one}"] a = Conv(x, k)
            ["{two}"] b = Conv(x, l)
            ["/block/Add"] c = Add(a, b)
            ["/block/first/Conv"] d = Conv(c, m)
            ["/block/Mul"] e = Mul(d, b)
            ["/block/second/Conv"] y = Conv(e, o)
        }}""")
    module = onnx2nn.load(model)
    x = torch.randn(2, 1, 3)
    assert module.block.code
    torch.testing.assert_close(module(x), 5 * (4 * (2 * x + 3 * x) * 3 * x))


def test_a_changed_block_is_its_own() -> None:
    """An edit of one block leaves the others, and what is imported later, as they were."""
    module = onnx2nn.load(_path("dynamo"))
    first, second = module.layers.get_submodule("0"), module.layers.get_submodule("1")
    (x,), positions = _inputs(2), torch.ones(5, 8)
    before, other = first(x, positions), second(x, positions)
    (add,) = (node for node in first.graph.nodes if "add" in node.name)
    add.target = torch.sub
    first.recompile()
    assert type(first) is not type(second)
    assert not torch.equal(first(x, positions), before)
    assert torch.equal(second(x, positions), other)
    again = onnx2nn.load(_path("dynamo"))
    assert torch.equal(again.layers.get_submodule("0")(x, positions), before)


def _graphs(module: nn.Module) -> list[Any]:
    """Describes the nodes of all programs, with what is noted of them."""
    programs = [inner.graph for inner in module.modules() if isinstance(inner, fx.GraphModule)]
    return [[(node.format_node(), sorted(node.meta.items(), key=str)) for node in graph.nodes] for graph in programs]


def _called(module: nn.Module) -> nn.Module:
    module(*_inputs(2))
    return module


@pytest.mark.parametrize("ready", [copy.deepcopy, copy.copy, _called, lambda module: copy.deepcopy(_called(module))])
@both
def test_a_graph_is_the_same_whenever_it_is_read(exporter: str, ready: Callable[[nn.Module], nn.Module]) -> None:
    """Blocks of one class have graphs of their own, which are built when something reads them."""
    expected, module = _graphs(onnx2nn.load(_path(exporter))), ready(onnx2nn.load(_path(exporter)))
    blocks = [module.layers.get_submodule(layer) for layer in "01"]
    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(lambda _: blocks[0].graph, range(8))
    assert all(other is first for other in others)
    assert first.owning_module is blocks[0]
    assert blocks[1].graph is not first
    assert _graphs(module) == expected
    check_same(run(module, _inputs(3, 6)), run(onnx2nn.load(_path(exporter)), _inputs(3, 6)), "graphs were read")


@both
def test_a_pickle_has_the_same_modules(exporter: str) -> None:
    """Names of classes, keys of the state_dict, and what is in none."""
    module = onnx2nn.load(_path(exporter))
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    described = [(name, type(m).__name__) for name, m in read.named_modules()]
    assert described == [(name, type(m).__name__) for name, m in module.named_modules()]
    assert list(read.state_dict()) == list(module.state_dict())
    check_same(run(read, _inputs(3, 6)), run(module, _inputs(3, 6)), "read again")


@both
def test_code_is_what_an_author_writes(exporter: str) -> None:
    """Lists are indexed, and no line releases a value; the text runs."""
    module = onnx2nn.load(_path(exporter))
    assert "self.layers[0](" in module.code
    assert "self.layers[1](" in module.code
    assert " = None" not in module.code
    assert "getattr(self" not in module.code
    names: dict[str, Any] = {}
    exec(f"import torch\n{module.code}", names)
    check_same(run(lambda x: names["forward"](module, x), _inputs(2)), run(module, _inputs(2)), "the text")


@both
@pytest.mark.parametrize("names", [{}, {"input_names": ["x"]}, {"input_names": ["x"], "output_names": ["y"]}])
def test_the_older_exporter_asks_for_names(exporter: str, names: dict[str, list[str]], tmp_path: Path) -> None:
    """It reads `model.graph` of any model for the names that dynamic axes may have."""
    module = onnx2nn.load(_path(exporter))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, _inputs(2), tmp_path / "m.onnx", dynamo=False, dynamic_axes={"x": {0: "n", 1: "t"}}, **names
        )
    inputs = _inputs(2)
    check_same(run(onnx2nn.load(tmp_path / "m.onnx"), inputs), run(module, inputs), "exported again")


class Joined(nn.Module):
    """A layer that joins what it is given, as those of a DenseNet."""

    def __init__(self, features: int):
        super().__init__()
        self.linear, self.gate = nn.Linear(features, 4), nn.Sigmoid()

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        return self.gate(self.linear(torch.cat(features, -1)))


class Dense(nn.Module):
    """Each layer takes what all layers before it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Joined(8 + 4 * index) for index in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, -1)


@both
def test_a_block_that_takes_a_list(exporter: str, tmp_path: Path) -> None:
    """It takes the author's list; the flat program, and the source that is written of it, give the same."""
    module = onnx2nn.load(EXPORTERS[exporter]("joined", seeded(Dense), _inputs(2), _inputs(3, 7)))
    inputs = _inputs(3, 6)
    expected = seeded(Dense).eval()
    check_same(run(module, inputs), (expected(*inputs),), "the import")
    check_same(run(flattened(module), inputs), run(module, inputs), "the flat program")
    x, y = *inputs, torch.randn(3, 6, 4)
    check_same((module.layers[1]([x, y]),), (expected.layers[1]([x, y]),), "a block")
    onnx2nn.to_python(module, tmp_path)
    assert "nn.Sigmoid()" in (tmp_path / "model.py").read_text()


def test_a_deep_chain_of_sums() -> None:
    """Whether a sum is a number follows from its operands, thousands of which may stand in a row."""
    nodes = [helper.make_node("MatMul", ["x", "first.weight"], ["x0"], "/first/MatMul")]
    nodes += [helper.make_node("Add", [f"x{i}", "x"], [f"x{i + 1}"], f"/Add_{i}") for i in range(3000)]
    nodes += [helper.make_node("MatMul", ["x3000", "block.second.weight"], ["y"], "/block/second/MatMul")]
    sizes = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    keys = ("first.weight", "block.second.weight")
    weights = [numpy_helper.from_array(np.eye(4, dtype=np.float32), key) for key in keys]
    graph = helper.make_graph(nodes, "deep", sizes[:1], sizes[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    module = onnx2nn.load(helper.make_model(graph, opset_imports=opset, ir_version=8, producer_name="pytorch"))
    assert module.meta["onnx2nn"]["tree"]["blocks"]
    assert torch.equal(module(torch.ones(1, 4)), torch.full((1, 4), 3001.0))


class Shuffled(nn.Module):
    """A convolution after which a function changes the order of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x[:, :4], self.conv(x[:, 4:])], 1)
        n, channels, h, w = x.size()
        return x.view(n, 2, channels // 2, h, w).transpose(1, 2).contiguous().view(n, channels, h, w)


class Stages(nn.Module):
    """Two of them in a series."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(Shuffled(), Shuffled())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stages(x)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_layer_made_of_functions_is_inside_their_module(exporter: str) -> None:
    """It has no scope of its own; beside the module of the scope, it would break the series."""
    original, inputs = seeded(Stages), (torch.randn(2, 8, 5, 5),)
    module = onnx2nn.load(EXPORTERS[exporter]("blocks_shuffled", original, inputs, (torch.randn(3, 8, 5, 5),)))
    assert [name for name, _ in module.stages.named_children()] == ["0", "1"]
    assert isinstance(module.stages[1].channel_shuffle, nn.ChannelShuffle)
    check_same(run(module.stages[0], inputs), run(original.stages[0], inputs), "the first stage")


class Gate(nn.Module):
    """A layer between two functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.conv(x.cos()))


class Gated(nn.Module):
    """A block that calls a module of the model's in its middle, as CoaT's do."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.fc, self.shared = nn.Conv2d(8, 8, 1), gate
        self.mlp = nn.Sequential(nn.Conv2d(8, 16, 1), nn.GELU(), nn.Conv2d(16, 8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        return x + self.mlp(y * self.shared(y))


class Sharing(nn.Module):
    """All blocks call one module, which stands beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.blocks = nn.ModuleList(Gated(self.gate) for _ in range(3))
        self.mlp = nn.Sequential(nn.Conv2d(8, 16, 1), nn.GELU(), nn.Conv2d(16, 8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.mlp(x)


def test_only_what_encloses_others_stays_flat() -> None:
    """A block that calls a module of another place stays flat; the modules in it, and those around it, do not."""
    original, inputs = seeded(Sharing), (torch.randn(2, 8, 5, 5),)
    module = onnx2nn.load(EXPORTERS["torchscript"]("blocks_sharing", original, inputs, (torch.randn(3, 8, 5, 5),)))
    tree = module.meta["onnx2nn"]["tree"]
    assert "torch.sigmoid" not in module.code and "cos" not in module.code, "they are calls of the shared module"
    reason = "it calls gate, of which the file has no name in it"
    assert tree["flat"] == {"blocks": LIST} | {f"blocks.{number}": reason for number in range(3)}
    assert set(tree["blocks"]) == {"gate", "mlp", "blocks.0.mlp", "blocks.1.mlp", "blocks.2.mlp"}
    check_same(run(module, inputs), run(original, inputs), "the model")
    check_same(run(module.blocks[1].mlp, inputs), run(original.blocks[1].mlp, inputs), "a module in a flat block")
    check_same(run(module.gate, inputs), run(original.gate, inputs), "the module that blocks share")


class Pools(nn.Module):
    """Pools as modules, over one to three dimensions."""

    def __init__(self, rank: int):
        super().__init__()
        name = f"{rank}d"
        self.conv: nn.Module = getattr(nn, f"Conv{name}")(3, 4, 3, padding=1)
        self.largest: nn.Module = getattr(nn, f"MaxPool{name}")(2)
        self.mean: nn.Module = getattr(nn, f"AvgPool{name}")(2, 1)
        self.overall: nn.Module = getattr(nn, f"AdaptiveAvgPool{name}")(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.overall(self.mean(self.largest(self.conv(x)))).flatten(1)


def test_a_layer_that_moves_leaves_no_container() -> None:
    """The import ended in a KeyError: the call of the node `a/b1` was in a container that nothing was in any more."""
    module = onnx2nn.load(
        onnx.parser.parse_model("""
            <ir_version: 10, opset_import: ["" : 19]>
            g (float[1,m,n] x) => (float[] y, bool[] z, float16[] t) <int64[1] two = {2}, float16 c = {3}> {
                ["a/b1"] y = LeakyRelu (x)
                values, l = TopK <axis = -1, largest = 0> (x, two)
                z = GreaterOrEqual (two, l)
                ["a.b2"] t = Dropout (c)
            }""")
    )
    y, _, t = module(torch.tensor([[[-1.0, 2.0]]]))
    assert y.tolist() == [[[pytest.approx(-0.01), 2.0]]]
    assert t.item() == np.array(3, np.uint16).view(np.float16)


@pytest.mark.parametrize("rank", [1, 2, 3])
@both
def test_pools_are_modules(exporter: str, rank: int) -> None:
    original = seeded(functools.partial(Pools, rank)).eval()
    first, second = (torch.randn(batch, 3, *[8] * rank) for batch in (2, 3))
    module = onnx2nn.load(EXPORTERS[exporter](f"pools {rank}d", original, (first,), (second,)))
    found = {name: type(inner) for name, inner in module.named_children()}
    assert found == {name: type(inner) for name, inner in original.named_children()}
    for x in (first, second):
        check_same(run(module, (x,)), run(original, (x,)), f"pools of {rank} dimensions")


class Relative(nn.Module):
    """Multiplies by a table's transpose, which exporters fold into a constant without a name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.table = nn.Parameter(torch.randn(7, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) @ self.table.transpose(0, 1)).relu()


def test_a_layer_without_a_name_stands_where_it_is_called() -> None:
    original = seeded(lambda: nn.Sequential(nn.Linear(4, 4), Relative(), nn.Linear(7, 2))).eval()
    x = torch.randn(2, 3, 4)
    module = onnx2nn.load(EXPORTERS["dynamo"]("relative", original, (x,)))
    assert module.meta["onnx2nn"]["tree"]["flat"] == {}
    check_same(run(module.get_submodule("1"), (x,)), run(original[1], (x,)), "the block")
    check_same(run(module, (x,)), run(original, (x,)), "all")


def test_a_layer_without_a_name_that_several_modules_use() -> None:
    """As after quantising, where a filter is one constant: no module calls what stands outside of it."""
    block = (
        ' ["/blocks.N/Relu"] r_N = Relu (x_N) a_N = Conv (r_N, shared) ["/blocks.N/conv/Conv"] b_N = Conv (a_N, own_N)'
        ' c_N = Conv (b_N, shared) ["/blocks.N/Add"] x_M = Add (b_N, c_N)'
    )
    nodes = "".join(block.replace("N", str(number)).replace("M", str(number + 1)) for number in range(2))
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 2, 5, 5] x_0) => (float[n, 2, 5, 5] x_2)'
        " <float[2, 2, 1, 1] shared = {1, -2, 3, 0.5}, float[2, 2, 1, 1] own_0 = {2, 1, -1, 1},"
        f" float[2, 2, 1, 1] own_1 = {{0.1, 0.2, 0.3, 0.4}}> {{ {nodes} }}"
    )
    names = {"shared": "onnx::Conv_9", "own_0": "blocks.0.conv.weight", "own_1": "blocks.1.conv.weight"}
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for weight in proto.graph.initializer:
        weight.name = names[weight.name]
    module, x = onnx2nn.load(proto), torch.randn(3, 2, 5, 5)
    check_same(run(module, (x,)), run_onnxruntime(proto.SerializeToString(), [x]), "shared")
    assert {"blocks.0.conv.weight", "blocks.1.conv.weight"} < module.state_dict().keys()


class Between(nn.Module):
    """Computes a weight, between 0 and 1, of another, in a module of its own."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.exp() / (1 + weight.exp())


class OfComputed(nn.Module):
    """A layer that computes its weight in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.log, self.between = nn.Parameter(torch.randn(4, 4) / 2), Between()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.between(self.log)).tanh()


class ThreeTimes(nn.Module):
    """Calls a layer on its own results."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = OfComputed(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(self.layer(self.layer(x))))


def test_each_call_of_a_layer_computes_its_weight() -> None:
    """Exporters compute it once for all calls; all of them were one call of a block."""
    original = seeded(ThreeTimes).eval()
    x = torch.randn(5, 4)
    path = EXPORTERS["torchscript"]("computed weight", original, (x,))
    module, called = onnx2nn.load(path), list[str]()
    check_same(run(module.layer, (x,)), run(original.layer, (x,)), "the layer")
    check_same(run(module.layer.between, (x,)), run(original.layer.between, (x,)), "its weight")
    module.layer.register_forward_hook(lambda *_: called.append("layer"))
    module.layer.between.register_forward_hook(lambda *_: called.append("between"))
    check_same(run(module, (x,)), run(original, (x,)), "all")
    assert called == ["between", "layer"] * 3
    assert onnx2nn.verify_nodes(path, module).ok


class UsedTwice(nn.Module):
    """A layer that uses a weight twice which it computes once."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.randn(128, 128) / 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.log.exp() / 99
        return ((x @ weight).tanh() @ weight).tanh()


class Normed(nn.Module):
    """A layer of a weight that is normalised in each call; the newer exporter folds no weight as large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(128, 128, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x[..., None]))[..., 0]


class OfComputedWeights(nn.Module):
    """Both."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.normed, self.last = UsedTwice(), Normed(), nn.Linear(128, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.normed(self.twice(x)))


@both
def test_calls_that_compute_a_weight_and_one_that_uses_it_twice(exporter: str, tmp_path: Path) -> None:
    """Exporters compute it once in both; they note which values were merged, or number the calls."""
    original = seeded(OfComputedWeights).eval()
    x = torch.randn(5, 128)
    module = onnx2nn.load(EXPORTERS[exporter]("computed weights", original, (x,)))
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    for imported in (module, onnx2nn.load(tmp_path / "again.onnx")):
        for name, given in (("twice", x), ("normed", x), ("normed.layer", x[..., None])):
            called = imported.get_submodule(name)
            check_same(run(called, (given,)), run(original.get_submodule(name), (given,)), name)
        check_same(run(imported, (x,)), run(original, (x,)), "all")


class Conditioned(nn.Module):
    """Adds what a linear layer makes of a condition, with one activation for all, as a block of a diffusion's U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.act, self.condition, self.after = nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        hidden = self.before(self.act(x)) + self.condition(self.act(condition))
        return x + self.after(self.act(hidden))


class Modulated(nn.Module):
    """Multiplies by what a linear layer makes of a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.linear = nn.SiLU(), nn.Linear(4, 4)

    def forward(self, condition: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.act(condition)) * x


class AllConditioned(nn.Module):
    """Blocks that activate one condition each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.modulated = nn.Linear(4, 4), Modulated()
        self.blocks = nn.ModuleList(Conditioned() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        condition = self.embed(x)
        for block in self.blocks:
            x = block(x, condition)
        return self.modulated(condition, x)


@both
def test_each_block_activates_a_condition(exporter: str, tmp_path: Path) -> None:
    """Both exporters compute it in the first block, for all, also for a module that activates nothing else."""
    original = seeded(AllConditioned).eval()
    x, condition = torch.randn(5, 4), torch.randn(5, 4)
    module = onnx2nn.load(EXPORTERS[exporter]("all conditioned", original, (x,)))
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    for imported in (module, onnx2nn.load(tmp_path / "again.onnx")):
        for name in ("blocks.0", "blocks.1", "blocks.2", "modulated"):
            found, expected = imported.get_submodule(name), original.get_submodule(name)
            check_same(run(found, (x, condition)), run(expected, (x, condition)), name)
        check_same(run(imported, (x,)), run(original, (x,)), "all")


class Timed(nn.Module):
    """Adds what a linear layer makes of a step, which alone it activates."""

    def __init__(self, residual: bool, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.act, self.time = nn.Conv1d(4, 4, 3, padding=1), act, nn.Linear(4, 4)
        self.residual = nn.Conv1d(4, 4, 1) if residual else nn.Identity()

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return self.conv(x).relu() + self.time(self.act(step))[:, :, None] + self.residual(x)


class AllTimed(nn.Module):
    """Blocks in lists of two modules that activate one step each."""

    def __init__(self, act: Callable[[], Callable[[torch.Tensor], torch.Tensor]]) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 4)
        self.stages = nn.ModuleList(nn.ModuleList([Timed(True, act()), Timed(False, act())]) for _ in range(2))

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        step = self.embed(step)
        for stage in self.stages:
            for block in stage:
                x = block(x, step)
        return x


@both
@pytest.mark.parametrize("act", [nn.SiLU, lambda: F.silu])
def test_each_block_activates_a_step_for_the_layer_that_others_have_too(
    exporter: str, act: Callable[[], Callable[[torch.Tensor], torch.Tensor]]
) -> None:
    original = seeded(lambda: AllTimed(act)).eval()
    inputs, step = (torch.randn(2, 4, 9), torch.randn(2, 1)), torch.randn(2, 4)
    module = onnx2nn.load(EXPORTERS[exporter](f"all timed by a {act.__name__}", original, inputs))
    for name in ("stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1"):
        given = (inputs[0], step)
        check_same(run(module.get_submodule(name), given), run(original.get_submodule(name), given), name)
    check_same(run(module, inputs), run(original, inputs), "all")


class Averaging(nn.Module):
    """Divides sums by the numbers of their summands."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype) * 4.0
        return x + self.linear(x.cumsum(1) / counts[:, None])


class AllAveraging(nn.Module):
    """Blocks behind a convolution, the length of whose result is a quotient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.blocks = nn.Conv1d(1, 4, 4, stride=4), nn.ModuleList(Averaging() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x[:, None]).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return x


@both
def test_each_block_computes_a_table_of_a_length_that_is_computed(exporter: str) -> None:
    original = seeded(AllAveraging).eval()
    inputs, other = (torch.randn(2, 40),), (torch.randn(3, 64),)
    module = onnx2nn.load(EXPORTERS[exporter]("all averaging", original, inputs, other))
    for block, expected in zip(module.blocks, original.blocks, strict=True):
        x = torch.randn(2, 7, 4)
        check_same(run(block, (x,)), run(expected, (x,)), "block")
    for given in (inputs, other):
        check_same(run(module, given), run(original, given), "all")


class Refining(nn.Module):
    """Adds what a block makes of a value to it, several times in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + self.block(x)
        return x


class Refined(nn.Module):
    """Calls a module that repeats itself, several times.

    Args:
        times: the calls.
    """

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.refining, self.last = times, Refining(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.refining(x)
        return self.last(x)


@pytest.mark.parametrize("times", [1, 2])
def test_a_call_that_does_the_same_several_times(times: int) -> None:
    """The older exporter numbers the calls; each repetition was a call of the module."""
    original = seeded(lambda: Refined(times)).eval()
    x = torch.randn(5, 4)
    path = EXPORTERS["torchscript"](f"refined {times}", original, (x,))
    module, called = onnx2nn.load(path), list[str]()
    check_same(run(module.refining, (x,)), run(original.refining, (x,)), "one call")
    module.refining.register_forward_hook(lambda *_: called.append("refining"))
    module.refining.block.register_forward_hook(lambda *_: called.append("block"))
    check_same(run(module, (x,)), run(original, (x,)), "all")
    assert called == ["block", "block", "block", "refining"] * times


class Causal(nn.Module):
    """A block that makes its own mask and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time = x.size(1)
        mask = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
        turned = self.project(x) * torch.arange(time, device=x.device)[:, None].cos()
        return x + (turned @ x.transpose(1, 2)).masked_fill(mask, -1.0) @ x


class CausalBlocks(nn.Module):
    """Blocks behind a table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(9, 8), nn.ModuleList(Causal() for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](self.blocks[0](self.words(ids)))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_blocks_make_their_own_masks(exporter: str, tmp_path: Path) -> None:
    """Of the device of what they take. The newer exporter merges what they compute of sizes into the first block."""
    original = seeded(CausalBlocks)
    ids = torch.arange(10).reshape(2, 5) % 9
    module = onnx2nn.load(EXPORTERS[exporter]("masks_of_blocks", original, (ids,), (ids[:, :4],)))
    torch.testing.assert_close(module(ids), original(ids))
    assert type(module.blocks[0]) is type(module.blocks[1])
    held = [name for name, _ in module.named_buffers()]
    onnx2nn.to_python(module, tmp_path)
    source = runpy.run_path(str(tmp_path / "model.py"))["load_model"]()
    assert [name for name, _ in module.named_buffers()] == held
    torch.testing.assert_close(torch.jit.trace(module, (ids,))(ids), original(ids))
    x = torch.randn(3, 7, 8)
    for way in (module, source, copy.deepcopy(module)):
        for block, own in zip(original.blocks, way.blocks, strict=True):
            torch.testing.assert_close(own(x), block(x))


class OneMask(nn.Module):
    """Blocks that take a mask of the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(9, 8), nn.ModuleList(Masked() for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool, device=ids.device).triu(1)
        return self.blocks[1](self.blocks[0](self.words(ids), mask), mask)


class Masked(nn.Module):
    """A block that takes its mask."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + (self.project(x) @ x.transpose(1, 2)).masked_fill(mask, -1.0) @ x


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_blocks_take_a_mask_of_the_models(exporter: str) -> None:
    original = seeded(OneMask)
    ids = torch.arange(10).reshape(2, 5) % 9
    module = onnx2nn.load(EXPORTERS[exporter]("mask_of_a_model", original, (ids,), (ids[:, :4],)))
    torch.testing.assert_close(module(ids), original(ids))
    x, mask = torch.randn(3, 5, 8), torch.rand(5, 5) > 0.5
    for block, own in zip(original.blocks, module.blocks, strict=True):
        torch.testing.assert_close(own(x, mask), block(x, mask))


class Assigning(nn.Module):
    """A block that adds a bias to a part of its scores in place; an exporter computes the indices of all elements."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.bias = nn.Linear(8, 8), nn.Parameter(torch.zeros(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.project(x) @ x.transpose(1, 2)
        scores[:, 1:, 1:] = scores[:, 1:, 1:] + self.bias
        return x + scores.softmax(-1) @ x


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_blocks_compute_their_own_indices(exporter: str) -> None:
    """The older exporter computes equal ones once, in the first block."""
    original = seeded(lambda: nn.Sequential(nn.Linear(8, 8), *(Assigning() for _ in range(3))))
    inputs = (torch.randn(2, 4, 8),)
    module = onnx2nn.load(EXPORTERS[exporter]("indices_of_blocks", original, inputs, (torch.randn(3, 4, 8),)))
    torch.testing.assert_close(module(*inputs), original(*inputs))
    for name in ("1", "2", "3"):
        torch.testing.assert_close(module.get_submodule(name)(*inputs), original.get_submodule(name)(*inputs))


class RotaryBlock(nn.Module):
    """A block that makes its rotary tables, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.register_buffer("epsilon", torch.full([1], 0.25), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frequencies = 1.0 / (10.0 ** (torch.arange(0, 8, 2, device=x.device).float() / 8))
        angles = torch.outer(torch.arange(x.shape[1], device=x.device).float(), frequencies)
        turned = torch.cat((angles.cos(), angles.sin()), -1)
        return (1.0 + self.epsilon) * x + self.project(x * turned)


class RotaryBlocks(nn.Module):
    """Blocks that each make their own tables, which torch's newer exporter merges."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(9, 8), nn.Sequential(*(RotaryBlock() for _ in range(2)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.words(ids))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_blocks_make_their_own_tables(exporter: str) -> None:
    """The frequencies and the number are constants that the newer exporter folds, named by the calls before them."""
    original = seeded(RotaryBlocks)
    ids = torch.arange(10).reshape(2, 5) % 9
    path = EXPORTERS[exporter]("tables_of_blocks", original, (ids,), (ids[:, :4],))
    module = onnx2nn.load(path)
    torch.testing.assert_close(module(ids), original(ids))
    assert type(module.blocks[0]) is type(module.blocks[1])
    x = torch.randn(3, 7, 8)
    for block, own in zip(original.blocks, module.blocks, strict=True):
        torch.testing.assert_close(own(x), block(x))
    found = onnx2nn.verify_nodes(path, module, inputs={"ids": ids.numpy()})
    assert found.ok
    assert max(Counter(node.output for node in found.nodes).values()) == 1  # one of the copies is the file's node


def test_blocks_hold_their_own_tables() -> None:
    """Of a fixed length the newer exporter folds the tables, which it merges too, and notes a name of each block's."""
    original = seeded(RotaryBlocks)
    ids = torch.arange(10).reshape(2, 5) % 9
    module = onnx2nn.load(EXPORTERS["dynamo"]("folded_tables_of_blocks", original, (ids,)))
    torch.testing.assert_close(module(ids), original(ids))
    assert type(module.blocks[0]) is type(module.blocks[1])
    x = torch.randn(2, 5, 8)
    for block, own in zip(original.blocks, module.blocks, strict=True):
        torch.testing.assert_close(own(x), block(x))


class Waves(nn.Module):
    """A block that multiplies by a table of as many numbers as it gets, and by a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.rand(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor * torch.arange(float(x.shape[-1])).cos()


@pytest.mark.parametrize(("size", "tables"), [(3000, 2), (1 << 17, 1)])
def test_blocks_hold_small_tables(size: int, tables: int) -> None:
    """What is moved to another device is held once for each block there: a large table is an argument."""
    original = seeded(lambda: nn.Sequential(Waves(), Waves()))
    x = torch.randn(1, size)
    model = onnx.load(EXPORTERS["dynamo"](f"waves_of_{size}", original, (x,)))
    for node in model.graph.node:  # the exporter merges small constants itself
        node.input[:] = ["cos" if name == "cos_1" else name for name in node.input]
    module = onnx2nn.load(model)
    torch.testing.assert_close(module(x), original(x))
    assert len([*module.buffers()]) == tables


class Scale(nn.Module):
    """A block that holds nothing and multiplies by a table."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(8.0).cos().expand(x.shape[0], 5, 8) * x


class Scaled(nn.Module):
    """A list of blocks that the file knows by a constant alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scales = nn.Embedding(9, 8), nn.ModuleList([Scale(), Scale()])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.scales[1](self.scales[0](self.words(ids)))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_container_whose_constant_is_held_elsewhere(exporter: str) -> None:
    original = seeded(Scaled)
    ids = torch.arange(10).reshape(2, 5) % 9
    module = onnx2nn.load(EXPORTERS[exporter]("held_elsewhere", original, (ids,), (ids[:1],)))
    torch.testing.assert_close(module(ids), original(ids))


class Anchors(nn.Module):
    """Looks up a table that it computes; the file has no weight of such a layer, and the scope is that of the block."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(4, 6), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(6, dtype=torch.float32).reshape(6, 1) * torch.tensor([1.0, 2.0, 3.0, 4.0])
        return self.head(table[self.score(x).argmax(-1)] + x)


@both
def test_a_table_that_a_block_computes_stands_in_it(exporter: str) -> None:
    original = seeded(lambda: nn.Sequential(OrderedDict(model=Anchors()))).eval()
    x = torch.randn(3, 4)
    module = onnx2nn.load(EXPORTERS[exporter]("anchors", original, (x,)))
    assert [name for name, _ in module.named_children()] == ["model"]
    assert module.meta["onnx2nn"]["tree"]["flat"] == {}
    check_same(run(module.model, (x,)), run(original, (x,)), "the block")
    module.load_state_dict(original.state_dict())


def test_an_if_without_a_scope_stands_where_its_values_are_used() -> None:
    """As in detectors: torch's older exporter gives no scope to what it makes of functions with several branches."""
    module = onnx2nn.load(
        onnx.parser.parse_model("""
            <ir_version: 8, opset_import: ["" : 17]>
            g (float[n, 3] x) => (float[n, 2] y) <
                float[3, 4] "net.first.weight" = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                float[4, 2] "net.last.weight" = {1, 0, 2, 1, 0, 1, 1, 1}, float half = {0.5}
            > {
                ["/net/first/MatMul"] a = MatMul (x, "net.first.weight")
                ["/net/ReduceMax"] m = ReduceMax <keepdims = 0> (a)
                ["/net/Greater"] c = Greater (m, half)
                ["If_3"] b = If (c) <
                    then_branch = t () => (float[n, 4] d) { d = Neg (a) },
                    else_branch = e () => (float[n, 4] f) { f = Exp (a) }
                >
                ["/net/last/MatMul"] y = MatMul (b, "net.last.weight")
            }""")
    )
    assert [name for name, _ in module.named_children()] == ["net"]
    assert [name for name, _ in module.net.named_children()] == ["first", "If_3", "last"]
    assert module.meta["onnx2nn"]["tree"]["flat"] == {}
    assert module.state_dict().keys() >= {"net.first.weight", "net.last.weight"}


def test_a_size_that_data_decide_is_checked_in_front_of_the_block_that_needs_it() -> None:
    """The block begins before the number is known, and is called behind it."""
    module = onnx2nn.load(
        onnx.parser.parse_model("""
            <ir_version: 8, opset_import: ["" : 17]>
            g (float[n, 4] x) => (float[n, 4] y) <
                float[4, 4] "net.linear.weight" = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
                int64[2] shape = {-1, 6}
            > {
                ["/net/linear/MatMul"] a = MatMul (x, "net.linear.weight")
                ["/NonZero"] p = NonZero (x)
                ["/net/Reshape"] q = Reshape (p, shape)
                ["/net/Cast"] f = Cast <to = 1> (q)
                ["/net/ReduceSum"] s = ReduceSum <keepdims = 0> (f)
                ["/net/Add"] y = Add (a, s)
            }""")
    )
    calls = [str(node.target) for node in module.graph.nodes if node.target in ASSERTIONS or node.op == "call_module"]
    assert len(calls) == 2 and calls[1] == "net", calls
    with pytest.raises(ValueError, match=r"u0 % 3 == 0 is needed by node '/net/Reshape'"):
        module(torch.eye(4))


class Rectified(nn.Module):
    """A function, then a module, without any weights."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.SELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(F.relu(x))


class Plain(nn.Module):
    """A model of layers and one module without weights that calls another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(8, 8), Rectified()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(x))


@both
def test_a_module_without_weights_that_calls_one(exporter: str) -> None:
    """A function in the scope of a module that calls others is not that module."""
    original = seeded(Plain)
    module = onnx2nn.load(EXPORTERS[exporter]("rectified", original, _inputs(2), _inputs(3, 7)))
    assert isinstance(module.inner.act, nn.SELU)
    x = torch.randn(3, 8)
    check_same(run(module.inner, (x,)), (original.inner(x),), "a module that calls another")


class Skipped(nn.Sequential):
    """A chain of modules with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class Pooled(nn.Sequential):
    """A chain whose result has the size of its input, as in DeepLab."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-2:]
        for module in self:
            x = module(x)
        return F.interpolate(x, size=size, mode="bilinear")


class Chains(nn.Module):
    """Chains with forwards of their own, also in a list and in a plain chain."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Skipped(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 1))
        self.more = nn.ModuleList([Skipped(nn.Conv2d(4, 4, 1)), Skipped(nn.Conv2d(4, 4, 1), nn.Tanh())])
        self.plain = nn.Sequential(Skipped(nn.Conv2d(4, 4, 1)), nn.ReLU())
        self.pooled = Pooled(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        for module in self.more:
            x = module(x)
        return self.pooled(self.plain(x))


@both
def test_a_chain_with_a_forward_of_its_own_is_a_block(exporter: str) -> None:
    original = seeded(Chains).eval()
    inputs = [(torch.randn(*shape),) for shape in ((2, 4, 5, 6), (3, 4, 8, 9))]
    module = onnx2nn.load(EXPORTERS[exporter]("chains", original, *inputs))
    x = torch.randn(3, 4, 7, 5)
    check_same(run(module, (x,)), (original(x),), "the model")
    for name in ("one", "more.0", "more.1", "plain", "plain.0", "pooled"):
        check_same(run(module.get_submodule(name), (x,)), (original.get_submodule(name)(x),), name)
    tree = module.meta["onnx2nn"]["tree"]
    assert tree["inside"] == tree["calls"]
    assert isinstance(module.one[-1], nn.Conv2d) and [type(layer) for layer in module.one] == [*map(type, original.one)]
    assert len(module.one) == 3 and type(module.plain) is nn.Sequential
    with pytest.raises(IndexError, match="no module 3, only 0, 1, 2"):
        module.one[3]
    assert "self[2](" in module.one.code
    if exporter == "dynamo":
        assert type(module.one).__name__ == "Skipped" and type(module.pooled).__name__ == "Pooled"


class Keyed(nn.Module):
    """A dictionary of modules, as GPT's in many repositories; its norms have no bias."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.ModuleList(Skipped(nn.LayerNorm(8, bias=False), nn.Linear(8, 8, bias=False)) for _ in range(2))
        self.transformer = nn.ModuleDict({"start": nn.Linear(8, 8), "layers": layers, "norm": nn.LayerNorm(8)})
        self.head = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.transformer.start(x) + x
        for layer in self.transformer.layers:
            x = layer(x)
        return self.head(self.transformer.norm(x)) * x


@both
def test_a_dictionary_of_modules_is_one(exporter: str, tmp_path: Path) -> None:
    original = seeded(Keyed).eval()
    module = onnx2nn.load(EXPORTERS[exporter]("keyed", original, _inputs(2), _inputs(3, 7)))
    assert type(module.transformer) is nn.ModuleDict
    assert module.transformer["norm"] is module.transformer.norm
    module.load_state_dict(original.state_dict())
    assert module.meta["onnx2nn"]["tree"]["flat"].keys() <= {"transformer", "transformer.layers"}
    x = torch.randn(3, 4, 8)
    check_same(run(module, (x,)), (original(x),), "the model")
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    again = onnx2nn.load(tmp_path / "again.onnx")
    assert type(again.transformer) is nn.ModuleDict
    assert again.state_dict().keys() == original.state_dict().keys()
    onnx2nn.to_python(module, tmp_path / "source")
    assert "ModuleDict(" in (tmp_path / "source" / "model.py").read_text()


class Shifted(nn.Module):
    """A normalisation with a weight more than torch's has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.rand(8) + 0.5), nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (8,), self.weight) + self.shift


class ShiftedLayers(nn.Module):
    """Layers after such normalisations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Shifted(), nn.Linear(8, 8), Shifted())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Heads(nn.Module):
    """Calls modules of a dictionary one after the other, on values of its own."""

    def __init__(self) -> None:
        super().__init__()
        score = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))
        self.body, self.heads = nn.Linear(4, 4), nn.ModuleDict({"mask": nn.Linear(4, 2), "score": score})

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.body(x))
        return self.heads["mask"](x), self.heads["score"](x * 2)


def test_modules_of_a_dictionary_are_called_each(tmp_path: Path) -> None:
    """A block around them would give results of several modules, which nothing of the author's does."""
    original, inputs = seeded(Heads), (torch.randn(2, 4),)
    module = onnx2nn.load(EXPORTERS["dynamo"]("blocks_heads", original, inputs))
    assert type(module.heads) is nn.ModuleDict
    check_same([module.heads["mask"](inputs[0])], [original.heads["mask"](inputs[0])], "a module of the dictionary")
    check_same(run(module, inputs), run(original, inputs), "the model")
    onnx2nn.to_python(module, tmp_path / "source")
    assert "ModuleDict(" in (tmp_path / "source" / "model.py").read_text()


@both
def test_a_module_with_a_weight_more_than_the_layer_is_a_block(exporter: str) -> None:
    original = seeded(ShiftedLayers)
    module = onnx2nn.load(EXPORTERS[exporter]("shifted", original, _inputs(2), _inputs(3, 7)))
    assert set(module.state_dict()) == set(original.state_dict())
    x = torch.randn(3, 4, 8)
    check_same(run(module.layers[0], (x,)), (original.layers[0](x),), "a block with both weights")


class ChannelNorm(nn.LayerNorm):
    """Normalises the channels of images, as ConvNeXt does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Moved(nn.Embedding):
    """Embeds positions that are moved, as OPT does."""

    def forward(self, at: torch.Tensor) -> torch.Tensor:
        return super().forward(at + 2)


class Positive(nn.Linear):
    """A linear layer with its activation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square()


class Mirrored(nn.Module):
    """Layers of torch's around which their modules compute something, and one that pads as torch's does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect")
        self.norms = nn.Sequential(ChannelNorm(8), nn.ReLU(), ChannelNorm(8))
        self.places, self.last = Moved(9, 8), Positive(8, 4)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = self.norms(self.conv(x))
        return self.last(x.mean((2, 3)) + self.places(at))


@both
def test_a_module_that_computes_more_than_the_layer_is_a_block(exporter: str) -> None:
    """Hooks of a layer in its place, and those who call it, got other values than of the author's module."""
    original = seeded(Mirrored)
    inputs = [(torch.randn(size, 3, 8, 8), torch.arange(size)) for size in (2, 3)]
    module = onnx2nn.load(EXPORTERS[exporter]("mirrored", original, *inputs))
    original.load_state_dict(module.state_dict(), strict=True)
    assert isinstance(module.conv, nn.Conv2d)
    seen: dict[str, list[torch.Tensor]] = {"import": [], "original": []}
    for model, name in ((module, "import"), (original, "original")):
        for path in ("norms.0", "norms.2", "places", "last"):
            model.get_submodule(path).register_forward_hook(lambda _m, _i, found, to=seen[name]: to.append(found))
    for given in inputs:
        check_same(run(module, given), run(original, given), "the import")
    check_same(seen["import"], seen["original"], "what hooks see")
    for path, given in (("norms.0", torch.randn(1, 8, 3, 4)), ("places", torch.arange(3)), ("last", torch.randn(5, 8))):
        block, theirs = module.get_submodule(path), original.get_submodule(path)
        check_same(run(block, (given,)), run(theirs, (given,)), path)


class Flat(nn.Module):
    """A model of layers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.first(x)))


@pytest.mark.parametrize("kind", [Model, Plain, Flat])
def test_the_class_of_the_model_has_its_name(kind: type[nn.Module]) -> None:
    """The newer exporter notes it, also where no module but the model calls others."""
    path = EXPORTERS["dynamo"](f"class-{kind.__name__}", seeded(kind), _inputs(2), _inputs(3, 7))
    assert type(onnx2nn.load(path)).__name__ == kind.__name__


class ChannelAttention(nn.Module):
    """Multiplies channels by each other over all pixels; the sizes of the image come back at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs, self.out = nn.Conv2d(8, 16, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, _, h, w = x.shape
        one, other = self.pairs(x).reshape(n, 16, h * w).chunk(2, 1)
        return x + self.out((torch.softmax(one @ other.transpose(1, 2), -1) @ one).reshape(n, 8, h, w))


@both
def test_a_block_reads_the_sizes_of_what_it_takes(exporter: str) -> None:
    """Behind a stride, sizes are computed of the image's: a block reads them from its own tensor."""
    original = seeded(lambda: nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.Sequential(*(ChannelAttention() for _ in "ab"))))
    inputs, others = (torch.randn(2, 3, 8, 12),), (torch.randn(3, 3, 9, 7),)
    module = onnx2nn.load(EXPORTERS[exporter]("channel_attention", original.eval(), inputs, others))
    blocks = module.get_submodule("1")
    assert type(blocks) is nn.Sequential
    assert type(blocks[0]) is type(blocks[1])
    x = (torch.randn(1, 8, 5, 3),)
    check_same(run(blocks, x), run(original[1], x), "the blocks")
    for given in (inputs, others):
        check_same(run(module, given), run(original, given), "all")


class PixelPositions(nn.Module):
    """Makes a value of each pixel of an image of these sizes, and takes no tensor."""

    def forward(self, height: int, width: int, device: torch.device) -> torch.Tensor:
        rows, columns = torch.arange(height, device=device).float(), torch.arange(width, device=device).float()
        return (torch.sin(rows)[:, None] + torch.cos(columns)).reshape(1, -1, 1)


class Placed(nn.Module):
    """Adds the positions of pixels, which a module in it makes, and applies a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.out = PixelPositions(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, channels, height, width = x.shape
        x = self.out(x.flatten(2).transpose(1, 2) + self.positions(height, width, x.device))
        return x.transpose(1, 2).reshape(n, channels, height, width)


def test_a_block_reads_the_device_of_what_it_takes() -> None:
    """Also where a module in it makes tensors of sizes alone, which takes the device from that tensor."""
    original = seeded(lambda: nn.Sequential(nn.Conv2d(3, 8, 2, 2), Placed()))
    inputs, others = (torch.randn(2, 3, 8, 12),), (torch.randn(3, 3, 9, 7),)
    module = onnx2nn.load(EXPORTERS["torchscript"]("placed", original.eval(), inputs, others))
    x = (torch.randn(1, 8, 5, 3),)
    check_same(run(module.get_submodule("1"), x), run(original[1], x), "the block")
    for given in (inputs, others):
        check_same(run(module, given), run(original, given), "all")


@pytest.mark.parametrize(
    ("half", "length"),
    [("Div(less, two)", "Add(even, two)"), ("Div(most, two)", "Add(even, two)"), ("Div(most, two)", "Mul(more, two)")],
)
def test_a_block_computes_sizes_of_what_it_takes(half: str, length: str) -> None:
    """The newer exporter computes `2 * x.size(2)` of the image's height: no tensor there has it as a dimension."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[n, 1, h] x) => (float[n, 1, m] y) <
            float[2, 1, 1] "down.weight" = {{1, 2}}, float[2, 2, 1] "up.first.weight" = {{1, 2, 3, 4}},
            float[1, 1, 1] "up.last.weight" = {{3}},
            int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}
        > {{
            n = Shape<end = 1>(x)
            h = Shape<start = 2>(x)
            less = Sub(h, one)
            most = Max(less, zero)
            half = {half}
            even = Mul(half, two)
            more = Add(half, one)
            length = {length}
            a = Conv<strides = [2]>(x, "down.weight")
            ["/up/first/Conv"] b = Conv(a, "up.first.weight")
            ["/up/Transpose"] c = Transpose<perm = [0, 2, 1]>(b)
            ["/up/Concat"] shape = Concat<axis = 0>(n, one, length)
            ["/up/Reshape"] d = Reshape(c, shape)
            ["/up/last/Conv"] y = Conv(d, "up.last.weight")
        }}
    """)
    module, x = onnx2nn.load(model), torch.randn(3, 1, 9)
    check_same(run(module, (x,)), run_onnxruntime(model.SerializeToString(), (x,)), "all")
    check_same(run(module.up, (module.down(x),)), run(module, (x,)), "the block")


class Resized(nn.Module):
    """Normalises, and scales by what a convolution makes of a resized map (SPADE)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scale = nn.InstanceNorm2d(4), nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * self.scale(F.interpolate(seen, size=(6, 6)))


class Rearranged(nn.Module):
    """Modules that resize, or give another dimension, one tensor each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(3, 4, 2, 2), Resized(), Resized()
        self.most, self.mean = nn.AdaptiveMaxPool1d(1), nn.AdaptiveAvgPool1d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        rows = (self.first(y, x) + self.second(y + 1, x)).flatten(2)
        return torch.cat((self.most(rows), self.mean(rows)), 1)


def test_modules_rearrange_a_tensor_that_others_rearrange_too() -> None:
    """The newer exporter writes equal calls once, in the first module: others took its result as an argument."""
    original, x = seeded(Rearranged), torch.randn(2, 3, 12, 12)
    module = onnx2nn.load(EXPORTERS["dynamo"]("rearranged", original, (x,), (x.repeat(2, 1, 1, 1),)))
    given = {name: (original.conv(x), x) for name in ("first", "second")}
    given |= {"second.scale": (x,), "most": (x[:, 0],), "mean": (x[:, 0],)}
    for name, inputs in given.items():
        check_same(run(module.get_submodule(name), inputs), run(original.get_submodule(name), inputs), name)
    check_same(run(module, (x,)), run(original, (x,)), "all")


class Positioned(nn.Module):
    """Adds positions to its queries and to its keys, as layers of SAM's decoder and of DETR's do."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, places: torch.Tensor, seen: torch.Tensor, sides: torch.Tensor) -> Any:
        weights = self.query(x + places) @ self.key(seen + sides).mT
        x = torch.tanh(x + weights @ seen)
        return x, self.out(x + places)


class Decoder(nn.Module):
    """Layers that add the same positions to the same values: exporters write each sum once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Positioned() for _ in range(3))
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        places, sides, total = x.sin(), seen.sin(), 0
        for layer in self.layers:
            x, y = layer(x, places, seen, sides)
            total = total + y
        return self.last(x + places) * total + x


class Decoding(nn.Module):
    """Calls a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder()

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.decoder(x.cos(), seen.cos()))


def test_layers_add_positions_themselves() -> None:
    """The newer exporter notes which sums it merged; none is a result of one layer and an argument of the next."""
    original = seeded(Decoding).eval()
    inputs = (torch.randn(2, 3, 4), torch.randn(2, 5, 4))
    module = onnx2nn.load(EXPORTERS["dynamo"]("positioned", original, inputs, tuple(x.repeat(2, 1, 1) for x in inputs)))
    check_same(run(module, inputs), run(original, inputs), "all")
    kinds = {type(module.get_submodule(f"decoder.layers.{number}")) for number in range(3)}
    assert len(kinds) == 1
    assert all(len(run(layer, tuple(torch.randn(2, 3, 4) for _ in range(4)))) == 2 for layer in module.decoder.layers)


def test_a_block_whose_parts_take_a_tensor_reads_its_sizes() -> None:
    """Only a part of a block may use what the block takes; its own calls need sizes of the part's result."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[n, 1, h] x) => (float[n, 2, m] y) <
            float[2, 1, 1] "down.weight" = {1, 2}, float[2, 2, 1] "up.first.conv.weight" = {1, 2, 3, 4},
            int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}
        > {
            n = Shape<end = 1>(x)
            h = Shape<start = 2>(x)
            less = Sub(h, one)
            most = Max(less, zero)
            half = Div(most, two)
            length = Add(half, one)
            a = Conv<strides = [2]>(x, "down.weight")
            ["/up/first/conv/Conv"] i = Conv(a, "up.first.conv.weight")
            ["/up/first/Relu"] b = Relu(i)
            ["/up/Mul"] all = Mul(length, two)
            ["/up/Concat"] flat = Concat<axis = 0>(n, all)
            ["/up/Reshape"] c = Reshape(b, flat)
            ["/up/Concat_1"] shape = Concat<axis = 0>(n, two, length)
            ["/up/Reshape_1"] d = Reshape(c, shape)
            ["/up/Tanh"] y = Tanh(d)
        }
    """)
    module, x = onnx2nn.load(model), torch.randn(3, 1, 9)
    check_same(run(module, (x,)), run_onnxruntime(model.SerializeToString(), (x,)), "all")
    check_same(run(module.up, (module.down(x),)), run(module, (x,)), "the block")


class Induced(nn.Module):
    """Compares what it gets with points of its own, which pass a layer first: exporters fold that."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.project, self.out = nn.Parameter(torch.zeros(5, 4)), nn.Linear(4, 4), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x @ self.project(self.points).T)


def test_what_is_computed_from_weights_stands_in_their_module() -> None:
    original = seeded(lambda: nn.Sequential(Induced(), Induced())).eval()
    x = (torch.randn(2, 3, 4),)
    module = onnx2nn.load(EXPORTERS["dynamo"]("induced", original, x))
    assert all(key.startswith(("0.", "1.")) for key in module.state_dict()), [*module.state_dict()]
    assert module.meta["onnx2nn"]["tree"]["flat"] == {}
    check_same(run(module.get_submodule("1"), x), run(original[1], x), "the block")


class Biased(nn.Module):
    """Attends with a bias that layers compute of relative positions, as Swin 2, and to points of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.linspace(-1, 1, 14).reshape(1, 7, 2), persistent=False)
        steps = torch.arange(4)
        self.register_buffer("index", (steps[:, None] - steps + 3).reshape(-1), persistent=False)
        self.bias = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
        self.points, self.norm = nn.Parameter(torch.rand(4, 6)), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.bias(self.offsets).reshape(-1, 1)[self.index].reshape(4, 4)
        return torch.softmax(x @ x.transpose(1, 2) + torch.sigmoid(bias), -1) @ x + self.norm(self.points)


def test_layers_of_constants_are_layers() -> None:
    """Each block holds the tables of its biases; a layer holds its weights, and not what it is given.

    The newer exporter folds such layers.
    """
    original = seeded(lambda: nn.Sequential(Biased(), Biased())).eval()
    x = torch.randn(2, 4, 6)
    module = onnx2nn.load(EXPORTERS["torchscript"]("layers_of_constants", original, (x,)))
    module.load_state_dict(original.state_dict())
    torch.testing.assert_close(module(x), original(x))
    for name in ("0", "1"):
        block, own = original.get_submodule(name), module.get_submodule(name)
        torch.testing.assert_close(own(x), block(x))
        torch.testing.assert_close(own.bias(block.offsets), block.bias(block.offsets))
        kinds = [{path: type(inner) for path, inner in one.named_modules() if path} for one in (own, block)]
        assert kinds[0] == kinds[1]
        assert not [path for path, _ in own.named_buffers() if "." in path]


class Wave(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(3 * x)


class WaveLayer(nn.Module):
    """A layer that holds its own weights, and a module that it calls behind."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(6, inputs)), nn.Parameter(torch.zeros(6))
        self.activation = Wave()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(F.linear(x, self.weight, self.bias))


@both
def test_a_layer_that_calls_another_module_is_a_block(exporter: str) -> None:
    """As a layer of torch it would give what it has before that module, and that module would have no place."""
    original = seeded(lambda: nn.Sequential(WaveLayer(4), WaveLayer(6), WaveLayer(6))).eval()
    x = (torch.randn(2, 4),)
    module = onnx2nn.load(EXPORTERS[exporter]("wave_layers", original, x))
    module.load_state_dict(original.state_dict())
    for path in ("0", "0.activation"):
        check_same(run(module.get_submodule(path), x), run(original.get_submodule(path), x), path)
    assert type(module.get_submodule("1")) is type(module.get_submodule("2"))
    check_same(run(module, x), run(original, x), "all")


class Cell(nn.Module):
    """A recurrence with two states."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(7, 12)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept, new, out = self.gates(torch.cat([x, h], 1)).chunk(3, 1)
        c = kept.sigmoid() * c + new.tanh()
        return out.sigmoid() * c.tanh(), c


class Unrolled(nn.Module):
    """Calls a cell for each step; at first both of its states are one value, at last nothing reads one of them."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.cell, self.start, self.last = Cell(), nn.Linear(3, 4), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = self.start(x[:, 0])
        for step in range(3):
            h, c = self.cell(x[:, step], h, c)
        return torch.cat([h, c], 1) if not self.last else self.cell(x[:, 0], h, c)[0]


@both
@pytest.mark.parametrize("last", [False, True])
def test_a_call_with_one_value_for_two_arguments(exporter: str, last: bool) -> None:
    original, x = seeded(lambda: Unrolled(last)).eval(), (torch.randn(2, 3, 3),)
    path = EXPORTERS[exporter](f"unrolled_{last}", original, x)
    module = onnx2nn.load(path)
    calls: list[int] = []
    with module.cell.register_forward_hook(lambda _, given, __: calls.append(len(given))):
        check_same(run(module, x), run(original, x), "all")
    assert calls == [3] * (4 if last else 3)
    assert "entered" not in module.meta["onnx2nn"]["tree"]
    assert onnx2nn.verify_nodes(path, module).ok
    check_same(run(pickle.loads(pickle.dumps(module)), x), run(original, x), "read back")


class Attending(nn.Module):
    """A layer of attention behind a module of layers, whose result is the first tensor with the sizes of the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.MultiheadAttention(4, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * 0.5 + x
        return x + self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]


class Padded(nn.Module):
    """Layers of attention over sequences whose lengths are given, as in torchaudio's Conformer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attending(), Attending()])

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        longest = int(lengths.max().item())
        mask = torch.arange(longest, device=x.device).expand(len(lengths), longest) >= lengths[:, None]
        x = x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x, mask)
        return x.transpose(0, 1)


def test_a_size_that_data_decide_is_checked_before_the_block_that_needs_it() -> None:
    """The block computed the condition of sizes in it, and the check stood behind it: torch's assertion came first."""
    original, inputs = seeded(Padded), (torch.randn(2, 5, 4), torch.tensor([5, 3]))
    path = EXPORTERS["dynamo"]("blocks_padded", original, inputs, (torch.randn(3, 7, 4), torch.tensor([7, 3, 2])))
    module = onnx2nn.load(path)
    check_same(run(module, inputs), run(original, inputs), "the imported module")
    assert isinstance(module.layers[0].attention, nn.MultiheadAttention)
    with pytest.raises(
        ValueError, match=r"^The sizes that data decide do not fit.*is needed by node .*MultiheadAttention"
    ):
        module(inputs[0][:, :3], inputs[1])


def test_a_module_ends_with_its_own_reshape() -> None:
    """The one of its caller replaced it: the module gave another shape, as did x-transformers's table of angles."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[n, 2] x) => (float[1, 1, m, 4] y)
        <int64[3] inside = {1, -1, 4}, int64[4] outside = {1, 1, -1, 4}>
        {
            ["/angles/Sin"] sines = Sin(x)
            ["/angles/Concat"] both = Concat<axis = 1>(sines, x)
            ["/angles/Reshape"] angles = Reshape(both, inside)
            ["/Reshape"] table = Reshape(angles, outside)
            ["/Cos"] y = Cos(table)
        }
    """)
    module, x = onnx2nn.load(onnx.shape_inference.infer_shapes(model)), torch.randn(3, 2)
    angles = torch.cat([x.sin(), x], 1)[None]
    check_same((module.angles(x), module(x)), (angles, angles[None].cos()), "the module and its caller")


class Attention(nn.Module):
    """Attention that returns its result and, for those who look at it, how much each step attends to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares = torch.softmax(self.query(x) @ x.transpose(1, 2), -1)
        return shares @ self.value(x), shares


class Attentions(nn.Module):
    """Layers of attention; the model returns its result and what each layer attends to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList([Attention(), Attention()]), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen = []
        for layer in self.layers:
            more, shares = layer(x)
            x = x + more
            seen.append(shares)
        return self.head(x), *seen


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_what_only_the_model_returns_is_the_last_result_of_a_block(exporter: str) -> None:
    """It came first where it is computed first, so that hooks which read the first of several results read another."""
    original, inputs = seeded(Attentions), (torch.randn(2, 5, 8),)
    module = onnx2nn.load(EXPORTERS[exporter]("blocks_seen", original, inputs, (torch.randn(3, 7, 8),)))
    check_same(run(module, inputs), run(original, inputs), "the import")
    for layer, theirs in zip(module.layers, original.layers, strict=True):
        check_same(run(layer, inputs), run(theirs, inputs), "a layer")


class OfOneBias(nn.Module):
    """Attention with a bias that the first layer computes for all, as T5 has it; returned beside the result."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.norm, self.query, self.value = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.table = nn.Embedding(64, 1) if first else None

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(x)
        if self.table is not None:
            steps = torch.arange(x.size(1), device=x.device)
            bias = self.table((steps[:, None] - steps).abs())[..., 0]
        assert bias is not None
        return x + torch.softmax(self.query(y) @ y.transpose(1, 2) + bias, -1) @ self.value(y), bias


class OneBias(nn.Module):
    """Three layers, of which the first computes a bias for all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(map(OfOneBias, (True, False, False))), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None
        for layer in self.layers:
            x, bias = layer(x, bias)
        return self.head(x)


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_what_all_layers_share_is_the_last_result_of_the_first(exporter: str) -> None:
    """It came first, as it is computed first."""
    original, inputs = seeded(OneBias), (torch.randn(2, 5, 8),)
    module = onnx2nn.load(EXPORTERS[exporter]("blocks_bias", original, inputs, (torch.randn(3, 7, 8),)))
    check_same(run(module, inputs), run(original, inputs), "the import")
    check_same(run(module.layers[0], inputs), original.layers[0](*inputs, None), "the first layer")


class Patches(nn.Module):
    """Patches of an image, one after the other, and how many there are in its height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 2, 2), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int]]:
        x = self.conv(x)
        return self.norm(x.flatten(2).transpose(1, 2)), (x.size(2), x.size(3))


class Mixed(nn.Module):
    """Mixes patches as an image, and the values of each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        image = self.linear(x).transpose(1, 2).reshape(x.size(0), 4, *size)
        return x + self.conv(image).flatten(2).transpose(1, 2)


class OfPatches(nn.Module):
    """Blocks of patches that are told the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.blocks = Patches(), nn.ModuleList([Mixed(), Mixed()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, size = self.patches(x)
        for block in self.blocks:
            x = block(x, size)
        return x


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_what_others_read_sizes_of_is_the_last_result_of_a_block(exporter: str) -> None:
    """It came first where it is computed first, as the map of patches whose height and width the author returns."""
    original, inputs = seeded(OfPatches), (torch.randn(2, 3, 8, 12),)
    module = onnx2nn.load(EXPORTERS[exporter]("blocks_patches", original, inputs, (torch.randn(3, 3, 12, 14),)))
    check_same(run(module, inputs), run(original, inputs), "the import")
    found = run(module.patches, inputs)
    check_same(found[0] if isinstance(found, tuple) else found, original.patches(*inputs)[0], "the patches")


class WithPartOfTable(nn.Module):
    """Adds a part of a table of positions, which exporters fold, to what a layer makes of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.positions = nn.Linear(8, 4), nn.Parameter(torch.zeros(1, 6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) + self.positions[:, 1:]


class Reaching(nn.Module):
    """Calls a module of a module that it does not call, as CLIPSeg calls CLIP's encoder of images."""

    def __init__(self) -> None:
        super().__init__()
        self.clip, self.head = (
            nn.ModuleDict({"vision": nn.Sequential(OrderedDict(embeddings=WithPartOfTable()))}),
            nn.Linear(4, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.clip["vision"](x))


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_a_module_with_a_folded_table_in_one_that_is_not_called(exporter: str) -> None:
    """By the older exporter its block was the layer alone, as the table has the path of the caller."""
    original, inputs = seeded(Reaching), (torch.randn(2, 5, 8),)
    module = onnx2nn.load(EXPORTERS[exporter]("blocks_reaching", original, inputs, (torch.randn(3, 5, 8),)))
    seen = dict[str, torch.Tensor]()
    for name, network in (("ours", module), ("theirs", original)):
        part = network.get_submodule("clip.vision.embeddings")
        part.register_forward_hook(lambda _, given, result, name=name: seen.update({name: result}))
        run(network, inputs)
    check_same(seen["ours"], seen["theirs"], "the embeddings")


class Scaling(nn.Module):
    """A step of a flow: scales each channel, and returns the logarithm of the determinant with the result."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.logs = nn.Conv2d(4, 4, 1), nn.Parameter(torch.zeros(1, 4, 1, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mix(x * torch.exp(self.logs)), torch.sum(self.logs) * (x.shape[2] * x.shape[3])


class Flow(nn.Module):
    """Steps whose determinants are sums."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList([Scaling(), Scaling()])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.zeros(x.shape[0]) + 0.5 * math.log(2) * x.shape[2]
        for step in self.steps:
            x, determinant = step(x)
            total = total + determinant
        return x, total


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_floats_of_sizes_in_blocks(exporter: str) -> None:
    """A product of a size and a float is no size; the search for equal sizes raised a TypeError."""
    original, inputs = seeded(Flow), (torch.randn(2, 4, 6, 5),)
    module = onnx2nn.load(EXPORTERS[exporter]("blocks_flow", original, inputs, (torch.randn(3, 4, 8, 7),)))
    for given in (inputs, (torch.randn(3, 4, 9, 4),)):
        check_same(run(module, given), run(original, given), "the import")


class PartOutside(nn.Module):
    """Calls the activation of a Sequential beside the Sequential, on one value."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.linear, self.parts = nn.Linear(4, 4), nn.Sequential(act, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.parts[0](x)) * self.parts(x)


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
@pytest.mark.parametrize("act", [nn.SiLU, nn.ReLU])
def test_a_part_of_a_sequential_that_is_called_beside_it(act: type[nn.Module], exporter: str) -> None:
    """The exporter writes one activation, that of the call outside: an Identity took its place in the Sequential."""
    original, inputs = seeded(lambda: PartOutside(act())), (torch.randn(2, 4),)
    path = EXPORTERS[exporter](f"blocks_part_outside_{act.__name__}", original, inputs, (torch.randn(3, 4),))
    module = onnx2nn.load(path)
    check_same(run(module, inputs), run(original, inputs), "the import")
    assert isinstance(module.parts[0], act)


class InPlace(nn.Module):
    """Adds what a Sequential makes of an input to the input, which the Sequential's activation has changed by then."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(act, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
@pytest.mark.parametrize(
    "act", [nn.ReLU(True), nn.LeakyReLU(0.2, True), nn.SiLU(True)], ids=lambda act: type(act).__name__
)
def test_an_activation_in_place_at_the_begin_of_a_sequential(act: nn.Module, exporter: str) -> None:
    """The block returned the activation too, as its caller uses it."""
    original, inputs = seeded(lambda: nn.Sequential(nn.Linear(3, 4), InPlace(act), InPlace(act))), (torch.randn(2, 3),)
    name = f"blocks_in_place_{type(act).__name__}"
    module = onnx2nn.load(EXPORTERS[exporter](name, original, inputs, (torch.randn(3, 3),)))
    check_same(run(module, inputs), run(original, inputs), "the import")
    assert set(module.state_dict()) == set(original.state_dict())
    for path in ("1.body", "2.body"):
        given = torch.randn(2, 4)
        assert isinstance(module.get_submodule(path), nn.Sequential)
        check_same(run(module.get_submodule(path), (given,)), run(original.get_submodule(path), (given.clone(),)), path)


class Candidates(nn.Module):
    """Operations of one value, of which each begins with an activation, as in cells of NASNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.ops = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, size, padding=size // 2, bias=False), nn.BatchNorm2d(4))
            for size in (3, 5)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.ops[0](x) + self.ops[1](x)


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_each_of_several_sequentials_begins_with_an_activation(exporter: str) -> None:
    """The newer exporter folds the normalisation, whose note is of the normalisation alone: the second had none."""
    original, inputs = seeded(Candidates), (torch.randn(2, 3, 6, 6),)
    module = onnx2nn.load(EXPORTERS[exporter]("blocks_candidates", original, inputs, (torch.randn(3, 3, 6, 6),)))
    check_same(run(module, inputs), run(original, inputs), "the import")
    for path in ("ops.0", "ops.1"):
        given = torch.randn(2, 4, 5, 5)
        check_same(run(module.get_submodule(path), (given,)), run(original.get_submodule(path), (given,)), path)


class Crossed(nn.Module):
    """An attention whose second argument gives the first operand of its product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other, self.query, self.key = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = self.norm(x), self.other(y)
        return torch.softmax(self.query(y) @ self.key(x).transpose(1, 2), -1) @ x


class Crossing(nn.Module):
    """Layers that take two tensors of one shape, neither of which is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.layers = nn.ModuleList([Crossed(), Crossed()])
        with torch.no_grad():  # equal weights of all layers are one in the newer exporter's file
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, y = self.first(x), self.second(x)
        for layer in self.layers:
            x = layer(x, y)
        return x


@both
def test_arguments_are_in_the_order_in_which_the_author_uses_them(exporter: str) -> None:
    original = seeded(Crossing)
    module = onnx2nn.load(EXPORTERS[exporter]("crossing", original, _inputs(2), _inputs(3, 7)))
    check_same(run(module, _inputs(3)), run(original, _inputs(3)), "the import")
    x, y = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    for ours, theirs in zip(module.layers, original.layers, strict=True):
        check_same(run(ours, (x, y)), run(theirs, (x, y)), "a layer")
