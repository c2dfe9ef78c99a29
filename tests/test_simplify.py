"""Simplification: what it gains, and that nothing the simplifier does wrong reaches the import."""

import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from onnx2nn.errors import InputError, ModelFileError


@pytest.fixture
def model() -> onnx.ModelProto:
    """A reshape whose target is computed from constants, an identity, and a batch that is open."""
    return onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[batch, 3, 4] x) => (float[batch, 12] y)
        <int64[1] minus = {-1}, int64[1] six = {6}, int64[1] two = {2}>
        {
            width = Mul(six, two)
            shape = Concat <axis = 0> (minus, width)
            same = Identity(x)
            flat = Reshape(same, shape)
            y = Relu(flat)
        }
        """
    )


def _fake_onnxsim(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    """Put a module in front of the real onnxsim for subprocesses only."""
    (folder / "onnxsim.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_folds_constants(model: onnx.ModelProto) -> None:
    result = onnx2nn.simplify(model)
    assert result.simplified, result.report
    assert _operators(result.model) == ["Reshape", "Relu"]
    assert "from 5 to 2 nodes" in result.report and "3 random comparisons" in result.report
    assert result.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_leaves_its_argument_alone(model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    onnx2nn.simplify(model)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("form", ["path", "bytes", "file"])
def test_takes_every_form(model: onnx.ModelProto, form: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    if form == "file":
        with path.open("rb") as stream:
            result = onnx2nn.simplify(stream)
    else:
        result = onnx2nn.simplify(path if form == "path" else path.read_bytes())
    assert result.simplified and len(result.model.graph.node) == 2


def test_each_part_can_be_skipped(model: onnx.ModelProto) -> None:
    unfolded = onnx2nn.simplify(model, constant_folding=False)
    assert unfolded.simplified and {"Mul", "Concat"} <= set(_operators(unfolded.model))
    unoptimised = onnx2nn.simplify(model, optimisation=False)
    assert unoptimised.simplified and "Identity" in _operators(unoptimised.model)
    # onnxsim before 0.8 infers shapes within the other two parts all the same
    inferred, uninferred = (
        onnx2nn.simplify(model, shape_inference=wanted, optimisation=False, constant_folding=False)
        for wanted in (True, False)
    )
    assert inferred.simplified and len(inferred.model.graph.value_info) == 4
    assert uninferred.simplified and not uninferred.model.graph.value_info


def test_shapes_are_fixed_or_kept(model: onnx.ModelProto) -> None:
    fixed = onnx2nn.simplify(model, input_shapes={"x": [2, 3, 4]})
    assert fixed.simplified and fixed.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    kept = onnx2nn.simplify(model, input_shapes={"x": [2, 3, 4]}, keep_dynamic=True)
    assert kept.simplified and kept.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("shapes", [{"z": [1, 3, 4]}, {"x": [1, 3]}, {"x": [1, 5, 4]}])
def test_wrong_shapes_are_refused(model: onnx.ModelProto, shapes: dict[str, list[int]]) -> None:
    with pytest.raises(InputError):
        onnx2nn.simplify(model, input_shapes=shapes)


def test_unreadable_model_is_refused() -> None:
    with pytest.raises(ModelFileError):
        onnx2nn.simplify(b"not a model")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('no idea')", "onnxsim failed: no idea"),
        ("raise ValueError('bad graph')", "ValueError: bad graph"),
        ("import os; os.abort()", "crashed (SIGABRT)"),
        ("pass", "onnxsim failed"),
        ("import sys; open(sys.argv[2], 'wb').write(b'half a mod')", ""),
    ],
)
def test_failure_is_reported(
    model: onnx.ModelProto, code: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_onnxsim(monkeypatch, tmp_path, code)
    result = onnx2nn.simplify(model)
    assert not result.simplified and result.model == model
    assert reason in result.report and "going on with the model as it was" in result.report
    assert len(result.report.splitlines()) == 1


def test_stall_is_ended(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _fake_onnxsim(
        monkeypatch,
        tmp_path,
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(child.pid))\n"
        "child.wait()",
    )
    start = time.monotonic()
    result = onnx2nn.simplify(model, time_limit=3)
    assert time.monotonic() - start < 60
    assert not result.simplified and "within 3 seconds" in result.report
    assert _ended(int((tmp_path / "child").read_text())), "what the simplifier started still runs"


def _ended(pid: int) -> bool:
    for _ in range(50):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


CHANGE = """
import sys, onnx
model = onnx.load(sys.argv[1])
{change}
onnx.save(model, sys.argv[2])
"""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("model.graph.node[-1].op_type = 'Neg'", "outputs differ"),
        ("model.graph.output[0].name = model.graph.node[-1].output[0] = 'renamed'", "changed the outputs"),
        ("model.graph.node[-1].op_type = 'NoSuchOperator'", "not valid ONNX"),
        ("del model.graph.node[0]", ""),
    ],
)
def test_wrong_result_is_rejected(
    model: onnx.ModelProto, change: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_onnxsim(monkeypatch, tmp_path, CHANGE.format(change=change))
    result = onnx2nn.simplify(model)
    assert not result.simplified and result.model == model
    assert reason in result.report


def test_modules_in_the_working_folder_are_not_run(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "onnxsim.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    assert onnx2nn.simplify(model).simplified
    assert not (tmp_path / "was_run").exists()


def test_missing_onnxsim_is_named(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxsim", None)
    with pytest.raises(onnx2nn.errors.MissingDependencyError, match=r'pip install "onnx2nn\[simplify\]"'):
        onnx2nn.simplify(model)


def test_saves_with_external_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4).repeat(100, 1)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 400])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    monkeypatch.setattr(sys.modules["onnx2nn.output.simplify"], "_PROTOBUF_LIMIT", 1000)
    onnx2nn.simplify(model, comparisons=0).save(tmp_path / "model.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    saved = onnx.load(tmp_path / "model.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(saved.graph.initializer[0]), weight)
