"""Recurrent functions, item assignment, windows, ties of nearest sampling: against numpy and the layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow_bridge import namespace
from oneflow_bridge.runtime import import_oneflow
from onnx2nn.errors import OperatorError

flow = import_oneflow()
F: Any = namespace
RNG = np.random.default_rng(0)


def tensor(*shape: int) -> Any:
    return F.from_numpy(RNG.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("name", "kind", "states"), [("lstm", "LSTM", 2), ("gru", "GRU", 1)])
def test_recurrent_functions_equal_the_layers(name: str, kind: str, states: int, batch_first: bool):
    layer = getattr(flow.nn, kind)(3, 4, bidirectional=True, batch_first=batch_first)
    order = [
        f"{part}_l0{suffix}" for suffix in ("", "_reverse") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    parameters = [F.wrap(getattr(layer, key)) for key in order]
    x, initial = tensor(5, 2, 3), [tensor(2, 5 if batch_first else 2, 4) for _ in range(states)]
    with flow.no_grad():
        hx = initial if states > 1 else initial[0]
        output, *last = getattr(F, name)(x, hx, parameters, True, 1, 0.0, False, True, batch_first)
        expected, final = layer(x.value, F.unwrap(tuple(initial) if states > 1 else initial[0]))
    np.testing.assert_allclose(output.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(last, final if states > 1 else [final], strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_a_state_of_another_batch_is_refused_and_not_broadcast():
    parameters = [tensor(12, 3), tensor(12, 4)]
    with pytest.raises(OperatorError, match=r"state of batch 1 .* input of batch 2"):
        F.gru(tensor(5, 2, 3), tensor(1, 1, 4), parameters, False, 1, 0.0, False, False, False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ((slice(1, 3), 2), 7.0),
        (0, np.arange(4, dtype=np.float32)),
        ((slice(None), slice(None, None, 2)), np.float32([[1], [2], [3]])),
        (np.array([2, 0]), 5.0),
        (np.array([[True, False, True, False]] * 3), -1.0),
    ],
)
def test_item_assignment(key: Any, value: Any):
    array = RNG.standard_normal((3, 4)).astype(np.float32)
    x = F.from_numpy(array.copy())
    x[F.from_numpy(key) if isinstance(key, np.ndarray) else key] = value
    array[key] = value
    np.testing.assert_array_equal(x.numpy(), array)


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize(
    ("name", "reference"), [("hann", np.hanning), ("hamming", np.hamming), ("blackman", np.blackman)]
)
def test_windows(name: str, reference: Any, periodic: bool):
    expected = reference(9)[:8] if periodic else reference(8)
    found = getattr(F, f"{name}_window")(8, periodic=periodic)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_nearest_sampling_takes_the_even_element_at_ties(padding: str, align_corners: bool):
    size = 5
    positions = np.arange(-3, 8, 0.5)
    unit = 2 * positions / (size - 1) - 1 if align_corners else (2 * positions + 1) / size - 1
    grid = np.zeros((1, 1, len(unit), 2), np.float32)
    grid[..., 0] = unit
    image = np.arange(1, size + 1, dtype=np.float32).reshape(1, 1, 1, size)
    found = F.nn.functional.grid_sample(
        F.from_numpy(image), F.from_numpy(grid), mode="nearest", padding_mode=padding, align_corners=align_corners
    )
    places = positions.copy()
    if padding == "border":
        places = places.clip(0, size - 1)
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        away, rest = np.divmod(np.abs(places - low), span)
        places = (np.where(away % 2 == 1, span - rest, rest) + low).clip(0, size - 1)
    index = np.round(places).astype(int)
    inside = (index >= 0) & (index < size)
    expected = np.where(inside, index.clip(0, size - 1) + 1, 0)
    # A tie is one only where the grid's float32 numbers give it exactly.
    exact = np.float32(unit).astype(np.float64)
    back = (exact + 1) / 2 * (size - 1) if align_corners else ((exact + 1) * size - 1) / 2
    certain = (np.abs(back - positions) < 1e-12) | (np.abs(positions % 1 - 0.5) > 0.1)
    assert certain.sum() > 10
    np.testing.assert_array_equal(found.numpy().ravel()[certain], expected[certain])
