"""What SECURITY.md and docs/policy.md say of files: names never become code, weights alone run none."""

from __future__ import annotations

import pickletools
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import onnx2nn

CODE = "__import__('pathlib').Path('executed').touch()"
HOSTILE_NAMES = [f"x\n{CODE}#", f'"""+str({CODE})+"""', f"'+str({CODE})+'", f"a);{CODE};(b", f"{{{CODE}}}"]


def _model_with_names(text: str) -> onnx.ModelProto:
    """Returns a linear layer, an activation and a reshape, in which everything that has a name is called `text`."""
    weight = helper.make_tensor(f"{text}.weight", TensorProto.FLOAT, [4, 3], np.ones(12, np.float32))
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [-1])
    nodes = [
        helper.make_node("Gemm", [text, f"{text}.weight"], ["y"], name=f"{text}/Gemm", transB=1, doc_string=text),
        helper.make_node("Relu", ["y"], [f"{text}z"], name=text),
        helper.make_node("Reshape", [f"{text}z", "shape"], [f"{text}out"]),
    ]
    inputs = [helper.make_tensor_value_info(text, TensorProto.FLOAT, [text, 3])]
    outputs = [helper.make_tensor_value_info(f"{text}out", TensorProto.FLOAT, [f"{text}n"])]
    graph = helper.make_graph(nodes, text, inputs, outputs, [weight, shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name=text)
    model.metadata_props.add(key=text, value=text)
    for key in ("namespace", "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes"):
        model.graph.node[0].metadata_props.add(key=key, value=repr([text, text]))
    return model


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_do_not_become_code(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the program of an import nor the source that is written of it runs what a name says."""
    monkeypatch.chdir(tmp_path)
    model = _model_with_names(name)
    module = onnx2nn.load(model)
    assert module(torch.ones(2, 3)).tolist() == [3.0] * 8
    onnx2nn.to_python(model, "source")
    run = [sys.executable, "-c", "import torch, model; print(model.load_model()(torch.ones(2, 3)).sum().item())"]
    done = subprocess.run(run, cwd="source", capture_output=True, text=True, timeout=120)
    assert done.stdout == "24.0\n", done.stderr
    assert not [*tmp_path.rglob("executed")]


def test_pickles_name_public_modules_alone(tmp_path: Path) -> None:
    """A saved module names torch, Python and the facades that docs/policy.md keeps importable."""
    path = tmp_path / "digits.pth"
    onnx2nn.save(onnx2nn.load(Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.onnx"), path)
    with zipfile.ZipFile(path) as archive:
        (pickle,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        names = {str(argument) for op, argument, _ in pickletools.genops(archive.read(pickle)) if op.name == "GLOBAL"}
    kept = {"onnx2nn.functional", "onnx2nn.operators", "onnx2nn.control_flow", "onnx2nn.layers"}
    kept |= {"onnx2nn.tracing", "onnx2nn.regions"}
    assert {name.split()[0] for name in names if name.startswith("onnx2nn")} <= kept
