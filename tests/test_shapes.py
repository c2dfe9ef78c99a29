"""Shape rules say what torch says of meta tensors, and nothing where torch refuses the call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from onnx2nn.fx.inference import Inference
from onnx2nn.fx.shape_rules import RULES
from onnx2nn.fx.spec import Spec
from onnx2nn.fx.tensor import Tensor
from onnx2nn.fx.tracer import Tracer

POINTS = 3
SIZES = st.integers(1, 4)
FLOATS = (*[torch.float32] * 9, torch.float16)
NUMBERS = (*[torch.float32] * 3, *[torch.int64] * 3, torch.int32, torch.bool)


class Case:
    """Draws the arguments of a call: traced and constant tensors of nearly the right shapes, and settings."""

    def __init__(self, data: st.DataObject):
        self.draw, self.tracer = data.draw, Tracer(POINTS)

    def sizes(self, count: int) -> list[int]:
        return [self.draw(SIZES) for _ in range(count)]

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def wrong(self, shape: list[int]) -> list[int]:
        """Returns `shape`, now and then with another size or rank."""
        change = self.draw(st.integers(0, 19))
        if change == 0 and shape:
            return [*shape[:-1], shape[-1] + 1]
        return shape[1:] if change == 1 else shape

    def traced(self, shape: list[int], varying: int | None = None, dtypes: Sequence[torch.dtype] = FLOATS) -> Tensor:
        """Returns a traced tensor of which the axis `varying` has another size at each sample point."""
        shapes = [list(self.wrong(shape))] * POINTS
        if varying is not None and varying < len(shapes[0]):
            grown = [[*shapes[0]] for _ in range(POINTS)]
            for point, sizes in enumerate(grown):
                sizes[varying] += 2 * point
            shapes = grown
        tensor = self.tracer.placeholder("x", Spec(tuple(map(tuple, shapes)), self.one_of(*dtypes)))
        assert isinstance(tensor, Tensor)
        return tensor

    def constant(self, shape: list[int]) -> torch.Tensor:
        return torch.empty(self.wrong(shape))

    def maybe(self, value: Any) -> Any:
        return value if self.draw(st.booleans()) else None


class Ordinary(Case):
    """Draws shapes that fit, and the first of several alternatives."""

    def wrong(self, shape: list[int]) -> list[int]:
        return shape

    def one_of(self, *values: Any) -> Any:
        return values[0]


def conv(case: Case) -> tuple[Any, ...]:
    axes = case.one_of(1, 2, 3)
    groups, batch, inputs, outputs = case.one_of(1, 1, 2), *case.sizes(3)
    kernel = case.sizes(axes)
    settings = [[case.one_of(1, 2) for _ in range(axes)], [case.one_of(0, 1, 2) for _ in range(axes)]]
    x = case.traced([batch, inputs * groups, *(size + 3 for size in case.sizes(axes))], varying=case.one_of(0, 2, None))
    bias = case.maybe(case.constant([outputs * groups]))
    weight = case.constant([outputs * groups, inputs, *kernel])
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[axes - 1]
    return function, x, weight, bias, *settings, [case.one_of(1, 2) for _ in range(axes)], groups


def batch_norm(case: Case) -> tuple[Any, ...]:
    shape = case.sizes(case.one_of(2, 3, 4))
    mean, var, weight, bias = (case.constant(shape[1:2]) for _ in range(4))
    x = case.traced(shape, varying=case.one_of(0, 2))
    return F.batch_norm, x, mean, var, case.maybe(weight), case.maybe(bias), False, 0.1, 1e-5


def layer_norm(case: Case) -> tuple[Any, ...]:
    shape = case.sizes(case.one_of(2, 3, 4))
    last = shape[case.one_of(1, len(shape) - 1) :]
    weight, bias = case.constant(last), case.constant(last)
    return F.layer_norm, case.traced(shape, 0), last, case.maybe(weight), case.maybe(bias), 1e-5


def linear(case: Case) -> tuple[Any, ...]:
    shape, outputs = case.sizes(case.one_of(1, 2, 3)), case.draw(SIZES)
    x = case.traced(shape, varying=0 if len(shape) > 1 else None)
    return F.linear, x, case.constant([outputs, shape[-1]]), case.maybe(case.constant([outputs]))


def adaptive_avg_pool2d(case: Case) -> tuple[Any, ...]:
    size = case.one_of(1, [1, 1], [2, 3], 2)
    return F.adaptive_avg_pool2d, case.traced(case.sizes(case.one_of(3, 4)), varying=case.one_of(0, 2)), size


def interpolate(case: Case) -> tuple[Any, ...]:
    shape = case.sizes(case.one_of(3, 4, 5))
    mode = case.one_of("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear")
    settings = {"mode": mode, "align_corners": case.one_of(None, True, False)}
    if case.one_of(True, False):
        return F.interpolate, case.traced(shape, varying=0), {"size": case.sizes(len(shape) - 2), **settings}
    factors = tuple(case.one_of(0.3, 0.5, 1.0, 1.3, 2.0, 2.9999999, 4.7) for _ in shape[2:])
    settings["scale_factor"] = case.one_of(factors, factors[0])
    return F.interpolate, case.traced(shape, varying=case.one_of(0, 2)), settings


def grid_sample(case: Case) -> tuple[Any, ...]:
    axes = case.one_of(2, 3)
    batch, *shape = case.sizes(axes + 2)
    mode, padding = case.one_of("bilinear", "nearest", "bicubic"), case.one_of("zeros", "border", "reflection")
    grid = case.traced([batch, *case.sizes(axes), axes], case.one_of(0, 1))
    settings = {"mode": mode, "padding_mode": padding, "align_corners": case.one_of(True, False)}
    return F.grid_sample, case.traced([batch, *shape], case.one_of(0, 2)), grid, settings


def attention(case: Case) -> tuple[Any, ...]:
    lead = case.sizes(case.one_of(1, 2))
    rows, columns, width, out = case.sizes(4)
    mask = case.one_of([rows, columns], [1, columns], [1] * len(lead) + [rows, columns], [*lead, rows, columns])
    tensors = [case.traced([*lead, *last]) for last in ([rows, width], [columns, width], [columns, out])]
    return F.scaled_dot_product_attention, *tensors, case.maybe(case.traced(mask)), {"scale": case.one_of(None, 0.5)}


def cat(case: Case) -> tuple[Any, ...]:
    shape = case.sizes(case.one_of(1, 2, 3))
    axis = case.draw(st.integers(-len(shape), len(shape)))
    return torch.cat, [case.traced(shape, varying=0) for _ in range(case.one_of(1, 2, 3))], axis


def binary(case: Case) -> tuple[Any, ...]:
    shape = case.sizes(3)
    thin = [case.one_of(1, size) for size in shape][case.one_of(0, 1) :]
    function = case.one_of(operator.add, operator.mul, operator.truediv, operator.lt, "mul", "add", "sub", "div")
    other = case.one_of(case.constant(thin), *[case.traced(thin, dtypes=NUMBERS)] * 2, 2.5, 2)
    operands = [case.traced(shape, 0, NUMBERS), other]
    return function, *(operands if isinstance(function, str) else case.one_of(operands, operands[::-1]))


def where(case: Case) -> tuple[Any, ...]:
    shape = case.sizes(3)
    condition = case.traced([case.one_of(1, size) for size in shape], dtypes=(torch.bool,))
    one = case.one_of(case.traced(shape[1:]), case.constant(shape), case.traced(shape, dtypes=(torch.int64,)))
    return torch.where, condition, case.traced(shape, 0), one


def matmul(case: Case) -> tuple[Any, ...]:
    lead = case.sizes(case.one_of(0, 1, 2))
    rows, inner, columns = case.sizes(3)
    y = [*lead[case.one_of(0, len(lead)) :], inner, columns]
    function = case.one_of(operator.matmul, torch.matmul)
    return function, case.traced([*lead, rows, inner], 0), case.one_of(case.traced(y), case.constant(y))


def reduction(case: Case) -> tuple[Any, ...]:
    shape = case.sizes(3)
    axes = case.one_of(0, -1, [1], [1, 2], [-1, 0], [2, -1], [0, 3])
    return (
        case.one_of("mean", "sum", "amax", "amin"),
        case.traced(shape, 0),
        axes,
        {"keepdim": case.one_of(True, False)},
    )


def recurrent(case: Case) -> tuple[Any, ...]:
    layers, ways, steps, batch, width, hidden = case.one_of(1, 2), case.one_of(1, 2), *case.sizes(4)
    parameters = []
    for inputs in (width, *[ways * hidden] * (layers - 1)):
        for _ in range(ways):
            parameters += [[3 * hidden, inputs], [3 * hidden, hidden], [3 * hidden], [3 * hidden]]
    state = case.constant([layers * ways, batch, hidden])
    weights = list(map(case.constant, parameters))
    return torch.gru, case.traced([steps, batch, width], 0), state, weights, True, layers, 0.0, False, ways == 2, False


def unary(case: Case) -> tuple[Any, ...]:
    x = case.traced(case.sizes(3), 0)
    return case.one_of((torch.relu, x), (F.gelu, x), (torch.pow, x, 2.0), ("pow", x, 2), ("clamp", x, 0, 1))


ORDINARY = (
    conv, batch_norm, layer_norm, linear, adaptive_avg_pool2d, attention, binary, where, matmul, reduction, unary,
)  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [*ORDINARY, interpolate, grid_sample, cat, recurrent],
    ids=lambda kind: kind.__name__,
)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_rule_says_what_torch_says(kind: Callable[[Case], tuple[Any, ...]], data: st.DataObject) -> None:
    case = Case(data)
    function, *args = kind(case)
    kwargs = args.pop() if isinstance(args[-1], dict) else {}
    specs = RULES[function](tuple(args), kwargs)
    if specs is not None:
        inferred = tuple(Spec(*spec) for spec in specs) if isinstance(specs, list) else Spec(*specs)
        assert inferred == Inference(POINTS, {}).run(function, tuple(args), kwargs)


@pytest.mark.parametrize("kind", ORDINARY, ids=lambda kind: kind.__name__)
def test_rule_answers_ordinary_calls(kind: Callable[[Case], tuple[Any, ...]]) -> None:
    answered = []

    @settings(max_examples=30, deadline=None)
    @given(data=st.data())
    def draw(data: st.DataObject) -> None:
        function, *args = kind(Ordinary(data))
        kwargs = args.pop() if isinstance(args[-1], dict) else {}
        answered.append(RULES[function](tuple(args), kwargs) is not None)

    draw()
    assert all(answered)


@pytest.mark.parametrize("size", [{"size": (6, 4)}, {"scale_factor": 2.0}, {"scale_factor": (1.5, 2.0)}])
def test_resizing_has_a_rule(size: dict[str, Any]) -> None:
    """Twenty milliseconds each in torch's decomposition, of which a feature pyramid has many."""
    x = Tracer(POINTS).placeholder("x", Spec(((1, 2, 4, 5),) * POINTS, torch.float32))
    assert RULES[F.interpolate]((x,), {**size, "mode": "bilinear", "align_corners": False}) is not None
