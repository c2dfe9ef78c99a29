"""Numbers that a model's Python code computes from a dynamic size: written for all sizes, or refused."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx import check
from oneflow_bridge.to_onnx.exporter import export
from onnx2nn.errors import Onnx2nnError

flow = import_oneflow()

Number = Callable[[int], int]

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}

SLICES: dict[str, Callable[[Any, int], Any]] = {
    "the first": lambda x, k: x[:, :k] * 2,
    "from there on": lambda x, k: x[:, k:] * 2,
    "the last": lambda x, k: x[:, -k:] * 2,
    "without the last": lambda x, k: x[:, :-k] * 2,
}
USES: dict[str, Callable[[Any, int], Any]] = {
    **SLICES,
    "counted": lambda x, k: x[:, :1] + flow.arange(k),
    "repeated": lambda x, k: x[:, :1].expand(2, k) * 2,
    "filled": lambda x, k: x[:, :1] + flow.zeros(2, k),
    "multiplied": lambda x, k: x * k,
}


class Using(flow.nn.Module):
    """Uses a number that is computed from the second dimension."""

    def __init__(self, number: Number, use: str):
        super().__init__()
        self.number, self.use = number, USES[use]

    def forward(self, x: Any) -> Any:
        return self.use(x, self.number(x.shape[1]))


def _agrees(model: Any, file: Path, size: int) -> bool:
    x = np.linspace(-1, 1, 2 * size, dtype=np.float32).reshape(2, size)
    expected = model(flow.tensor(x)).numpy()
    _, (actual,) = check.run_file(file, {"x": x})
    return expected.shape == actual.shape and np.allclose(expected, actual, rtol=1e-5, atol=1e-6)


STEPS = st.integers(2, 12).flatmap(
    lambda size: st.tuples(
        st.just(size), st.lists(st.tuples(st.sampled_from(sorted(OPERATORS)), st.integers(1, size)), max_size=2)
    )
)
"""A size of the example, and what is computed from it.

Divisors are no larger than the size: a quotient that is 0 in all traces is a constant for them.
"""


def _check_every_size(steps: tuple[int, list[tuple[str, int]]], use: str, folder: Path) -> None:
    size, operations = steps

    def number(n: int) -> int:
        for symbol, other in operations:
            n = OPERATORS[symbol](n, other)
        return n

    model, file = Using(number, use).eval(), folder / "sizes.onnx"
    usable = [n for n in range(1, 41) if 1 <= number(n) <= (n if use in SLICES else 400)]
    if not {size, size + 1, size + 2, 2 * size + 1, 2 * size + 2} <= set(usable):
        return  # a slice ends with the tensor, and min(2n, n) is n in every trace
    try:
        export(model, flow.ones(2, size), file, dynamic={"x": {1: "n"}})
    except Onnx2nnError:
        return
    wrong = [n for n in usable if not _agrees(model, file, n)]
    assert not wrong, f"at {wrong}"


@given(steps=STEPS, use=st.sampled_from(sorted(USES)))
def test_a_file_is_right_at_every_size(
    steps: tuple[int, list[tuple[str, int]]], use: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _check_every_size(steps, use, tmp_path_factory.getbasetemp())


@pytest.mark.held
@settings(max_examples=1000)
@given(steps=STEPS, use=st.sampled_from(sorted(USES)))
def test_many_files_are_right_at_every_size(
    steps: tuple[int, list[tuple[str, int]]], use: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _check_every_size(steps, use, tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("use", ["the last", "without the last", "from there on"])
@pytest.mark.parametrize("steps", [1, 3])
def test_ends_of_few_elements(use: str, steps: int, tmp_path: Path) -> None:
    """The last three of two elements are two."""
    model, file = Using(lambda n: steps, use).eval(), tmp_path / "m.onnx"
    export(model, flow.ones(2, 5), file, dynamic={"x": {1: "n"}})
    for size in range(1, 9):
        assert _agrees(model, file, size), size


def test_a_model_that_takes_no_size_twice_as_large(tmp_path: Path) -> None:
    """As one with a table of positions."""
    positions = flow.ones(2, 8)

    class Positions(flow.nn.Module):
        def forward(self, x: Any) -> Any:
            if x.shape[1] > 8:
                raise ValueError("too many positions")
            return x[:, :-1] + positions[:, : x.shape[1] - 1]

    model, file = Positions().eval(), tmp_path / "m.onnx"
    export(model, flow.ones(2, 5), file, dynamic={"x": {1: "n"}})
    assert all(_agrees(model, file, size) for size in range(2, 9))
