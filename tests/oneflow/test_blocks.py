"""The modules inside an imported OneFlow module run alone, as parts of the whole."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import oneflow_bridge
import onnx2nn
from oneflow_bridge.from_onnx.module import Block
from oneflow_bridge.runtime import import_oneflow

flow = import_oneflow()


class Unit(flow.nn.Module):  # type: ignore[misc]  # OneFlow comes without types
    """A residual block of one or two convolutions."""

    def __init__(self, width: int, deep: bool):
        super().__init__()
        self.first = flow.nn.Conv2d(width, width, 3, padding=1)
        self.inner = flow.nn.Sequential(flow.nn.Conv2d(width, width, 1), flow.nn.ReLU()) if deep else None

    def forward(self, x: Any) -> Any:
        y = flow.relu(self.first(x))
        return x + (y if self.inner is None else self.inner(y))


class Net(flow.nn.Module):  # type: ignore[misc]  # OneFlow comes without types
    def __init__(self, kinds: list[bool]):
        super().__init__()
        self.stem = flow.nn.Conv2d(3, 4, 3, padding=1)
        self.stage = flow.nn.Sequential(*(Unit(4, deep) for deep in kinds))
        self.head = flow.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.stage(self.stem(x)).mean((2, 3)))


def exported(net: Any, x: Any, folder: Path) -> Path:
    path = folder / "net.onnx"
    oneflow_bridge.export(net, x, str(path), dynamic=True)
    return path


def calls_of(module: Any, x: Any) -> dict[str, tuple[Any, Any]]:
    """Returns the input and output of each module inside `module` in one run, by path, as its hooks see them."""
    seen: dict[str, tuple[Any, Any]] = {}
    for name, inner in module.named_modules():
        if name:

            def hook(_: Any, given: Any, result: Any, name: str = name) -> None:
                seen[name] = (given, result)

            inner.register_forward_hook(hook)
    module(x)
    return seen


def same(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.booleans(), min_size=1, max_size=3))
def test_each_block_is_the_authors_module(tmp_path: Path, kinds: list[bool]) -> None:
    net, x = Net(kinds).eval(), flow.randn(2, 3, 5, 5)
    module = onnx2nn.load(exported(net, x, tmp_path), framework="oneflow")
    assert list(module.state_dict()) == list(net.state_dict())
    blocks = {name for name, inner in module.named_modules() if name and isinstance(inner, Block)}
    assert blocks == {name for name, inner in net.named_modules() if isinstance(inner, (Unit, flow.nn.Sequential))}
    inside, theirs, ours = dict(module.named_modules()), calls_of(net, x), calls_of(module, x)
    for name in blocks:
        (given,), result = theirs[name]
        same(ours[name][1], result)
        same(inside[name](given), result)
    same(module.stage[0](flow.ones(1, 4, 3, 3)), net.stage[0](flow.ones(1, 4, 3, 3)))
    assert len(module.stage) == len(kinds)


@pytest.mark.parametrize("deep", [False, True])
def test_blocks_are_copied_saved_traced_and_exported(tmp_path: Path, deep: bool) -> None:
    flow.manual_seed(0)  # with some weights the blocks add nothing
    net, x = Net([deep, True]).eval(), flow.randn(2, 3, 5, 5)
    module = onnx2nn.load(exported(net, x, tmp_path), framework="oneflow")
    expected = module(x)
    twin = copy.deepcopy(module)
    with flow.no_grad():
        for parameter in twin.stage[1].parameters():
            parameter.zero_()
    same(module(x), expected)
    assert not np.allclose(twin(x).numpy(), expected.numpy()) and twin.stage[0] is not module.stage[0]

    flow.save(module, str(tmp_path / "saved"))
    same(flow.load(str(tmp_path / "saved")).stage[0](flow.ones(1, 4, 3, 3)), module.stage[0](flow.ones(1, 4, 3, 3)))

    class Job(flow.nn.Graph):  # type: ignore[misc]  # OneFlow comes without types
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def build(self, x: Any) -> Any:
            return self.module(x)

    same(Job()(x), expected)
    again = onnx2nn.load(exported(module, x, tmp_path), framework="oneflow")
    assert list(again.state_dict()) == list(net.state_dict())
    same(again(x), expected)


def flat_model(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy")
    graph = helper.make_graph(nodes, "m", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="pytorch")


def test_a_container_that_a_value_leaves_and_enters_again_is_flat() -> None:
    weight = {f"a.{name}.weight": np.eye(4, dtype=np.float32) * 2 for name in "pq"} | {
        "b.r.weight": np.eye(4, dtype=np.float32) * 3
    }
    nodes = [
        helper.make_node("MatMul", ["x", "a.p.weight"], ["s"], name="/a/p/MatMul"),
        helper.make_node("MatMul", ["s", "b.r.weight"], ["t"], name="/b/r/MatMul"),
        helper.make_node("MatMul", ["t", "a.q.weight"], ["y"], name="/a/q/MatMul"),
    ]
    module = onnx2nn.load(flat_model(nodes, weight), framework="oneflow")
    assert "comes back" in module.meta["onnx2nn"]["tree"]["flat"]["a"]
    assert not isinstance(module.a, Block)
    np.testing.assert_allclose(module(flow.ones(2, 4)).numpy(), np.full((2, 4), 12.0))


def test_a_container_whose_layer_is_called_twice_is_flat() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "a.p.weight"], ["s"], name="/a/p/MatMul"),
        helper.make_node("Relu", ["s"], ["t"], name="/Relu"),
        helper.make_node("MatMul", ["t", "a.p.weight"], ["y"], name="/a/p_1/MatMul"),
    ]
    weight = {"a.p.weight": np.eye(4, dtype=np.float32) * 2}
    module = onnx2nn.load(flat_model(nodes, weight), framework="oneflow")
    assert not isinstance(module.a, Block)
    np.testing.assert_allclose(module(flow.ones(2, 4)).numpy(), np.full((2, 4), 4.0))
