"""Files without any names: equal parts, one after the other, are blocks of the module that can be called."""

from __future__ import annotations

import copy
import io
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from realmodels import EXPORTERS, check_same, require_transformers, run, seeded
from torch import nn
from torch.nn import functional as F

import onnx2nn
from onnx2nn.errors import InputError, ModelFileError
from onnx2nn.fx.blocks.block import Block
from tests.ecosystem.subjects.subject import SUBJECTS
from tests.module_trees import exported, inputs_of
from tests.random_modules import draw, original_of
from tests.stripped import without_names

WHOLE = ("resnet18", "vit", "bert", "llama", "gpt2")
"""Originals whose blocks a file shows; those of MobileNet and U-Net differ from each other."""


def _both(path: Path) -> tuple[Any, Any]:
    """Returns an import without blocks, and one with them."""
    return onnx2nn.load(path), onnx2nn.load(path, blocks="repeated")


def _blocks(module: nn.Module, name: str = "block") -> list[nn.Module]:
    """Returns the blocks of an import in their order."""
    holder = module.get_submodule(name)
    assert [key for key, _ in holder.named_children()] == [str(number) for number in range(len([*holder.children()]))]
    assert isinstance(holder, (nn.ModuleList, nn.Sequential))
    return [*holder.children()]


def _check_keys(module: Any, plain: nn.Module) -> None:
    """The mapping gives the state of the plain import: every tensor once, under a key of its own."""
    keys = module.meta["onnx2nn"]["tree"]["keys"]
    state, without = module.state_dict(), plain.state_dict()
    assert keys.keys() <= state.keys()
    assert sorted(keys.get(key, key) for key in state) == sorted(without)
    assert all(torch.equal(value, without[keys.get(key, key)]) for key, value in state.items())
    plain.load_state_dict({keys.get(key, key): value for key, value in state.items()}, strict=True)
    back = {old: new for new, old in keys.items()}
    module.load_state_dict({back.get(key, key): value for key, value in without.items()}, strict=True)


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
@pytest.mark.parametrize("name", WHOLE)
def test_there_are_as_many_blocks_as_the_author_wrote(name: str, exporter: str, tmp_path: Path) -> None:
    """Each gives what the author's gives, and the keys are those of the plain import but for a prefix."""
    subject = SUBJECTS[name]
    if subject.transformers:
        require_transformers()
    original, inputs = subject.original(), subject.inputs(2)
    plain, module = _both(without_names(subject.file(exporter), tmp_path / "model.onnx"))
    check_same(run(module, inputs), run(plain, inputs), "the outputs")
    _check_keys(module, plain)
    blocks = _blocks(module)
    assert len(blocks) == len(subject.blocks)
    assert all(isinstance(block, Block) for block in blocks)
    expected: list[Any] = []
    given: list[Any] = []
    for path, block in zip(subject.blocks, blocks, strict=True):
        original.get_submodule(path).register_forward_hook(lambda _, args, result: expected.append(result))
        block.register_forward_hook(lambda block, args, result: given.append((block, args, result)))
    run(original, inputs)
    run(module, inputs)
    for theirs, (block, args, result) in zip(expected, given[:], strict=True):
        theirs = theirs[0] if isinstance(theirs, tuple) else theirs
        torch.testing.assert_close(result, theirs, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(block(*args), result)


@pytest.mark.parametrize("name", ["vit", "bert", "llama", "gpt2"])
def test_equal_parts_have_one_class(name: str, tmp_path: Path) -> None:
    """Their programs are equal, so that one class holds the code of all; in another import too."""
    if SUBJECTS[name].transformers:
        require_transformers()
    path = without_names(SUBJECTS[name].file("dynamo"), tmp_path / "model.onnx")
    blocks = [*_blocks(onnx2nn.load(path, blocks="repeated")), *_blocks(onnx2nn.load(path, blocks="repeated"))]
    assert len({type(block) for block in blocks}) == 1
    assert len({tuple(block.state_dict()) for block in blocks}) == 1
    assert len(blocks[0].code.splitlines()) <= 60


def test_branches_around_parts_belong_to_them(tmp_path: Path) -> None:
    """ResNet's blocks that halve the image have a convolution around them, which the others lack."""
    module = onnx2nn.load(
        without_names(SUBJECTS["resnet18"].file("dynamo"), tmp_path / "model.onnx"), blocks="repeated"
    )
    assert sorted(Counter(type(block) for block in _blocks(module)).values()) == [3, 5]
    assert isinstance(module.block, nn.Sequential)
    assert [len([*block.children()]) for block in _blocks(module)] == [2, 2, 3, 2, 3, 2, 3, 2]


def test_what_is_saved_copied_and_exported(tmp_path: Path) -> None:
    """A pickle, a copy, a program of torch.export, torch.compile, source, and an ONNX file that keeps the blocks."""
    subject = SUBJECTS["vit"]
    module = onnx2nn.load(without_names(subject.file("dynamo"), tmp_path / "model.onnx"), blocks="repeated")
    inputs = subject.inputs(3)
    expected = run(module, inputs)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    onnx2nn.to_python(module, tmp_path / "source", example_inputs=list(inputs))
    again = onnx2nn.load(tmp_path / "again.onnx")
    for each in (copy.deepcopy(module), torch.load(file, weights_only=False), again):
        check_same(run(each, inputs), expected, "the outputs")
        assert each.state_dict().keys() == module.state_dict().keys()
    assert again.meta["onnx2nn"]["tree"]["blocks"].keys() == module.meta["onnx2nn"]["tree"]["blocks"].keys()
    check_same(run(torch.export.export(module, inputs).module(), inputs), expected, "the program's outputs")
    check_same(run(torch.compile(module, backend="eager", fullgraph=True), inputs), expected, "the compiled outputs")
    assert "class Block(" in (tmp_path / "source" / "model.py").read_text()


class Dense(nn.Module):
    """A layer that is not square, with functions around it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 9), nn.Linear(9, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Repeated(nn.Module):
    """Parts that are called several times, as ALBERT's are, between others."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Dense(), Dense()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in (self.one, self.one, self.other, self.one, self.other):
            x = part(x)
        return x


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_parts_with_the_same_weights_are_calls_of_one(exporter: str, tmp_path: Path) -> None:
    """The weights are held once."""
    inputs = (torch.randn(2, 6),)
    original = seeded(Repeated)
    plain, module = _both(without_names(EXPORTERS[exporter]("equal-parts", original, inputs), tmp_path / "model.onnx"))
    check_same(run(module, inputs), run(original, inputs), "the outputs")
    _check_keys(module, plain)
    assert len(module.state_dict()) == len(original.state_dict())
    calls: list[nn.Module] = []
    for block in _blocks(module):
        block.register_forward_hook(lambda block, args, result: calls.append(block))
    run(module, inputs)
    one, other = _blocks(module)
    assert calls == [one, one, other, one, other]


class Grown(nn.Module):
    """A layer of a DenseNet: its input has the results of all layers before."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 8, 1)
        self.conv2 = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2(F.relu(self.conv1(F.relu(self.norm(x)))))


class DenselyConnected(nn.Module):
    """Two stages of layers, and a layer between them that halves the image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.between = nn.Conv2d(2, 4, 3), nn.Conv2d(13, 4, 1)
        self.layers = nn.ModuleList(Grown(4 + 3 * index) for index in (0, 1, 2, 0, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [self.stem(x)]
        for index, layer in enumerate(self.layers):
            if index == 3:
                found = [F.avg_pool2d(F.relu(self.between(torch.cat(found, 1))), 2)]
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


def _varied(build: Callable[[], nn.Module]) -> nn.Module:
    """Returns a module whose norms differ, as trained ones do; exporters hold equal arrays once."""
    module = seeded(build)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers()):
            if value.is_floating_point():
                value.add_(torch.rand(value.shape, generator=generator) * 0.1)
    return module


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_parts_that_read_all_results_before_them(exporter: str, tmp_path: Path) -> None:
    """Each layer is a block; what joins the results is outside."""
    inputs = (torch.randn(1, 2, 10, 10),)
    original = _varied(DenselyConnected)
    path = EXPORTERS[exporter]("densely-connected", original, inputs)
    plain, module = _both(without_names(path, tmp_path / "model.onnx"))
    check_same(run(module, inputs), run(original, inputs), "the outputs")
    _check_keys(module, plain)
    blocks = _blocks(module)
    assert len(blocks) == len(original.layers) and len({type(block) for block in blocks}) == 1
    for block, layer, channels in zip(blocks, original.layers, (4, 7, 10, 4, 7), strict=True):
        x = torch.randn(1, channels, 5, 5)
        torch.testing.assert_close(block(x), layer(x), rtol=1e-4, atol=1e-5)


def _chain(names: list[str], activations: list[str]) -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    nodes, arrays, value = [], [], "x"
    for index, name in enumerate(names):
        arrays.append(numpy_helper.from_array(generator.standard_normal((4, 4)).astype(np.float32), name))
        nodes.append(helper.make_node("MatMul", [value, name], [f"p{index}"]))
        value = "y" if index == len(names) - 1 else f"a{index}"
        nodes.append(helper.make_node(activations[index % len(activations)], [f"p{index}"], [value]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_one_layer_is_no_part() -> None:
    """Layers with the same activation are a chain of layers; with two in turn they are parts of two layers."""
    numbers = [str(number) for number in range(6)]
    assert not onnx2nn.load(_chain(numbers, ["Relu"]), blocks="repeated").meta["onnx2nn"]["tree"]["blocks"]
    module = onnx2nn.load(_chain(numbers, ["Relu", "Tanh"]), blocks="repeated")
    assert len(_blocks(module)) == 3 and isinstance(module.block, nn.Sequential)
    x = torch.randn(3, 4)
    torch.testing.assert_close(module(x), module.block(x))


def test_names_of_the_authors_stay() -> None:
    """Keys of a state_dict are what the author's module loads, so the weights that have them move into no block."""
    model = _chain([f"layer{number}.weight" for number in range(6)], ["Relu", "Tanh"])
    model.producer_name = "pytorch"
    plain, module = onnx2nn.load(model), onnx2nn.load(model, blocks="repeated")
    assert module.state_dict().keys() == plain.state_dict().keys()
    assert not module.meta["onnx2nn"]["tree"]["keys"]


def test_other_words_are_refused() -> None:
    model = _chain(["0", "1"], ["Relu"])
    with pytest.raises(InputError, match="blocks='all'"):
        onnx2nn.load(model, blocks="all")
    with pytest.raises(InputError, match="blocks needs framework='torch'"):
        onnx2nn.load(model, framework="oneflow", blocks="repeated")


def _check_random(seed: int, exporter: str, folder: Path) -> int:
    """Checks outputs, keys and blocks of one random module; returns the number of blocks."""
    try:
        exported(original_of(draw(seed)), exporter, folder / "model.onnx")
    except Exception:  # torch's exporters raise errors of many classes; what they cannot write is no matter here
        return 0
    try:
        plain, module = _both(without_names(folder / "model.onnx", folder / "bare.onnx"))
    except ModelFileError:  # the newer exporter gives an output that is an input the input's name
        return 0
    inputs = inputs_of(3)[: len(module.meta["onnx2nn"]["inputs"])]
    calls: list[Any] = []
    for name in module.meta["onnx2nn"]["tree"]["blocks"]:
        module.get_submodule(name).register_forward_hook(lambda *call: calls.append(call))
    check_same(run(module, inputs), run(plain, inputs), f"seed {seed}")
    _check_keys(module, plain)
    assert len(calls) >= len(module.meta["onnx2nn"]["tree"]["blocks"]), f"seed {seed}: a block is not called"
    for block, args, result in calls[:]:
        with torch.no_grad():
            check_same(run(block, args), result if isinstance(result, tuple) else (result,), f"seed {seed}, a block")
    return len(module.meta["onnx2nn"]["tree"]["blocks"])


@pytest.mark.parametrize("exporter", ["torchscript"])
def test_random_modules(exporter: str, tmp_path: Path) -> None:
    """Whatever is found, outputs, keys and calls of single blocks are right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some files declare dimensions as dynamic that their nodes fix
        assert sum(_check_random(seed, exporter, tmp_path) for seed in range(40)) > 0


MANY = {"torchscript": 100, "dynamo": 20}
"""Modules of a part of the held tier; the newer exporter takes ten times as long."""


@pytest.mark.held
@pytest.mark.parametrize("exporter", sorted(MANY))
@pytest.mark.parametrize("part", range(4))
def test_many_random_modules(exporter: str, part: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    first = (request.config.getoption("--seed") * 4 + part) * 100 + 5000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        assert sum(_check_random(seed, exporter, tmp_path) for seed in range(first, first + MANY[exporter])) > 0
