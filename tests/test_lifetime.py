"""What outlives a module: no weights and no open file, and nothing that happens to the file later reaches the module.

The tests turn the cyclic garbage collector off: it counts objects, so that a few modules of some gigabytes each would
wait for it.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, parser

import onnx2nn
from onnx2nn import loading

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.onnx"


def layers() -> onnx.ModelProto:
    """Returns linear layers with a scope, and a weight that no layer holds."""
    weights = {f"block.l{i}.weight": np.eye(64, dtype=np.float32) for i in range(4)} | {
        "scale": np.ones(64, np.float32)
    }
    names = ["x", "a", "b", "c", "d"]
    nodes = [
        helper.make_node("MatMul", [names[i], f"block.l{i}.weight"], [names[i + 1]], name=f"/block/l{i}/MatMul")
        for i in range(4)
    ]
    nodes.append(helper.make_node("Mul", ["d", "scale"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 64])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def text(body: str, initializers: str = "float[4] w = {1, 2, 3, 4}", outputs: str = "float[N, 4] y") -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> graph (float[N, 4] x) => ({outputs}) <{initializers}> {{ {body} }}'
    )


BRANCHES = (
    "m = ReduceMax<keepdims = 0>(x) z = Constant<value_float = 0.0>() c = Greater(m, z) "
    "y = If<then_branch = t () => (float[N, 4] p) { p = Mul(x, w) },"
    " else_branch = e () => (float[N, 4] q) { q = Add(x, w) }>(c)"
)
LOOP = (
    "n = Constant<value_int = 3>() "
    "y = Loop<body = b (int64 i, bool k, float[N, 4] s) => (bool l, float[N, 4] r)"
    " { l = Identity(k) r = Mul(s, w) }>(n, , x)"
)
OPAQUE = "a = NonZero(x) b = Cast<to = 1>(a) c = ReduceSum(b) d = Mul(w, c) y = Add(x, d)"

SOURCES: dict[str, tuple[Callable[[], Any], dict[str, Any], tuple[int, ...]]] = {
    "file": (lambda: DIGITS, {}, (2, 8, 8, 1)),
    "bytes": (lambda: DIGITS.read_bytes(), {}, (2, 8, 8, 1)),
    "message": (layers, {}, (2, 64)),
    "frozen": (layers, {"trainable": False}, (2, 64)),
    "branches": (lambda: text(BRANCHES), {}, (2, 4)),
    "loop": (lambda: text(LOOP), {}, (2, 4)),
    "opaque": (lambda: text(OPAQUE), {}, (2, 4)),
    "dynamic": (lambda: onnx.load(DIGITS), {"input_shapes": {}}, (2, 8, 8, 1)),
}


@pytest.fixture(autouse=True)
def uncollected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loading, "COLLECTED_FROM", 0)  # these small models stand for large ones
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def state_of(module: torch.nn.Module) -> list[weakref.ref[Any]]:
    tensors = [*module.parameters(), *module.buffers()]
    assert tensors
    return [weakref.ref(module), *map(weakref.ref, tensors)]


def used(module: torch.nn.Module, x: torch.Tensor) -> None:
    """Does with a module what makes torch and onnx2nn cache something."""
    with torch.no_grad():
        module(x)
    module(x).sum().backward()
    assert module.code
    assert module.graph.owning_module is module
    str(module)
    pickle.dumps(module)
    module.recompile()


@pytest.mark.parametrize("call", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_a_deleted_module_frees_its_weights(name: str, call: bool) -> None:
    make, options, shape = SOURCES[name]
    module = onnx2nn.load(make(), **options)
    alive = state_of(module)
    if call and name != "frozen":
        used(module, torch.rand(*shape))
    del module
    assert [ref() for ref in alive] == [None] * len(alive)


def test_copies_and_changed_programs_free_their_weights() -> None:
    module = onnx2nn.load(layers())
    copied = copy.deepcopy(module)
    alive = state_of(module) + state_of(copied)
    graph = copy.deepcopy(module.graph)
    graph.output_node().args = (graph.output_node().all_input_nodes[0].args[0],)
    copied.graph = graph
    copied.recompile()
    copied(torch.ones(1, 64))
    del module, copied, graph
    assert [ref() for ref in alive] == [None] * len(alive)


def test_a_vectorised_module_frees_its_weights() -> None:
    model = text("s = Constant<value_ints = [4]>() y = Reshape(x, s) ", outputs="float[4] y")
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    for size in (1, 4):
        model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=size)
    model.graph.node.append(helper.make_node("Mul", ["y", "w"], ["z"]))
    model.graph.output[0].name = "z"
    module = onnx2nn.load(model, dynamic={"x": {0: "batch"}})
    alive = state_of(module)
    module(torch.rand(3, 4))
    del module
    assert [ref() for ref in alive] == [None] * len(alive)


def test_a_graph_does_not_keep_its_module() -> None:
    module = onnx2nn.load(layers())
    graph = module.graph
    assert pickle.loads(pickle.dumps(graph)).owning_module is not None  # torch's own class, with its module
    del module
    assert graph.owning_module is None
    graph.lint()


def test_the_import_keeps_no_bytes() -> None:
    data = bytearray(layers().SerializeToString())
    module = onnx2nn.load(memoryview(data))
    data.clear()  # a buffer that something still views cannot be resized
    module(torch.rand(2, 64))


def open_files() -> set[str]:
    """Returns the regular files that this process has open."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue  # that of the listing itself
    return {path for path in found if path.endswith((".onnx", ".data"))}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux lists a process's open files there")
def test_no_file_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(layers(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(path.read_bytes().replace(b"MatMul", b"MatNul"))
    modules = [onnx2nn.load(path), onnx2nn.load(str(DIGITS)), onnx2nn.check(path)]
    with open(path, "rb") as stream:
        modules.append(onnx2nn.load(stream))
    with pytest.raises(onnx2nn.errors.UnsupportedModelError):
        onnx2nn.load(bad)
    bad.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(onnx2nn.errors.ModelFileError):
        onnx2nn.load(bad)
    assert len(modules) == 4
    assert open_files() == set()


def test_a_file_that_changes_after_the_import(tmp_path: Path) -> None:
    """Weights are copies: a file may shrink, change or vanish, which would kill a process that maps it (SIGBUS)."""
    path, x = tmp_path / "m.onnx", torch.rand(2, 64)
    onnx.save(layers(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    module = onnx2nn.load(path)
    before = module(x)
    (tmp_path / "m.data").write_bytes(b"")
    path.unlink()
    assert torch.equal(module(x), before)
    onnx2nn.save(module, tmp_path / "m.safetensors")
