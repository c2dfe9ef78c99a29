"""Values of many axes in views of four: random programs compute the same, and nothing in them has five axes."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F

from onnx2nn.output.ncnn.axis_folding import fold_axes
from onnx2nn.output.ncnn.axis_groups import swaps
from onnx2nn.output.ncnn.channel_folding import fold_channels
from onnx2nn.output.ncnn.decompositions import decompose


class Program:
    """Writes calls and runs them at the same time, so that each can be chosen by the sizes of the value before."""

    def __init__(self, x: torch.Tensor, draw: Callable[[Any], Any]) -> None:
        self.graph = fx.Graph()
        self.root = nn.Module()
        self.draw = draw
        self.node = self.graph.placeholder("x")
        self.value = x

    def call(self, target: Any, *args: Any, **kwargs: Any) -> None:
        """Applies a function, or a method, to the value."""
        self.node, self.value = self._both(target, (self.node, *args), (self.value, *args), kwargs)

    def _both(self, target: Any, nodes: Any, values: Any, kwargs: Any) -> tuple[fx.Node, Any]:
        if isinstance(target, str):
            return self.graph.call_method(target, nodes, kwargs), getattr(values[0], target)(*values[1:], **kwargs)
        return self.graph.call_function(target, nodes, kwargs), target(*values, **kwargs)

    def axis(self) -> int:
        return self.draw(st.integers(0, self.value.ndim - 1))

    def reshape(self) -> None:
        """To as many as seven axes."""
        primes = [p for p in (2, 3, 5, 7) for _ in range(10) if self.value.numel() % p == 0]
        sizes = [self.value.numel()]
        for _ in range(self.draw(st.integers(0, 6))):
            position = self.draw(st.integers(0, len(sizes) - 1))
            factor = self.draw(st.sampled_from([1, *primes]))
            if sizes[position] % factor == 0:
                sizes[position : position + 1] = [factor, sizes[position] // factor]
        self.call("reshape", *sizes)

    def permute(self) -> None:
        self.call("permute", *self.draw(st.permutations(range(self.value.ndim))))

    def transpose(self) -> None:
        self.call("transpose", self.axis(), self.axis() - self.value.ndim)

    def index(self) -> None:
        index: list[Any] = []
        for size in self.value.shape:
            start, step = self.draw(st.integers(0, size - 1)), self.draw(st.integers(1, 3))
            part = self.draw(st.sampled_from(["all", "all", "slice", "step", "one", "new"]))
            index += [None, slice(None)] if part == "new" else [
                {"all": slice(None), "slice": slice(start, start + step), "step": slice(start, None, step),
                 "one": start - size}[part]
            ]  # fmt: skip
        self.call(operator.getitem, tuple(index[: self.draw(st.integers(1, len(index)))]))

    def parts(self) -> None:
        axis = self.axis()
        size = self.value.shape[axis]
        how: tuple[Any, ...] = self.draw(st.sampled_from([
            ("unbind", axis), ("chunk", 2, axis), ("split", 2, axis), ("split", [1, size - 1][: min(size, 2)], axis),
        ]))  # fmt: skip
        self.call(*how)
        self.call(operator.getitem, self.draw(st.integers(-len(self.value), len(self.value) - 1)))

    def expand(self) -> None:
        axes = [axis for axis, size in enumerate(self.value.shape) if size == 1]
        if axes and self.value.numel() < 3000:
            axis = self.draw(st.sampled_from(axes))
            self.call("expand", *(3 if here == axis else -1 for here in range(self.value.ndim)))

    def broadcast(self) -> None:
        """An operand that has one element along some axes."""
        kept = [self.draw(st.booleans()) for _ in self.value.shape]
        index = tuple(slice(None) if keep else slice(0, 1) for keep in kept)
        node, value = self._both(operator.getitem, (self.node, index), (self.value, index), {})
        pair = (
            ((self.node, node), (self.value, value))
            if self.draw(st.booleans())
            else ((node, self.node), (value, self.value))
        )
        self.node, self.value = self._both(self.draw(st.sampled_from([operator.sub, torch.maximum])), *pair, {})

    def unary(self) -> None:
        self.call(self.draw(st.sampled_from([torch.tanh, F.gelu, "abs"])))

    def along(self) -> None:
        first = self.axis()
        last = self.draw(st.integers(first, self.value.ndim - 1))
        kind = self.draw(st.sampled_from(["softmax", "mean", "sum", "amax"]))
        if kind == "softmax":
            self.call(torch.softmax, first)
        else:
            self.call(kind, list(range(first, last + 1)), keepdim=self.draw(st.booleans()))

    def join(self) -> None:
        axis, function = self.axis(), self.draw(st.sampled_from([torch.cat, torch.stack]))
        if self.value.numel() < 3000:
            both = ([self.node, self.node],), ([self.value, self.value],)
            self.node, self.value = self._both(function, *both, {"dim": axis})

    def product(self) -> None:
        if self.value.ndim >= 2:
            node, value = self._both("transpose", (self.node, -1, -2), (self.value, -1, -2), {})
            self.node, self.value = self._both(operator.matmul, (self.node, node), (self.value, value), {})

    def linear(self) -> None:
        if self.value.ndim >= 2:
            name = f"linear{len(self.graph.nodes)}"
            layer = nn.Linear(self.value.shape[-1], 4).double()
            self.root.add_module(name, layer)
            self.node, self.value = self.graph.call_module(name, (self.node,)), layer(self.value)

    def module(self) -> fx.GraphModule:
        """The program, its value as one row."""
        self.call("reshape", 1, -1)
        self.graph.output(self.node)
        return fx.GraphModule(self.root, self.graph)


STEPS = [
    name for name in vars(Program) if not name.startswith("_") and name not in ("call", "axis", "module")
]  # fmt: skip


def _ranks(module: fx.GraphModule, x: torch.Tensor) -> dict[str, int]:
    ShapeProp(module).propagate(x)
    shapes = {node.name: getattr(node.meta.get("tensor_meta"), "shape", ()) for node in module.graph.nodes}
    return {name: len(shape) for name, shape in shapes.items()}


@given(st.data())
@settings(max_examples=50)
def test_programs_of_many_axes(data: st.DataObject) -> None:
    torch.manual_seed(0)
    x = torch.randn(data.draw(st.sampled_from([(1, 4, 6, 6), (2, 3, 20), (1, 16, 12)]))).double()
    program = Program(x, data.draw)
    with torch.no_grad():
        for name in data.draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=9)):
            if program.value.ndim == 0:
                program.call("reshape", 1, 1)
            getattr(program, name)()
        module = program.module()
        folded = fold_axes(module, [x])
        torch.testing.assert_close(folded(x), module(x), rtol=1e-9, atol=1e-9)
    assert not {name: rank for name, rank in _ranks(folded, x).items() if rank > 4}
    assert not any(node.target in ("unbind", torch.stack) for node in folded.graph.nodes)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=7).flatmap(
    lambda sizes: st.tuples(st.just(sizes), st.permutations(range(len(sizes))))
))  # fmt: skip
def test_permutations_are_swaps_of_at_most_four_axes(case: tuple[Sequence[int], Sequence[int]]) -> None:
    sizes, order = case
    x = torch.arange(math.prod(sizes)).reshape(*sizes)
    expected, found, count = x.permute(*order).flatten(), x.flatten(), 0
    for view, swap in swaps(sizes, order):
        assert len(view) <= 4 and 1 not in view
        found, count = found.reshape(view).permute(swap).flatten(), count + 1
    assert torch.equal(found, expected)
    same = torch.equal(x.flatten(), expected)
    assert count == 0 if same else 1 <= count < len(sizes)


def test_window_partition_is_one_swap_and_channel_heads_two() -> None:
    assert len(list(swaps((1, 2, 7, 2, 7, 128), (0, 1, 3, 2, 4, 5)))) == 1
    assert len(list(swaps((1, 64, 4, 2, 4, 2), (0, 1, 3, 5, 2, 4)))) == 2


def test_what_has_few_axes_stays_as_it_is() -> None:
    def few(x: torch.Tensor) -> torch.Tensor:
        q, k = x.reshape(1, 6, 2, 8).permute(0, 2, 1, 3).chunk(2, -1)
        return (q @ k.transpose(-1, -2)).softmax(-1)[:, :, 1:].flatten(1)

    module = fx.symbolic_trace(few)
    assert fold_axes(module, [torch.rand(1, 6, 16)]).code == module.code


def test_volumes_keep_their_five_axes() -> None:
    """Three axes of space behind batch and channels are NCNN's four."""

    class Volumes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv3d(2, 4, 3), nn.Conv3d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.relu(self.first(x))
            return (y + self.second(y)).mean((2, 3, 4))

    module = fx.symbolic_trace(Volumes())
    assert fold_axes(module, [torch.rand(1, 2, 5, 5, 5)]).code == module.code


@pytest.mark.parametrize(("p", "axis"), list(itertools.product((1, 2, 3), (0, 1, -1))))
def test_normalize_is_written_out(p: int, axis: int) -> None:
    module = fx.symbolic_trace(lambda x: F.normalize(x, float(p), axis, eps=0.5))
    x = torch.randn(3, 4, 5).double()
    x[0, 0] *= 1e-3  # below the smallest length
    torch.testing.assert_close(decompose(module)(x), module(x), rtol=1e-12, atol=1e-12)


def test_normalized_rows_go_into_the_linear_layer_before_them() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm, self.other = nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.BatchNorm1d(4)
            for norm in (self.norm, self.other):
                for values in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
                    values.uniform_(0.5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.norm(self.linear(self.other(x.reshape(3, 4)).reshape(1, 3, 4)).flatten(0, 1))
            return rows.reshape(1, 3, 6)

    rows = Rows().eval()
    module = fx.symbolic_trace(rows)
    x = torch.randn(1, 3, 4)
    ShapeProp(module).propagate(x)
    folded = fold_channels(module)
    torch.testing.assert_close(folded(x), rows(x), rtol=1e-5, atol=1e-6)
    layers = [node.target for node in folded.graph.nodes if node.op == "call_module"]
    assert layers == ["linear"]
    assert sum(node.target in (operator.mul, operator.add) for node in folded.graph.nodes) == 2
