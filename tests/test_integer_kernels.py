"""Products and convolutions of 8-bit integers are exact, on the processor's integer instructions and without them."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from onnx2nn import functional
from onnx2nn.ops import integer_convolutions, integer_kernels
from onnx2nn.ops.machine_code import MachineCode, traced_for
from onnx2nn.ops.quantize import RightOperand, integer_matmul

DTYPES = st.sampled_from([torch.int8, torch.uint8])
SIZES = st.sampled_from([1, 2, 3, 4, 7, 16, 33, 64, 100])


def numbers(draw: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Draws 8-bit integers, often the largest ones, whose sums saturate first."""
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    if draw(st.booleans()):
        return torch.randint(limits.min, limits.max + 1, shape, dtype=dtype, generator=generator)
    ends = torch.tensor([limits.min, limits.max, draw(st.integers(limits.min, limits.max))], dtype=dtype)
    return ends[torch.randint(0, draw(st.integers(1, 3)), shape, generator=generator)]


def matrix(draw: Callable[..., Any], rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Draws a matrix of any layout in memory."""
    turned, part = draw(st.booleans()), draw(st.booleans())
    shape = (columns, rows) if turned else (rows, columns)
    x = numbers(draw, (shape[0] * (1 + part), shape[1] * (1 + part)), dtype)[: shape[0], : shape[1]]
    return x.t() if turned else x


def zero_point(draw: Callable[..., Any], dtype: torch.dtype, *shapes: tuple[int, ...]) -> torch.Tensor | None:
    shape = draw(st.sampled_from([None, (), (1,), *shapes]))
    return None if shape is None else numbers(draw, shape, dtype)


@st.composite
def products(draw: Callable[..., Any]) -> tuple[Any, ...]:
    m, k, n = draw(SIZES), draw(SIZES), draw(SIZES)
    left, right = draw(DTYPES), draw(DTYPES)
    a, b = matrix(draw, m, k, left), matrix(draw, k, n, right)
    return a, b, zero_point(draw, left, (m,)), zero_point(draw, right, (n,))


def whole(x: torch.Tensor, zero: torch.Tensor | None, *shape: int) -> torch.Tensor:
    """Returns integers minus their zero point, as int64."""
    return x.long() if zero is None else x.long() - (zero.long().reshape(shape) if zero.numel() > 1 else zero.long())


@settings(max_examples=300)
@given(products(), st.booleans())
def test_products(case: tuple[Any, ...], batched: bool) -> None:
    a, b, a_zero, b_zero = case
    expected = whole(a, a_zero, -1, 1) @ whole(b, b_zero, 1, -1)
    for _ in range(3):  # the second call keeps the columns, the third one has them
        assert torch.equal(integer_matmul(torch, a, b, a_zero, b_zero).long(), expected)
    if a_zero is None or a_zero.numel() == 1:
        several = torch.stack([a, a.flip(0)]) if batched else a
        found = RightOperand(torch, b, b_zero).product(several, torch.tensor(0) if a_zero is None else a_zero)
        assert torch.equal(found.long(), whole(several, a_zero) @ whole(b, b_zero, 1, -1))


@st.composite
def convolutions(draw: Callable[..., Any]) -> tuple[Any, ...]:
    rank = draw(st.integers(1, 2))
    group = draw(st.sampled_from([1, 1, 1, 2, 8]))
    inputs, outputs = draw(st.sampled_from([1, 2, 3, 16, 70])), draw(st.sampled_from([1, 2, 5, 16, 33]))
    kernel = tuple(draw(st.sampled_from([1, 2, 3, 7])) for _ in range(rank))
    strides, dilations = (tuple(draw(st.integers(1, 3)) for _ in range(rank)) for _ in range(2))
    pads = [draw(st.sampled_from([0, 1, 2, 4])) for _ in range(2 * rank)]
    pads = pads[:rank] * 2 if draw(st.booleans()) else pads
    sizes = tuple(
        max((k - 1) * d + draw(st.sampled_from([1, 2, 9])) - draw(st.sampled_from([0, pads[i] + pads[i + rank]])), 1)
        for i, (k, d) in enumerate(zip(kernel, dilations, strict=True))
    )
    left, right = draw(DTYPES), draw(DTYPES)
    x = numbers(draw, (draw(st.integers(1, 2)), group * inputs, *sizes), left)
    w = numbers(draw, (group * outputs, inputs, *kernel), right)
    zeros = zero_point(draw, left), zero_point(draw, right, (w.shape[0],))
    return x, w, *zeros, {"strides": strides, "dilations": dilations, "pads": pads, "group": group}


@settings(max_examples=300)
@given(convolutions())
def test_convolutions(case: tuple[Any, ...]) -> None:
    x, w, x_zero, w_zero, attributes = case
    rank = x.ndim - 2
    pads = attributes["pads"]
    padded = torch.nn.functional.pad(
        whole(x, x_zero), [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])]
    )
    convolved = torch.nn.functional.conv2d if rank == 2 else torch.nn.functional.conv1d
    weights = whole(w, w_zero, -1, *[1] * (w.ndim - 1)).double()
    window = attributes["strides"], 0, attributes["dilations"], attributes["group"]
    expected = convolved(padded.double(), weights, None, *window)
    for _ in range(2):  # the second call has the packed weights
        assert torch.equal(functional.ConvInteger(x, w, x_zero, w_zero, **attributes).double(), expected)


@pytest.mark.parametrize(
    ("image", "kernel", "strides", "pads", "dilations"),
    [
        ((1, 1), (1, 1), (1, 2), [0, 1, 0, 1], (1, 2)),
        ((3, 1), (3, 2), (3, 3), [0, 4, 0, 4], (1, 2)),
        ((5, 2), (1, 3), (1, 2), [0, 1, 0, 1], (1, 1)),
        ((5, 3), (2, 3), (1, 2), [0, 0, 0, 0], (1, 1)),
        ((8, 8), (8, 8), (8, 8), [0, 0, 0, 0], (1, 1)),
        ((3, 4), (1, 4), (1, 4), [0, 0, 0, 0], (1, 1)),
        ((7, 8), (3, 4), (2, 8), [0, 0, 0, 0], (1, 1)),
    ],
)
@pytest.mark.parametrize(("channels", "group"), [(1, 2), (16, 1), (32, 1)])
def test_windows_that_the_kernels_get_wrong(
    image: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: list[int],
    dilations: Any,
    channels: int,
    group: int,
) -> None:
    """oneDNN's kernels (2.13) end the process for dilated windows in the pads.

    They leave sums of one column out where a group has one channel, and compute wrong ones of one column of patches.
    """
    x = torch.randint(0, 256, (2, channels * group, *image), dtype=torch.uint8)
    w = torch.randint(-128, 128, (64, channels, *kernel), dtype=torch.int8)
    found = functional.ConvInteger(x, w, strides=strides, pads=pads, dilations=dilations, group=group)
    padding = (pads[0], pads[1])
    expected = torch.nn.functional.conv2d(x.double(), w.double(), None, strides, padding, dilations, group)
    assert torch.equal(found.double(), expected)


@settings(max_examples=300)
@given(st.data())
def test_a_column_of_patches(data: st.DataObject) -> None:
    """Windows as wide as the image or nearly so, whose steps are about as long as they are wide."""
    width, channels = data.draw(st.integers(1, 20)), data.draw(st.sampled_from([1, 2, 3, 8, 12, 16, 20, 24, 32, 64]))
    step, more = width + data.draw(st.sampled_from([0, 0, 0, 1, 4, -1])), data.draw(st.sampled_from([0, 0, 0, 1, 4]))
    height, rows, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    x = numbers(data.draw, (2, group * channels, height + rows - 1, width + more), torch.uint8)
    w = numbers(data.draw, (group * 4, channels, height, width), torch.int8)
    strides = (1, max(step, 1))
    found = functional.ConvInteger(x, w, strides=strides, group=group)
    assert torch.equal(found.double(), torch.nn.functional.conv2d(x.double(), w.double(), None, strides, groups=group))


@settings(max_examples=300)
@given(convolutions(), st.data())
def test_fused_convolutions(case: tuple[Any, ...], data: st.DataObject) -> None:
    """The kernel that rounds gives another step only where the number is next to the middle of two steps."""
    x, w, x_zero, w_zero, attributes = case
    draw, outputs = data.draw, w.shape[0]
    if x_zero is None or w_zero is None:
        x_zero, w_zero = torch.zeros([], dtype=x.dtype), torch.zeros([], dtype=w.dtype)
    sums = whole(w, w_zero, -1, *[1] * (w.ndim - 1)).abs().flatten(1).sum(1)
    bias = None
    if draw(st.booleans()):
        bias = torch.randint(-1000, 1000, (outputs,), dtype=torch.int32)
    x_scale, y_scale = (torch.tensor(draw(st.floats(2**-10, 8.0, width=32))) for _ in range(2))
    steps = draw(st.sampled_from([1.0, 50.0, 300.0])) / (255 * float(sums.max()) + 1000)  # up to so many of the result
    w_scale = steps * y_scale / x_scale * (torch.rand(outputs) if draw(st.booleans()) else torch.ones([]))
    y_zero = numbers(draw, (), draw(DTYPES))
    given_ = (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)
    expected = functional.QLinearConv(*given_, **attributes).double()
    found = functional.onnx2nn__FusedQLinearConv(*given_, **attributes)
    assert found.dtype == y_zero.dtype
    integers = functional.ConvInteger(x, w, x_zero, w_zero, **attributes).double()
    column = [-1, *[1] * (w.ndim - 2)]
    scale = (x_scale * w_scale / y_scale).double().expand(outputs).reshape(column)
    number = (integers + (0 if bias is None else bias.double().reshape(column))) * scale
    largest = (255 * sums.double().reshape(column) * 2 + 1000) * scale + 256  # of what is added in float32
    other = found.double() != expected
    assert bool(((found.double() - expected).abs() <= 1).all())
    assert bool(((number - number.floor() - 0.5).abs() <= largest * 2**-22)[other].all())


def test_the_kernels_serve() -> None:
    """What the tests above run, where the processor has such instructions: other tests do not tell."""
    a, b = torch.ones(3, 4, dtype=torch.uint8), torch.ones(4, 5, dtype=torch.int8)
    exact = integer_kernels.serves(torch, a, b, None, None)
    assert exact == integer_kernels.serves(torch, a, b, torch.tensor(3), torch.tensor(3))
    assert not integer_kernels.serves(torch, a.to("meta"), b.to("meta"))
    assert not integer_kernels.serves(torch, a, b[None])
    assert not integer_kernels.serves(torch, a[:0], b)
    if not exact:
        pytest.skip("this processor adds two products of 8-bit integers in 16 bits")
    assert integer_matmul(torch, a, b, None, None).dtype == torch.int32


def test_packed_weights_follow_the_weights() -> None:
    x, w = torch.full((1, 2, 5, 5), 200, dtype=torch.uint8), torch.ones(3, 2, 3, 3, dtype=torch.int8)
    zero = torch.tensor(0, dtype=torch.int8)
    assert (functional.ConvInteger(x, w, None, zero) == 18 * 200).all()
    copied = copy.deepcopy(w)
    w.mul_(2)
    assert (functional.ConvInteger(x, w, None, zero) == 36 * 200).all()
    assert (functional.ConvInteger(x, copied, None, zero) == 18 * 200).all()
    zero.add_(1)
    assert (functional.ConvInteger(x, w, None, zero) == 18 * 200).all()
    assert (functional.ConvInteger(x, w, None, None, strides=[2, 2]) == 36 * 200).all()
    with torch.inference_mode():
        assert (functional.ConvInteger(x, torch.ones(3, 2, 3, 3, dtype=torch.int8)) == 18 * 200).all()
    kept = len(integer_convolutions._forms)
    del w, copied
    assert len(integer_convolutions._forms) <= kept


@pytest.mark.parametrize("name", ["QLinearConv", "onnx2nn__FusedQLinearConv"])
def test_a_kept_call_follows_what_is_written(name: str) -> None:
    """Each tensor of a convolution but its input is read when it is prepared; writing it prepares it again."""
    x, w = torch.full((1, 2, 5, 5), 200, dtype=torch.uint8), torch.ones(3, 2, 3, 3, dtype=torch.int8)
    given_ = {
        "x_scale": torch.tensor(0.5),
        "x_zero": torch.tensor(100, dtype=torch.uint8),
        "w": w,
        "w_scale": torch.tensor([0.25, 0.5, 0.125]),
        "w_zero": torch.tensor(0, dtype=torch.int8),
        "y_scale": torch.tensor(4.0),
        "y_zero": torch.tensor(2, dtype=torch.uint8),
        "bias": torch.full((3,), 100, dtype=torch.int32),
    }

    def expected() -> torch.Tensor:
        numbers = {key: value.double() for key, value in given_.items()}
        sums = 18 * (200 - numbers["x_zero"]) * (numbers["w"][:, 0, 0, 0] - numbers["w_zero"]) + numbers["bias"]
        steps = (sums * numbers["x_scale"] * numbers["w_scale"] / numbers["y_scale"]).round() + numbers["y_zero"]
        return steps.clamp(0, 255)

    function = getattr(functional, name)
    for written in given_.values():
        for value in (written, 2 * written):
            written.copy_(value)
            found = function(x, *given_.values(), pads=[0, 0, 0, 0])
            assert torch.equal(found[0, :, 1, 1].double(), expected())
            assert torch.equal(function(x, *given_.values(), pads=[0, 0, 0, 0]), found)


def test_kept_columns_follow_the_weights() -> None:
    if not integer_kernels.serves(torch, torch.ones(3, 4, dtype=torch.int8), torch.ones(4, 5, dtype=torch.int8)):
        pytest.skip("this processor adds two products of 8-bit integers in 16 bits")
    a, b = torch.full((3, 4), 200, dtype=torch.uint8), torch.ones(4, 5, dtype=torch.int8)
    zero = torch.tensor(0, dtype=torch.int8)
    for factor in (1, 2):
        for _ in range(3):
            assert (functional.MatMulInteger(a, b, None, zero) == factor * 800).all()
        assert integer_kernels.columns(torch, b, zero) is integer_kernels.columns(torch, b, zero)
        b.mul_(2)
    for _ in range(3):
        assert (functional.MatMulInteger(a, b, None, zero) == 3200).all()
    zero.add_(1)
    assert (functional.MatMulInteger(a, b, None, zero) == 2400).all()
    assert (functional.MatMulInteger(a, b) == 3200).all()
    with torch.inference_mode():
        assert (functional.MatMulInteger(a, torch.ones(4, 5, dtype=torch.int8)) == 800).all()
    kept = len(integer_kernels._columns)
    del b
    assert len(integer_kernels._columns) < kept


WITHOUT = """
import torch
from onnx2nn import functional
from onnx2nn.ops.quantize import integer_matmul

a, b = torch.full((5, 64), 255, dtype=torch.uint8), torch.full((64, 7), 127, dtype=torch.int8)
assert (integer_matmul(torch, a, b, None, None) == 64 * 255 * 127).all()
x, w = torch.full((1, 16, 9, 9), 255, dtype=torch.uint8), torch.full((4, 16, 3, 3), -128, dtype=torch.int8)
assert (functional.ConvInteger(x, w) == -144 * 255 * 128).all()
"""


@pytest.mark.parametrize("instructions", ["SSE41", "AVX2", "AVX512_CORE"])
def test_processors_whose_sums_saturate(instructions: str) -> None:
    """oneDNN without VNNI adds two products in 16 bits; the results are exact all the same."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    subprocess.run([sys.executable, "-c", WITHOUT], env=environment, check=True)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """A quantised linear layer and a quantised convolution.

    Their weights have seven bits: without VNNI instructions ONNX Runtime saturates sums of two products at 16 bits.
    """
    generator = np.random.default_rng(0)
    w = generator.integers(-64, 64, (40, 6), np.int8), generator.integers(-64, 64, (3, 2, 3, 3), np.int8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero"], ["y"]),
        helper.make_node("Reshape", ["q", "shape"], ["image"]),
        helper.make_node("ConvInteger", ["image", "kernel", "zero"], ["z"], pads=[1, 1, 1, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "integers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 40])],
        [
            helper.make_tensor_value_info("y", TensorProto.INT32, ["n", 6]),
            helper.make_tensor_value_info("z", TensorProto.INT32, ["n", 3, 4, 5]),
        ],
        [
            numpy_helper.from_array(w[0], "w"),
            numpy_helper.from_array(w[1], "kernel"),
            numpy_helper.from_array(np.array([-1, 2, 4, 5]), "shape"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.pinned("onnxruntime")  # 1.23 has no ConvInteger with weights of int8
def test_programs_for_other_machines_have_no_kernel(model: onnx.ModelProto) -> None:
    """A trace and an exported program compute in floats, which are exact on every processor."""
    module, x = onnx2nn.load(model), torch.randn(5, 40)
    expected = module(x)
    dynamic = {"x": {0: torch.export.Dim("n")}}
    exported = torch.export.export(module, (x,), dynamic_shapes=dynamic)
    traced = torch.jit.trace(module, (x,))
    for program, text in ((exported.module(), str(exported.graph)), (traced, str(traced.inlined_graph))):
        assert "_int_mm" not in text and "onednn" not in text
        for rows in (x, torch.randn(3, 40)):
            for found, wanted in zip(program(rows), module(rows), strict=True):
                assert torch.equal(found, wanted)
    assert "MatMulInteger(" in module.code and "ConvInteger(" in module.code
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for found, wanted in zip(expected, session.run(None, {"x": x.numpy()}), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_a_module_with_integer_products_compiles(model: onnx.ModelProto) -> None:
    """Dynamo has tensors without values, and reads no ContextVar."""
    module = onnx2nn.load(model)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for rows in (torch.randn(5, 40), torch.randn(3, 40)):
        for found, wanted in zip(compiled(rows), module(rows), strict=True):
            assert torch.equal(found, wanted)


def test_code_for_this_machine_has_the_kernel(model: onnx.ModelProto) -> None:
    """What AOTInductor compiles for the processor at hand multiplies integers."""
    module, x = onnx2nn.load(model), torch.randn(5, 40)
    with traced_for(MachineCode(integer_kernels.available(torch), None, None)):
        program = torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    a, b = torch.ones(3, 4, dtype=torch.uint8), torch.ones(4, 5, dtype=torch.int8)
    assert ("_int_mm" in str(program.graph)) == integer_kernels.serves(torch, a, b)
    for rows in (x, torch.randn(3, 40)):
        for found, wanted in zip(program.module()(rows), module(rows), strict=True):
            assert torch.equal(found, wanted)


def test_sizes_are_proven(model: onnx.ModelProto) -> None:
    """The shapes of the results are those of the products, without guards or sizes that are read."""
    module = onnx2nn.load(model)
    assert not module.meta["onnx2nn"].get("guards")
