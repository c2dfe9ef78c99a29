"""`verify_nodes` sums its differences by block, and names the block of a wrong node."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from realmodels import export_dynamo, seeded
from torch import nn

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.verification.block_reports import MOST_ROWS, BlockComparison, shown_blocks


class Inner(nn.Module):
    """A layer and two functions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) + torch.sigmoid(x)


class Outer(nn.Module):
    """A residual around an inner block."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).exp()


class Model(nn.Module):
    """Three equal blocks in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Outer() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def _path() -> str:
    return str(export_dynamo("block-reports", seeded(Model), (torch.randn(2, 6),)))


def _off(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) + 0.01


def _with_a_wrong_node() -> Any:
    module = onnx2nn.load(_path())
    block = module.layers[1].inner
    (node,) = (node for node in block.graph.nodes if "tanh" in node.name)
    node.op, node.target = "call_function", _off
    block.recompile()
    return module


def test_figures_of_a_right_import() -> None:
    """Each block is there, after the one around it; sums include inner blocks."""
    result = onnx2nn.verify_nodes(_path())
    assert result.ok
    paths = [block.path for block in result.blocks]
    assert paths == ["", "layers", *(f"layers.{i}{inner}" for i in range(3) for inner in ("", ".inner"))]
    assert [block.kind for block in result.blocks][2:4] == ["Outer", "Inner"]
    assert all(block.ok for block in result.blocks)
    by_path = {block.path: block for block in result.blocks}
    assert by_path[""].nodes == len(result.nodes)
    assert by_path[""].introduced == pytest.approx(sum(node.introduced.max_abs for node in result.nodes))
    for number in range(3):
        outer, inner = by_path[f"layers.{number}"], by_path[f"layers.{number}.inner"]
        assert outer.nodes == inner.nodes + 2
        assert outer.introduced >= inner.introduced
    assert by_path["layers.0"].inherited == 0.0
    assert by_path["layers.1"].inherited == by_path["layers.0"].total
    assert {node.block for node in result.nodes} == set(paths) - {"", "layers"}


def test_a_wrong_node_names_its_block() -> None:
    """The blocks around it are not in order, those after it inherit."""
    result = onnx2nn.verify_nodes(_path(), _with_a_wrong_node())
    assert not result.ok
    assert {block.path for block in result.blocks if not block.ok} == {"", "layers", "layers.1", "layers.1.inner"}
    assert result.first is not None and result.first.block == "layers.1.inner"
    assert "in block 'layers.1.inner'" in result.verdict
    by_path = {block.path: block for block in result.blocks}
    inner, after = by_path["layers.1.inner"], by_path["layers.2"]
    assert inner.worst == result.first.node and inner.worst_introduced == pytest.approx(0.01, rel=1e-3)
    assert inner.introduced == pytest.approx(0.01, rel=1e-2)
    assert inner.inherited < 1e-5 < inner.total
    assert after.inherited == by_path["layers.1"].total > 1e-3 > after.introduced


def test_the_command_prints_blocks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = _with_a_wrong_node()
    monkeypatch.setattr(onnx2nn, "load", lambda *_, **__: module)
    command = ["verify", _path(), "--comparisons", "1"]
    assert main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("block ")) :]
    assert [line.split()[0] for line in table[2:9]] == [
        "layers",
        *(f"layers.{i}{inner}" for i in range(3) for inner in ("", ".inner")),
    ]
    wrong = [line.split()[0] for line in table if line.endswith("over the threshold")]
    assert wrong == ["the", "layers", "layers.1", "layers.1.inner"]
    assert main([*command, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    wrong = [block["path"] for block in told["blocks"] if not block["ok"]]
    assert wrong == ["", "layers", "layers.1", "layers.1.inner"]
    assert told["first"]["block"] == "layers.1.inner"
    assert np.isfinite([block["introduced"] for block in told["blocks"]]).all()


def test_the_table_is_short() -> None:
    """Deep blocks are left out unless they are wrong; of the others those remain that introduce most."""

    def block(path: str, introduced: float, ok: bool = True) -> BlockComparison:
        return BlockComparison(path, "Block", 1, introduced, 0.0, 0.0, "node", introduced, ok)

    blocks = [block("", 1.0), *(block(f"layers.{i}", i / 100) for i in range(40))]
    deep = [block("layers.0.a.b.c.d", 0.5), block("layers.0.a.b.c.e", 0.6, ok=False)]
    shown = [each.path for each in shown_blocks([*blocks, *deep])]
    assert len(shown) == MOST_ROWS
    assert shown[0] == "" and shown[-1] == "layers.0.a.b.c.e"
    assert shown[1:-1] == [f"layers.{i}" for i in range(42 - MOST_ROWS, 40)]
