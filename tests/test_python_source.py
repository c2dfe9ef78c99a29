"""Imported modules written as source: the file computes the same, has the same keys, and reads as someone's own."""

from __future__ import annotations

import cProfile
import importlib.util
import operator
import pstats
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from realmodels import EXPORTERS, Tensors, run, seeded
from scripted_models import SCRIPTED, export_voice, script, sound
from torch import fx, nn
from torch.nn import functional as F
from torch_models import CASES, RUNS

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import InputError, VerificationError
from onnx2nn.optable.registry import TABLE, name_of
from onnx2nn.optable.revisions import Revision
from onnx2nn.output.python_source import source_of
from onnx2nn.output.python_source.expressions import INFIX, PREFIX, WIDTH, Expression, Infix, Prefix, Text, inline
from onnx2nn.output.python_source.inlining import ForeignError, Inlined


def _written(module: nn.Module, folder: Path) -> nn.Module:
    """Writes a module and gives what the file loads."""
    onnx2nn.to_python(module, folder)
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["model"] = loaded  # where dataclasses look for it
    spec.loader.exec_module(loaded)
    return loaded.load_model()


def _check(module: nn.Module, folder: Path, *inputs: Tensors) -> str:
    """Asserts that a module's source means the same, with equal keys, and is clean; returns the source."""
    written = _written(module, folder)
    assert set(written.state_dict()) == set(module.state_dict())
    assert not written.training
    for values in inputs:
        for ours, theirs in zip(run(written, values), run(module, values), strict=True):
            # Not always bit by bit: a transposed matrix of the file is a contiguous one in weights.safetensors.
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    _check_clean(folder / "model.py")
    source = (folder / "model.py").read_text()
    assert "onnx2nn" not in source
    return source


def _check_clean(path: Path) -> None:
    for arguments in (["check", "--isolated"], ["format", "--isolated", "--diff"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *arguments, str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def _exported(model: nn.Module, inputs: Tensors, folder: Path, exporter: str) -> nn.Module:
    dynamic = {"dynamic_axes": {"x": {0: "batch"}}} if exporter == "torchscript" else {}
    torch.onnx.export(
        model,
        inputs,
        str(folder / "m.onnx"),
        dynamo=exporter == "dynamo",
        input_names=["x", "mask"][: len(inputs)],
        verbose=False,
        **dynamic,
    )
    return onnx2nn.load(folder / "m.onnx")


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        bias = torch.where(mask > 0, 1.0, 0.5)
        return x + self.second(F.gelu(self.first(self.norm(x)))) * bias


class Stack(nn.Module):
    """Five equal blocks with a mask, then one of its own kind; a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([Block(8) for _ in range(5)])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1), nn.ReLU6(), nn.Dropout(), nn.Conv2d(after, after, 3, 1, 1)
        )
        self.skip = nn.Conv2d(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


class Pyramid(nn.Module):
    """Equal blocks of other widths and strides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.2), nn.MaxPool2d(2))
        self.stages = nn.Sequential(Residual(4, 4, 1), Residual(4, 8, 2), Residual(8, 12, 2))
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_equal_blocks_are_one_class_in_a_loop(exporter: str, tmp_path: Path) -> None:
    inputs = (torch.tensor([[1, 2, 3]] * 2), torch.tensor([[[0.0], [1.0], [1.0]]] * 2))
    module = _exported(seeded(Stack), inputs, tmp_path, exporter)
    source = _check(module, tmp_path / "source", inputs)
    assert source.count("nn.Linear(8, 16") == 1
    assert "for _ in range(5)" in source
    assert "for layer in self.layers:" in source
    assert source.count("F.gelu(") == 1


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_what_differs_is_an_argument(exporter: str, tmp_path: Path) -> None:
    inputs = (torch.randn(2, 3, 20, 20, generator=torch.Generator().manual_seed(0)),)
    module = _exported(seeded(Pyramid), inputs, tmp_path, exporter)
    source = _check(module, tmp_path / "source", inputs)
    assert source.count("\nclass ") == 2
    assert "in_channels: int" in source and "stride=stride" in source
    assert "nn.ReLU6()" in source and "nn.LeakyReLU(" in source and "nn.MaxPool2d(2" in source
    assert source.count("nn.Identity()") == 1  # the dropout of the body, which the file no longer has


class Stages(nn.Module):
    """Gives what every stage gives, as a backbone does."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = []
        for stage in self.stages:
            x = stage(x)
            results.append(x)
        return tuple(results)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_results_of_all_stages(exporter: str, tmp_path: Path) -> None:
    """What is given out on the way is no loop."""
    module = _exported(seeded(Stages), (torch.randn(2, 6),), tmp_path, exporter)
    _check(module, tmp_path / "python", (torch.randn(2, 6),))


class Dense(nn.Module):
    """Every layer takes what all before it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.block = nn.Module()
        for number in range(5):
            layer = nn.Module()
            layer.linear = nn.Linear(4 * (number + 1), 4)
            self.block.add_module(f"layer{number}", layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [self.stem(x)]
        for layer in self.block._modules.values():
            features.append(torch.relu(layer.linear(torch.cat(features, 1))))
        return torch.cat(features, 1)


def test_layers_on_all_before_them_share_a_class(tmp_path: Path) -> None:
    root = seeded(Dense)

    def build(graph: fx.Graph) -> object:
        features = [graph.call_module("stem", (graph.placeholder("x"),))]
        for number in range(5):
            x = graph.call_function(torch.cat, (list(features), 1)) if number else features[0]
            if number:
                x.meta["onnx"] = ("", "Concat", f"/block/layer{number}/Concat")
            features.append(graph.call_function(torch.relu, (graph.call_module(f"block.layer{number}.linear", (x,)),)))
            features[-1].meta["onnx"] = ("", "Relu", f"/block/layer{number}/Relu")
        joined = graph.call_function(torch.cat, (features, 1))
        joined.meta["onnx"] = ("", "Concat", "/block/Concat")
        return joined

    module = _graph_module(root, build)
    x = torch.randn(2, 4)
    torch.testing.assert_close(module(x), root(x))
    source = _check(module, tmp_path, (x,))
    assert source.count("torch.cat(") == 2 and source.count(".append(") == 4


def test_a_sequential_model_keeps_the_name_of_its_input(tmp_path: Path) -> None:
    root = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def build(graph: fx.Graph) -> object:
        x = graph.placeholder("image")
        for name in ("0", "1", "2"):
            x = graph.call_module(name, (x,))
        return x

    source = _check(_graph_module(root, build), tmp_path, (torch.randn(2, 3),))
    assert "class Model(nn.Sequential):" in source and "def forward(self, image: Tensor)" in source


def _graph_module(root: nn.Module, build: Callable[[fx.Graph], object]) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(build(graph))
    return fx.GraphModule(root, graph).eval()


def test_a_part_that_is_called_in_turn_with_others_is_taken_apart(tmp_path: Path) -> None:
    root = nn.Module()
    for name in ("left", "right"):
        root.add_module(name, nn.Module())
        for step in ("one", "two"):
            getattr(root, name).add_module(step, nn.Linear(3, 3))

    def build(graph: fx.Graph) -> object:
        x = graph.placeholder("x")
        for path in ("left.one", "right.one", "left.two", "right.two"):
            x = graph.call_module(path, (x,))
        return x

    source = _check(_graph_module(root, build), tmp_path, (torch.randn(2, 3),))
    assert "self.left.one(" in source


def test_a_bias_in_a_layer_that_has_none(tmp_path: Path) -> None:
    """DeBERTa subtracts the mean, then adds a bias called as those of the norm that is left."""
    norm, root = nn.RMSNorm(4, eps=1e-6), nn.Module()
    norm.register_parameter("bias", nn.Parameter(torch.arange(4.0)))
    root.add_module("norms", nn.Sequential(norm))

    def build(graph: fx.Graph) -> object:
        normed = graph.call_module("norms.0", (graph.placeholder("x"),))
        return graph.call_function(operator.add, (normed, graph.get_attr("norms.0.bias")))

    source = _check(_graph_module(root, build), tmp_path, (torch.randn(2, 4),))
    assert re.search(r"norms\[0\]\.bias = nn\.Parameter", source), source


def test_weights_without_identifiers_that_are_tied_or_in_a_layer(tmp_path: Path) -> None:
    """Two initializers `onnx::Conv_1` of the older exporter may be one weight."""
    root = nn.Module()
    root.add_module("norm", nn.RMSNorm(4, eps=1e-6))
    root.norm.register_parameter("a::bias", nn.Parameter(torch.arange(4.0)))
    root.register_parameter("scale", nn.Parameter(torch.full((4,), 2.0)))
    root.register_parameter("onnx::Mul_1", root.scale)

    def build(graph: fx.Graph) -> object:
        x = graph.call_module("norm", (graph.placeholder("x"),))
        for name in ("norm.a::bias", "scale", "onnx::Mul_1"):
            x = graph.call_function(operator.mul, (x, graph.get_attr(name)))
        return x

    module = _graph_module(root, build)
    _check(module, tmp_path, (torch.randn(2, 4),))
    written = _written(module, tmp_path)
    assert getattr(written, "onnx::Mul_1") is written.scale


def test_shared_layers_tied_weights_buffers_and_types(tmp_path: Path) -> None:
    root = nn.Module()
    root.add_module("0", nn.Linear(3, 3, dtype=torch.float64))
    root.add_module("tied", nn.Linear(3, 3, bias=False, dtype=torch.float64))
    root.tied.weight = root.get_submodule("0").weight
    root.register_parameter("scale", nn.Parameter(torch.tensor(2.0, dtype=torch.float64), requires_grad=False))
    root.register_buffer("table", torch.arange(6).reshape(2, 3))
    root.register_buffer("unsaved", torch.tensor([True, False, True]))
    root.get_submodule("0").bias.requires_grad_(False)

    def build(graph: fx.Graph) -> object:
        x = graph.placeholder("F")  # a name that the file needs for itself
        for _ in range(2):
            x = graph.call_module("0", (x,))
        x = graph.call_function(operator.mul, (graph.call_module("tied", (x,)), graph.get_attr("scale")))
        row = graph.call_function(operator.getitem, (graph.get_attr("table"), 1))
        chosen = graph.call_function(torch.where, (graph.get_attr("unsaved"), x, row))
        stop = graph.call_method("size", (x, 0))
        part = graph.call_function(operator.getitem, (chosen, (slice(None), slice(None, stop))))
        power = graph.call_function(operator.pow, (graph.call_function(operator.neg, (part,)), 2))
        return (power, [x, graph.call_function(torch.full_like, (x, float("-inf")))])

    module = _graph_module(root, build)
    module._non_persistent_buffers_set.add("unsaved")
    written = _written(module, tmp_path)
    x = torch.randn(2, 3, dtype=torch.float64)
    (power, (one, infinite)), (expected, (other, _)) = written(x), module(x)
    assert torch.equal(power, expected) and torch.equal(one, other) and bool((infinite == float("-inf")).all())
    assert written.tied.weight is written.get_submodule("0").weight
    assert {name for name, p in written.named_parameters() if not p.requires_grad} == {"scale", "0.bias"}
    assert set(written.state_dict()) == set(module.state_dict()) and "unsaved" not in written.state_dict()
    _check_clean(tmp_path / "model.py")


def _model(nodes: list[onnx.NodeProto], inputs: str, outputs: str, **options: object) -> onnx.ModelProto:
    def values(text: str) -> list[onnx.ValueInfoProto]:
        return [onnx.parser.parse_graph(f"g ({part}) => (float z) {{}}").input[0] for part in text.split(";")]

    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], **options)


def test_functions_of_the_file_are_classes(tmp_path: Path) -> None:
    function = onnx.parser.parse_function(
        '<domain: "own", opset_import: ["" : 20]> Twice (a, w) => (b) { c = MatMul(a, w)  b = Relu(c) }'
    )
    nodes = [helper.make_node("Twice", ["x", "w"], ["y"], domain="own"), helper.make_node("Neg", ["y"], ["z"])]
    model = _model(nodes, "float[2,3] x", "float[2,3] z", functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    weights = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    _check(onnx2nn.load(model), tmp_path, (torch.randn(2, 3),))


def test_writing_a_loop_in_front_of_a_function_moves_no_module(tmp_path: Path) -> None:
    """Only the function uses what the Loop gives; a call without a name would belong to it."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18, "own": 1]>
        g (float[n] x) => (float[n] z) <int64 trips = {2}> {
            y = Loop (trips, "", x) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w) {
                d = Identity (c)
                w = Add (v, x)
            }>
            z = own.Twice (y)
        }
        <domain: "own", opset_import: ["": 18]> Twice (a) => (b) { b = Add (a, a) }""")
    module = onnx2nn.load(model)
    before = [name for name, _ in module.named_modules()]
    _check(module, tmp_path, (torch.randn(3),))
    assert [name for name, _ in module.named_modules()] == before


@pytest.mark.parametrize("name", SCRIPTED)
def test_branches_and_loops(name: str, tmp_path: Path) -> None:
    """Their graphs are classes; the modules that run them are written too."""
    _, path = script(name, tmp_path)
    source = _check(onnx2nn.load(path), tmp_path, *SCRIPTED[name][1])
    wanted = "If" if name in ("branch", "experts", "rates") else "Loop"
    assert re.findall(r"class (If|Loop)\(", source) == [wanted]


@pytest.mark.parametrize("shapes", [None, {"x": [2, 40], "state": [2, 2, 3]}], ids=["open", "fixed"])
def test_branches_that_take_different_sizes(shapes: dict[str, list[int]] | None, tmp_path: Path) -> None:
    module = onnx2nn.load(export_voice(tmp_path), input_shapes=shapes)
    source = _check(module, tmp_path, sound(2, 40, 16), *([] if shapes else [sound(3, 15, 8)]))
    written = _written(module, tmp_path)
    with pytest.raises((ValueError, RuntimeError), match=r"length <= 17 is needed|does not take inputs of these sizes"):
        written(*sound(2, 40, 8))
    assert ("If(" in source) == (shapes is None)


def test_a_scan_over_a_shared_weight(tmp_path: Path) -> None:
    """Two loops share a class of their bodies, and a weight that both hold."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    agraph (float[4,3] start, float[n,4,3] x) => (float[4,3] last, float[n,4,3] back)
    <float[3,3] w = {1, 2, 3, 0, 1, 0, -1, 0.5, 1}> {
        last, sums = Scan <num_scan_inputs = 1, body = g (float[4,3] s, float[4,3] r) => (float[4,3] t, float[4,3] u) {
            p = MatMul(r, w)  t = Add(s, p)  u = Identity(t)
        }> (start, x)
        other, back = Scan <num_scan_inputs = 1, scan_input_directions = [1],
            body = h (float[4,3] s2, float[4,3] r2) => (float[4,3] t2, float[4,3] u2) {
            p2 = MatMul(r2, w)  t2 = Add(s2, p2)  u2 = Identity(t2)
        }> (start, sums)
    }"""
    module = onnx2nn.load(onnx.parser.parse_model(text))
    inputs = [(torch.linspace(0, 1, 12).reshape(4, 3), torch.linspace(-1, 1, n * 12).reshape(n, 4, 3)) for n in (3, 1)]
    assert _check(module, tmp_path, *inputs).count("\nclass ") == 3


def test_what_runs_as_one_function_is_written_with_all_it_needs(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["found"]),
        helper.make_node("Unique", ["flat"], ["once", "", "", "counts"]),
        helper.make_node("Slice", ["counts", "start", "end", "", "step"], ["back"]),
    ]
    inputs = "float[1,n,4] boxes;float[1,2,n] scores;int64[m] flat;int64[1] end"
    model = _model(nodes, inputs, "int64[k,3] found;int64[u] once;int64[v] back")
    for name, value in {"most": 3, "start": -1, "step": -1}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    corners = torch.rand(1, 6, 4, generator=torch.Generator().manual_seed(0))
    scores = torch.rand(1, 2, 6, generator=torch.Generator().manual_seed(1))
    calls = [(corners, scores, torch.tensor([3, 1, 1, 7]), torch.tensor([end])) for end in (-3, 0)]
    source = _check(onnx2nn.load(model), tmp_path, *calls)
    assert "onnx_non_max_suppression(torch, boxes" in source


OLDER = {
    "LSTM-1": ([(5, 2, 3), (1, 16, 3), (1, 16, 4), (1, 32)], {"hidden_size": 4, "output_sequence": 1, "_outputs": 1}),
    "GRU-1": ([(5, 2, 3), (1, 12, 3), (1, 12, 4)], {"hidden_size": 4, "_outputs": 2}),
    "RoiAlign-10": ([(1, 2, 8, 8), (3, 4)], {"output_height": 2, "output_width": 3}),
    "Pad-1": ([(2, 3)], {"paddings": [0, 1, 1, 0], "value": 2.5}),
    "Upsample-7": ([(1, 1, 2, 2)], {"scales": [1.0, 1.0, 2.0, 2.0]}),
    "ScatterElements-11": ([(2, 3), (), (2, 3)], {"axis": 1}),
}
"""Shapes of the inputs, in place of `()` and behind RoiAlign's some indices, and the attributes."""


@pytest.mark.parametrize("name", OLDER)
def test_an_older_revision_is_written_as_a_call_of_a_newer_one(name: str) -> None:
    (row,) = (row for row in TABLE if str(row) == name)
    assert isinstance(row.body, Revision)
    shapes, attributes = OLDER[name]
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.rand(shape, generator=draw) if shape else torch.tensor([[0, 2, 1], [1, 0, 2]]) for shape in shapes]
    inputs += [torch.tensor([0, 0, 0])] if row.operator == "RoiAlign" else []
    inlined = Inlined()
    inlined.add(row)
    names: dict[str, Any] = {"__name__": __name__}
    imports = [f"from {module} import {name}" if name else f"import {module}" for module, name in inlined.imports]
    exec("\n".join(["from __future__ import annotations", *imports, inlined.text()]), names)
    assert "revision(" not in inlined.text()
    written = names[inlined.name(row)](torch, *inputs, **attributes)
    torch.testing.assert_close(written, row.body(torch, *inputs, **attributes), rtol=0, atol=0)


def test_every_operator_but_those_on_strings_can_be_written_as_a_function(tmp_path: Path) -> None:
    """The text holds all that it needs: what runs at its definition is run, and ruff looks the other names up."""
    refused = {}
    for row in TABLE:
        inlined = Inlined()
        try:
            inlined.add(row)
        except ForeignError as reason:
            refused[name_of(row)] = str(reason)
            continue
        imports = [f"from {module} import {name}" if name else f"import {module}" for module, name in inlined.imports]
        source = "\n".join(["from __future__ import annotations", *imports, inlined.text()])
        exec(compile(source, "operator", "exec", dont_inherit=True), {"__name__": __name__})
        (tmp_path / f"{name_of(row)}.py").write_text(source)
    command = ["ruff", "check", "--isolated", "--select", "F811,F821", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    strings = ["RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"]
    assert sorted(name for name, reason in refused.items() if reason == "works on strings") == strings
    assert len(refused) < 8, refused


def test_source_of_a_model_that_reads_strings_is_compared_with_strings(tmp_path: Path) -> None:
    keys = {"keys_strings": ["ash", "oak"], "values_int64s": [3, 5], "default_int64": -1}
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **keys)
    ends = [helper.make_tensor_value_info(name, kind, ["n"]) for name, kind in (("x", 8), ("y", 7))]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=opsets, ir_version=8)
    words = np.array(["oak", "elm", "ash"], object)
    onnx2nn.to_python(onnx2nn.load(model), tmp_path / "net", example_inputs=[words])
    assert (tmp_path / "net" / "model.py").exists()


def test_what_torch_has_not_is_refused_by_name(tmp_path: Path) -> None:
    text = helper.make_node("StringConcat", ["a", "b"], ["z"], name="join")
    strings = [helper.make_tensor_value_info(name, TensorProto.STRING, [2]) for name in "abz"]
    graph = helper.make_graph([text], "g", strings[:2], strings[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    with pytest.raises(InputError, match=r"StringConcat runs as a function .*works on strings \(nodes: join\)"):
        onnx2nn.to_python(model, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    "node",
    [
        'z = Concat <axis = 0> (a, b)',
        'z = Expand (a, two)',
        'z = If (c) <then_branch = t () => (string[m] d) { d = Concat <axis = 0> (a, b) },'
        ' else_branch = e () => (string[k] f) { f = Identity (a) }>',
    ],
)  # fmt: skip
def test_what_operators_do_to_texts_is_refused_by_name(node: str, tmp_path: Path) -> None:
    """The source of these operators is that on tensors."""
    graph = f"(string[1] a, string[1] b, bool c) => (string[n] z) <int64[1] two = {{2}}> {{ {node} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {graph}')
    with pytest.raises(InputError, match=r"(Concat|Expand) runs as a function of onnx2nn, which works on strings"):
        onnx2nn.to_python(model, tmp_path / "nothing")


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def test_a_model_without_outputs(tmp_path: Path) -> None:
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => () { y = Relu(x) }')
    module = onnx2nn.load(model)
    assert module(torch.zeros(2)) == ()
    source = _check(module, tmp_path, (torch.zeros(2),))
    assert "tuple[()]" in source


def test_only_imported_modules_and_writable_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not of a Linear"):
        onnx2nn.to_python(nn.Linear(2, 2), tmp_path)
    (tmp_path / "file").write_text("")
    model = _model([helper.make_node("Neg", ["x"], ["z"])], "float[2] x", "float[2] z")
    with pytest.raises(InputError, match="Cannot write"):
        onnx2nn.to_python(model, tmp_path / "file")
    with pytest.raises(InputError, match=r"net\.py is the name of a file. Name a folder, .*net: "):
        onnx2nn.to_python(model, tmp_path / "net.py")
    assert not (tmp_path / "net.py").exists()


def test_a_file_that_differs_is_not_written(tmp_path: Path) -> None:
    module = _graph_module(nn.Module(), lambda graph: graph.call_function(torch.rand_like, (graph.placeholder("x"),)))
    with pytest.raises(VerificationError):
        onnx2nn.to_python(module, tmp_path, example_inputs=[np.zeros(5, np.float32)])
    assert not list(tmp_path.iterdir())


def test_names_of_the_file_cannot_become_code(tmp_path: Path) -> None:
    name = 'a"""\nimport os  # \\'
    node = helper.make_node("Add", ["x", name], ["z"], name=f"/{name}/Add")
    model = _model([node], "float[2] x", "float[2] z")
    model.graph.name = name
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), name))
    source = _check(onnx2nn.load(model), tmp_path, (torch.ones(2),))
    assert "import os" not in source


def test_runs_without_onnx2nn(tmp_path: Path) -> None:
    model = _model([helper.make_node("Neg", ["x"], ["z"])], "float[2] x", "float[2] z")
    onnx2nn.to_python(model, tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch, model; "
        "assert model.load_model()(torch.ones(2)).tolist() == [-1, -1]; "
        "assert not [m for m in sys.modules if m.startswith(('onnx', 'oneflow'))]"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"
    assert main(["convert", str(model), "--python", str(tmp_path / "digits")]) == 0
    assert "digits/model.py: " in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "digits").iterdir()) == ["model.py", "weights.safetensors"]


REAL = [
    pytest.param(name, exporter, marks=() if name in ("shufflenet_v2", "lstm_language_model") else pytest.mark.slow)
    for name, exporter in RUNS
]


@pytest.mark.parametrize(("name", "exporter"), REAL)
def test_real_models(name: str, exporter: str, tmp_path: Path) -> None:
    case = CASES[name]
    one, two = case.inputs(case.sizes[0]), case.inputs(case.sizes[1])
    path = EXPORTERS[exporter](name, seeded(case.build), one, two)
    _check(onnx2nn.load(path), tmp_path, one, two)


def test_vision_transformer_is_short() -> None:
    case = CASES["vit_b_16"]
    path = EXPORTERS["dynamo"]("vit_b_16", seeded(case.build), case.inputs(2), case.inputs(3))
    lines = source_of(onnx2nn.load(path)).splitlines()
    assert len(lines) < 400
    assert max(map(len, lines)) <= WIDTH


_OPERANDS: dict[str, object] = {"a": 3, "b": -2, "c": 5}


def _evaluate(expression: Expression) -> object:
    functions = {symbol: function for function, symbol in (*INFIX.items(), *PREFIX.items()) if callable(function)}
    unary = {symbol: function for function, symbol in PREFIX.items()}
    if isinstance(expression, Infix):
        return functions[expression.symbol](_evaluate(expression.left), _evaluate(expression.right))
    if isinstance(expression, Prefix):
        return unary[expression.symbol](_evaluate(expression.value))
    assert isinstance(expression, Text)
    return _OPERANDS[expression.text] if expression.text in _OPERANDS else int(expression.text)


_SYMBOLS = sorted(set(INFIX.values()) - {"@", "<<", ">>", "**"})
_EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", "c", "7", "-1"]).map(Text),
    lambda inner: (
        st.builds(Infix, st.sampled_from(_SYMBOLS), inner, inner)
        | st.builds(Infix, st.just("**"), inner, st.sampled_from(["2", "-1", "a"]).map(Text))
        | st.builds(Prefix, st.sampled_from(["-", "~"]), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(_EXPRESSIONS)
def test_brackets_stand_where_they_are_needed(expression: Expression) -> None:
    try:
        expected = _evaluate(expression)
    except (ArithmeticError, TypeError):
        return
    assert eval(inline(expression), {}, dict(_OPERANDS)) == expected


def test_keys_of_any_letters_are_written_as_text(tmp_path: Path) -> None:
    evil = 'x"""\n    import os  # {i}\\'
    root = nn.Module()
    root.add_module(evil, nn.Module())
    holder = root.get_submodule(evil)
    for name in ("class", "keys", f"{evil}0", f"{evil}1", f"{evil}2"):
        holder.add_module(name, nn.Linear(3, 3))
    holder.register_parameter("lambda", nn.Parameter(torch.ones(3)))

    def build(graph: fx.Graph) -> object:
        x = graph.placeholder("getattr")
        for name in holder._modules:
            x = graph.call_module(f"{evil}.{name}", (x,))
        return graph.call_function(operator.add, (x, graph.get_attr(f"{evil}.lambda")))

    # fx itself writes such names into its own code, so the graph is bound to a module that is never run.
    module = _graph_module(nn.Module(), lambda graph: graph.placeholder("x"))
    module.add_module(evil, holder)
    graph = fx.Graph()
    graph.output(build(graph))
    module._graph = graph
    written = _written(module, tmp_path)
    x = torch.randn(2, 3)
    expected = x
    for layer in holder._modules.values():
        expected = layer(expected)
    torch.testing.assert_close(written(x), expected + 1)
    assert set(written.state_dict()) == set(module.state_dict())
    assert "\n    import os" not in (tmp_path / "model.py").read_text()


class Conditioned(nn.Module):
    """Scales what a layer gives by an activation of a condition, which all layers have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.condition = nn.Linear(4, 4), nn.Sequential(nn.SiLU(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x) * self.condition(condition)


class AllConditioned(nn.Module):
    """Layers of a diffusion model, whose exporters write the activation once for all."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Linear(3, 4), nn.ModuleList(Conditioned() for _ in range(2))

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        condition = self.embedding(step)
        for layer in self.layers:
            x = layer(x, condition)
        return x


@pytest.mark.parametrize("exporter", sorted(EXPORTERS))
def test_an_activation_that_the_exporter_merged_stays_in_each_sequential(exporter: str, tmp_path: Path) -> None:
    """The second Sequential had an Identity in its place, which another call outside of it named."""
    inputs = (torch.randn(2, 4), torch.randn(2, 3))
    path = EXPORTERS[exporter](
        "source_conditioned", seeded(AllConditioned), inputs, (torch.randn(3, 4), torch.randn(3, 3))
    )
    module = onnx2nn.load(path)
    source = _check(module, tmp_path, inputs, (torch.randn(5, 4), torch.randn(5, 3)))
    assert "Identity" not in source
    assert source.count("nn.Sequential(nn.SiLU(), nn.Linear(4, 4))") == 1


def test_a_quantiser_in_a_layer(tmp_path: Path) -> None:
    """The file's names put it between the rows that GPT-2's layer makes of its input and the product."""
    text = """<ir_version: 8, opset_import: ["": 17], producer_name: "pytorch">
        g (float[n, 3, 4] x) => (float[n, 3, 6] y)
        <float step = {0.1}, uint8 zero = {128}, float[4, 6] w, float[6] b> {
            rows = Constant <value = int64[2] {-1, 4}> () flat = Reshape (x, rows)
            integers = QuantizeLinear (flat, step, zero) rounded = DequantizeLinear (integers, step, zero)
            sums = Gemm (rounded, w, b) back = Constant <value = int64[3] {-1, 3, 6}> () y = Reshape (sums, back) }"""
    model = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    names = {"w": "mix.weight", "b": "mix.bias", "step": "/mix/Reshape_scale", "zero": "/mix/Reshape_zero_point"}
    del model.graph.initializer[2:]
    for name, shape in (("mix.weight", (4, 6)), ("mix.bias", (6,))):
        array = generator.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for number, node in enumerate(model.graph.node):
        node.name = f"/mix/{node.op_type}_{number}"
        node.input[:] = [names.get(name, name) for name in node.input]
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    module = onnx2nn.load(model)
    assert [name for name, _ in module.mix.named_children()]
    _check(module, tmp_path, (torch.randn(2, 3, 4),))


def _calls(values: int) -> int:
    """Returns how many functions are called to write a module of so many results, all of the same input."""
    names = [f"y{number}" for number in range(values)]
    nodes = [helper.make_node("Neg", ["x"], [name]) for name in names]
    given, *results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", *names)]
    graph = helper.make_graph(nodes, "g", [given], results)
    module = onnx2nn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    profile = cProfile.Profile()
    profile.runcall(source_of, module)
    return pstats.Stats(profile).total_calls


def test_many_values_take_time_for_each() -> None:
    """All of them are kept to the end, where one expression uses them."""
    few, many = _calls(300), _calls(900)
    assert many < 3.5 * few, (few, many)
