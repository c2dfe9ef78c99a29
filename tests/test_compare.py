"""Two models side by side: what changed, and where their values part."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.reporting.model_comparison import ModelComparison
from tests import report_models


def _changed(result: ModelComparison) -> dict[str, list[str]]:
    return {pair.path: pair.changes for pair in result.changed}


def test_equal_models_have_no_changes() -> None:
    result = onnx2nn.compare(report_models.stacked(3), report_models.stacked(3))
    assert result.ok and not result.changed and result.first is None
    assert all(pair.difference == 0 and pair.agrees for pair in result.modules)
    assert result.verdict == "OK the outputs agree; 0 of 11 modules differ"


@pytest.mark.parametrize("number", [0, 2, 4])
def test_values_part_where_a_weight_changed(number: int) -> None:
    left, right = (onnx2nn.load(report_models.stacked(5)) for _ in range(2))
    with torch.no_grad():
        right.layers[number].conv.weight[1, 2, 0, 1] += 0.25
    result = onnx2nn.compare(left, right)
    assert not result.ok and result.first is not None
    assert result.first.path == f"layers.{number}.conv"
    assert _changed(result) == {f"layers.{number}.conv": ["weight by 0.25"]}
    before = [pair for pair in result.modules if pair.path.startswith(tuple(f"layers.{i}." for i in range(number)))]
    assert all(pair.difference == 0 for pair in before)


def test_a_change_that_no_output_shows_is_a_change_all_the_same() -> None:
    left, right = (onnx2nn.load(report_models.stacked(2)) for _ in range(2))
    with torch.no_grad():
        right.layers[0].conv.weight += 1e-9
    result = onnx2nn.compare(left, right)
    assert result.ok and result.first is None and len(result.changed) == 1


def test_modules_of_one_side_stand_in_their_place() -> None:
    result = onnx2nn.compare(report_models.stacked(2), report_models.stacked(3))
    assert [pair.path for pair in result.modules if pair.status == "added"] == [
        "layers.2",
        "layers.2.conv",
        "layers.2.act",
    ]
    assert [pair.path for pair in result.modules][-3:] == ["layers.2", "layers.2.conv", "layers.2.act"]
    assert onnx2nn.compare(report_models.stacked(3), report_models.stacked(2)).modules[-1].status == "removed"


def test_other_shapes_and_operators_are_named() -> None:
    other = report_models.stacked(2)
    other.graph.node[4].op_type = "Sigmoid"
    changed = _changed(onnx2nn.compare(report_models.stacked(2), other))
    assert changed == {"layers.1": ["ReLU 1 → 0 times", "Sigmoid 0 → 1 times"], "layers.1.act": ["ReLU → Sigmoid"]}


def test_inputs_that_do_not_fit_are_noted() -> None:
    result = onnx2nn.compare(report_models.stacked(2), report_models.stacked(2, channels=6))
    assert not result.ok and not result.outputs
    assert "only the first ran" in result.notes[0]
    assert "weight float32 [4, 4, 3, 3] → float32 [6, 6, 3, 3]" in "\n".join(_changed(result)["layers.0.conv"])


def test_memory_is_limited() -> None:
    result = onnx2nn.compare(report_models.stacked(3), report_models.stacked(3), memory_limit=4 * 4 * 64 * 3)
    assert result.ok and "were not compared" in result.notes[0]
    assert sum(pair.difference is not None for pair in result.modules) == 3


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right, page = tmp_path / "a.onnx", tmp_path / "b.onnx", tmp_path / "c.html"
    onnx.save(report_models.stacked(2), left)
    onnx.save(report_models.stacked(2, scale=0.2), right)
    assert main(["compare", str(left), str(left)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "OK the outputs agree; 0 of 8 modules differ"
    assert main(["compare", str(left), str(right), "-o", str(page)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "MISMATCH: the outputs differ, their values part at 'layers.0.conv'; 2 of 8 modules differ"
    assert any(line.startswith("layers.0.conv  Conv2d") and "values part here" in line for line in lines)
    assert page.exists()
    assert main(["compare", str(left), str(tmp_path / "none.onnx")]) == 2
