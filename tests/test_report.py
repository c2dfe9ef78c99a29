"""Reports of models: what they hold, and that their page is inert whatever a file names."""

from __future__ import annotations

import argparse
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import onnx2nn
from oneflow_bridge import cli
from onnx2nn.commands.main import main
from onnx2nn.errors import InputError
from onnx2nn.reporting.model_report import ModelReport, Module
from onnx2nn.reporting.pages import LONGEST_TEXT, page, plain
from onnx2nn.reporting.weights import weights_of
from tests import report_models


def _by_path(report: ModelReport) -> dict[str, Module]:
    return {module.path: module for module in report.modules}


def _random_chain(seed: int) -> onnx.ModelProto:
    """Returns a model of random operators, scopes and shared values."""
    random = np.random.default_rng(seed)
    values, nodes = ["x"], []
    for number in range(int(random.integers(3, 30))):
        scope = "/".join(f"part{random.integers(3)}" for _ in range(random.integers(0, 3)))
        name = f"/{scope}/n{number}" if scope else f"n{number}"
        operator = ("Relu", "Tanh", "Add", "Mul")[random.integers(4)]
        given = [values[random.integers(len(values))] for _ in range(2 if operator in ("Add", "Mul") else 1)]
        nodes.append(helper.make_node(operator, given, [f"v{number}"], name))
        values.append(f"v{number}")
    return report_models.model(nodes, [2, 4], [2, 4], [], values[-1])


def test_modules_have_shapes_sizes_times_and_programs() -> None:
    report = onnx2nn.report(report_models.stacked(3))
    assert report.ok and report.run == {"x": [1, 4, 8, 8]} and not report.unverified
    modules = _by_path(report)
    assert list(modules) == ["", "layers", *(f"layers.{i}{end}" for i in range(3) for end in ("", ".conv", ".act"))]
    conv = modules["layers.1.conv"]
    assert (conv.kind, conv.value, conv.parameters, conv.bytes) == ("Conv2d", "float32 [1, 4, 8, 8]", 144, 576)
    assert conv.seconds is not None and conv.seconds > 0
    assert modules[""].parameters == 3 * 144
    assert modules[""].seconds == pytest.approx(sum(modules[f"layers.{i}"].seconds or 0 for i in range(3)))
    block = modules["layers.1"]
    assert [(call.kind, call.inputs) for call in block.calls] == [
        ("input", []),
        ("module", [0]),
        ("module", [1]),
        ("function", [0, 2]),
        ("output", [3]),
    ]
    assert len({modules[f"layers.{i}"].code for i in range(3)}) == 1
    assert "self.conv(" in report.programs[block.code or 0]


@pytest.mark.parametrize("seed", range(8))
def test_every_node_belongs_to_one_module(seed: int) -> None:
    model = _random_chain(seed)
    report = onnx2nn.report(model, compared=False)
    used, waiting = set(), [model.graph.output[0].name]
    makers = {node.output[0]: node for node in model.graph.node}
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node.name not in used:
            used.add(node.name)
            waiting += node.input
    assert {node.name for node in report.nodes if node.module is not None} == used
    listed = [number for module in report.modules for call in module.calls for number in call.nodes]
    assert sorted(listed) == sorted(number for number, node in enumerate(report.nodes) if node.name in used)


def test_a_folded_node_belongs_to_all_calls_that_it_became(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bn(self.conv(x))

    path = tmp_path / "net.onnx"
    torch.onnx.export(Net().eval(), (torch.zeros(1, 3, 8, 8),), path, dynamo=True, verbose=False)
    report = onnx2nn.report(path)
    modules = _by_path(report)
    assert modules["conv"].nodes == modules["bn"].nodes == [0]
    assert {note.what for note in report.notes["Restored keys"]} == {
        f"bn.{name}" for name in ("weight", "bias", "running_mean", "running_var")
    }


def test_branches_and_bodies_are_in_the_tree() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 4] x, bool c) => (float[n, 4] y) {
            y = If (c) <
                then_branch = t () => (float[n, 4] p) { q = Exp(x)  p = Add(q, x) },
                else_branch = e () => (float[n, 4] r) { r = Neg(x) }>
        }""")
    report = onnx2nn.report(model)
    modules = _by_path(report)
    assert report.ok and report.file.nodes == 4
    assert modules["y"].kind == "If" and modules["y"].nodes == [0] and modules["y"].value == "float32 [1, 4]"
    assert [call.label for call in modules["y.then_branch"].calls][-3:] == ["exp", "add", "output"]


def test_weights_are_counted_and_drawn() -> None:
    module = torch.nn.Module()
    module.plain = torch.nn.Parameter(torch.tensor([[0.0, 1.0], [-1.0, 3.0]]))
    module.tied = module.plain
    module.register_buffer("odd", torch.tensor([float("nan"), float("inf"), 2.0, 2.0]))
    module.register_buffer("hidden", torch.tensor([True, False]), persistent=False)
    module.register_buffer("none", torch.zeros(0))
    found = {weight.key: weight for weight in weights_of(module, {"plain": "from a hat"})}
    plain_weight = found["plain"]
    assert (plain_weight.least, plain_weight.greatest, plain_weight.mean, plain_weight.zeros) == (-1.0, 3.0, 0.75, 1)
    assert sum(plain_weight.histogram) == 4 and plain_weight.histogram[0] == plain_weight.histogram[-1] == 1
    assert plain_weight.deviation == pytest.approx(np.std([0, 1, -1, 3])) and plain_weight.found == "from a hat"
    assert found["tied"].tied == "plain" and not found["tied"].histogram
    assert (found["odd"].not_finite, found["odd"].least, found["odd"].histogram) == (2, 2.0, [])
    assert [found[key].role for key in ("plain", "odd", "hidden")] == ["parameter", "buffer", "constant"]
    assert found["none"].least is None


@pytest.mark.parametrize("count", [1, 7, 8, 9, 24])
def test_large_weights_are_read_in_parts(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx2nn.reporting.weights._CHUNK", 8)
    module = torch.nn.Module()
    values = torch.randn(count, dtype=torch.float64)
    module.register_buffer("many", values)
    (weight,) = weights_of(module, {})
    assert (weight.least, weight.greatest) == (float(values.min()), float(values.max()))
    assert weight.mean == pytest.approx(float(values.mean())) and sum(weight.histogram) in (0, count)
    assert weight.deviation == pytest.approx(float(values.std(correction=0)))


def test_a_tied_weight_counts_once() -> None:
    module = onnx2nn.load(report_models.stacked(2))
    module.layers[1].conv.weight = module.layers[0].conv.weight
    report = onnx2nn.report(report_models.stacked(2), module, compared=False)
    modules = _by_path(report)
    assert modules[""].parameters == 144
    assert modules["layers.1.conv"].parameters == 144


def test_a_wrong_module_is_a_mismatch_at_its_node() -> None:
    model = report_models.stacked(3)
    module = onnx2nn.load(model)
    with torch.no_grad():
        module.layers[1].conv.weight[0] += 0.5
    report = onnx2nn.report(model, module)
    assert not report.ok and report.verdict.startswith("MISMATCH")
    assert report.verified is not None
    (wrong,) = [error for error in report.verified.nodes if not error.ok]
    assert wrong.node is not None and report.nodes[wrong.node].name == "/layers.1/conv/Conv"
    assert report.modules[wrong.module].path == "layers.1"


def test_what_cannot_be_imported_has_a_report() -> None:
    report = onnx2nn.report(report_models.unsupported())
    assert len(report.problems) == 2 and not report.modules and not report.ok
    assert report.verdict == "PROBLEMS: 2 kinds of nodes cannot be imported"
    problems = {operator.name: operator.problems for operator in report.operators}
    assert problems["Relu"] == [] and "no such operator" in problems["mine::Frobnicate"][0]


def test_without_sizes_there_is_a_report_without_a_run() -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "m"])]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "r")], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    report = onnx2nn.report(model)
    assert report.ok and report.run == {} and "x:N,N" in report.unverified[0].replace(" ", "")
    assert [note.what for note in report.notes["Dynamic dimensions"]] == ["n", "m"]
    assert onnx2nn.report(model, input_shapes={"x": [2, 3]}).run == {"x": [2, 3]}


def test_a_module_of_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match="no program of blocks"):
        onnx2nn.report(report_models.stacked(1), torch.nn.Linear(1, 1))  # type: ignore[arg-type]  # what is refused


class _Scripts(HTMLParser):
    """Collects the scripts of a page as a browser separates them, and all elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.elements: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1] == "script":
            self.scripts[-1] += data


@given(st.text() | st.sampled_from(report_models.HOSTILE), st.text())
def test_texts_come_back_from_the_page_and_add_no_element(text: str, title: str) -> None:
    parser, empty = _Scripts(), _Scripts()
    parser.feed(page("report", title, plain({"name": text})))
    empty.feed(page("report", "", {}))
    assert parser.elements == empty.elements
    found = json.loads(parser.scripts[0])["name"]
    assert found == (text if len(text) <= LONGEST_TEXT else plain(text))
    assert parser.scripts[1] == empty.scripts[1]


def test_a_page_with_hostile_names_is_small(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    onnx2nn.report(report_models.hostile()).save(path)
    text = path.read_text(encoding="utf-8")
    assert len(text) < 1 << 20
    assert text.count("<script") == text.count("</script") == 2
    assert "http://" not in text.replace("http://www.w3.org/", "") and "https://" not in text


@pytest.mark.slow
def test_the_page_of_resnet_50_is_below_2_mb(tmp_path: Path) -> None:
    import realmodels

    from scripts import torchvision_schemas

    torchvision_schemas.predefine()
    import torchvision

    model = realmodels.seeded(torchvision.models.resnet50)
    inputs = (torch.rand(1, 3, 64, 64),)
    report = onnx2nn.report(realmodels.export_torchscript("report_resnet50", model, inputs))
    report.save(tmp_path / "page.html")
    assert report.ok and report.modules[0].parameters > 25_000_000
    assert (tmp_path / "page.html").stat().st_size < 2_000_000


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, target = tmp_path / "m.onnx", tmp_path / "m.html"
    onnx.save(report_models.stacked(2), model)
    assert main(["report", str(model), "-o", str(target), "--input_shape", "3,4,8,8"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"wrote {target}",
        "OK (6 values compared, 0 nodes folded at import): every node agrees",
    ]
    assert '"run":{"x":[3,4,8,8]}' in target.read_text()
    assert [path.name for path in tmp_path.iterdir()] in (["m.onnx", "m.html"], ["m.html", "m.onnx"])


def test_the_command_writes_a_page_of_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, target = tmp_path / "m.onnx", tmp_path / "m.html"
    onnx.save(report_models.unsupported(), model)
    assert main(["report", str(model), "-o", str(target)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "PROBLEMS: 2 kinds of nodes cannot be imported"
    assert target.exists()


def test_the_command_refuses_what_it_cannot_write_or_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(report_models.stacked(1), model)
    assert main(["report", str(model), "-o", str(tmp_path / "no" / "m.html")]) == 2
    assert main(["report", str(model), "-o", str(tmp_path / "m.html"), "--limit", "nodes=1"]) == 2
    assert "Limits.nodes" in capsys.readouterr().err
    assert not (tmp_path / "m.html").exists()


@pytest.mark.parametrize("wrong", [False, True])
def test_the_page_of_a_file_that_oneflow2onnx_wrote(
    wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """OneFlow and PyTorch are in two environments here; the export is another model's."""
    operator = "Unknown" if wrong else "Relu"
    node = helper.make_node(operator, ["x"], ["y"], "only", domain="nobody" if wrong else "")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("nobody", 1)]
    proto = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]), opset_imports=domains)

    def export(options: argparse.Namespace) -> onnx.ModelProto:
        onnx.save(proto, options.output)
        return proto

    monkeypatch.setattr(cli, "_export", export)
    page_ = tmp_path / "m.html"
    status = cli.oneflow2onnx(
        ["package:model", "--input", "x:2,4", "-o", str(tmp_path / "m.onnx"), "--report", str(page_)]
    )
    assert status == int(wrong)
    assert operator in page_.read_text(encoding="utf-8")
    assert f"wrote {page_}" in capsys.readouterr().out
