"""`verify_nodes` names the node that is off, tells what it introduces from what it inherits, and writes it alone."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import InputError
from onnx2nn.verification.gaps import gap
from onnx2nn.verification.oracle import Oracle

CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[2, 3] x) => (float[2, 3] y)
<float[3] w = {1.0, -2.0, 3.0}, int64[2] shape = {3, 2}, int64[2] back = {2, 3}>
{
    ["scale"] m = Mul(x, w)
    ["bend"] t = Tanh(m)
    ["turn"] r = Reshape(t, shape)
    ["grow"] e = Exp(r)
    ["return"] y = Reshape(e, back)
}
"""

RANDOM = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[64] x) => (float[64] y) { ["noise"] n = RandomNormalLike(x) ["sum"] y = Add(x, n) }
"""

BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[3] x, bool flag) => (float[3] y)
{
    ["double"] d = Add(x, x)
    ["choose"] y = If (flag) <
        then_branch = yes () => (float[3] a) { a = Neg(d) },
        else_branch = no () => (float[3] b) { b = Exp(d) }
    >
}
"""


@pytest.fixture
def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(CHAIN)


def _loaded(model: onnx.ModelProto, *, wrong: str = "", target: object = None) -> torch.fx.GraphModule:
    """The imported module, in which the value `wrong` of the file is computed by another function."""
    module = onnx2nn.load(model)
    for node in module.graph.nodes:
        if wrong and wrong in node.meta.get("onnx_outputs", ()):
            node.op, node.target, node.args, node.kwargs = "call_function", target, node.args[:1], {}
    module.recompile()
    return module


def _slightly_off(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) + 0.01


def test_a_right_import_agrees_everywhere(model: onnx.ModelProto) -> None:
    result = onnx2nn.verify_nodes(model)
    assert result.ok and result.first is None
    assert [(node.operator, node.node, node.output) for node in result.nodes] == [
        ("Mul", "scale", "m"),
        ("Tanh", "bend", "t"),
        ("Reshape", "turn", "r"),
        ("Exp", "grow", "e"),
        ("Reshape", "return", "y"),
    ]
    assert all(node.introduced.max_abs < 1e-6 and node.introduced.ulp is not None for node in result.nodes)
    assert str(result).splitlines()[-1] == "OK (5 values compared, 0 nodes folded at import): every node agrees"
    with pytest.raises(InputError, match="No node is over the threshold"):
        result.write_repro("anywhere")


def test_the_node_that_is_off_is_named_and_no_other(model: onnx.ModelProto) -> None:
    result = onnx2nn.verify_nodes(model, _loaded(model, wrong="t", target=_slightly_off))
    assert not result.ok and result.first is not None
    assert (result.first.operator, result.first.node) == ("Tanh", "bend")
    assert [node.node for node in result.nodes if not node.introduced.ok] == ["bend"]
    assert "the first node over the threshold: Tanh 'bend'" in result.verdict
    assert [output.ok for output in result.outputs] == [False]


def test_introduced_and_inherited_errors_are_told_apart(model: onnx.ModelProto) -> None:
    result = onnx2nn.verify_nodes(model, _loaded(model, wrong="t", target=_slightly_off))
    scale, bend, turn, grow, _ = result.nodes
    assert scale.total.max_abs == pytest.approx(0, abs=1e-6)
    assert bend.introduced.max_abs == pytest.approx(0.01, rel=1e-3) and bend.inherited.max_abs < 1e-6
    assert turn.introduced.max_abs == 0 and turn.inherited.max_abs == pytest.approx(0.01, rel=1e-3)
    assert grow.introduced.max_abs < 1e-6
    # exp(t + 0.01) - exp(t), the largest over all t: what the error has grown to
    x = np.abs(np.random.default_rng([0, 0]).standard_normal((2, 3))).astype(np.float32)
    assert 0 < grow.inherited.max_abs <= np.exp(np.tanh(3 * x.max()) + 0.01) - np.exp(np.tanh(3 * x.max())) + 1e-6
    assert grow.inherited.max_rel == pytest.approx(np.expm1(0.01), rel=1e-2)
    assert grow.total.max_abs == pytest.approx(grow.inherited.max_abs, rel=1e-3)


def test_a_node_that_fails_does_not_hide_those_behind_it(model: onnx.ModelProto) -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    result = onnx2nn.verify_nodes(model, _loaded(model, wrong="t", target=failing))
    assert result.first is not None and result.first.node == "bend"
    assert "RuntimeError: no such kernel" in result.first.introduced.reason
    assert [node.introduced.ok for node in result.nodes] == [True, False, True, True, True]
    assert result.outputs == [] and "no such kernel" in result.notes[-1]


def test_an_error_below_the_threshold_is_named_where_an_output_differs(model: onnx.ModelProto) -> None:
    result = onnx2nn.verify_nodes(model, _loaded(model, wrong="t", target=_slightly_off), tolerance=0.5)
    assert not result.ok and result.first is not None and result.first.node == "bend"
    assert result.first.introduced.noise is not None and result.first.introduced.noise < 1e-6


def test_the_threshold_is_the_callers(model: onnx.ModelProto) -> None:
    assert onnx2nn.verify_nodes(model, tolerance=1e-3).ok
    # the reciprocal square of float32's precision: nothing but exact nodes passes
    exact = onnx2nn.verify_nodes(model, tolerance=1e-14)
    assert {node.node for node in exact.nodes if node.introduced.ok} >= {"scale", "turn", "return"}


def test_little_memory_gives_the_same_numbers(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[int] = []
    run = Oracle.run
    monkeypatch.setattr(Oracle, "run", lambda self, feeds: sessions.append(1) or run(self, feeds))
    module = onnx2nn.load(model)
    once = onnx2nn.verify_nodes(model, module)
    few = len(sessions)
    again = onnx2nn.verify_nodes(model, module, memory_limit=1)
    assert again.nodes == once.nodes
    assert few == 2 and len(sessions) - few == 1 + len(once.nodes), "one session for the outputs, one a value"


def test_random_nodes_are_not_compared_but_what_follows_is() -> None:
    result = onnx2nn.verify_nodes(onnx.parser.parse_model(RANDOM))
    assert [node.node for node in result.nodes] == ["sum"] and result.nodes[0].introduced.ok
    assert result.notes == ["random nodes were not compared: n"]


@pytest.mark.parametrize("form", ["Cast <to = 1>", "Identity"])
def test_what_passes_a_draw_on_is_not_compared(form: str) -> None:
    """A Cast that changes nothing, as torch's exporter writes it behind `torch.randn`, was found wrong."""
    drawn = RANDOM.replace("RandomNormalLike(x)", f"RandomNormalLike(x) m = {form}(n)")
    model = onnx.parser.parse_model(drawn.replace("Add(x, n)", "Add(x, m)"))
    assert any(node.op_type in form for node in model.graph.node)
    result = onnx2nn.verify_nodes(model)
    assert result.ok and [node.node for node in result.nodes] == ["sum"]
    assert onnx2nn.verify(model).ok


@pytest.mark.parametrize("node", ["bend", None])
def test_one_node_alone(model: onnx.ModelProto, node: str | None, tmp_path: Path) -> None:
    result = onnx2nn.verify_nodes(model, _loaded(model, wrong="t", target=_slightly_off))
    path = result.write_repro(tmp_path / "alone", node)
    assert sorted(file.name for file in path.parent.iterdir()) == ["expected.npz", "inputs.npz", "model.onnx"]
    alone = onnx.load(path)
    onnx.checker.check_model(alone, full_check=True)
    assert [n.name for n in alone.graph.node] == ["bend"]
    inputs, expected = (dict(np.load(path.with_name(name))) for name in ("inputs.npz", "expected.npz"))
    np.testing.assert_array_equal(Oracle(path).run(inputs)[0], expected["t"])
    again = onnx2nn.verify_nodes(path, inputs=inputs)
    assert again.ok and [n.node for n in again.nodes] == ["bend"]


def test_weights_of_a_node_go_with_it(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = onnx2nn.verify_nodes(model).write_repro(tmp_path, "scale")
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["x"] and [t.name for t in graph.initializer] == ["w"]


def test_a_branch_takes_what_it_reads_with_it(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(BRANCHES)
    inputs = {"x": np.arange(3, dtype=np.float32), "flag": np.array(True)}
    result = onnx2nn.verify_nodes(model, inputs=inputs)
    assert result.ok
    path = result.write_repro(tmp_path, "choose")
    assert {value.name for value in onnx.load(path).graph.input} == {"d", "flag"}
    np.testing.assert_array_equal(Oracle(path).run(dict(np.load(tmp_path / "inputs.npz")))[0], -2 * inputs["x"])


def test_node_that_is_not_there(model: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="The model has no node 'nothing'"):
        onnx2nn.verify_nodes(model).write_repro(tmp_path, "nothing")


def test_pickled_module_is_refused(model: onnx.ModelProto, tmp_path: Path) -> None:
    onnx2nn.save(onnx2nn.load(model), tmp_path / "m.pth")
    with pytest.raises(InputError, match="Load the file again"):
        onnx2nn.verify_nodes(model, torch.load(tmp_path / "m.pth", weights_only=False))


@pytest.mark.parametrize(
    ("graph", "folded"),
    [
        ("(float[4] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Neg(w) }", 1),
        ("(float[4, 5] x) => (float[2] y) { s = Shape(x) y = Cast <to = 1> (s) }", 2),
    ],
    ids=["constant", "sizes"],
)
def test_a_program_of_constants_is_compared(graph: str, folded: int) -> None:
    """No call has a name of the file, although nothing was lost."""
    result = onnx2nn.verify_nodes(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> graph {graph}'))
    assert result.ok and not result.nodes and len(result.folded) == folded


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulp_counts_representable_numbers(dtype: type) -> None:
    one = np.array([1.0, -1.0, 0.0], dtype)
    up = np.nextafter(one, np.array(np.inf, dtype))
    assert gap("v", one, one).ulp == 0
    assert gap("v", up, one).ulp == 1
    assert gap("v", np.nextafter(up, np.array(np.inf, dtype)), one).ulp == 2
    assert gap("v", -up[2:], up[2:]).ulp == 2, "from the smallest negative number over zero to the smallest positive"


def test_command_line_names_the_node_and_writes_it(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    command = ["verify", str(tmp_path / "m.onnx")]
    assert main(command) == 0
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Tanh") and "bend" in line for line in shown)

    wrong = _loaded(model, wrong="t", target=_slightly_off)
    monkeypatch.setattr(onnx2nn, "load", lambda *_, **__: wrong)
    assert main([*command, "--repro", str(tmp_path / "repro")]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("MISMATCH (5 values compared") and "Tanh 'bend'" in line for line in shown)
    assert [line for line in shown if line.endswith("over the threshold")] != []
    assert (tmp_path / "repro" / "model.onnx").exists()

    assert main([*command, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False and told["first"]["node"] == "bend"
    assert told["first"]["introduced"]["max_abs"] == pytest.approx(0.01, rel=1e-3)
    assert [node["node"] for node in told["nodes"]] == ["scale", "bend", "turn", "grow", "return"]


def test_own_inputs_from_a_file(model: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.full((2, 3), 0.5, np.float32))
    assert main(["verify", str(tmp_path / "m.onnx"), "--inputs", str(tmp_path / "x.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    np.savez(tmp_path / "y.npz", y=np.zeros((2, 3), np.float32))
    assert main(["verify", str(tmp_path / "m.onnx"), "--inputs", str(tmp_path / "y.npz")]) == 2
    assert "holds no array for input 'x'. It holds y." in capsys.readouterr().err
    for arrays, message in (
        ({"x": np.zeros((1, 2, 3), np.float32)}, "has 2 dimensions, but 3 were given"),
        ({"x": np.array([None])}, "is no .npz file of arrays of numbers"),
    ):
        np.savez(tmp_path / "z.npz", **arrays)  # type: ignore[arg-type]  # numpy has a flag among them
        assert main(["verify", str(tmp_path / "m.onnx"), "--inputs", str(tmp_path / "z.npz")]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "z.npz").write_text("no arrays")
    assert main(["verify", str(tmp_path / "m.onnx"), "--inputs", str(tmp_path / "z.npz")]) == 2
    assert "is no .npz file of arrays of numbers" in capsys.readouterr().err
