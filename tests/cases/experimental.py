"""Cases of experimental operators and of ATen operators, of which onnx has no schema."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import Case, case, f32, i64

_CAFFE2 = "no runtime has a kernel; Caffe2's definition, computed with numpy"
_PYTORCH = "no runtime that runs these tests has PyTorch's operators; computed with numpy"


def _whole(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


_HIDDEN, _GATES = _whole(1, 3, 2) - 2, _whole(1, 3, 6) / 9 - 1


def _gru(ended: np.ndarray) -> np.ndarray:
    """Step 1 of sequences of 2, 1 and 3 steps."""
    update = 1 / (1 + np.exp(-_GATES[..., 2:4]))
    hidden = update * _HIDDEN + (1 - update) * np.tanh(_GATES[..., 4:])
    return np.where(np.array([[True], [False], [True]]), hidden, ended).astype(np.float32)


_TABLE = _whole(5, 3)
_BAGS = np.stack([_TABLE[[0, 2]].sum(0), _TABLE[[2, 4, 1]].sum(0)])
_MEANS = np.stack([_TABLE[[0, 2]].mean(0), _TABLE[[2, 4, 1]].mean(0)])


def _aten(operator: str, *inputs: Any, note: str = "", expected: Any, outputs: int = 1, **attributes: Any) -> Case:
    return case(
        "ATen", *inputs, domain="org.pytorch.aten", attributes={"operator": operator, **attributes}, outputs=outputs,
        expected=expected, why=_PYTORCH, note=f"{operator} {note}",
    )  # fmt: skip


CASES = [
    case("Affine", f32(5), alpha=2.0, beta=-1.0),
    case("Scale", f32(5), scale=0.3),
    case("ConstantFill", i64(2, 3), input_as_shape=1, extra_shape=[2], value=0.5, constant=(0,),
         expected=[np.full((2, 3, 2), 0.5, np.float32)], why=_CAFFE2),
    case("ConstantFill", i64(2, 3), input_as_shape=1, dtype=7, value=3.0, expected=[np.full((2, 3), 3)], why=_CAFFE2,
         note="run time"),
    case("ConstantFill", f32(2, 3), value=0.5, expected=[np.full((2, 3), 0.5, np.float32)], why=_CAFFE2,
         note="shape of the input"),
    case("ConstantFill", shape=[2, 3], dtype=9, value=1.0, expected=[np.ones((2, 3), bool)], why=_CAFFE2, note="alone"),
    case("ParametricSoftplus", f32(5), alpha=2.0, beta=0.5),
    case("ScaledTanh", f32(5), alpha=2.0, beta=0.5),
    case("ImageScaler", f32(2, 3, 4, 5), scale=0.5, bias=[0.1, 0.2, 0.3]),
    case("ImageScaler", f32(2, 3, 4, 5), scale=0.5, bias=[0.0, 0.0, 0.0], note="no bias"),
    case("Crop", f32(2, 3, 7, 6), border=[1, 2, 0, 1]),
    case("Crop", f32(2, 3, 7, 6), border=[1, 2, 0, 1], scale=[3, 4]),
    case("DynamicSlice", f32(4, 5), i64(1, -3), i64(3, 9), i64(0, 1), constant=(1, 2, 3)),
    case("DynamicSlice", f32(4, 5), i64(1), i64(3), note="run time"),
    *(
        case("GRUUnit", _HIDDEN, _GATES, np.array([2, 1, 3], np.int32), np.array([1], np.int32), drop_states=drop,
             expected=[_gru(np.zeros_like(_HIDDEN) if drop else _HIDDEN)], why=_CAFFE2)
        for drop in (0, 1)
    ),
    _aten("embedding_bag", _TABLE, i64(0, 2, 2, 4, 1), i64(0, 2), expected=[_BAGS], note="sums"),
    _aten("embedding_bag", _TABLE, i64(0, 2, 2, 4, 1), i64(0, 2), expected=[_MEANS, i64(0, 0, 1, 1, 1)], outputs=2,
          scale_grad_by_freq=0, mode=1, sparse=0, include_last_offset=0, padding_idx=3, note="means"),
    _aten("embedding_bag", _TABLE, i64(0, 2, 2, 4, 1), i64(0, 2), np.array(False), i64(1), np.array(False), None,
          expected=[_MEANS], note="numbers as inputs"),
    _aten("flip", _TABLE, i64(1), expected=[_TABLE[:, ::-1]], note="a list as an input"),
    _aten("roll", _TABLE, shifts=[1], dims=[0], expected=[np.roll(_TABLE, 1, 0)], note="lists"),
    _aten("sub", _TABLE, _TABLE[0], overload_name="Tensor", alpha=2, expected=[_TABLE - 2 * _TABLE[0]]),
]  # fmt: skip
