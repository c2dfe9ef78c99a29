"""Calls that the file names nowhere: the containers of the weights' names own them, and run as the author's did."""

from __future__ import annotations

import copy
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from realmodels import EXPORTERS, check_same, run, seeded
from torch import nn
from torch.nn import functional as F

import onnx2nn
from onnx2nn.fx.blocks.block import Block
from tests.stripped import without_scopes


class Basic(nn.Module):
    """A block of a ResNet."""

    def __init__(self, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.downsample = nn.Sequential(nn.Conv2d(8, 8, 1, stride), nn.BatchNorm2d(8)) if stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + (x if self.downsample is None else self.downsample(x)))


class Excitation(nn.Module):
    """A block that scales its channels, and adds what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.project = nn.Sequential(nn.Conv2d(8, 16, 1), nn.Hardswish()), nn.Conv2d(16, 8, 1)
        self.squeeze = Squeeze()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.project(self.squeeze(self.expand(x)))


class Squeeze(nn.Module):
    """A factor for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))))


class Scaled(nn.Module):
    """A residual block whose scale is a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1), nn.GELU())
        self.out, self.scale = nn.Conv2d(16, 8, 1), nn.Parameter(torch.full((8, 1, 1), 0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.out(self.block(x))


class Halves(nn.Module):
    """A block that changes half of its channels, as ShuffleNet's do."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, changed = x.chunk(2, 1)
        return torch.cat((kept, self.branch(changed)), 1)


class Images(nn.Module):
    """Blocks of convolutional networks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.layer1 = nn.Sequential(Basic(8, 1), Basic(12, 2))
        self.features = nn.Sequential(Excitation(), Scaled(), Excitation(), Halves(), Halves())
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(self.layer1(F.relu(self.stem(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    """Self attention over packed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).reshape(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return self.out(mixed)


class Layer(nn.Module):
    """A layer of a transformer, normalised before or after."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(16), Attention()
        self.norm2, self.mlp, self.before = nn.LayerNorm(16), Perceptron(), before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Perceptron(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Tokens(nn.Module):
    """Layers of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layers = nn.ModuleList([Layer(True), Layer(False), Layer(True)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def _images() -> tuple[nn.Module, tuple[Any, ...]]:
    return seeded(Images), (torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)),)


def _tokens() -> tuple[nn.Module, tuple[Any, ...]]:
    return seeded(Tokens), (torch.randint(0, 20, (2, 7), generator=torch.Generator().manual_seed(1)),)


IMAGES = ["layer1", "layer1.0", "layer1.1", "layer1.1.downsample", "features", "features.0", "features.0.squeeze"]
IMAGES += ["features.1", "features.2", "features.3", "features.4"]
TOKENS = [f"layers.{i}{inner}" for i in range(3) for inner in ("", ".attention", ".mlp")]


@pytest.mark.parametrize(("make", "blocks"), [(_images, IMAGES), (_tokens, TOKENS)], ids=["images", "tokens"])
def test_blocks_of_files_without_scopes_are_the_originals(make: Any, blocks: list[str], tmp_path: Path) -> None:
    """With weights' names alone, each block gives what the original gives for what the original was given."""
    model, inputs = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter is deprecated, and writes what it was always known to
        torch.onnx.export(
            model, inputs, tmp_path / "model.onnx", dynamo=False, do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE, input_names=["x"], dynamic_axes={"x": [0]},
        )  # fmt: skip
    imported = onnx2nn.load(without_scopes(tmp_path / "model.onnx"))
    check_same(run(imported, inputs), run(model, inputs), "the outputs")
    assert imported.meta["onnx2nn"]["tree"]["flat"].keys() <= {"layers"}
    assert set(imported.state_dict()) == set(model.state_dict())
    seen: dict[str, tuple[Any, Any]] = {}
    for path in blocks:
        model.get_submodule(path).register_forward_hook(
            lambda _, given, result, path=path: seen.__setitem__(path, (given, result))
        )
    with torch.no_grad():
        model(*inputs)
        for path, (given, result) in seen.items():
            torch.testing.assert_close(imported.get_submodule(path)(*given), result, msg=f"{path} differs")
    assert seen.keys() == set(blocks)


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_halves_are_taken_inside(exporter: str) -> None:
    """The newer exporter notes no scope for Split; the block takes one tensor, as the author's."""
    original = seeded(lambda: nn.Sequential(Halves(), Halves()))
    inputs = (torch.randn(1, 8, 5, 5),)
    module = onnx2nn.load(EXPORTERS[exporter]("halves", original, inputs))
    with torch.no_grad():
        torch.testing.assert_close(module.get_submodule("1")(*inputs), original[1](*inputs))


def _model(nodes: list[onnx.NodeProto], weights: dict[str, Any], shape: list[int]) -> onnx.ModelProto:
    arrays = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    inits = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_a_holder_of_weights_makes_the_calls_that_use_them() -> None:
    """PaddlePaddle's learnable affine blocks hold a scale and a bias, and the file has no scopes."""
    nodes = []
    for index, (inner, outer) in enumerate([("x", "b"), ("b", "y")]):
        nodes += [
            helper.make_node("Mul", [f"affine_{index}.scale", inner], [f"m{index}"]),
            helper.make_node("Add", [f"m{index}", f"affine_{index}.bias"], [f"a{index}"]),
            helper.make_node("Relu", [f"a{index}"], [outer]),
        ]
    weights = {f"affine_{i}.{name}": [0.5 + i, 2.0] for i in range(2) for name in ("scale", "bias")}
    module = onnx2nn.load(_model(nodes, weights, [3, 2]))
    blocks = [module.get_submodule(f"affine_{index}") for index in range(2)]
    assert all(isinstance(block, Block) for block in blocks)
    assert type(blocks[0]) is not type(blocks[1]) or blocks[0].code == blocks[1].code
    x = torch.randn(3, 2)
    for index, block in enumerate(blocks):
        torch.testing.assert_close(block(x), x * torch.tensor([0.5 + index, 2.0]) + torch.tensor([0.5 + index, 2.0]))


def test_a_shared_weight_belongs_to_no_call() -> None:
    """A weight that two calls use far from each other makes no block of them and of everything between."""
    nodes = [
        helper.make_node("Mul", ["x", "tied.scale"], ["a"]),
        helper.make_node("Mul", ["a", "inner.scale"], ["b"]),
        helper.make_node("Mul", ["b", "tied.scale"], ["y"]),
    ]
    module = onnx2nn.load(_model(nodes, {"tied.scale": [1.0, 2.0], "inner.scale": [3.0, 4.0]}, [3, 2]))
    assert isinstance(module.get_submodule("inner"), Block)
    assert list(module.meta["onnx2nn"]["tree"]["flat"]) == ["tied"]
    x = torch.randn(3, 2)
    torch.testing.assert_close(module(x), x * torch.tensor([3.0, 16.0]))


def test_a_weight_that_is_read_elsewhere_keeps_its_holder() -> None:
    """The number 0 before a chain of modules is not free where a weight is there that calls outside read."""
    nodes = [
        helper.make_node("Mul", ["x", "series.0.scale"], ["a"], name="/Mul"),
        helper.make_node("Mul", ["a", "series.1.scale"], ["b"], name="/series/series.1/Mul"),
        helper.make_node("Relu", ["b"], ["c"], name="/series/series.1/Relu"),
        helper.make_node("Mul", ["c", "series.0.scale"], ["y"], name="/Mul_1"),
    ]
    weights = {"series.0.scale": [1.0, 2.0], "series.1.scale": [3.0, 4.0]}
    module = onnx2nn.load(_model(nodes, weights, [3, 2]))
    assert set(module.state_dict()) == set(weights)
    x = torch.randn(3, 2)
    torch.testing.assert_close(module(x), F.relu(x * torch.tensor([3.0, 8.0])) * torch.tensor([1.0, 2.0]))


def test_a_member_of_graph_modules_stays_the_authors_key() -> None:
    """A parameter `code` would hide the code of a block, so its container is none."""
    nodes = [helper.make_node("Mul", ["x", "part.code"], ["a"]), helper.make_node("Add", ["a", "part.bias"], ["y"])]
    module = onnx2nn.load(_model(nodes, {"part.code": [1.0, 2.0], "part.bias": [3.0, 4.0]}, [3, 2]))
    assert set(module.state_dict()) == {"part.code", "part.bias"}
    assert "'code'" in module.meta["onnx2nn"]["tree"]["flat"]["part"]
    x = torch.randn(3, 2)
    torch.testing.assert_close(module(x), x * torch.tensor([1.0, 2.0]) + torch.tensor([3.0, 4.0]))


def test_layers_without_names_stand_where_they_are_called(tmp_path: Path) -> None:
    """A convolution whose weights the exporter computed is in the block around it, and in no list."""
    model, inputs = _images()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        torch.onnx.export(model, inputs, tmp_path / "model.onnx", dynamo=False, input_names=["x"])
    imported = onnx2nn.load(without_scopes(tmp_path / "model.onnx"))
    check_same(run(imported, inputs), run(model, inputs), "the outputs")
    assert not [name for name, _ in imported.named_modules() if name.startswith("layer1.conv")]
    assert isinstance(imported.get_submodule("features.0.squeeze"), Block)


def test_nine_of_ten_containers_of_other_frameworks_run() -> None:
    """Files of TensorFlow, PaddlePaddle and OneFlow name operations beside modules, or weights alone."""
    counted, flat = 0, []
    for path in sorted((Path(__file__).parent / "data").rglob("*.onnx")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some files declare dimensions as dynamic that their nodes fix
            module = onnx2nn.load(path)
        lists = [inner for inner in module.modules() if isinstance(inner, nn.ModuleList)]
        counted += len(module.meta["onnx2nn"]["tree"]["blocks"]) + len(lists)
        flat += [f"{path.stem}: {name}" for name, inner in module.named_modules() if name and type(inner) is nn.Module]
    assert counted > 20
    assert len(flat) <= 0.1 * (counted + len(flat)), flat


def test_constants_of_the_outermost_module_are_its_own() -> None:
    """A table that is no weight is a buffer without a container, and in no state_dict, also of copies and pickles."""
    table = helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(np.arange(6, dtype=np.float32)))
    nodes = [table, helper.make_node("Mul", ["x", "t"], ["a"]), helper.make_node("Mul", ["a", "scale"], ["y"])]
    model = _model(nodes, {"scale": [0.5] * 6}, [3, 6])
    model.producer_name = "pytorch"  # only torch's names of weights are keys of a state_dict
    module = onnx2nn.load(model)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    x = torch.randn(3, 6)
    unpickled = torch.load(file, weights_only=False)
    for each in (module, copy.deepcopy(module), unpickled, copy.deepcopy(unpickled)):
        assert [name for name, _ in each.named_modules()] == [""]
        assert list(each.state_dict()) == ["scale"] and len(list(each.buffers())) == 1
        torch.testing.assert_close(each(x), x * torch.arange(6) * 0.5)


def test_a_layer_without_a_name_beside_numbered_ones() -> None:
    """The outermost module holds numbered layers, as that of an nn.Sequential does, and stays where it is."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Gemm", ["a", "0.weight"], ["y"], transB=1),
    ]
    module = onnx2nn.load(_model(nodes, {"w": np.eye(3), "0.weight": 2 * np.eye(3)}, [2, 3]))
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), 2 * x)


def test_operations_of_tensorflow_are_no_containers_of_constants() -> None:
    """Which operation reads a variable, and which pass computed a constant, is not where they stand."""
    keys = {
        "ConstantFolding/net/norm/truediv_recip": "net.norm.truediv_recip",
        "net/cell/Cast_1/ReadVariableOp/resource:0": "net.cell.Cast_1_ReadVariableOp_resource",
        "net/cell/split/ReadVariableOp:0": "net.cell.split_ReadVariableOp",
        "net/norm/ReadVariableOp:0": "net.norm.ReadVariableOp",
        "net/while/loop_counter:0": "net.while__loop_counter",
    }
    nodes, last = [], "x"
    for index, name in enumerate(keys):
        scope = "net/cell" if "cell" in name else "net/norm" if "norm" in name else "net"
        nodes.append(helper.make_node("Mul", [last, name], [f"v{index}"], name=f"{scope}/mul_{index}"))
        last = f"v{index}"
    nodes.append(helper.make_node("Relu", [last], ["y"], name="net/relu"))
    module = onnx2nn.load(_model(nodes, {name: [2.0, 3.0] for name in keys}, [3, 2]))
    assert set(module.state_dict()) == set(keys.values())
    x = torch.randn(3, 2)
    torch.testing.assert_close(module(x), F.relu(x * torch.tensor([2.0, 3.0]) ** len(keys)))


@torch.jit.script
def _normalised(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(dim=[1, 2], keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(dim=[1, 2], keepdim=True) + 1e-5)


class ScriptedNorm(nn.Module):
    """A norm over channels and time whose statistics are a scripted function, as Asteroid's are."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.rand(4) + 0.5), nn.Parameter(torch.rand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.gamma * _normalised(x).transpose(1, 2) + self.beta).transpose(1, 2)


class ScriptedNorms(nn.Module):
    """Such norms behind a layer whose result is added later, in a list of modules, and behind a module's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(3, 4, 1), ScriptedNorm()
        self.rest = nn.Sequential(nn.Conv1d(4, 4, 1), nn.PReLU(), ScriptedNorm(), nn.Conv1d(4, 4, 1))
        self.halved, self.last = Halved(), ScriptedNorm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(self.halved(x + self.rest(self.norm(x))))


class Halved(nn.Module):
    """A module of functions alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 - x.abs()


def test_scripted_functions_stand_in_the_module_that_goes_on_with_them() -> None:
    """The older exporter writes their nodes without a scope: norms called alone left out the statistics."""
    original, inputs = seeded(ScriptedNorms), (torch.randn(2, 3, 5),)
    path = EXPORTERS["torchscript"]("owners_scripted", original, inputs, (torch.randn(4, 3, 7),))
    module = onnx2nn.load(path)
    check_same(run(module, inputs), run(original, inputs), "the imported module")
    x = torch.randn(3, 4, 6)
    for name in ("norm", "rest", "rest.2"):
        check_same(run(module.get_submodule(name), (x,)), run(original.get_submodule(name), (x,)), name)
    check_same(run(module.halved, (x,)), run(original.halved, (x,)), "which may not end with them")


class Forecast(nn.Module):
    """A block of N-BEATS: what it explains of a series, and coefficients of a basis that is in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.coefficients = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("basis", torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.back(x), self.coefficients(x).mm(self.basis)


class Forecasts(nn.Module):
    """Adds what blocks forecast: the older exporter makes one Gemm of a product in a block and the sum, in no scope."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Forecast(), Forecast()])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.zeros(x.size(0), 4)
        for block in self.blocks:
            explained, forecast = block(x)
            x, total = x - explained, total + forecast
        return x, total


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_a_product_with_a_weight_that_is_merged_with_a_sum_of_the_caller(exporter: str) -> None:
    """The block gave its caller the weight, and the factor of the product."""
    original, inputs = seeded(Forecasts), (torch.randn(2, 6),)
    module = onnx2nn.load(EXPORTERS[exporter]("owners_forecasts", original, inputs, (torch.randn(3, 6),)))
    check_same(run(module, inputs), run(original, inputs), "the import")
    for name, block in original.blocks.named_children():
        check_same(run(module.blocks.get_submodule(name), inputs), run(block, inputs), name)
