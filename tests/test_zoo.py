"""Files from other frameworks' exporters: what `scripts/zoo` wrote, imported and compared.

Small ones lie in `tests/data` (`python scripts/zoo/paddle_models.py --out tests/data --only paddle_residual` makes one
again). Others are in the cache, for the slow tests: `nox -s zoo_tensorflow zoo_paddle` writes one model of each family,
with `-- --all` every model and operator.
"""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from realmodels import TRAVELS, check_against_onnxruntime, check_same, check_travels

import onnx2nn
from onnx2nn.fx.blocks.extended_layers import layer_of

CACHE = Path(os.environ.get("ONNX2NN_ZOO") or Path(__file__).parents[1] / ".cache" / "zoo")
ALWAYS = {"tensorflow": "keras_mobilenet_v2", "paddle": "paddle_resnet18"}
DATA = Path(__file__).parent / "data"
SMALL = [
    path for family in ("tensorflow", "paddle", "oneflow", "jax") for path in sorted((DATA / family).glob("*.onnx"))
]
CACHED = sorted(path for family in ALWAYS for path in (CACHE / family).glob("[!.]*.onnx"))
FILES = [*SMALL, *(pytest.param(path, marks=pytest.mark.slow) for path in CACHED)]
EXTRA = 5


@pytest.mark.slow
@pytest.mark.parametrize("family", ALWAYS)
def test_cache_holds_the_family(family: str):
    path = CACHE / family / f"{ALWAYS[family]}.onnx"
    if not path.exists():
        reason = f"{path} is missing: `nox -s zoo_{family}` writes it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def stored(path: Path, kind: str) -> tuple[torch.Tensor, ...]:
    """The `input`s or `output`s that the framework left beside its file."""
    with np.load(path.with_suffix(".npz")) as arrays:
        count = sum(key.startswith(kind) for key in arrays)
        return tuple(torch.from_numpy(arrays[f"{kind}{index}"]) for index in range(count))


def grown(path: Path, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The inputs at other sizes: every dynamic dimension longer by some of its own values, the batch by one."""
    graph = onnx.load(path).graph
    constant = {tensor.name for tensor in graph.initializer}
    values = [value for value in graph.input if value.name not in constant]
    longer = []
    for value, tensor in zip(values, inputs, strict=True):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                more = tensor.flip(axis).narrow(axis, 0, EXTRA if axis else 1)
                tensor = torch.cat([tensor, more], axis)
        longer.append(tensor)
    return tuple(longer)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_equals_framework_and_onnxruntime_and_travels(path: Path):
    module = onnx2nn.load(path)
    inputs = stored(path, "input")
    outputs = check_against_onnxruntime(path, module, inputs)
    check_same(outputs, stored(path, "output"), "against the framework")
    other = grown(path, inputs)
    check_against_onnxruntime(path, module, other)
    check_travels(module, inputs, other, travels=["torch.export"] if path in SMALL else list(TRAVELS))


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("flax_images", {"Conv2d": 7, "BatchNorm2d": 4, "Linear": 1}),
        ("flax_transformer", {"Conv2d": 1, "Linear": 13, "RMSNorm": 2, "LayerNorm": 1}),
        ("flax_recurrent", {"LSTM": 1, "GRU": 1, "RNN": 1, "Linear": 1}),
        ("equinox_tagger", {"GRU": 1, "LayerNorm": 1, "Linear": 5}),
    ],
)
def test_modules_of_jax_are_layers(name: str, layers: dict[str, int]):
    """A step of a scan is a recurrent layer, and rows are none: dense layers are called on what their author calls."""
    module = onnx2nn.load(DATA / "jax" / f"{name}.onnx")
    kinds = [layer_of(layer) or type(layer) for layer in module.modules()]
    assert Counter(kind.__name__ for kind in kinds if kind.__module__.startswith("torch.nn")) == layers
