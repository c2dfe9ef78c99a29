"""The shape rules of OneFlow's importer: what they say of dynamic dimensions, beside the shapes of real results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow_bridge import namespace as F
from oneflow_bridge.from_onnx.dim import Sizes
from oneflow_bridge.from_onnx.recording import Recorder, Spec, Traced
from oneflow_bridge.from_onnx.trials import Trials, replaced
from oneflow_bridge.namespace.tensor import Tensor, from_array
from onnx2nn.optable.row import NeedsValues
from onnx2nn.sizes.expression import Symbol, of_symbol
from onnx2nn.sizes.substitution import evaluated

N, M = Symbol("n"), Symbol("m")
POINTS = [{N: n, M: m} for n, m in ((5, 7), (1, 1), (2, 9), (8, 3), (16, 5))]

SHAPES = {
    "x": (N, 4, M),
    "y": (4, M),
    "square": (N, 1, M),
    "image": (N, 4, 30, M),
    "line": (N, 4, M),
    "flat": (M,),
    "row": (1, N, 4),
    "grid": (N, M, 3, 2),
}
WEIGHTS = {"w": (4, 6), "kernel": (8, 2, 3, 1), "up": (4, 2, 3, 1), "table": (10, 6), "bias": (6,)}

CALLS = """
F.relu(x) | x + y | x * 2 | square - x | F.where(x > 0, y, square) | x.clamp(0, 1) | F.maximum(x, square)
x.sum([1]) | x.mean([1, 2], keepdim=True) | x.amax([0], keepdim=False) | x.argmax(2, keepdim=True) | x.max(1) | x.sum()
x.var([1], unbiased=False, keepdim=True) | x.softmax(1) | x.cumsum(2) | x.sort(1) | x.topk(3, 1)
F.matmul(row, w) | x.transpose(1, 2) @ w | row.matmul(w) | F.nn.functional.linear(row, w.t(), bias)
F.nn.functional.conv2d(image, kernel, None, (2, 1), (1, 0), 1, 2)
F.nn.functional.conv_transpose2d(image, up, None, (2, 1), (1, 0), (1, 0), 1, 1)
F.nn.functional.max_pool2d(image, (3, 1), (2, 1), padding=(1, 0)) | F.nn.functional.avg_pool1d(line, 1)
F.nn.functional.max_pool2d(image, (3, 1), (2, 1), return_indices=True, ceil_mode=True)
F.nn.functional.adaptive_avg_pool2d(image, (1, 2)) | F.nn.functional.pad(x, [1, 2, 0, 3])
F.nn.functional.interpolate(image, size=(7, 9)) | F.nn.functional.interpolate(image, scale_factor=2.0)
F.nn.functional.pixel_shuffle(image, 2)
x.reshape(-1, 4) | x.reshape(n, -1) | x.reshape(2, -1, 2) | x.reshape(n * 2, 2, m) | x.flatten(1) | x.flatten(0, 1)
x.permute(2, 0, 1) | x.transpose(0, 2) | y.t() | x.unsqueeze(-1) | square.squeeze(1) | x.expand(3, -1, 4, m)
flat.expand(n, m) | x.repeat(2, 1, 3) | F.cat([x, square], 1) | F.cat([x, x], 2) | F.stack([y, y], 1)
x.split([1, 3], 1) | x.split(3, 1) | x.chunk(3, 1) | x.unbind(1) | x.select(1, 2) | x.narrow(1, 1, 2)
x[:, 1] | x[:, :4] | x[..., 1:] | x[:, None] | x[:, 1:3, ::2] | x[:, :, -3:] | x[2:, :, :m] | x[:, :, m - 1:]
x[..., :-2]
x.movedim(1, -1) | F.movedim(x, (0, 2), (2, 0)) | x.unflatten(1, (2, -1))
x.unflatten(2, (m, 1)) | image.unflatten(2, [5, 6])
F.einsum("bcm,cm->bm", x, y) | F.einsum("...cm,...cm->...", x, square) | F.einsum("bcm,bcm", x, x)
F.einsum("i...i->...", row) | F.einsum("bcm,cd->bdm", x, w) | F.nn.functional.glu(x, 1) | F.nn.functional.glu(image, 2)
F.nn.functional.grid_sample(image, grid, "bilinear", "zeros", False)
F.nn.functional.embedding_bag(grid[:, :, 0, 0].long(), table, mode="sum")
F.zeros([n, 3]) | F.full((m,), 2.0) | F.arange(n) | F.arange(1, m, 2) | F.ones_like(x) | F.tril(x)
F.lstm(line.transpose(1, 2), [F.zeros([1, m, 5])] * 2, cell, False, 1, 0.0, False, False, False)
"""


def _tensor(shape: tuple[Any, ...]) -> Tensor:
    return from_array(np.random.default_rng(0).random(shape, dtype=np.float32))


WEIGHT_VALUES = {name: _tensor(shape) for name, shape in WEIGHTS.items()}
WEIGHT_VALUES["cell"] = [_tensor((20, 4)), _tensor((20, 5))]  # type: ignore[assignment]  # a list of weights


def _flat(value: Any) -> list[Any]:
    return [x for item in value for x in _flat(item)] if isinstance(value, (list, tuple)) else [value]


def _run(call: str, point: dict[Symbol, int]) -> Any:
    inputs = {name: _tensor(tuple(point.get(d, d) for d in shape)) for name, shape in SHAPES.items()}
    return eval(call, {"F": F, "n": point[N], "m": point[M], **inputs, **WEIGHT_VALUES})


@pytest.mark.parametrize("call", [call.strip() for line in CALLS.strip().splitlines() for call in line.split(" | ")])
def test_rules_hold_at_other_sizes(call: str) -> None:
    sizes, trials = Sizes(), Trials()
    recorder = Recorder("value", sizes, trials)
    with sizes.node(recorder):
        inputs = {
            name: Traced(recorder, name, Spec(tuple(of_symbol(d) if d in (N, M) else d for d in shape), F.float32))
            for name, shape in SHAPES.items()
        }
        dims = {"n": sizes.number(of_symbol(N)), "m": sizes.number(of_symbol(M))}
        found = eval(call, {"F": recorder.F, **dims, **inputs, **WEIGHT_VALUES})
    compared = 0
    for point in POINTS:
        try:
            real = _run(call, point)
        except Exception:  # the call does not take these sizes
            continue
        for traced, tensor in zip(_flat(found), _flat(real), strict=True):
            assert traced.dtype is tensor.dtype and traced.ndim == tensor.ndim
            for said, is_ in zip(traced.spec.shape, tensor.shape, strict=True):
                if isinstance(said, int) or said.symbols <= {N, M}:
                    assert evaluated(said, point) == is_, f"{said!r} at {point}"
            compared += 1
    assert compared


def test_undecided_sizes_are_read_at_run_time() -> None:
    sizes = Sizes()
    n = sizes.number(of_symbol(N))
    for needed in (
        lambda: bool(n > 3),
        lambda: int(n),
        lambda: [0] * n,
        lambda: n / 2,
        lambda: n * 0.5,
        lambda: n % 0,
    ):
        with pytest.raises(NeedsValues):
            needed()
    assert (n >= 0) is True and (n == n + 1) is False and n - n == 0
    assert repr(replaced([n, 1], lambda value: value)) == "[n, 1]"


def test_names_of_sizes_are_not_taken_for_equal_ones() -> None:
    """A result of a call without a rule, `meshgrid`, has a rank and no known dimensions."""
    sizes, trials = Sizes(), Trials()
    recorder = Recorder("value", sizes, trials)
    with sizes.node(recorder):
        flat = Traced(recorder, "flat", Spec((of_symbol(M),), F.float32))
        rows, _ = recorder.F.meshgrid(flat, flat, indexing="ij")
        assert rows.ndim == 2
        with pytest.raises(NeedsValues):
            bool(rows.shape[0] == rows.shape[1])
