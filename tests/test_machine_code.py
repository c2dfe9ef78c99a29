"""What operators do otherwise in programs of machine code: convolutions of integers, and loops over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest
import torch
import torch._inductor.inductor_prims  # its operators, which inductor has where it calls a pass
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import onnx2nn
from onnx2nn import functional
from onnx2nn.ops import integer_convolutions, integer_kernels
from onnx2nn.ops.machine_code import MachineCode, traced_for
from onnx2nn.optimization import product_code
from onnx2nn.optimization.frozen import Frozen
from onnx2nn.optimization.integer_code import call_kernels, integer_convolution, requantized_convolution

Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, list[list[int]], int]


@st.composite
def convolutions(draw: Any) -> Case:
    """Draws the arguments of a convolution; the weights are often the largest ones, and the pads differ."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    groups = draw(st.sampled_from([1, 1, 3, 16]))
    inputs, outputs = (
        draw(st.sampled_from([1, 2, 3, 4, 33, 1200] if groups == 1 else [1, 2])),
        16 * (1 if groups > 3 else 3),
    )
    kernel, dilation = draw(st.sampled_from([(1, 1), (3, 3), (1, 4)])), [draw(st.integers(1, 2)), 1]
    limit = draw(st.sampled_from([127, 127, 200]))
    weight = torch.randint(-limit, limit + 1, (outputs, inputs, *kernel), generator=generator, dtype=torch.int16)
    if draw(st.booleans()):
        weight = weight.sign() * limit
    x = torch.randint(0, 256, (draw(st.integers(1, 2)), inputs * groups, 7, 9), generator=generator, dtype=torch.uint8)
    if draw(st.booleans()):
        x = torch.full_like(x, 255)
    zero = torch.tensor(draw(st.sampled_from([0, 3, 128, 255])), dtype=torch.uint8)
    most = draw(st.sampled_from([0, 1000, (1 << 31) - 1]))
    bias = torch.randint(-most, most + 1, (outputs,), generator=generator, dtype=torch.int64).to(torch.int32)
    pads = draw(st.sampled_from([[0, 0, 0, 0], [1, 1, 1, 1], [0, 2, 1, 0]]))
    strides = [draw(st.integers(1, 2)), draw(st.integers(1, 2))]
    return x, zero, weight, bias if draw(st.booleans()) else None, [strides, pads, dilation], groups


NAMES = ("zero", "weight", "bias", "scale", "shift")

constants = st.sampled_from([(), NAMES, NAMES, NAMES[1:]])
"""The operands that are constants of a program; data may decide the zero point alone."""

small = st.sampled_from([0, product_code.SMALL])
"""Up to how many multiplications a convolution is the product of its windows; 0: none is."""


def program(
    case: Case, constants: Sequence[str], mode: FakeTensorMode, scaling: tuple[torch.Tensor, ...] = ()
) -> fx.GraphModule:
    """Returns a graph of inductor's kind with one convolution; its operands are constants or inputs."""
    x, *operands = case[:4]
    operands += scaling
    graph, root = fx.Graph(), nn.Module()
    nodes = [graph.placeholder("x")]
    for name, value in zip(NAMES[: len(operands)], operands, strict=True):
        if name in constants and value is not None:
            root.register_buffer(name, value)
        nodes.append(None if value is None else graph.get_attr(name) if name in constants else graph.placeholder(name))
    for node, value in zip(nodes, (x, *operands), strict=True):
        if node is not None:
            node.meta["val"] = mode.from_tensor(value, static_shapes=True)
    names = torch.ops.onnx2nn
    target = names.requantized_convolution.default if scaling else names.integer_convolution.default
    call = graph.call_function(target, (*nodes[:4], *case[4], case[5], *nodes[4:]))
    call.meta["val"] = call.target(*fx.map_arg(call.args, lambda node: node.meta["val"]))
    graph.output(call)
    return fx.GraphModule(root, graph)


def _called(module: fx.GraphModule, case: Case, scaling: tuple[torch.Tensor, ...] = ()) -> torch.Tensor:
    """Returns the result of a program behind the pass, with the operands that are no constants of it."""
    call_kernels(module.graph)
    module.graph.lint()
    module.recompile()
    operands = dict(zip(NAMES, (*case[1:4], *scaling), strict=False))
    inputs = [value for name, value in operands.items() if value is not None and not hasattr(module, name)]
    found: torch.Tensor = module(case[0], *inputs)
    return found


@settings(max_examples=160)
@given(convolutions(), constants, small)
def test_kernels_give_the_integers(case: Case, constants: Sequence[str], small: int) -> None:
    """With constant weights or others, with sums that floats hold or do not, and with results that leave int32."""
    expected = integer_convolution(*case[:4], *case[4], case[5])
    module = program(case, constants, FakeTensorMode())
    with mock.patch.object(product_code, "SMALL", small):
        found = _called(module, case)
    assert found.dtype == torch.int32 and torch.equal(found, expected)
    assert all(node.meta["val"].shape == expected.shape for node in module.graph.find_nodes(op="output")[0].args)
    if constants and integer_convolutions.available(torch) and int(case[2].abs().max()) <= 127 and case[5] == 1:
        product = small and case[2][0].numel() > 1 and expected[:, 0].numel() * case[2].numel() <= small
        assert ("_int_mm" if product else "qconv_pointwise") in module.code


def test_sizes_are_known() -> None:
    """In a mode that gives symbols to the sizes of tensors: the order of the next kernel's weights depends on them."""
    x, weight = torch.zeros(1, 3, 8, 9, dtype=torch.uint8), torch.ones(16, 3, 3, 3, dtype=torch.int16)
    case = x, torch.tensor(3, dtype=torch.uint8), weight, None, [[1, 1], [1, 1, 1, 1], [1, 1]], 1
    module = program(case, NAMES, FakeTensorMode(shape_env=ShapeEnv()))
    call_kernels(module.graph)
    (result,) = module.graph.find_nodes(op="output")[0].args
    assert [type(size) for size in result.meta["val"].shape] == [int] * 4


@settings(max_examples=160)
@given(convolutions(), constants, small, st.data())
def test_kernels_round(case: Case, constants: Sequence[str], small: int, data: st.DataObject) -> None:
    """They give another step only where the number is next to the middle of two steps, none in place of a kernel."""
    sums = integer_convolution(*case[:4], *case[4], case[5]).double()
    steps = data.draw(st.sampled_from([1.0, 50.0, 300.0])) / max(float(sums.abs().max()), 1.0)
    scale = (steps * (torch.rand(sums.shape[1]) if data.draw(st.booleans()) else torch.ones(1))).float()
    scaling = scale, torch.tensor(data.draw(st.sampled_from([0, 7, 128, 255])), dtype=torch.uint8)
    expected = requantized_convolution(*case[:4], *case[4], case[5], *scaling)
    module = program(case, constants, FakeTensorMode(), scaling)
    with mock.patch.object(product_code, "SMALL", small):
        found = _called(module, case, scaling)
    assert found.dtype == torch.uint8 and found.shape == expected.shape
    other = found != expected
    assert not bool(other.any()) or "qconv_pointwise" in module.code
    assert bool(((found.double() - expected.double()).abs() <= 1).all())
    numbers = sums * scale.double().reshape(-1, 1, 1)
    bound = 255 * case[2].double().abs().sum([1, 2, 3]) * 2 + (0 if case[3] is None else case[3].double().abs())
    largest = (bound * scale.double()).reshape(-1, 1, 1) + 256  # of what is added in float32
    assert bool(((numbers - numbers.floor() - 0.5).abs() <= largest * 2**-22)[other].all())


class _Quantised(nn.Module):
    """A QLinearConv of one or two dimensions whose weights are buffers."""

    def __init__(self, rank: int, x: torch.dtype, w: torch.dtype, operator: Any) -> None:
        super().__init__()
        self.operator = operator
        self.register_buffer("weight", torch.arange(6 * 2 * 3**rank).reshape(6, 2, *[3] * rank).to(w))
        self.register_buffer("bias", torch.arange(-3, 3, dtype=torch.int32) * 1000)
        self.register_buffer("x_zero", torch.tensor(5, dtype=x))
        self.register_buffer("w_zero", torch.arange(6).to(w))
        self.register_buffer("scale", torch.tensor(0.01))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s = self.scale
        given_ = (x, s, self.x_zero, self.weight, s, self.w_zero, s, self.x_zero, self.bias)
        return self.operator(*given_, pads=[1] * 2 * (x.ndim - 2), strides=[2] * (x.ndim - 2))


@pytest.mark.parametrize(
    ("operator", "recorded"),
    [
        (functional.QLinearConv, "integer_convolution"),
        (functional.onnx2nn__FusedQLinearConv, "requantized_convolution"),
    ],
)
@pytest.mark.parametrize("w", [torch.int8, torch.uint8])
@pytest.mark.parametrize("x", [torch.int8, torch.uint8])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_trace_records_a_convolution(rank: int, x: torch.dtype, w: torch.dtype, operator: Any, recorded: str) -> None:
    module = _Quantised(rank, x, w, operator)
    values = (torch.arange(3 * 2 * 8**rank).reshape(3, 2, *[8] * rank) * 7).to(x)
    batch = ({0: torch.export.Dim("n")},)
    with traced_for(
        MachineCode(
            multiplies=integer_kernels.available(torch),
            convolve=integer_convolution,
            requantize=requantized_convolution,
        )
    ):
        exported = torch.export.export(module, (values,), dynamic_shapes=batch)
    assert recorded in str(exported.graph)
    assert recorded not in str(torch.export.export(module, (values,), dynamic_shapes=batch).graph)
    for some in (values, values[:2]):
        assert torch.equal(exported.module()(some), module(some))


class _Recurrent(nn.Module):
    """A layer that runs as a loop."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, size in (("w", 5), ("r", 6)):
            self.register_buffer(name, torch.randint(-128, 128, (1, size, 24), generator=generator, dtype=torch.int8))
        self.register_buffer("scale", torch.tensor([0.005]))
        self.register_buffer("zero", torch.tensor([1], dtype=torch.int8))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        given_ = (x, self.w, self.r, None, lengths, None, None, None, self.scale, self.zero, self.scale, self.zero)
        found: tuple[torch.Tensor, ...] = functional.com_microsoft__DynamicQuantizeLSTM(
            *given_, direction="reverse", hidden_size=6, _outputs=3
        )
        return found


@pytest.mark.slow
def test_a_trace_has_the_loop() -> None:
    """Of any number of steps, in blocks and one by one; a few steps that are known need none."""
    module, x = _Recurrent(), torch.randn(39, 3, 5)
    sizes = ({0: torch.export.Dim("steps"), 1: torch.export.Dim("n")},)
    with (
        traced_for(MachineCode(integer_kernels.available(torch), None, None)),
        torch.no_grad(),
    ):
        exported = torch.export.export(module, (x,), dynamic_shapes=sizes)
        known = {steps: torch.export.export(module, (torch.randn(steps, 2, 5),)) for steps in (1, 16, 17, 30)}
    assert "while_loop" in str(exported.graph)
    for some in (x, torch.randn(16, 2, 5), torch.randn(4, 2, 5), torch.randn(33, 5, 5)):
        torch.testing.assert_close(exported.module()(some), module(some))
    for steps, program in known.items():
        some, loops = torch.randn(steps, 2, 5), str(program.graph).count("higher_order.while_loop")
        torch.testing.assert_close(program.module()(some), module(some))
        assert loops == {1: 0, 16: 0, 17: 2, 30: 1}[steps]


def test_other_traces_have_one_call() -> None:
    """For sequences of several lengths, and for no machine code."""
    module, x, lengths = _Recurrent(), torch.randn(2, 1, 5), torch.tensor([2])
    exported = torch.export.export(module, (x,))
    assert "DynamicQuantizeLSTM" in str(exported.graph) and "while_loop" not in str(exported.graph)
    with traced_for(MachineCode(False, None, None)):
        exported = torch.export.export(module, (x, lengths))
    assert "DynamicQuantizeLSTM" in str(exported.graph) and "while_loop" not in str(exported.graph)


def test_weights_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo and inductor read, in each call, that weights are constants."""

    class Layer(nn.Linear):
        meta: ClassVar[dict[str, Any]] = {}

    layer, seen = Layer(3, 2).eval(), []

    def compiled(x: torch.Tensor) -> torch.Tensor:
        seen.append((torch._inductor.config.freezing, torch.is_grad_enabled()))
        return layer(x)

    module = Frozen(compiled, layer)
    y = module(torch.ones(1, 3))
    assert seen == [(True, False)] and not y.requires_grad and not torch._inductor.config.freezing
    assert module.state_dict().keys() == {"module.weight", "module.bias"}
    with pytest.raises(RuntimeError, match=r"Train the module of onnx2nn\.load"):
        module.train()


@pytest.mark.slow
@pytest.mark.parametrize("small", [0, product_code.SMALL])
def test_compiled_convolutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    """Of images of three channels, then of eight, both with pads by a zero point that is not 0, for any batch.

    The third one's zero point is decided by data.
    """
    monkeypatch.setenv("ONNX2NN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(product_code, "SMALL", small)
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (uint8[N, 3, 9, 10] x) => (uint8[N, 6, 5, 5] y, int32[N, 4, 5, 3] z3)
        <float s = {0.05}, float t = {0.9}, float u = {9.0}, uint8 z = {7}, int8 w_zero = {0}, float w_scale = {0.02},
        int32[8] b = {-900, 0, 7, 250, 5, 6, 1, 90}>
        {
            y1 = QLinearConv <pads = [1, 1, 1, 1]> (x, s, z, w1, w_scale, w_zero, t, z, b)
            y = QLinearConv <pads = [1, 1, 1, 1], strides = [2, 2]> (y1, t, z, w2, w_scale, w_zero, u, z)
            f = DequantizeLinear (y, u, z)
            q, q_scale, q_zero = DynamicQuantizeLinear (f)
            z3 = ConvInteger <pads = [2, 0, 2, 1], dilations = [2, 1], strides = [1, 2]> (q, w3, q_zero)
        }
    """)
    random = np.random.default_rng(0)
    for name, shape in (("w1", (8, 3, 3, 3)), ("w2", (6, 8, 3, 3)), ("w3", (4, 6, 3, 2))):
        weight = random.integers(-127, 128, shape).astype(np.int8)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    module = onnx2nn.load(model)
    made = onnx2nn.optimize(module, "compile", example_inputs=[torch.zeros(2, 3, 9, 10, dtype=torch.uint8)])
    assert type(made).__name__ == "CompiledModule"
    for batch in (1, 2, 5):
        x = torch.from_numpy(random.integers(0, 256, (batch, 3, 9, 10)).astype(np.uint8))
        for found, expected in zip(made(x), module(x), strict=True):
            assert torch.equal(found, expected) and len(expected.unique()) > 50
