"""The programs of If, Loop and Scan are trees of modules that run, as the program around them is."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser
from torch import nn

import onnx2nn
from tests.realmodels import run_onnxruntime

CHOICE = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[n, 4] x, bool c) => (float[n, 4] y)
{
  ["choice"] y = If (c) <
    then_branch = one () => (float[n, 4] a) <float[4, 4] one_w = {WEIGHT}, float[4, 4] one_v = {WEIGHT}> {
      ["one/block/0/lin/MatMul"] p = MatMul (x, one_w)
      ["one/block/0/act/Relu"] q = Relu (p)
      ["one/block/0/Add"] r = Add (q, x)
      ["one/block/1/lin/MatMul"] s = MatMul (r, one_v)
      ["one/block/1/act/Relu"] t = Relu (s)
      ["one/block/1/Add"] a = Add (t, r)
    },
    else_branch = other () => (float[n, 4] b) <float[4, 4] other_w = {WEIGHT}> {
      ["other/gate/lin/MatMul"] u = MatMul (x, other_w)
      ["other/gate/Sigmoid"] v = Sigmoid (u)
      ["other/gate/Mul"] b = Mul (v, x)
    }
  >
}
"""

REPEATED = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[2, 4] x, int64 count, bool go) => (float[2, 4] y)
{
  ["steps"] y = Loop (count, go, x) <body = step (int64 i, bool going, float[2, 4] h) => (bool more, float[2, 4] next)
    <float[4, 4] w = {WEIGHT}> {
      more = Identity (going)
      ["cell/gate/lin/MatMul"] p = MatMul (h, w)
      ["cell/gate/Sigmoid"] q = Sigmoid (p)
      ["cell/gate/Mul"] next = Mul (q, h)
    }
  >
}
"""


def _model(text: str) -> onnx.ModelProto:
    """Returns the model of a text in which each `WEIGHT` is 16 random numbers."""
    random = np.random.default_rng(0)
    while "WEIGHT" in text:
        text = text.replace("WEIGHT", ", ".join(map(str, random.standard_normal(16).round(3))), 1)
    return parser.parse_model(text)


def _containers(module: nn.Module) -> list[str]:
    return [name for name, inner in module.named_modules() if type(inner) is nn.Module]


@pytest.mark.parametrize("text", [CHOICE, REPEATED])
def test_copies_have_the_classes_of_branches_and_bodies(text: str) -> None:
    module = onnx2nn.load(_model(text))
    classes = [(name, type(inner).__name__) for name, inner in module.named_modules()]
    for other in (copy.deepcopy(module), copy.deepcopy(copy.deepcopy(module))):
        assert [(name, type(inner).__name__) for name, inner in other.named_modules()] == classes


def test_copies_have_the_keys_of_bodies() -> None:
    """Torch's own copy of a GraphModule makes all buffers persistent; this one had a key that no author has."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17], producer_name: "pytorch">
        graph (float[n, 2] x, int64 count) => (float[n, 2] y) <float[2, 2] "lin.weight" = {1, 2, 3, 4}, bool go = {1}> {
            z = MatMul (x, "lin.weight")
            y = Loop (count, go, z) <body = step (int64 i, bool going, float[n, 2] h) => (bool more, float[n, 2] next) {
                more = Identity (going)
                table = Constant <value = float[2] {3, 4}> ()
                next = Add (h, table)
            }>
        }
    """)
    module = onnx2nn.load(model)
    for copied in (module, copy.deepcopy(module), copy.deepcopy(copy.deepcopy(module))):
        assert copied.state_dict().keys() == {"lin.weight"}


def test_the_blocks_of_the_branch_that_runs_are_called() -> None:
    model = _model(CHOICE)
    module, x = onnx2nn.load(model), torch.randn(3, 4)
    assert not _containers(module)
    blocks = module.meta["onnx2nn"]["tree"]["blocks"]
    assert {"choice.then_branch.one.block.0", "choice.else_branch.other.gate"} <= blocks.keys()
    called: list[str] = []
    for name in blocks:
        module.get_submodule(name).register_forward_hook(lambda *_, name=name: called.append(name))
    for truth, branch in ((True, "then_branch"), (False, "else_branch")):
        called.clear()
        given = (x, torch.tensor(truth))
        torch.testing.assert_close(
            module(*given), torch.as_tensor(run_onnxruntime(model.SerializeToString(), given)[0])
        )
        assert sorted(called) == sorted(name for name in blocks if f".{branch}." in name)


def test_the_body_of_a_loop_calls_its_blocks() -> None:
    model = _model(REPEATED)
    module = onnx2nn.load(model)
    assert not _containers(module)
    counted: list[int] = []
    (name,) = (name for name in module.meta["onnx2nn"]["tree"]["blocks"] if name.endswith("gate"))
    module.get_submodule(name).register_forward_hook(lambda *_: counted.append(1))
    given = (torch.randn(2, 4), torch.tensor(3), torch.tensor(True))
    torch.testing.assert_close(module(*given), torch.as_tensor(run_onnxruntime(model.SerializeToString(), given)[0]))
    assert len(counted) == 3


@pytest.mark.slow
@pytest.mark.parametrize("truth", [True, False])
def test_branches_with_blocks_are_saved_and_exported(truth: bool, tmp_path: Path) -> None:
    module = onnx2nn.load(_model(CHOICE))
    given = (torch.randn(3, 4), torch.tensor(truth))
    expected = module(*given)
    torch.save(module, tmp_path / "whole.pth")
    again = torch.load(tmp_path / "whole.pth", weights_only=False)
    torch.testing.assert_close(again(*given), expected)
    assert again.state_dict().keys() == module.state_dict().keys()
    onnx2nn.export_onnx(module, tmp_path / "again.onnx")
    torch.testing.assert_close(torch.as_tensor(run_onnxruntime(tmp_path / "again.onnx", given)[0]), expected)
    for older in (True, False):
        torch.onnx.export(module, given, tmp_path / "torch.onnx", dynamo=not older, verbose=False)
        session = onnxruntime.InferenceSession(tmp_path / "torch.onnx")
        feeds = dict(zip((value.name for value in session.get_inputs()), (t.numpy() for t in given), strict=False))
        torch.testing.assert_close(torch.from_numpy(session.run(None, feeds)[0]), expected)
    onnx2nn.save(module, tmp_path / "program.pt2", example_inputs=given)
    torch.testing.assert_close(torch.export.load(tmp_path / "program.pt2").module()(*given), expected)
    onnx2nn.to_python(module, tmp_path / "source", example_inputs=given)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*given), expected)


def test_branches_with_blocks_take_other_types() -> None:
    model = _model(CHOICE)
    for kind in (torch.float64, torch.bfloat16):
        module, same = onnx2nn.load(model).to(kind), onnx2nn.load(model, dtype=kind)
        for truth in (True, False):
            given = (torch.randn(3, 4, dtype=kind), torch.tensor(truth))
            assert module(*given).dtype == kind
            torch.testing.assert_close(module(*given), same(*given))


CARRIED = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[2, 4] x, int64 count, bool go, float[4, 4] W) => (float[2, 4] y)
{
  NAME y, last = Loop (count, go, x, W) <body = step (int64 i, bool going, float[2, 4] h, float[4, 4] w)
    => (bool more, float[2, 4] next, float[4, 4] same) {
      more = Identity (going)
      p = MatMul (h, w)
      next = Sigmoid (p)
      same = Identity (w)
    }
  >
}
"""
"""A loop that carries a weight, as TensorFlow's recurrent layers do."""


@pytest.mark.parametrize("name", ["", '["layer/steps"]'])
@pytest.mark.parametrize("weight", ["layer/cell/kernel", "layer.cell.weight"])
def test_a_loop_that_carries_the_weight_of_a_container_stands_where_it_is_named(name: str, weight: str) -> None:
    model = parser.parse_model(CARRIED.replace("NAME", name))
    random = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(random, weight))
    model.graph.node[0].input[3] = weight
    del model.graph.input[3]
    module = onnx2nn.load(model)
    assert (("layer.steps.body" in dict(module.named_modules())) == bool(name)) and len(module.state_dict()) == 1
    given = (torch.randn(2, 4), torch.tensor(2), torch.tensor(True))
    torch.testing.assert_close(module(*given), torch.as_tensor(run_onnxruntime(model.SerializeToString(), given)[0]))
