"""Names that mean something to Python, torch or this package: such a model loads, runs, prints and is saved."""

from __future__ import annotations

import ast
import importlib.util
import pickle
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import onnx2nn
from onnx2nn.errors import Onnx2nnError, UnsupportedModelError
from onnx2nn.fx.blocks.block import Block
from onnx2nn.fx.modules.graph_module import ImportedModule
from tests.tiers import mostly_slow

X = torch.linspace(-1, 1, 96).reshape(2, 3, 4, 4)
LONG = "x" * (1 << 20)
WORDS = [
    "self",
    "cls",
    "class",
    "None",
    "True",
    "lambda",
    "print",
    "super",
    "exec",
    "torch",
    "nn",
    "F",
    "device",
    "Path",
]
WORDS += [
    "model",
    "load_model",
    "WEIGHTS",
    "forward",
    "weight",
    "bias",
    "__init__",
    "__class__",
    "__b",
    "__b_",
    "_",
    "__",
]
ODD = [
    "a b",
    "a\nb",
    "a\0b",
    "a\x1b[31m",
    "\u2028x",
    "..",
    "../../x",
    "0",
    "-1",
    "0.5",
    " ",
    "\u202e",
    "%s",
    "{x}",
    "a.b.c",
    "é",
]
SAME_IN_PYTHON = ["\ufb01", "\U0001d41a", "\u017f", "\uff49mport", "\u00b5"]
"""Identifiers that Python reads as others: `fi`, `a`, `s`, `import`, another mu."""


RUNS = 'training") or getattr(__import__("os"), "mkdir")("ran") or getattr(self, "y'
"""A name that is code where it is written into a program between quotes."""


@pytest.mark.parametrize("producer", ["", "pytorch", "onnx2nn"])
@pytest.mark.parametrize("name", [RUNS, RUNS.replace('"', "'"), f"block.{RUNS}", 'a"b', "a\\", *SAME_IN_PYTHON])
def test_no_name_runs(name: str, producer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wrote the file: names of torch's exporters are the author's keys, and stay as they are where they can."""
    monkeypatch.chdir(tmp_path)
    model = model_of(name)
    model.producer_name = producer
    check(onnx2nn.load(model), 2 * X.relu(), tmp_path, export=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", [RUNS, 'a"b', "a\nb", *SAME_IN_PYTHON])
def test_no_key_that_the_newer_exporter_lists_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.replaced, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.replaced(x).relu())

    torch.onnx.export(Module(), (torch.randn(2, 4),), tmp_path / "m.onnx", dynamo=True, verbose=False)
    content = onnx.load(tmp_path / "m.onnx")
    graph = content.graph
    for item in (*graph.initializer, *graph.value_info, *graph.node):
        item.name = item.name.replace("replaced", name)
    for node in graph.node:
        node.input[:] = [value.replace("replaced", name) for value in node.input]
    for item in (*graph.node, *graph.value_info, *graph.initializer, graph):
        for entry in item.metadata_props:
            entry.value = entry.value.replace("replaced", name)
    monkeypatch.chdir(tmp_path)
    module = onnx2nn.load(content)
    x = torch.randn(2, 4)
    (expected,) = ort.InferenceSession(content.SerializeToString()).run(None, {graph.input[0].name: x.numpy()})
    torch.testing.assert_close(module(x).detach(), torch.from_numpy(expected))
    onnx2nn.to_python(module, tmp_path / "source")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("opaque", [False, True])
def test_no_attribute_runs(opaque: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that takes attributes of every name gets none that is no name."""
    monkeypatch.chdir(tmp_path)
    node = helper.make_node("Own", ["x"], ["y"], domain="own", known=2)
    node.attribute.append(onnx.AttributeProto(name='a=__import__("os").mkdir("ran"), b', i=1, type="INT"))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
        ir_version=8,
    )

    def body(F: Any, x: Any, **attributes: Any) -> Any:
        return x * attributes["known"]

    with onnx2nn.register("own", "Own", opaque=opaque)(body):
        with pytest.raises(UnsupportedModelError, match="no parameter can have"):
            onnx2nn.load(model)
        del node.attribute[1]
        model.graph.node[0].CopyFrom(node)
        assert onnx2nn.load(model)(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("op", ["call_module", "get_attr", "call_method", "placeholder", "call_function"])
def test_no_name_in_a_graph_runs(op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check behind all that give names: in the graph of the whole and of a block."""
    monkeypatch.chdir(tmp_path)
    for part in ("", "block"):
        module = onnx2nn.load(model_of("block.layer")).get_submodule(part)
        module.add_module(RUNS, nn.ReLU())
        module(X)
        graph = module.graph
        first = next(node for node in graph.nodes if node.op == "placeholder")
        with graph.inserting_after(first):
            if op == "call_function":
                graph.call_function(torch.relu, (first,), {'a=__import__("os").mkdir("ran"), b': 1})
            elif op == "call_method":
                graph.call_method(f"relu() or {RUNS}", (first,))
            elif op == "placeholder":
                graph.create_node(op, 'a=__import__("os").mkdir("ran")')
            else:
                graph.create_node(op, RUNS, (first,) if op == "call_module" else ())
        with pytest.raises(Onnx2nnError, match="cannot stand in a program"):
            module.recompile()
    assert not (tmp_path / "ran").exists()


def members() -> list[str]:
    """Returns the names of all attributes of a module of an import and of a block in it."""
    module = onnx2nn.load(model_of("block.layer"))
    assert isinstance(module.block, Block)
    return sorted({*dir(module), *dir(module.block)})


def model_of(name: str, other: str = "other") -> onnx.ModelProto:
    """Returns two layers of which the first is called `name`, a dotted path, in weights, nodes and values."""
    around = name.rpartition(".")[0]
    second = f"{around}.{other}" if around else other
    steps = [f"/{path.replace('.', '/')}" for path in (name, second)]
    nodes = [
        helper.make_node("Conv", ["input", f"{name}.weight"], [name], name=f"{steps[0]}/Conv"),
        helper.make_node("Relu", [name], [f"{name}_relu"], name=f"{steps[0]}/Relu"),
        helper.make_node("Conv", [f"{name}_relu", f"{second}.weight"], ["output"], name=f"{steps[1]}/Conv"),
    ]
    for node in nodes:
        node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=repr([name, name, "torch.nn.Conv2d"]))
    weights = {f"{name}.weight": np.eye(3, dtype=np.float32), f"{second}.weight": 2 * np.eye(3, dtype=np.float32)}
    return graph_of(nodes, weights)


def graph_of(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], x: str = "input", y: str = "output") -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["N", 3, 4, 4])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.reshape(3, 3, 1, 1), key) for key, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(module: Any, expected: torch.Tensor, folder: Path, *, export: bool = False) -> None:
    """Runs a module, prints it, and reads it back from every file that holds a model."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, of names that are cut
        assert torch.equal(module(X), expected)
        for part in module.modules():
            if isinstance(part, torch.fx.GraphModule):
                ast.parse(part.code)
        assert len(str(module)) > 10
        assert torch.equal(pickle.loads(pickle.dumps(module))(X), expected)
        for name in ("m.pth", "m.safetensors"):
            onnx2nn.save(module, folder / name)
        assert torch.equal(torch.load(folder / "m.pth", weights_only=False)(X), expected)
        assert torch.equal(source_of(module, folder / "source")(X), expected)
        if export:
            onnx2nn.export_onnx(module, folder / "m.onnx")
            assert torch.equal(onnx2nn.load(folder / "m.onnx")(X), expected)


def source_of(module: Any, folder: Path) -> torch.nn.Module:
    onnx2nn.to_python(module, folder)
    spec = importlib.util.spec_from_file_location("hostile_names_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    found: torch.nn.Module = loaded.load_model()
    return found


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    yield


@pytest.mark.parametrize("where", ["{}", "block.{}", "{}.layer"])
@pytest.mark.parametrize("name", mostly_slow([*WORDS, *ODD, *SAME_IN_PYTHON], ["self", "__b", "a\nb", "\ufb01"]))
def test_words_of_python_and_torch(name: str, where: str, tmp_path: Path) -> None:
    check(onnx2nn.load(model_of(where.format(name))), 2 * X.relu(), tmp_path, export=name in ("self", "__b", "class"))


@pytest.mark.parametrize("where", ["{}", "block.{}", "{}.layer"])
def test_keywords_in_the_keys_of_an_author(where: str, tmp_path: Path) -> None:
    """`nn.ModuleDict({"in": ...})` has such keys; torch.fx writes `self.in`, which is no Python."""
    model = model_of(where.format("in"))
    model.producer_name = "pytorch"
    check(onnx2nn.load(model), 2 * X.relu(), tmp_path, export=True)


@pytest.mark.parametrize("name", ["self", "torch", "device", "block.self", "in", "block.in"])
def test_weights_of_no_layer(name: str, tmp_path: Path) -> None:
    """torch's tracer calls the value of a weight `self` so, which is the module in the code that it writes."""
    nodes = [
        helper.make_node("Add", ["input", name], ["sum"]),
        helper.make_node("Conv", ["sum", "a.weight"], ["output"]),
    ]
    model = graph_of(nodes, {"a.weight": np.eye(3, dtype=np.float32)})
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 1, 1), np.float32), name))
    model.producer_name = "pytorch"
    module = onnx2nn.load(model)
    check(module, X + 1, tmp_path, export=True)
    if name != "self":  # of any module's, not of an import's alone
        assert torch.equal(torch.export.export(module, (X,)).module()(X), X + 1)


@pytest.mark.parametrize("where", ["{}", "block.{}", "{}.layer"])
def test_attributes_of_modules(where: str) -> None:
    """A layer with the name of any attribute that a module of an import or a block has."""
    assert {"naming_report", "graph", "code", "meta", "kind", "forward", "share", "__copy__"} <= set(members())
    for name in members():
        module = onnx2nn.load(model_of(where.format(name), "second"))
        with torch.no_grad():
            assert torch.equal(module(X), 2 * X.relu()), name
            assert module.code
            assert isinstance(module, ImportedModule)


@pytest.mark.parametrize("name", ["naming_report", "meta", "code", "append", "keys"])
def test_attributes_of_modules_in_files(name: str, tmp_path: Path) -> None:
    check(onnx2nn.load(model_of(f"block.{name}")), 2 * X.relu(), tmp_path, export=True)


def test_a_container_that_cannot_run_says_why() -> None:
    module = onnx2nn.load(model_of("block.meta"))
    assert module.meta["onnx2nn"]["tree"]["flat"] == {"block": "modules with a graph have a member 'meta' already"}
    assert list(module.state_dict()) == ["block.meta.weight", "block.other.weight"]


@pytest.mark.parametrize("name", mostly_slow(SAME_IN_PYTHON, ["\ufb01"]))
def test_names_that_python_takes_for_one(name: str, tmp_path: Path) -> None:
    """Two layers whose names differ in the file, and are the same identifier for Python."""
    assert name.isidentifier()
    same = unicodedata.normalize("NFKC", name)
    check(onnx2nn.load(model_of(name, same)), 2 * X.relu(), tmp_path)


@pytest.mark.parametrize("name", [*WORDS, *ODD, *SAME_IN_PYTHON])
def test_names_of_inputs_and_outputs(name: str) -> None:
    nodes = [helper.make_node("Conv", [f"in{name}", "w"], [name], name=name)]
    with torch.no_grad():
        module = onnx2nn.load(graph_of(nodes, {"w": np.eye(3, dtype=np.float32)}, f"in{name}", name))
        assert torch.equal(module(X), X)
        assert torch.equal(module(**{f"in{name}": X}), X)
        nodes = [helper.make_node("Conv", [name, "w"], ["out"], name=name)]
        module = onnx2nn.load(graph_of(nodes, {"w": np.eye(3, dtype=np.float32)}, name, "out"))
        assert torch.equal(module(X), X)
        ast.parse(module.code)


@pytest.mark.parametrize(
    ("first", "second"),
    [("X", "x"), ("x", "X"), ("imageSize", "image_size"), ("len", "len_1"), ("Self", "x"), ("x", "Self"), ("é", "_")],
)
def test_names_of_two_inputs(first: str, second: str, tmp_path: Path) -> None:
    """Torch names the value of an argument in lower case, and that of `len` `len_1`: no argument has such a name."""
    nodes = [
        helper.make_node("Sub", [first, second], ["difference"], name="/block/Sub"),
        helper.make_node("Conv", ["difference", "block.layer.weight"], ["scaled"], name="/block/layer/Conv"),
        helper.make_node("Conv", [second, "block.second.weight"], ["other"], name="/block/second/Conv"),
        helper.make_node("Mul", ["scaled", "other"], ["y"], name="/block/Mul"),
    ]
    weights = {"block.layer.weight": np.eye(3, dtype=np.float32), "block.second.weight": np.eye(3, dtype=np.float32)}
    model = graph_of(nodes, weights, first, "y")
    model.graph.input.append(helper.make_tensor_value_info(second, TensorProto.FLOAT, ["N", 3, 4, 4]))
    module = onnx2nn.load(model)
    assert isinstance(module.block, Block)
    expected = (X - 2) * 2
    onnx2nn.to_python(module, tmp_path / "source")
    with torch.no_grad():
        for other in (module, pickle.loads(pickle.dumps(module)), source_of(module, tmp_path / "source")):
            assert torch.equal(other(X, torch.full_like(X, 2)), expected)
        assert torch.equal(module(**{second: torch.full_like(X, 2), first: X}), expected)


@pytest.mark.parametrize("where", ["{}", "block.{}"])
def test_a_name_of_a_megabyte(where: str, tmp_path: Path) -> None:
    check(onnx2nn.load(model_of(where.format(LONG))), 2 * X.relu(), tmp_path)


@pytest.mark.parametrize("separator", [".", "/", "::"])
def test_a_path_of_many_steps(separator: str) -> None:
    """torch walks a tree of modules by functions that call themselves."""
    with torch.no_grad():
        assert torch.equal(onnx2nn.load(model_of(separator.join(["a"] * 10_000)))(X), 2 * X.relu())


def test_an_input_with_the_name_of_what_reads_numbered_weights() -> None:
    """torch reads a weight whose name is no identifier by `getattr`."""
    text = 'g (float[2] getattr) => (float[2] y, float[2] "x.1") <float[2] "x.1" = {1, 2}> { y = Neg(getattr) }'
    module = onnx2nn.load(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}'))
    assert "getattr(self.x" in module.code
    given, kept = module(getattr=torch.ones(2))
    assert torch.equal(given, -torch.ones(2)) and torch.equal(kept, torch.tensor([1.0, 2.0]))


def test_members_that_other_libraries_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers gives every module a method when it is imported, after which no layer can have its name."""
    monkeypatch.setattr(torch.nn.Module, "added_later", lambda self: None, raising=False)
    for where in ("{}", "block.{}", "{}.layer"):
        with torch.no_grad():
            assert torch.equal(onnx2nn.load(model_of(where.format("added_later"), "second"))(X), 2 * X.relu())
