"""Arguments of `load` that do not fit the model, or that are of another type: an error that says what fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import onnx2nn
from onnx2nn.errors import InputError

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


def test_a_model_of_onnx_ir_is_told_the_way() -> None:
    with pytest.raises(TypeError, match=r"onnx_ir\.to_proto"):
        onnx2nn.load(ir.load(DIGITS))  # type: ignore[arg-type]  # the point of the test
