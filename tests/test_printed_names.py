"""Names of a file control no terminal and no log, wherever they are printed, and messages have an end."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import (
    LONGEST_MESSAGE,
    MOST_LISTED,
    InputError,
    ModelFileError,
    NcnnError,
    Onnx2nnError,
    Problem,
    UnsupportedModelError,
    shown,
    shown_name,
)
from onnx2nn.ground.terminal import Terminal

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp\u2066\r\nFORGED\u2028x\x7f"
CONTROLS = {c for c in map(chr, range(sys.maxunicode)) if not c.isprintable()} - {"\n"}


def safe(text: str, *, lines: int | None = None) -> None:
    assert not CONTROLS.intersection(text)
    assert not [line for line in text.splitlines() if line.startswith("FORGED")]
    assert len(text) <= LONGEST_MESSAGE + 100
    if lines is not None:
        assert len(text.splitlines()) == lines


def model_of(operator: str = "Relu", node: str = "n", x: str = "x", y: str = "y", dim: str = "N") -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), f"{node}.weight")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [x, weight.name], [f"{x}h"], name=f"/{node}/MatMul"),
            helper.make_node(operator, [f"{x}h"], [y], name=node),
        ],
        "g",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [dim, 4])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("evil", [EVIL, EVIL * 10_000], ids=["short", "long"])
def test_errors(evil: str) -> None:
    with pytest.raises(UnsupportedModelError) as unsupported:
        onnx2nn.load(model_of(evil, evil))
    safe(str(unsupported.value), lines=2)
    safe(str(onnx2nn.check(model_of(evil, evil))), lines=2)
    bad = model_of()
    bad.graph.node[0].input[0] = evil
    with pytest.raises(ModelFileError) as damaged:
        onnx2nn.load(bad)
    safe(str(damaged.value))
    with pytest.raises(InputError) as unknown:
        onnx2nn.load(model_of(x=evil), input_shapes={evil: [1, 2, 3]})
    safe(str(unknown.value))


def test_reports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = model_of(node=EVIL, x=EVIL, y=f"{EVIL}y", dim=EVIL)
        module = onnx2nn.load(model)
        reports = [onnx2nn.check(model), onnx2nn.naming_report(module), onnx2nn.verify(model, module)]
        reports.append(onnx2nn.verify_nodes(model, module))
    for text in [*map(str, reports), module.code, str(module), *(str(entry.message) for entry in caught), caplog.text]:
        safe(text)


@pytest.mark.parametrize("command", ["check", "convert", "verify"])
@pytest.mark.parametrize("operator", ["Relu", EVIL])
def test_commands(command: str, operator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model_of(operator, EVIL, EVIL, f"{EVIL}y", EVIL), tmp_path / "m.onnx")
    status = main([command, str(tmp_path / "m.onnx")])
    out, err = capsys.readouterr()
    assert (status == 0) == (operator == "Relu")
    safe(out)
    safe(err)
    assert len(err.splitlines()) <= 1


def test_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    with terminal.step(f"importing {EVIL.splitlines()[0]}"):
        terminal.table(["a", "b"], [[EVIL, "1"]], numeric=[1], bad=[True])
    safe(capsys.readouterr().out, lines=3)


def test_lists_end_with_the_number_of_others() -> None:
    problems = [Problem(f"Op{i}", "", 17, "It is unknown.", "Register it.", ["n"]) for i in range(MOST_LISTED + 7)]
    error = UnsupportedModelError(problems)
    assert str(error).splitlines()[-1] == "  and 7 more problems"
    assert len(str(error).splitlines()) == MOST_LISTED + 2
    assert len(error.problems) == MOST_LISTED + 7
    assert str(NcnnError("These", ["a"] * (MOST_LISTED + 1))).splitlines()[-1] == "  and 1 more obstacles"
    assert "more" not in str(UnsupportedModelError(problems[:MOST_LISTED]))


def test_texts() -> None:
    assert shown("a\nb \u00e9\u4e2d") == "a\nb \u00e9\u4e2d"
    assert shown("\x1b[31m\u202e\r\t") == "\\x1b[31m\\u202e\\r\\t"
    assert shown_name("a\nb") == "a\\nb"
    assert shown("x" * (LONGEST_MESSAGE + 5)).endswith("x... (5 more characters)")
    assert shown_name("x" * 300) == "x" * 200 + "... (100 more characters)"
    assert str(Onnx2nnError("a\x00")) == "a\\x00"
