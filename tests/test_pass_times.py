"""The times of passes: they add up, and an import tells of its passes where someone listens."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import onnx2nn
from onnx2nn.ground.pass_times import recorded, timed


def _busy(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_pass_counts_alone_inside_another_one() -> None:
    clock = time.process_time()
    with recorded() as times, timed("outer"):
        _busy(0.02)
        with timed("inner"):
            _busy(0.05)
        with timed("inner"):
            _busy(0.05)
    spent = time.process_time() - clock
    assert list(times) == ["outer", "inner"]
    assert times["inner"] >= 0.1
    assert times["outer"] >= 0.02
    assert sum(times.values()) <= spent  # the inner pass is not counted twice


def test_a_decorated_function_may_call_itself_and_fail() -> None:
    @timed("countdown")
    def countdown(number: int) -> None:
        if not number:
            raise ValueError("the end")
        countdown(number - 1)

    with recorded() as times, timed("outer"):
        with pytest.raises(ValueError, match="the end"):
            countdown(3)
        before = times["outer"]
        _busy(0.02)
    assert times["outer"] - before >= 0.02  # every pass that failed has ended


def test_nothing_is_recorded_where_nobody_listens() -> None:
    with recorded() as times:
        pass
    with timed("later"):
        pass
    assert not times


def test_an_import_tells_of_its_passes(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [value], [result])
    path = tmp_path / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with recorded() as times:
        assert callable(onnx2nn.load(path).forward)
    expected = ["reading", "checking", "naming", "raising", "tracing", "module", "nesting", "state", "code generation"]
    assert sorted(times) == sorted(expected)
