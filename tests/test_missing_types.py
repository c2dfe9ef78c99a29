"""What an older PyTorch lacks: its element types are reported for the nodes that use them, the rest imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

import onnx2nn
from onnx2nn.errors import UnsupportedModelError
from onnx2nn.fx import missing_types
from onnx2nn.ground.element_types import BY_NAME
from onnx2nn.provenance import exporter_metadata
from onnx2nn.reading import reader

ROOT = Path(__file__).resolve().parents[1]
E8M0 = BY_NAME["FLOAT8E8M0"]


def _model() -> onnx.ModelProto:
    """Returns Relu, a Cast to float8e8m0 and one back, and in the branches of an If a Constant of that type."""
    held = helper.make_tensor("held", TensorProto.FLOAT8E8M0, [1], b"\x7f", raw=True)
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branch = [
        helper.make_node("Constant", [], ["h"], name="constant", value=held),
        helper.make_node("Cast", ["h"], ["z"], name="inner", to=TensorProto.FLOAT),
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Cast", ["r"], ["e"], name="to", to=TensorProto.FLOAT8E8M0),
        helper.make_node("Cast", ["e"], ["y"], name="back", to=TensorProto.FLOAT),
        helper.make_node(
            "If", ["c"], ["z"], name="if",
            then_branch=helper.make_graph(branch, "then", [], [value]),
            else_branch=helper.make_graph([helper.make_node("Identity", ["r"], ["z"])], "else", [], [value]),
        ),
    ]  # fmt: skip
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3]), value]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)


def test_nodes_that_use_a_missing_type_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_types, "MISSING", {E8M0.number: E8M0})
    with pytest.raises(UnsupportedModelError) as caught:
        onnx2nn.load(_model())
    found = {(problem.operator, *problem.nodes) for problem in caught.value.problems}
    assert {("Cast", "to"), ("Constant", "constant")} <= {(operator, name) for operator, *ns in found for name in ns}
    assert all("relu" not in names for names in found)
    reason = f"PyTorch {torch.__version__} has no float8_e8m0fnu, the element type FLOAT8E8M0."
    assert {problem.reason for problem in caught.value.problems} == {reason}


def test_a_torch_without_a_type_imports_the_rest() -> None:
    """In a process whose torch has lost the type before onnx2nn is imported."""
    code = (
        "import torch\nif hasattr(torch, 'float8_e8m0fnu'): del torch.float8_e8m0fnu\n"
        "import onnx2nn\nfrom onnx2nn.fx.constants import torch_dtype\n"
        "module = onnx2nn.load('examples/digits/digits.onnx')\n"
        "assert module(torch.zeros(1, 8, 8, 1)).shape == (1, 10)\n"
        f"try: torch_dtype({E8M0.number})\nexcept onnx2nn.errors.OperatorError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"PyTorch {torch.__version__} has no float8_e8m0fnu, the element type FLOAT8E8M0.\n"


def test_signature_as_older_exporters_write_it() -> None:
    """PyTorch 2.5 and 2.6 note parameters and buffers as the text of Python objects."""
    text = (
        "ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument("
        "name='p_0_weight'), target='0.weight', persistent=None), InputSpec(kind=<InputKind.BUFFER: 3>, arg="
        "TensorArgument(name='b_mask'), target='mask', persistent=False), InputSpec(kind=<InputKind.USER_INPUT: 1>, "
        "arg=TensorArgument(name='x'), target=None, persistent=None)], output_specs=[OutputSpec(kind=<OutputKind."
        "USER_OUTPUT: 1>, arg=TensorArgument(name='linear'), target=None)])"
    )
    graph = reader.read(_model()).graph
    graph.metadata_props["pkg.torch.export.ExportedProgram.graph_signature"] = text
    assert exporter_metadata.signature(graph) == {
        "p_0_weight": exporter_metadata.State("0.weight", True, True),
        "b_mask": exporter_metadata.State("mask", False, False),
    }
