"""Faults seen in other importers of ONNX files, each with the smallest model that shows it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser
from realmodels import Tensors, as_tuple, check_same, check_travels, run, run_onnxruntime
from torch import nn

import onnx2nn

HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'


def _model(text: str, weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """A model from ONNX's text form with the weights given."""
    model = parser.parse_model(HEADER + text)
    for name, array in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    return model


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _agrees(model: onnx.ModelProto, *inputs: np.ndarray) -> torch.nn.Module:
    """Imports, compares with ONNX Runtime, returns the module."""
    module = onnx2nn.load(model)
    tensors: Tensors = tuple(torch.from_numpy(x) for x in inputs)
    check_same(run(module, tensors), run_onnxruntime(model.SerializeToString(), tensors), "against ONNX Runtime")
    return module


def _elements(module: nn.Module) -> int:
    """How many numbers the module stores, whatever names they go by."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in _tensors(module)}
    return sum(storage.nbytes() for storage in storages.values()) // 4


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    every = list(module.named_parameters(remove_duplicate=False)) + list(module.named_buffers(remove_duplicate=False))
    return [tensor for _, tensor in every]


def test_outputs_keep_the_order_of_the_file() -> None:
    """`[b, r, a]` with a and b from one Split came back as `[(a, b), r]`."""
    model = _model("""
        g (float[N, 4] x) => (float[N, 3] b, float[N, 4] r, float[N, 1] a) {
            sizes = Constant <value_ints = [1, 3]> ()
            a, b = Split <axis = 1> (x, sizes)
            r = Relu (x)
        }""")
    outputs = as_tuple(_agrees(model, _random(2, 4))(torch.from_numpy(_random(2, 4))))
    assert [tuple(output.shape) for output in outputs] == [(2, 3), (2, 4), (2, 1)]


def test_repeated_and_untouched_outputs() -> None:
    """An output may stand twice, be an input or be an initializer."""
    model = _model(
        "g (float[N, 2] x) => (float[N, 2] y, float[2] w, float[N, 2] x, float[N, 2] y) { y = Add (x, w) }",
        {"w": _random(2)},
    )
    _agrees(model, _random(3, 2))


SHARED = """
    g (float[N, 4] x) => (float[N, 4] y) {
        first = MatMul (x, w)
        second = MatMul (first, w)
        y = MatMul (second, w)
    }"""


def test_initializer_of_three_nodes_is_held_once() -> None:
    """It was copied for each node, so that training pulled one weight apart into three."""
    module = _agrees(_model(SHARED, {"w": _random(4, 4)}), _random(2, 4))
    assert len(list(module.parameters())) == 1
    assert _elements(module) == 16
    with torch.no_grad():
        next(module.parameters()).copy_(2 * torch.eye(4))
    torch.testing.assert_close(module(torch.ones(2, 4)), torch.full((2, 4), 8.0))


def test_a_batch_normalisation_of_three_nodes_is_one_layer() -> None:
    """Each node read its own copy of the running statistics, so that its layer was another one: KeyNet of Kornia."""
    names = ("scale", "bias", "mean", "variance")
    model = _model(
        """g (float[N, 3, H] x) => (float[N, 3, H] y) {
            first = BatchNormalization (x, scale, bias, mean, variance)
            shorter = Relu (first)
            second = BatchNormalization (shorter, scale, bias, mean, variance)
            y = BatchNormalization (second, scale, bias, mean, variance)
        }""",
        {name: np.abs(_random(3, seed=seed)) + 0.5 for seed, name in enumerate(names)},
    )
    module = _agrees(model, _random(2, 3, 4))
    assert sum(isinstance(part, nn.BatchNorm1d) for part in module.modules()) == 1
    assert len(module.state_dict()) == 5  # the four, and how many batches were tracked


def test_initializer_used_in_two_orientations_is_held_once() -> None:
    """A tied embedding: one table is gathered from and, transposed, decodes."""
    model = _model(
        """g (int64[N] tokens) => (float[N, 6] y) {
            vectors = Gather <axis = 0> (table, tokens)
            decoder = Transpose <perm = [1, 0]> (table)
            y = MatMul (vectors, decoder)
        }""",
        {"table": _random(6, 4)},
    )
    module = _agrees(model, np.array([0, 5, 2]))
    assert len(list(module.parameters())) == 1
    assert _elements(module) == 24


def test_names_that_differ_in_a_dot_stay_two() -> None:
    """`a.b` and `a_b` became one attribute, and the second weight silently served both nodes."""
    names = ("a.b", "a_b", "a/b", "a:b")
    model = _model(
        """g (float[N, 4] x) => (float[N, 4] y) {
            first = Add (x, "a.b")
            second = Mul (first, a_b)
            third = Sub (second, "a/b")
            y = Mul (third, "a:b")
        }""",
        {name: _random(4, seed=seed) for seed, name in enumerate(names)},
    )
    module = _agrees(model, _random(2, 4))
    sums = sorted(float(tensor.sum()) for tensor in module.state_dict().values())
    assert sums == pytest.approx(sorted(float(_random(4, seed=seed).sum()) for seed in range(4)))


def test_values_named_like_python_words_and_attributes() -> None:
    """Names of the file may be keywords, attributes of nn.Module or differ in case alone."""
    model = _model(
        """g (float[N, 4] "self", float[N, 4] "lambda") => (float[N, 4] "return") {
            forward = Add ("self", training)
            "1" = Mul (forward, "lambda")
            Forward = Add ("1", weight)
            "return" = Sub (Forward, forward)
        }""",
        {"training": _random(4, seed=1), "weight": _random(4, seed=2)},
    )
    module = _agrees(model, _random(2, 4), _random(2, 4, seed=5))
    assert module.training is False


CONV = """
    g (float[N, 3, 8, 8] x) => (float[N, 4, 6, 6] y) {
        c = Conv <kernel_shape = [3, 3]> (x, w, b)
        n = BatchNormalization (c, scale, shift, mean, var)
        y = Relu (n)
    }"""


def _conv() -> onnx.ModelProto:
    vectors = {name: _random(4, seed=index) for index, name in enumerate(("b", "scale", "shift", "mean"))}
    return _model(CONV, {"w": _random(4, 3, 3, 3), "var": np.abs(_random(4, seed=9)) + 0.5, **vectors})


def test_weights_stand_once_in_the_state_dict() -> None:
    """Each weight had two keys: the layer's own and the initializer's."""
    module = _agrees(_conv(), _random(2, 3, 8, 8))
    floats = {key: tensor for key, tensor in module.state_dict().items() if tensor.is_floating_point()}
    assert sum(tensor.numel() for tensor in floats.values()) == 4 * 27 + 5 * 4, sorted(floats)
    trainable = {key for key, _ in module.named_parameters()}
    assert len(trainable) == 4
    assert len(floats) == 6, "running mean and variance are buffers"


def test_module_survives_pickling_and_saving(tmp_path: Path) -> None:
    """Closures in the module made it impossible to pickle."""
    module = _agrees(_conv(), _random(2, 3, 8, 8))
    inputs = (torch.from_numpy(_random(2, 3, 8, 8)),)
    torch.save(module, tmp_path / "module.pt")
    for again in (pickle.loads(pickle.dumps(module)), torch.load(tmp_path / "module.pt", weights_only=False)):
        check_same(run(again, inputs), run(module, inputs), "after pickling")
        assert list(again.state_dict()) == list(module.state_dict())


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*")}


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external_data"])
def test_nothing_is_written_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool) -> None:
    """Every run left a temporary file in the model's folder."""
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(_conv(), str(folder / "conv.onnx"), save_as_external_data=external, size_threshold=0)
    monkeypatch.chdir(folder)
    before = _listing(folder)
    module = onnx2nn.load(folder / "conv.onnx")
    run(module, (torch.from_numpy(_random(2, 3, 8, 8)),))
    onnx2nn.check(folder / "conv.onnx")
    assert _listing(folder) == before


@pytest.mark.parametrize("weight", ["w", "same_w"])
def test_bias_reached_through_identity(weight: str) -> None:
    """What torch.onnx.export writes where folded convolutions share a bias; it ended the import."""
    model = _model(
        f"""g (float[N, 3, 8, 8] x) => (float[N, 4, 6, 6] y, float[N, 4, 6, 6] z) {{
            same_b = Identity (b)
            same_w = Identity (w)
            y = Conv <kernel_shape = [3, 3]> (x, w, b)
            z = Conv <kernel_shape = [3, 3]> (x, {weight}, same_b)
        }}""",
        {"w": _random(4, 3, 3, 3), "b": _random(4)},
    )
    module = _agrees(model, _random(2, 3, 8, 8))
    assert _elements(module) == 4 * 27 + 4
    assert len(list(module.parameters())) == 2


PADDLE_HEAD = """
    g (float[N, 4, 3, 3] x) => (float[N, 5] y) {
        pooled = GlobalAveragePool (x)
        shape = Shape (pooled)
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        batch = Slice (shape, zero, one)
        rest = Constant <value_ints = [-1]> ()
        target = Concat <axis = 0> (batch, rest)
        flat = Reshape (pooled, target)
        logits = MatMul (flat, w)
        y = Add (logits, b)
    }"""


def _casting_head() -> str:
    """The same with the shape taken through int32, as older versions of paddle2onnx write it."""
    return PADDLE_HEAD.replace(
        "target = Concat <axis = 0> (batch, rest)",
        """narrow = Cast <to = 6> (batch)
        rest32 = Cast <to = 6> (rest)
        joined = Concat <axis = 0> (narrow, rest32)
        target = Cast <to = 7> (joined)""",
    )


@pytest.mark.parametrize("text", [lambda: PADDLE_HEAD, _casting_head], ids=["int64", "int32"])
def test_reshape_to_a_computed_shape_compiles(text: Callable[[], str]) -> None:
    """A Paddle ResNet imported and ran, and then failed torch.compile because its Reshape's target was a tensor."""
    module = _agrees(_model(text(), {"w": _random(4, 5), "b": _random(5)}), _random(2, 4, 3, 3))
    one, two = (torch.from_numpy(_random(batch, 4, 3, 3)) for batch in (2, 3))
    check_travels(module, (one,), (two,))
