"""A module that its author calls several times is one module that the import calls several times."""

from __future__ import annotations

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


class Layer(nn.Module):
    """A block that reads sizes, which are read once in a file for all calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(8, 12), nn.Linear(12, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = F.relu(self.first(x)).reshape(x.size(0), x.size(1), 3, 4).transpose(2, 3)
        return self.norm(x + self.second(heads.reshape(x.size(0), x.size(1), 12)))


class Encoder(nn.Module):
    """Two layers in a list, then a third one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList([Layer(), Layer()]), Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(self.last(x))


class Twins(nn.Module):
    """One encoder for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.encoder(x), self.encoder(y)], -1))


class Unrolled(nn.Module):
    """One layer after the other, all of which are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = Layer(), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = self.layer(x)
        return self.head(x)


class Gate(nn.Module):
    """A gate with a number on the left of its difference, and an activation in a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.gate = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.sigmoid(self.gate(x))
        return (1 - z) * x + z * self.mix(x)


class Refined(nn.Module):
    """One gate three times, as optical flow is refined."""

    def __init__(self) -> None:
        super().__init__()
        self.update, self.head = Gate(), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.update(x)
        return self.head(x)


class Blend(nn.Module):
    """A module without weights, of which the file has nothing but functions."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * y + y


class Around(nn.Module):
    """A module without weights around one, which it calls twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blend = Blend()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blend(torch.cos(self.blend(x, x * 2)), x)


class Blended(nn.Module):
    """One module without weights for three pairs of values, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.blend, self.around, self.first, self.second = Blend(), Around(), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blend(self.first(x), x)
        z = self.blend(self.second(y), y) - x
        return self.blend(z, self.around(y))


class Numbered(nn.Module):
    """Modules without weights whose names differ by a number, each of which is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blend, self.blend_1, self.first, self.second = Blend(), Blend(), nn.Linear(8, 8), nn.Linear(8, 8)
        self.act, self.act_1 = nn.ReLU(), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blend_1(self.act(self.first(x)), x)
        z = self.blend(self.second(y), y) - x
        return self.blend(self.act_1(z), torch.cos(self.blend_1(torch.sin(z), y)))


class Activated(nn.Module):
    """A convolution, whose activation is one module for all of them, as in YOLO."""

    default_act = nn.SiLU()

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act = nn.Linear(8, 8), self.default_act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.conv(x))


class Stage(nn.Module):
    """Layers in a list, each of which continues the last one; another `forward` splits what the first one gives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = Activated(), nn.ModuleList([Activated(), Activated()])
        self.blend = Blend()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward_sum(x)

    def forward_sum(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.first(x)]
        for layer in self.rest:
            parts.append(layer(parts[-1]))
        return self.blend(torch.stack(parts).sum(0), x)


class Staged(nn.Module):
    """Stages that share their activation."""

    def __init__(self) -> None:
        super().__init__()
        self.stages, self.head = nn.Sequential(Stage(), Stage()), Activated()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(x))


class Attending(nn.Module):
    """Attention with a residual connection; the mask becomes a float in each call, which a file has once."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + found.transpose(1, 2).flatten(2)


class Attended(nn.Module):
    """One layer of attention three times, as ALBERT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Attending()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = (x[:, :, 0] > -1)[:, None, None, :]
        for _ in range(3):
            x = self.layer(x, mask)
        return x


class Parts(nn.Module):
    """A block of which one call uses one result, and the other call both."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Halves(), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, _ = self.block(x)
        other, right = self.block(left)
        return self.head(other + right)


class Halves(nn.Module):
    """A block with two results."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left = torch.tanh(self.left(x))
        return left, self.right(left)


def _inputs(count: int, *sizes: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(sum(sizes))
    return tuple(torch.randn(*sizes, 8, generator=generator) for _ in range(count))


MODELS: dict[type[nn.Module], tuple[int, list[str]]] = {
    Twins: (2, ["encoder", "encoder.layers.0", "encoder.layers.1", "encoder.last"]),
    Unrolled: (1, ["layer"]),
    Refined: (1, ["update", "update.mix", "update.mix.1"]),
    Blended: (1, ["blend", "around", "around.blend"]),
    Attended: (1, ["layer"]),
}
both = pytest.mark.parametrize("exporter", sorted(EXPORTERS))


@both
@pytest.mark.parametrize("kind", MODELS)
def test_each_call_is_the_originals(kind: type[nn.Module], exporter: str) -> None:
    """The blocks are called as often as the original's, with equal arguments and results, at all sizes."""
    count, blocks = MODELS[kind]
    model = seeded(kind)
    path = EXPORTERS[exporter]("repeated", model, _inputs(count, 2, 5), _inputs(count, 3, 7))
    module = onnx2nn.load(path)
    assert module.meta["onnx2nn"]["tree"]["flat"].keys() <= {"encoder.layers"}
    assert set(module.state_dict()) == set(model.state_dict())
    for sizes in ((2, 5), (3, 7), (1, 1)):
        inputs = _inputs(count, *sizes)
        calls = [_calls(network, blocks, inputs) for network in (model, module)]
        assert [name for name, _, _ in calls[0]] == [name for name, _, _ in calls[1]]
        for (name, given, result), (_, its_given, its_result) in zip(*calls, strict=True):
            torch.testing.assert_close(its_given[: len(given)], given, msg=f"the arguments of {name} differ at {sizes}")
            torch.testing.assert_close(its_result, result, msg=f"the results of {name} differ at {sizes}")


@both
@pytest.mark.parametrize("kind", MODELS)
def test_each_call_is_compared_with_its_own_nodes(kind: type[nn.Module], exporter: str) -> None:
    """The nodes of the file are those of each call, not those of the first."""
    count, _ = MODELS[kind]
    path = EXPORTERS[exporter]("repeated", seeded(kind), _inputs(count, 2, 5), _inputs(count, 3, 7))
    names = [value.name for value in onnx.load(path).graph.input]
    feeds = {name: x.numpy() for name, x in zip(names, _inputs(count, 3, 7), strict=True)}
    module = onnx2nn.load(path)
    found = onnx2nn.verify_nodes(path, module, inputs=feeds)
    assert found.ok, found.first
    outputs = [node.output for node in found.nodes]
    assert len({*outputs}) == len(outputs)
    first = next(iter(module.parameters()))
    with torch.no_grad():
        first += 1
    assert not onnx2nn.verify_nodes(path, module, inputs=feeds).ok


def _calls(network: nn.Module, blocks: list[str], inputs: Any) -> list[tuple[str, Any, Any]]:
    """Returns the calls of some blocks in a call of a network."""
    found: list[tuple[str, Any, Any]] = []
    hooks = [
        network.get_submodule(name).register_forward_hook(
            lambda _, given, result, name=name: found.append((name, given, result))
        )
        for name in blocks
    ]
    with torch.no_grad():
        network(*inputs)
    for hook in hooks:
        hook.remove()
    return found


def test_numbers_of_the_authors_are_no_further_calls() -> None:
    """The newer exporter notes the modules of calls: `blend_1` is a module of its own."""
    model = seeded(Numbered)
    path = EXPORTERS["dynamo"]("numbers", model, _inputs(1, 2, 5), _inputs(1, 3, 7))
    module = onnx2nn.load(path)
    names = ["act", "act_1", "blend", "blend_1", "first", "second"]
    assert sorted(name for name, _ in module.named_children()) == names
    inputs = _inputs(1, 4, 6)
    calls = [[name for name, _, _ in _calls(network, names, inputs)] for network in (model, module)]
    assert calls[0] == calls[1]
    check_same(run(module, inputs), run(model, inputs), "the outputs")


@pytest.mark.parametrize("replaced", [False, True], ids=["own forward", "another forward"])
@both
def test_a_shared_module_without_weights_is_called_where_its_callers_are(exporter: str, replaced: bool) -> None:
    """In a module with another `forward`, the newer exporter notes modules by their names in that one."""
    model = seeded(Staged)
    if replaced:
        for stage in model.stages:
            stage.forward = stage.forward_sum
    path = EXPORTERS[exporter](f"shared{replaced}", model, _inputs(1, 2, 5), _inputs(1, 3, 7))
    module = onnx2nn.load(path)
    assert module.meta["onnx2nn"]["tree"]["flat"].keys() <= {"stages", "stages.0.rest", "stages.1.rest"}
    model.load_state_dict(module.state_dict(), strict=True)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, (Activated, Stage, Blend))]
    inputs = _inputs(1, 4, 6)
    ours, theirs = _calls(module, layers, inputs), _calls(model, layers, inputs)
    assert [name for name, _, _ in ours] == [name for name, _, _ in theirs]
    for (name, _, found), (_, _, expected) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, msg=f"the results of {name} differ")
    for layer in ("head", "stages.0.first", "stages.1.rest.1"):
        assert isinstance(module.get_submodule(f"{layer}.act"), nn.SiLU)


@both
def test_calls_that_use_different_results_are_exact(exporter: str) -> None:
    """A second call from which more is used than from the first."""
    model = seeded(Parts)
    path = EXPORTERS[exporter]("parts", model, _inputs(1, 2, 5), _inputs(1, 3, 7))
    module = onnx2nn.load(path)
    assert set(module.state_dict()) == set(model.state_dict())
    check_same(run(module, _inputs(1, 4, 6)), run(model, _inputs(1, 4, 6)), "the outputs")


@both
def test_what_is_done_with_a_module_reaches_all_calls(exporter: str, tmp_path: Any) -> None:
    """Another layer in the place of a repeated one is called each time; sources and pickles have one module."""
    model = seeded(Unrolled)
    module = onnx2nn.load(EXPORTERS[exporter]("repeated", model, _inputs(1, 2, 5), _inputs(1, 3, 7)))
    assert isinstance(module.layer, Block)
    inputs = _inputs(1, 3, 4)
    expected = run(model, inputs)
    onnx2nn.to_python(module, tmp_path / "source")
    assert (tmp_path / "source" / "model.py").read_text().count("self.layer(") == 4
    torch.save(module, tmp_path / "module.pth")
    check_same(run(torch.load(tmp_path / "module.pth", weights_only=False), inputs), expected, "the unpickled module's")
    model.layer = module.layer = nn.Identity()
    check_same(run(module, inputs), run(model, inputs), "the changed module's outputs")


def test_names_may_have_any_character_of_the_marks_of_calls() -> None:
    """`block#1` is a module of its own, whatever second calls are called inside."""
    nodes = [
        helper.make_node("MatMul", ["x", "block.scale"], ["a"]),
        helper.make_node("Mul", ["a", "block#1.scale"], ["b"]),
        helper.make_node("Add", ["b", "block#1.bias"], ["y"]),
    ]
    arrays = {"block.scale": np.eye(2), "block#1.scale": np.full(2, 3.0), "block#1.bias": np.ones(2)}
    weights = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 2]) for name in "xy"]
    graph = helper.make_graph(nodes, "marks", values[:1], values[1:], weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10, producer_name="pytorch"
    )
    x = torch.randn(3, 2)
    torch.testing.assert_close(onnx2nn.load(model)(x), 3 * x + 1)


class Attentive(nn.Module):
    """A layer with attention, whose weights are packed."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.self_attn(x, x, x, need_weights=False)[0])


class Universal(nn.Module):
    """One layer with attention, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Attentive()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x))


class Twice(nn.Module):
    """A module that calls a layer of others twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(torch.tanh(self.layer(x)))


class Sharing(nn.Module):
    """Modules that share a layer, which each of them calls several times."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(16, 16)
        self.one, self.other = Twice(shared), Twice(shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(x))


class Listed(nn.Module):
    """Layers without bias in a list whose name ends with a number, called twice each: `layers0.0_1`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers0 = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self.layers0, *self.layers0):
            x = torch.tanh(layer(x))
        return x


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
@pytest.mark.parametrize("kind", [Universal, Sharing, Listed])
def test_numbered_calls_have_the_keys_of_the_module(kind: type[nn.Module], exporter: str) -> None:
    """The older exporter numbers calls, `layer_1`; packed weights and shared ones have the keys of the first call."""
    original, inputs = seeded(kind), (torch.randn(2, 5, 16),)
    module = onnx2nn.load(EXPORTERS[exporter](f"numbered-{kind.__name__}", original, inputs, (torch.randn(3, 7, 16),)))
    check_same(run(module, inputs), run(original, inputs), "the outputs")
    assert set(module.state_dict()) == set(original.state_dict())
    original.load_state_dict(module.state_dict(), strict=True)
    names = {name for name, _ in module.named_modules(remove_duplicate=False)}
    assert not [name for name in names if name.endswith("_1")]
    if kind is Universal:
        calls: list[torch.Tensor] = []
        module.layer.self_attn.register_forward_hook(lambda *call: calls.append(call[2]))
        run(module, inputs)
        assert len(calls) == 2


class Angles(nn.Module):
    """Angles of positions by one of two tables, as models have them whose layers attend near or far."""

    near: torch.Tensor
    far: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("near", "far"):
            self.register_buffer(name, torch.rand(4), persistent=False)

    def forward(self, positions: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[:, :, None].float() * getattr(self, kind)
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()


class Positioned(nn.Module):
    """Angles of the same positions by both tables, the floats of which a file has once."""

    def __init__(self) -> None:
        super().__init__()
        self.angles, self.linear = Angles(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1])[None]
        for kind in ("near", "far"):
            cos, sin = self.angles(positions, kind)
            x = self.linear(x * cos + x.flip(-1) * sin)
        return x


@both
def test_calls_that_share_what_they_begin_with(exporter: str) -> None:
    """The first call is the author's, with his arguments and results; it had the results of both, or one for both."""
    original = seeded(Positioned)
    module = onnx2nn.load(EXPORTERS[exporter]("begin", original, _inputs(1, 2, 5), _inputs(1, 3, 7)))
    inputs = _inputs(1, 4, 6)
    check_same(run(module, inputs), run(original, inputs), "the outputs")
    (_, given, expected), *_ = _calls(original, ["angles"], inputs)
    (_, its_given, found), *_ = _calls(module, ["angles"], inputs)
    torch.testing.assert_close(its_given, given[:1])
    torch.testing.assert_close(found, expected)


class Tower(nn.Module):
    """What the older exporter computes anew for each call: a folded kernel, slopes and scales with dimensions of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.norm, self.act = nn.GroupNorm(2, 4), nn.PReLU(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.bn(self.conv(x))))


class Levels(nn.Module):
    """One head for the maps of several levels, as detectors have it."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.last = nn.Sequential(Tower(), Tower()), nn.Sequential(nn.Conv2d(4, 2, 1), nn.PReLU())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.last(self.head(x)), self.last(self.head(y))


@both
def test_weights_that_are_computed_for_each_call_are_one(exporter: str) -> None:
    """The import has the modules of the original, calls each of them twice, and has no keys of their calls."""
    original = seeded(Levels).eval()
    inputs, others = ((torch.randn(n, 4, 6, 6), torch.randn(n, 4, 6, 6)) for n in (2, 3))
    module = onnx2nn.load(EXPORTERS[exporter]("levels", original, inputs, others))
    check_same(run(module, inputs), run(original, inputs), "the outputs")
    assert {key for key in module.state_dict() if not key.endswith("conv.bias")} <= set(original.state_dict())
    layers = [name for name, layer in original.named_modules() if isinstance(layer, (Tower, nn.PReLU, nn.GroupNorm))]
    ours, theirs = _calls(module, layers, inputs), _calls(original, layers, inputs)
    assert [name for name, _, _ in ours] == [name for name, _, _ in theirs]
    for (name, _, found), (_, _, expected) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, msg=f"the results of {name} differ")


class Zeroth(nn.Module):
    """A module whose name ends as that of no call does: the older exporter's numbers start at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.stage, self.stage_0 = Gate(), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stage(self.stage_0(self.stage(x)))


@both
def test_the_first_call_has_no_number(exporter: str) -> None:
    """`stage_0` is a module of its own beside `stage`."""
    original, inputs = seeded(Zeroth), _inputs(1, 2, 5)
    module = onnx2nn.load(EXPORTERS[exporter]("zeroth", original, inputs, _inputs(1, 3, 7)))
    calls = [[name for name, _, _ in _calls(net, ["stage", "stage_0"], inputs)] for net in (original, module)]
    assert calls[0] == calls[1] == ["stage", "stage_0", "stage"]


class Scaled(nn.Module):
    """Multiplies by a number that its caller gives."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.relu(self.linear(x)) * factor


class Differing(nn.Module):
    """Calls a module with two numbers, and another with the same one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.same = Scaled(), Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.same(self.same(self.scaled(self.scaled(x, 2.0), 3.0), 2.0), 2.0)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_call_that_differs_is_told(exporter: str) -> None:
    original, x = seeded(Differing).eval(), torch.randn(2, 4)
    path = EXPORTERS[exporter]("differing calls", original, (x,), (torch.randn(3, 4),))
    module = onnx2nn.load(path)
    check_same(run(module, (x,)), run(original, (x,)), "the import")
    tree = module.meta["onnx2nn"]["tree"]
    assert {*tree["blocks"]} == {"scaled", "same"}
    assert tree["entered"] == {"scaled": "the outermost module calls its 'linear' too"}
    assert "Hooks of scaled do not see each call" in str(onnx2nn.check(path))


class Places(nn.Module):
    """Embeddings of the rows and columns of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.column = nn.Embedding(50, 2), nn.Embedding(50, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        columns, rows = self.column(torch.arange(width)), self.row(torch.arange(height))
        places = torch.cat([columns[None].expand(height, -1, -1), rows[:, None].expand(-1, width, -1)], -1)
        return places.flatten(0, 1)[None].expand(x.size(0), -1, -1)


class OfTwoImages(nn.Module):
    """Calls a module for two images, of whose sizes it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.places = nn.Conv2d(3, 4, 3, 2, 1), Places()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.conv(x), self.conv(y)
        return x.flatten(2).transpose(1, 2) + self.places(x), y.flatten(2).transpose(1, 2) * self.places(y)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_calls_that_compute_with_sizes_of_two_images(exporter: str) -> None:
    original = seeded(OfTwoImages)
    first, second = ((torch.randn(n, 3, 6 + n, 4 + n), torch.randn(n, 3, 8 + n, 7 + n)) for n in (2, 3))
    path = EXPORTERS[exporter]("two images", original, first, second)
    module = onnx2nn.load(path)
    module.load_state_dict(original.state_dict(), strict=True)
    for inputs in (first, second):
        check_same(run(module, inputs), run(original, inputs), "the import")
    assert len(_calls(module, ["places"], first)) == 2


class Decoding(nn.Module):
    """Steps of a cell of torch's, between which its caller computes with the hidden state alone."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 3), nn.Linear(3, 2)
        self.hidden, self.state = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, state = torch.tanh(self.hidden(x.mean(1))), self.state(x.mean(1))
        results = []
        for step in range(3):
            hidden, state = self.cell(x[:, step], (hidden, state))
            results.append(self.head(hidden))
        return torch.stack(results, 1)


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_a_cell_returns_its_hidden_state_first(exporter: str) -> None:
    original, inputs = seeded(Decoding), (torch.randn(2, 3, 4),)
    module = onnx2nn.load(EXPORTERS[exporter]("repeated_cell", original, inputs, (torch.randn(5, 3, 4),)))
    seen: dict[str, list[tuple[torch.Tensor, ...]]] = {"ours": [], "theirs": []}
    for name, network in (("ours", module), ("theirs", original)):
        network.cell.register_forward_hook(lambda _, given, result, name=name: seen[name].append(result))
        run(network, inputs)
    assert len(seen["ours"]) == 3
    for ours, theirs in zip(seen["ours"], seen["theirs"], strict=True):
        check_same(ours[0], theirs[0], "the hidden state")
