"""Arguments that do not fit the model, or that are of another type: an error that says what fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import onnx2nn
from onnx2nn.errors import InputError, VerificationError

DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input_shapes": [1, 8, 8, 1]}, "input_shapes"),
        ({"input_shapes": {"image": "1,8,8,1"}}, "'1,8,8,1'"),
        ({"input_shapes": {"image": None}}, "None"),
        ({"input_shapes": {"image": [1.0, 8, 8, 1]}}, "1.0"),
        ({"input_shapes": {"image": [True, 8, 8, 1]}}, "True"),
        ({"input_shapes": {"image": [-2, 8, 8, 1]}}, "-2"),
        ({"input_shapes": {"image": [8, 8, 1]}}, "4 dimensions"),
        ({"input_shapes": {"picture": [1, 8, 8, 1]}}, "'picture'"),
        ({"dynamic": ["image"]}, "dynamic"),
        ({"dynamic": {"image": ["batch"]}}, "batch"),
        ({"dynamic": {"image": {7: "batch"}}}, "4 dimensions"),
        ({"dynamic": {"image": {1: 3}}}, "3"),
        ({"trainable": None}, "None"),
        ({"trainable": 1}, "1"),
        ({"trainable": [1]}, "1"),
    ],
)
def test_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        onnx2nn.load(DIGITS, **options)
    assert words in str(caught.value) and next(iter(options)) in str(caught.value)


@pytest.mark.parametrize("dims", [np.array([2, 8, 8, 1]), torch.Size([2, 8, 8, 1]), (np.int64(2), 8, 8, 1)])
def test_sizes_are_fixed_whatever_integers_they_are(dims: Any) -> None:
    model = onnx2nn.load(DIGITS, input_shapes={"image": dims})
    assert model.meta["onnx2nn"]["signature"][0]["shape"] == (2, 8, 8, 1)


@pytest.fixture(scope="module")
def module() -> torch.fx.GraphModule:
    return onnx2nn.load(DIGITS)


IMAGES = np.zeros((2, 8, 8, 1), np.float32)

CALLS: dict[str, tuple[str, Callable[[Any, Path], object]]] = {
    "verify, a list": ("inputs is a list", lambda module, _: onnx2nn.verify(DIGITS, module, inputs=[IMAGES])),  # type: ignore[arg-type]  # wrong on purpose
    "verify, a negative size": (
        "list of sizes",
        lambda module, _: onnx2nn.verify(DIGITS, module, input_shapes={"image": [-1, 8, 8, 1]}),
    ),
    "simplify, a str": ("list of sizes", lambda *_: onnx2nn.simplify(DIGITS, input_shapes={"image": "2"})),  # type: ignore[dict-item]  # likewise
    "verify_nodes, another module": ("Linear", lambda *_: onnx2nn.verify_nodes(DIGITS, torch.nn.Linear(2, 2))),  # type: ignore[arg-type]  # likewise
    "save, a state": ("dict", lambda module, to: onnx2nn.save(dict(module.state_dict()), to / "m.safetensors")),  # type: ignore[arg-type]  # likewise
    "export, one tensor": (
        "a list of one",
        lambda module, to: onnx2nn.export_onnx(module, to / "m.onnx", example_inputs=torch.from_numpy(IMAGES)),  # type: ignore[arg-type]  # likewise
    ),
    "export, two tensors": (
        "a list of one",
        lambda module, to: onnx2nn.export_onnx(module, to / "m.onnx", example_inputs=[IMAGES, IMAGES]),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_refused_elsewhere(call: str, module: torch.fx.GraphModule, tmp_path: Path) -> None:
    words, function = CALLS[call]
    with pytest.raises(InputError, match=words):
        function(module, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_opset_that_cannot_be_written(tmp_path: Path) -> None:
    identity = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }'
    )
    with pytest.raises(VerificationError, match="opset 3"):
        onnx2nn.export_onnx(onnx2nn.load(identity), tmp_path / "m.onnx", opset=3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("function", [onnx2nn.load, onnx2nn.check, onnx2nn.verify, onnx2nn.simplify])
def test_what_is_no_model(function: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="A model is a path, bytes, a binary stream or a ModelProto, not a NoneType"):
        function(None)


def test_an_open_file_finds_its_external_data(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <float[2] w = {1.5, -2.0}> { y = Mul (x, w) }
    """)
    weight = model.graph.initializer[0]
    weight.CopyFrom(onnx.numpy_helper.from_array(np.array([1.5, -2.0], np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    with open(tmp_path / "m.onnx", "rb") as file:
        assert torch.equal(onnx2nn.load(file)(torch.ones(2)), torch.tensor([1.5, -2.0]))


def test_a_model_of_onnx_ir_is_told_the_way() -> None:
    with pytest.raises(TypeError, match=r"onnx_ir\.to_proto"):
        onnx2nn.load(ir.load(DIGITS))  # type: ignore[arg-type]  # the point of the test
