"""What operators are asked for and neither ONNX Runtime's CPU nor their schemas say: an error with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, parser

import onnx2nn
from onnx2nn.errors import Onnx2nnError, UnsupportedModelError
from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.row import FLAGS, REQUIRED
from tests import onnxnode
from tests.cases import Case, case, f32
from tests.cases.contrib.fused import ms

_BYTES = np.zeros((4, 2, 8), np.uint8)
_GROUPS = np.zeros(32, np.int32)


def nbits(weights: np.ndarray, zero_points: Any, groups: Any, **options: Any) -> Case:
    inputs = (f32(2, 32), weights, f32(4, 2), zero_points, groups)
    return ms("MatMulNBits", *inputs, K=32, N=4, block_size=16, **options)


def group(*cache: Any, scales: tuple[Any, ...] = (), **options: Any) -> Case:
    tokens = [f32(1, 1, 16), f32(1, 1, 8), f32(1, 1, 8)]
    counts = [np.array([4], np.int32), np.array(5, np.int32)]
    extra = [*[None] * 5, *scales] if scales else []
    options = {"constant": (6,), "outputs": 3, **options}
    return ms("GroupQueryAttention", *tokens, *cache, *counts, *extra, num_heads=2, kv_num_heads=1, **options)


_CACHE = [f32(1, 1, 6, 8)] * 2
_BYTE_CACHE = [np.zeros((1, 1, 6, 8), np.int8)] * 2
_SCALES = (np.ones(1, np.float32),) * 2
_QUANTISED = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}

REFUSED = [
    (ms("Attention", f32(1, 3, 4), f32(4, 12), num_heads=2, do_rotary=1), "do_rotary"),
    (ms("Attention", f32(1, 3, 4), f32(4, 12), None, None, f32(2, 1, 2, 5, 2), num_heads=2,
        past_present_share_buffer=1), "past_sequence_length"),
    (ms("Attention", f32(1, 3, 4), f32(4, 12), None, np.ones((1, 1, 9, 9), np.int32), num_heads=2), "4 dimensions"),
    (ms("MultiHeadAttention", *[f32(1, 3, 4)] * 3, None, np.ones(4, np.int32), num_heads=2), "4 numbers"),
    (group(*_CACHE, outputs=4), "output_qk"),
    (group(*_CACHE, outputs=4, qk_output=1, sliding_window_cache=1, local_window_size=4), "output_qk"),
    (group(None, None, sliding_window_cache=1, local_window_size=4), "without a past"),
    (group(*_CACHE, sliding_window_cache=1), "without local_window_size"),
    (group(*_BYTE_CACHE, scales=_SCALES, kv_cache_bit_width=2, **_QUANTISED), "kv_cache_bit_width=2"),
    (group(*_CACHE, scales=_SCALES, kv_cache_bit_width=8, **_QUANTISED), "a cache of torch.float32"),
    (group(*_BYTE_CACHE, scales=_SCALES, kv_cache_bit_width=8, k_quant_type="PER_TENSOR"), "keys or values alone"),
    (group(*_BYTE_CACHE, scales=_SCALES, **{name: "PER_ROW" for name in _QUANTISED}), "PER_ROW"),
    (ms("FusedConv", f32(1, 1, 3, 3), f32(1, 1, 2, 2), activation="Gelu"), "Gelu"),
    (nbits(_BYTES, None, None, weight_prepacked=1), "weight_prepacked=1"),
    (nbits(_BYTES, np.zeros(4, np.uint8), _GROUPS), "g_idx"),
    (nbits(_BYTES[:, :, :4], None, _GROUPS, bits=2), "g_idx"),
    (ms("CropAndResize", f32(1, 1, 4, 4), np.zeros((1, 4), np.float32), np.zeros(1, np.int32),
        np.array([2, 2], np.int32), constant=(3,), mode="cubic"), "cubic"),
    (case("LinearClassifier", f32(2, 2), coefficients=[0.5] * 12, classlabels_ints=[1, 2, 3], domain="ai.onnx.ml",
          outputs=2), "6 rows of coefficients for 3 labels"),
    (case("LinearClassifier", f32(2, 8), coefficients=[0.5] * 12, intercepts=[0.5] * 3, classlabels_ints=[1, 2, 3],
          domain="ai.onnx.ml", outputs=2), "12 coefficients, 3 rows of 8 are needed"),
    (case("MeanVarianceNormalization", f32(2), axes=[1]), "none of its axes is one of a tensor of 1 dimensions"),
    (case("LinearRegressor", f32(2, 8), coefficients=[0.5] * 12, targets=3, domain="ai.onnx.ml"), "12 coefficients"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_refused(case: Case, reason: str) -> None:
    model, _ = onnxnode.model_of(case, 1 if case.domain else 13)
    with pytest.raises(UnsupportedModelError, match=reason):
        onnx2nn.load(model)


def test_operators_of_onnxruntime_extensions_are_named_so() -> None:
    graph = parser.parse_graph("g (string[n] x) => (string[n] y) { y = ai.onnx.contrib.StringUpper (x) }")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    with pytest.raises(UnsupportedModelError, match=r"StringUpper.*package onnxruntime-extensions.*onnx2nn\.register"):
        onnx2nn.load(helper.make_model(graph, opset_imports=opsets))


@pytest.mark.parametrize("names", ["starts and ends", "axes"])
def test_numbers_for_vectors_of_a_slice(names: str) -> None:
    one = "" if names == "axes" else "[1]"
    sizes = "" if names != "axes" else "[1]"
    text = f"<int64{sizes} s = {{1}}, int64{sizes} e = {{3}}, int64{one} a = {{0}}> {{ y = Slice (x, s, e, a) }}"
    graph = parser.parse_graph(f"g (float[4,5] x) => (float[m,n] y) {text}")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(UnsupportedModelError, match=f"{names}: a number where a Slice takes a vector"):
        onnx2nn.load(model)


@pytest.mark.parametrize(
    ("case", "sizes"),
    [
        (case("DequantizeLinear", np.zeros((64, 64), np.int8), f32(64, 2), axis=0, block_size=32), "2, 64"),
        (case("DequantizeLinear", np.zeros((4, 6), np.int8), f32(1, 3), axis=1, block_size=2), "4, 3"),
        (case("QuantizeLinear", f32(4, 6), f32(4, 5), axis=1, block_size=2), "4, 3"),
    ],
    ids=str,
)
def test_scales_that_are_not_one_for_each_block(case: Case, sizes: str) -> None:
    """As NNCF writes them for the lookup of an embedding: ONNX Runtime refuses the run."""
    model, _ = onnxnode.model_of(case, 21)
    with pytest.raises(UnsupportedModelError, match=rf"not one number for each block of \d+ .* takes \[{sizes}\]"):
        onnx2nn.load(model)


def scaled(operator: str, scale: list[int], zero: list[int] | None, **options: Any) -> Case:
    """Returns a node of a (2, 3, 4) tensor with a scale and a zero point of these shapes."""
    kind = np.uint8 if operator == "QuantizeLinear" else np.int8
    data = f32(2, 3, 4) if operator == "QuantizeLinear" else np.zeros((2, 3, 4), kind)
    zeros = [] if zero is None else [np.ones(zero, kind)]
    return case(operator, data, np.ones(scale, np.float32), *zeros, **options)


@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize("constant", [(1, 2), ()], ids=["constant", "given"])
@pytest.mark.parametrize(
    ("scale", "zero", "message"),
    [
        ([2], None, r"of shape \[2\] has one number for each index of axis 1 of \[2, 3, 4\]"),
        ([0], None, r"of shape \[0\] has one number for each index of axis 1 of \[2, 3, 4\]"),
        ([4], [4], r"of shape \[4\] has one number for each index of axis 1 of \[2, 3, 4\]"),
        ([3], [2], r"of shape \[2\] has one number for each index of axis 1 of \[2, 3, 4\]"),
        ([3], [1], r"a scale of shape \[3\] has a zero point of shape \[1\]\. Give both one shape"),
        ([], [3], r"a scale of shape \[\] has a zero point of shape \[3\]\. Give both one shape"),
        ([1, 3], None, "block_size is missing, which a scale or zero point of rank 2 needs"),
    ],
)
def test_scales_that_do_not_fit(operator: str, constant: tuple[int, ...], scale: Any, zero: Any, message: str) -> None:
    """ONNX Runtime refuses the run of each of them."""
    model, _ = onnxnode.model_of(scaled(operator, scale, zero, constant=constant), 21)
    with pytest.raises(UnsupportedModelError, match=message):
        onnx2nn.load(model)


TWICE = {
    "Slice": "<int64[2] s = {0, 1}, int64[2] e = {3, 3}, int64[2] a = {1, -1}> { y = Slice (x, s, e, a) }",
    "Pad": "<int64[4] p = {1, 0, 0, 1}, int64[2] a = {0, 0}> { y = Pad (x, p, , a) }",
    "CenterCropPad": "<int64[2] p = {1, 2}> { y = CenterCropPad <axes = [0, -2]> (x, p) }",
    "Resize": "<float[2] s = {2.0, 2.0}> { y = Resize <axes = [0, 0]> (x, , s) }",
    "Unsqueeze": "<int64[2] a = {0, 0}> { y = Unsqueeze (x, a) }",
    "Unsqueeze of a size": "<int64[2] a = {0, -2}> { n = Size(x) y = Unsqueeze (n, a) }",
}


@pytest.mark.parametrize("name", TWICE)
def test_an_axis_twice(name: str) -> None:
    """Each axis has something of its own: the standard says that the result is undefined, ONNX Runtime refuses."""
    graph = parser.parse_graph(f"g (float[4, n] x) => (float y) {TWICE[name]}")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    with pytest.raises(UnsupportedModelError, match=r"axes=\[.*\] names an axis twice\. Name each of them once"):
        onnx2nn.load(model)


UNKNOWN = {
    "Gelu": ("float[2] x", "Gelu <approximate = 'mul'> (x)"),
    "GridSample": ("float[1, 1, 2, 2] x, float[1, 2, 2, 2] g", "GridSample <padding_mode = 'mul'> (x, g)"),
    "ScatterND": ("float[2] x, int64[1, 1] i, float[1] u", "ScatterND <reduction = 'mean'> (x, i, u)"),
    "ScatterElements": ("float[2] x, int64[1] i, float[1] u", "ScatterElements <reduction = 'mean'> (x, i, u)"),
    "DepthToSpace": ("float[1, 4, 2, 2] x", "DepthToSpace <blocksize = 2, mode = 'crd'> (x)"),
    "Resize": ("float[2] x, float[1] s", "Resize <keep_aspect_ratio_policy = 'keep'> (x, , s)"),
    "Pad": ("float[2] x, int64[2] p", "Pad <mode = 'mirror'> (x, p)"),
    "RoiAlign": (
        "float[1, 1, 4, 4] x, float[1, 4] r, int64[1] b",
        "RoiAlign <coordinate_transformation_mode = 'pixel'> (x, r, b)",
    ),
    "RNN": ("float[1, 1, 1] x, float[1, 1, 1] w", "RNN <hidden_size = 1, direction = 'back'> (x, w, w)"),
    "TensorScatter": ("float[1, 2, 3] x, float[1, 1, 3] u", "TensorScatter <mode = 'ring'> (x, u)"),
    "loss": ("float[2, 3] x, int64[2] t", "NegativeLogLikelihoodLoss <reduction = 'max'> (x, t)"),
    "LinearRegressor": (
        "float[2, 3] x",
        "ai.onnx.ml.LinearRegressor <coefficients = [1.0], post_transform = 'EXP'> (x)",
    ),
    "StringNormalizer": ("string[2] x", "StringNormalizer <case_change_action = 'TITLE'> (x)"),
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("inside", [False, True], ids=["", "of a function's call"])
def test_a_string_that_the_operator_does_not_define(name: str, inside: bool) -> None:
    """At the import, also where the operator runs on real values alone; the error lists what it defines."""
    inputs, call = UNKNOWN[name]
    attribute, value = next(part.split(" = ") for part in call.split("<")[1].split(">")[0].split(", ") if "'" in part)
    graph = parser.parse_graph(f"g ({inputs}) => (float y) {{ y = {call.replace(chr(39), chr(34))} }}")
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets)
    if inside:
        names = [value.name for value in graph.input]
        inner = onnx.NodeProto.FromString(graph.node[0].SerializeToString())
        given = next(a for a in inner.attribute if a.name == attribute)
        given.ref_attr_name = attribute
        given.ClearField("s")
        model.functions.append(helper.make_function("own", "f", names, ["y"], [inner], opsets, [attribute]))
        call_node = helper.make_node("f", names, ["y"], "n", domain="own", **{attribute: value.strip("'")})
        model.graph.node[0].CopyFrom(call_node)
        model.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(UnsupportedModelError, match=rf"{attribute}={value} is none of \w+, \w+"):
        onnx2nn.load(model)


CONTRADICTIONS = {
    "flag": ("float[2, 3] x, int64[1] a", "ReduceSum <keepdims = 2> (x, a)", "keepdims=2 is none of 0, 1"),
    "strides": ("float[1, 1, 4, 4] x", "MaxPool <kernel_shape = [2, 2], strides = [2]> (x)", "has not 2 numbers"),
    "dilations": (
        "float[1, 1, 4] x, float[1, 1, 2] w",
        "Conv <dilations = [0]> (x, w)",
        r"dilations=\[0\] has a number below 1",
    ),
    "kernel": (
        "float[1, 1, 4] x, float[1, 1, 2] w",
        "Conv <kernel_shape = [3]> (x, w)",
        r"kernel_shape=\[3\] contradicts the kernel, which has \[2\]",
    ),
    "ranks": ("float[1, 4, 4] x, float[1, 1, 2, 2] w", "Conv (x, w)", "an input of 3 dimensions and a kernel of 4"),
    "pads of a pool": (
        "float[1, 1, 4] x",
        "AveragePool <kernel_shape = [2], pads = [-1, 0]> (x)",
        r"pads=\[-1, 0\] has a number below 0",
    ),
    "updates": (
        "float[3, 4] x, int64[2, 3] i, float[3, 4] u",
        "ScatterElements (x, i, u)",
        r"indices and updates differ: \[2, 3\] and \[3, 4\]",
    ),
    "rows": ("float[3, 4] x, int64[2, 1] i, float[2] u", "ScatterND (x, i, u)", r"differ: \[2\] and \[2, 4\]"),
    "batch_dims": ("float[3, 4] x, int64[2, 1] i", "GatherND <batch_dims = -1> (x, i)", "batch_dims=-1 of data"),
    "places of a pool": (
        "float[1, 1, 4] x, int64[1, 1, 3] i",
        "MaxUnpool <kernel_shape = [2]> (x, i)",
        r"values and their indices differ: \[1, 1, 4\] and \[1, 1, 3\]",
    ),
    "batch of attention": (
        "float[2, 1, 3, 4] q, float[1, 1, 3, 4] k",
        "Attention (q, k, k)",
        r"the batch of queries and keys differ: \[2\] and \[1\]",
    ),
    "angles": (
        "float[1, 1, 3, 4] x, float[1, 3, 2] c, float[1, 3, 1] s",
        "RotaryEmbedding (x, c, s)",
        r"cosines and sines differ: \[1, 3, 2\] and \[1, 3, 1\]",
    ),
    "clip": (
        "float[1, 1, 1] x, float[1, 1, 1] w",
        "RNN <hidden_size = 1, clip = -1.0> (x, w, w)",
        r"clip=-1.0 is below 0",
    ),
    "norm": ("float[2, 2] x", "LpNormalization <p = 3> (x)", "p=3 is none of 1, 2"),
    "a pool over no dimension": ("float[2, 3] x", "GlobalAveragePool (x)", "of 2 dimensions has no spatial dimension"),
    "norm of a pool": ("float[1, 1, 4] x", "LpPool <p = 0, kernel_shape = [2]> (x)", "p=0 is no norm"),
    "several values": ("float x", "Constant <value_float = 1.0, value_int = 1> ()", "Give it one of them"),
    "scores": (
        "float[1, 3, 4] x, float[1, 1, 2] s",
        "NonMaxSuppression (x, s)",
        r"batch and number of boxes and of scores differ: \[1, 3\] and \[1, 2\]",
    ),
    "features": (
        "float[1, 2, 3] x",
        "ai.onnx.ml.Imputer <imputed_value_floats = [1.0]> (x)",
        "an input of 3 dimensions, rows",
    ),
    "half of a scale": (
        "uint8[2, 2] x, float s, uint8 p",
        "com.microsoft.QGemm (x, s, p, x, s, p, , s)",
        "y_scale and y_zero_point belong together",
    ),
    "step": ("float x", "Range (z, three, z)", "the step of a range is 0"),
    "axes": ("float[2, 3] x", "ReduceSum (x, z)", "axes=0 is a number where a vector is needed"),
    "type": (
        "float[2] x, float s, uint8 p",
        "QuantizeLinear <output_dtype = 3> (x, s, p)",
        "output_dtype=3 is not the type of the zero point, UINT8",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_attributes_and_shapes_that_contradict_each_other(name: str) -> None:
    """torch computes something from each of them; ONNX Runtime refuses them, or takes a flag of 2 for another one."""
    inputs, call, message = CONTRADICTIONS[name]
    graph = parser.parse_graph(f"g ({inputs}) => (float y) <int64 z = {{0}}, int64 three = {{3}}> {{ y = {call} }}")
    opsets = [helper.make_opsetid(*opset) for opset in (("", 23), ("ai.onnx.ml", 3), ("com.microsoft", 1))]
    model = helper.make_model(graph, opset_imports=opsets)
    with pytest.raises(UnsupportedModelError, match=message):
        onnx2nn.load(model)


def test_flags_are_numbers_of_0_and_1() -> None:
    """No operator has another default for an attribute of these names."""
    for row in TABLE:
        for name in FLAGS & set(row.attributes):
            assert row.attributes[name] in (0, 1, None, REQUIRED), f"{row}: {name}"
            assert row.annotations[name] == "int", f"{row}: {name}"


def test_one_hot_of_a_category_twice() -> None:
    item = case("OneHotEncoder", np.array([[1, 2]]), cats_int64s=[1, 1], domain="ai.onnx.ml")
    model, feeds = onnxnode.model_of(item, 1)
    with pytest.raises(Onnx2nnError, match="List each of one kind once"):
        onnx2nn.load(model)(*map(torch.from_numpy, feeds.values()))
