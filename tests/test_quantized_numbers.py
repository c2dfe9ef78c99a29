"""Quantised values computed in place, of kept constants, are those of operators that are traced, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx2nn import functional
from onnx2nn.ops import integer_kernels, quantize, quantized_numbers
from onnx2nn.ops.contrib import quantized

TYPES = st.sampled_from([torch.int8, torch.uint8])
SHAPES = st.sampled_from(
    [((3, 5), (3, 5)), ((2, 3, 4), (4,)), ((1, 4), (3, 1)), ((), (2,)), ((6,), ()), ((0, 2), (2,))]
)


def integers(draw: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    return torch.randint(limits.min, limits.max + 1, shape, dtype=dtype, generator=generator)


def scale(draw: Callable[..., Any]) -> torch.Tensor:
    """Draws a scale: often a power of 2, of which quotients are halves, and at times no normal number."""
    value = draw(
        st.one_of(st.sampled_from([0.5, 1.0, 0.25, 2.0, float("inf"), 1e-40]), st.floats(2**-20, 1024.0, width=32))
    )
    return torch.full(draw(st.sampled_from([(), (1,)])), value)


def step(draw: Callable[..., Any], dtype: torch.dtype) -> list[torch.Tensor | None]:
    """Draws a scale and a zero point."""
    zero_point = draw(st.sampled_from([None, (), (1,)]))
    return [scale(draw), None if zero_point is None else integers(draw, zero_point, dtype)]


@st.composite
def calls(draw: Callable[..., Any]) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor | None]]:
    """Draws an operator and its inputs."""
    dtype, (left, right) = draw(TYPES), draw(SHAPES)
    a, b = integers(draw, left, dtype), integers(draw, right, dtype)
    kind = draw(st.sampled_from(["Add", "Mul", "MatMul", "Pool", "LeakyRelu"]))
    if kind in ("Add", "Mul"):
        operator = getattr(functional, f"com_microsoft__QLinear{kind}")
        return operator, [a, *step(draw, dtype), b, *step(draw, dtype), *step(draw, dtype)]
    if kind == "MatMul":
        m, k, n = (draw(st.integers(1, 9)) for _ in range(3))
        left_step, right_step, result = ([scale(draw), integers(draw, (), dtype)] for _ in range(3))
        right_step[0] = draw(st.sampled_from([right_step[0], torch.rand(n) + 0.25]))
        a, b = integers(draw, (2, m, k), dtype), integers(draw, (k, n), dtype)
        return functional.QLinearMatMul, [a, *left_step, b, *right_step, *result]
    if kind == "Pool":
        x = integers(draw, (1, 2, 3, 4), dtype)
        return functional.com_microsoft__QLinearGlobalAveragePool, [x, *step(draw, dtype), *step(draw, dtype)]
    return functional.com_microsoft__QLinearLeakyRelu, [a, *step(draw, dtype), *step(draw, dtype)]


@settings(max_examples=400)
@given(calls())
def test_in_place(call: tuple[Callable[..., torch.Tensor], list[torch.Tensor | None]]) -> None:
    operator, inputs = call
    before = [None if value is None else value.clone() for value in inputs]
    found = operator(*inputs)
    for value, copied in zip(inputs, before, strict=True):
        assert value is None or torch.equal(value, copied)  # nothing works in the memory of an input
    with pytest.MonkeyPatch.context() as patch:
        for module in (quantize, quantized, integer_kernels):
            patch.setattr(module, "arithmetic", lambda F, *_: quantized_numbers.Functional(F))
        expected = operator(*inputs)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected.reshape(found.shape))  # of one number, where a step has one dimension


@settings(max_examples=300)
@given(st.data())
def test_steps(data: st.DataObject) -> None:
    """Quotients next to halves, beyond the limits, and that are no numbers."""
    dtype = data.draw(TYPES)
    some = st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 1e30, 255.5, -128.5])
    halves = st.integers(-600, 600).map(lambda number: number / 2)
    y = torch.tensor(data.draw(st.lists(st.one_of(some, halves, st.floats(-300, 300, width=32)), max_size=9)))
    zero_point = data.draw(st.sampled_from([None, integers(data.draw, (), dtype)]))
    element, first = quantized.element_like(torch, torch.zeros([], dtype=dtype)), data.draw(st.booleans())
    found = quantized_numbers.InPlace(torch).to_steps(y.clone(), zero_point, element, shift_first=first)
    expected = quantized_numbers.Functional(torch).to_steps(y, zero_point, element, shift_first=first)
    assert torch.equal(found, expected)
