"""The registry of shape rules: one rule for a function, and None for calls that the rule does not cover."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from onnx2nn.fx import shape_rules
from onnx2nn.fx.shape_rules.rule import RULES, Result, Sizes, Uncovered, rule
from onnx2nn.fx.values.spec import Spec
from tests.symbolic_sizes import RecordedSizes

_X = Spec((2, 3), torch.float32)


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a method of no tensor, whose rule goes after the test."""
    monkeypatch.setitem(RULES, "onnx2nn_test", None)
    del RULES["onnx2nn_test"]
    yield "onnx2nn_test"


def test_a_second_rule_is_refused(name: str) -> None:
    @rule(name)
    def one(sizes: Sizes, input: Spec) -> Result:
        return input

    with pytest.raises(ValueError, match=name):
        rule(name)(one)
    with pytest.raises(ValueError, match="relu"):
        rule(torch.relu)(one)


def test_calls_with_other_parameters_are_not_covered(name: str) -> None:
    @rule(name)
    def one(sizes: Sizes, input: Spec, *, dim: int = 0) -> Result:
        return input

    covering: Any = RULES[name]
    assert covering(RecordedSizes(), _X, dim=1) == _X
    assert covering(RecordedSizes()) is None
    assert covering(RecordedSizes(), _X, 1) is None
    assert covering(RecordedSizes(), _X, input=_X) is None
    assert covering(RecordedSizes(), _X, axis=1) is None


def test_an_error_inside_a_rule_is_not_hidden(name: str) -> None:
    def added(a: int) -> int:
        return a

    @rule(name)
    def one(sizes: Sizes, way: str) -> Result:
        if way == "uncovered":
            raise Uncovered
        if way == "raise":
            raise TypeError("of the rule")
        if way == "operator":
            return Spec((1 + way,), None)  # type: ignore[operator]  # the error that the test is about
        return Spec((added(),), None)  # type: ignore[call-arg]  # the error that the test is about

    covering: Any = RULES[name]
    assert covering(RecordedSizes(), "uncovered") is None
    for way in ("raise", "operator", "call"):
        with pytest.raises(TypeError):
            covering(RecordedSizes(), way)


@pytest.mark.parametrize("target", [torch.conv2d, torch.matmul, torch.cat, torch.sum, "reshape"])
def test_real_rules_do_not_cover_other_parameters(target: Any) -> None:
    covering: Any = RULES[target]
    assert covering(RecordedSizes(), _X, _X, not_a_parameter=1) is None
    assert covering(RecordedSizes()) is None


def test_a_condition_alone_is_not_covered() -> None:
    assert RULES[torch.where](RecordedSizes(), Spec((2, 3), torch.bool)) is None  # the places of its true elements


def test_every_module_of_rules_is_imported() -> None:
    files = {path.stem for path in Path(shape_rules.__file__).parent.glob("*.py")} - {"__init__", "rule", "operands"}
    assert {getattr(covering, "__module__", "").rpartition(".")[2] for covering in RULES.values()} >= files
