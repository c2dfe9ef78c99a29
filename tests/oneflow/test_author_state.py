"""The state of the author's module in OneFlow: its keys, each with the author's values, gradients and ties.

`scripts/state_fixtures.py` writes the files, by both of torch's exporters, and what torch's modules give.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow
import pytest

import onnx2nn

FILES = sorted((Path(__file__).parents[1] / "data" / "torch").glob("*.onnx"))


def arrays_of(path: Path, kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays beside a file whose names begin with `kind/`, without that."""
    with np.load(path.with_suffix(".npz")) as arrays:
        return {name.removeprefix(f"{kind}/"): arrays[name] for name in arrays.files if name.startswith(f"{kind}/")}


def stored(path: Path, name: str) -> np.ndarray[Any, Any]:
    """One array beside a file."""
    with np.load(path.with_suffix(".npz")) as arrays:
        found: np.ndarray[Any, Any] = arrays[name]
        return found


def parameters_of(module: Any, prefix: str = "") -> dict[str, Any]:
    """All parameters by key, a tied one under each of its keys."""
    found = {prefix + name: value for name, value in module._parameters.items() if value is not None}
    for name, inner in module._modules.items():
        found |= parameters_of(inner, f"{prefix}{name}.")
    return found


def test_files_of_both_exporters_are_there():
    assert {path.stem.rpartition("-")[2] for path in FILES} == {"dynamo", "torchscript"} and len(FILES) == 6


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_has_the_authors_values(path: Path):
    module = onnx2nn.load(path, framework="oneflow")
    ours, state = module.state_dict(), arrays_of(path, "state")
    assert set(ours) - set(state) == set()
    assert {key for key in set(state) - set(ours) if not key.endswith("num_batches_tracked")} == set()
    for key in ours:
        np.testing.assert_array_equal(ours[key].numpy(), state[key], err_msg=key)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_another_state_gives_the_authors_output(path: Path):
    module, x = onnx2nn.load(path, framework="oneflow"), flow.tensor(stored(path, "input0"))
    np.testing.assert_allclose(module(x).numpy(), stored(path, "output0"), rtol=1e-4, atol=1e-5)
    other = {key: flow.tensor(value) for key, value in arrays_of(path, "other").items() if key in module.state_dict()}
    module.load_state_dict(other)
    np.testing.assert_allclose(module(x).numpy(), stored(path, "other_output"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_gradient_is_the_authors(path: Path):
    module, x = onnx2nn.load(path, framework="oneflow"), flow.tensor(stored(path, "input0"))
    (module(x) * flow.tensor(stored(path, "cotangent"))).sum().backward()
    parameters = parameters_of(module)
    for key, expected in arrays_of(path, "gradient").items():
        found = parameters[key].grad
        assert found is not None, key
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-4, err_msg=key)
