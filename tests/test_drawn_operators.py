"""Random calls of single operators equal ONNX Runtime, whatever attributes, types, shapes and inputs they have."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import onnx2nn
from onnx2nn.errors import ModuleInputError, OperatorError, UnsupportedModelError
from tests.drawn import operators
from tests.drawn.draw import Call, Draw, model_of
from tests.drawn.oracle import NO_CALL, Outputs, answer, difference

CALLS = operators.CALLS

FAST, HELD = 3, 150
"""Calls of each operator."""


@dataclass(frozen=True)
class Difference:
    """Where ONNX Runtime's answer is not asked for.

    Attributes:
        op: the operator.
        holds: whether a call is one of these.
        why: the reason.
        reference: whether the reference is asked instead.
    """

    op: str
    holds: Callable[[Call], bool]
    why: str
    reference: bool = False


def _transformation(drawn: Call) -> str:
    return str(drawn.attributes.get("coordinate_transformation_mode", ""))


def _keeps_a_size(drawn: Call) -> bool:
    image, roi, scales, sizes = drawn.inputs
    kept = scales == 1 if sizes is None else np.equal(image.shape, sizes)
    cropped = (roi[: image.ndim] != 0) | (roi[image.ndim :] != 1)
    return bool((kept & cropped).any())


def _is_padded_otherwise(drawn: Call) -> bool:
    given = drawn.attributes
    kernel = given["kernel_shape"]
    is_wide = any(stride > size for stride, size in zip(given.get("strides", kernel), kernel, strict=True))
    return "SAME" in given.get("auto_pad", "") and (is_wide or max(given.get("dilations", [1])) > 1)


_PADDED = "ONNX Runtime and the reference leave dilations out of SAME pads, and ONNX Runtime has pads below 0 for bytes"

_POOLS = ("MaxPool", "LpPool", "AveragePool", "QLinearAveragePool")

DIFFERENCES = (
    Difference(
        "Resize",
        lambda drawn: _transformation(drawn) == "align_corners" and drawn.inputs[2] is not None,
        "the standard's own data take size * scale for the length, ONNX Runtime the whole number below it",
        reference=True,
    ),
    Difference(
        "Resize",
        lambda drawn: _transformation(drawn) == "tf_crop_and_resize" and _keeps_a_size(drawn),
        "ONNX Runtime does not crop along an axis that keeps its size; the reference takes size * scale for its length",
    ),
    *(Difference(op, _is_padded_otherwise, _PADDED) for op in _POOLS),
    Difference(
        "AffineGrid",
        lambda drawn: bool(drawn.attributes.get("align_corners")) and 1 in drawn.inputs[1][2:],
        "the standard divides by 0: one element has no two corners; torch's documented answer is the middle",
    ),
    Difference(
        "ReduceMean",
        lambda drawn: drawn.inputs[0].size == 0 and drawn.inputs[0].dtype.kind == "f",
        "the mean of no elements is NaN; ONNX Runtime gives 0 where no element is left",
        reference=True,
    ),
    Difference(
        "TreeEnsembleClassifier",
        lambda drawn: len(drawn.attributes.get("classlabels_int64s", ())) == 2 and 0 in drawn.attributes["class_ids"],
        "ONNX Runtime gives 0 and 1 for the labels of two classes, whatever the file's are",
    ),
    Difference(
        "Sign",
        lambda drawn: drawn.inputs[0].dtype == np.float16 and bool(np.isnan(drawn.inputs[0]).any()),
        "ONNX Runtime gives 0 for NaN in float16, and NaN in other types",
    ),
    Difference(
        "Clip",
        lambda drawn: any(bound is None for bound in drawn.inputs) and bool(np.isinf(drawn.inputs[0]).any()),
        "without a bound infinity stays, as in the standard's function (docs/conformance.md)",
    ),
)

REFUSALS = {
    **dict.fromkeys(("ReduceMax", "ReduceMin", "Hardmax"), "Expected reduction dim"),
    "Pad": "with possibly 0 batch size and other non-zero dimensions",
}
"""What torch says where it has no answer and ONNX Runtime has one: the largest of nothing, an edge of nothing."""


def _known(drawn: Call) -> Difference | None:
    return next((each for each in DIFFERENCES if each.op == drawn.op and each.holds(drawn)), None)


def _expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray], drawn: Call) -> Outputs | None:
    """Returns the oracle's answer: ONNX Runtime's, the reference's where that is known to differ; None without one."""
    try:
        found = answer(model, feeds)
    except NO_CALL:
        return None
    known = _known(drawn)
    if known is None:
        return found
    return list(ReferenceEvaluator(model).run(None, feeds)) if known.reference else None


def _outcome(domain: str, op: str, seed: int) -> tuple[str, str]:
    """Returns "right", "refused" or "no oracle" for a drawn call, or "wrong", and what there is to say.

    Every third call is also computed by a module that is optimised.
    """
    d = Draw(random.Random(f"{domain}.{op}.{seed}"))
    drawn = CALLS[domain, op](d)
    model, feeds = model_of(drawn, d)
    wanted = _expected(model, feeds, drawn)
    if wanted is None:
        return "no oracle", ""
    about = f"seed {seed}: {onnx.printer.to_text(model)}\n"
    for optimize, times in ((None, 1), ("eager", 3)) if seed % FAST == 0 else ((None, 1),):
        try:
            with torch.set_grad_enabled(optimize is None):
                found = onnx2nn.load(model, optimize=optimize)(*(torch.from_numpy(x.copy()) for x in feeds.values()))
        except UnsupportedModelError as error:
            return "refused", about + str(error)
        except (ModuleInputError, OperatorError) as error:
            return "refused", about + repr(error)
        except Exception as error:  # of any class of torch's; it is counted as wrong, but for what REFUSALS names
            said = {"The sizes of the inputs do not fit", REFUSALS.get(op, "The sizes of the inputs do not fit")}
            return "refused" if any(
                text in str(error) for text in said
            ) else "wrong", f"{about}optimize={optimize}: {error!r}"
        results = [found] if isinstance(found, torch.Tensor) else list(found)
        for index, (ours, theirs) in enumerate(zip(results, wanted, strict=True)):
            if said := difference(ours, np.asarray(theirs), drawn.rtol * times):
                return "wrong", f"{about}optimize={optimize}, output {index}: {said}"
    return "right", ""


OPERATORS = operators.parameters()


def _check(domain: str, op: str, seeds: range) -> None:
    found = [_outcome(domain, op, seed) for seed in seeds]
    wrong = [said for kind, said in found if kind == "wrong"]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(found)} are wrong", *wrong[:3]])
    refused = [said for kind, said in found if kind == "refused"]
    assert len(refused) <= max(1, len(found) // 10), "\n".join([f"{len(refused)} are refused", *refused[:3]])


@pytest.mark.pinned("onnxruntime")  # older ones end the process at some of these calls
@pytest.mark.parametrize(("domain", "op"), OPERATORS)
def test_some_calls(domain: str, op: str) -> None:
    _check(domain, op, range(FAST))


@pytest.mark.held
@pytest.mark.parametrize(("domain", "op"), OPERATORS)
def test_many_calls(domain: str, op: str, request: pytest.FixtureRequest) -> None:
    _check(domain, op, operators.held_seeds(request, FAST, HELD))


@pytest.mark.pinned("onnxruntime")
@pytest.mark.parametrize(("domain", "op"), OPERATORS)
def test_there_is_an_answer(domain: str, op: str) -> None:
    """Of each operator a call is compared: ONNX Runtime has a kernel, and what is drawn is a call."""
    assert any(_outcome(domain, op, seed)[0] == "right" for seed in range(FAST, 10 * FAST))


def _ramp(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) * 7 % 11).astype(dtype)


FOUND = {
    "an axis that is squeezed by none": (
        "(float[2,1,3] x, int64[n] axes) => (float[a,b] y) { y = Squeeze(x, axes) }",
        [_ramp(2, 1, 3), np.zeros(0, np.int64)],
    ),
    "no axis of the file that is squeezed": (
        "(float[2,1,n] x) => (float[a,b] y) <int64[0] axes = {}> { y = Squeeze(x, axes) }",
        [_ramp(2, 1, 3)],
    ),
    "a mask of other numbers than 0 and 1": (
        "(int32[2,3] i, int32[2,3] m) => (float[2,3,4] y, int32[2] n) <float[9,4] w = {"
        + ", ".join(str(i * 7 % 11) for i in range(36))
        + "}, float[4] g = {1, 2, 3, 4}> { y, n = com.microsoft.EmbedLayerNormalization(i, , w, w, , g, g, m) }",
        [_ramp(2, 3, dtype=np.int32) % 9, np.array([[1, -2, 3], [1, 1, 0]], np.int32)],
    ),
    "indices of a pool with pads at its end alone": (
        "(float[1,2,4,5] x) => (float[a,b,c,d] y, int64[a,b,c,d] i) {"
        " y, i = MaxPool <kernel_shape = [2, 2], pads = [0, 0, 1, 1]> (x) }",
        [_ramp(1, 2, 4, 5)],
    ),
    "a pad that float64 does not hold": (
        "(int64[n] x) => (int64[m] y) <int64[2] pads = {0, 2}, int64 value = {-6069530194987715670}> {"
        " y = Pad(x, pads, value) }",
        [_ramp(3, dtype=np.int64)],
    ),
    "a last window that VALID leaves out": (
        '(float[1,1,n] x) => (float[a,b,c] y) { y = MaxPool <auto_pad = "VALID", kernel_shape = [2], strides = [3],'
        " ceil_mode = 1> (x) }",
        [_ramp(1, 1, 7)],
    ),
    "an exclusive sum of nothing": (
        "(float[2,n] x) => (float[2,n] y) <int64 axis = {1}> { y = CumSum <exclusive = 1> (x, axis) }",
        [_ramp(2, 0)],
    ),
    "unsigned integers backwards": (
        "(uint16[n] x) => (uint16[m] y) <int64[1] last = {-1}, int64[1] end = {-9}, int64[1] zero = {0}> {"
        " y = Slice(x, last, end, zero, last) }",
        [_ramp(5, dtype=np.uint16)],
    ),
    "a number and a tensor as bounds": (
        "(float[n] x, float low) => (float[n] y) <float high = {6.0}> { y = Clip(x, low, high) }",
        [_ramp(9), np.array(3, np.float32)],
    ),
    "class weights of the file": (
        "(float[2,3] x, int64[2] t) => (float y) <float[3] w = {0.5, 1.0, 2.0}> {"
        " y = NegativeLogLikelihoodLoss(x, t, w) }",
        [_ramp(2, 3), np.array([2, 0])],
    ),
    "statistics of the file and of an input": (
        "(float[2,3] x, float[3] v) => (float[2,3] y) <float[3] m = {0.5, 1.0, 2.0}, float[3] s = {1, 2, 3}> {"
        " y = BatchNormalization(x, s, s, m, v) }",
        [_ramp(2, 3), np.array([1, 2, 3], np.float32)],
    ),
    "texts of the file that a condition chooses": (
        '(bool[2] c) => (string[2] y) <string[2] a = {"a", "b"}, string[1] b = {"c"}> { y = Where(c, a, b) }',
        [np.array([True, False])],
    ),
    "a scale of all dimensions": (
        "(float[2,3,4,2] x) => (float[2,3,4,2] y) <float[1,1,1,2] s = {0.5, 2.0}> {"
        " y = SimplifiedLayerNormalization(x, s) }",
        [_ramp(2, 3, 4, 2)],
    ),
    "texts in a sequence": (
        '() => (string[4] y) <string[3] a = {"a", "b", "c"}, string[1] b = {"d"}, int64 one = {1}> {'
        " parts = SplitToSequence(a, one) more = SequenceInsert(parts, b) y = ConcatFromSequence <axis = 0> (more) }",
        [],
    ),
    "a text for a number": (
        "(int64 x) => (string y) {"
        ' y = ai.onnx.ml.LabelEncoder <keys_int64s = [0, 1], values_strings = ["a", "b"]> (x) }',
        [np.array(1)],
    ),
    "a condition that is longer than the axis": (
        "(float[2,3] x, bool[n] c) => (float[m,3] y) { y = Compress <axis = 0> (x, c) }",
        [_ramp(2, 3), np.array([False, True, True])],
    ),
    "the mean of no integers": (
        "(int64[n] x) => (int64[1] y) { y = ReduceMean(x) }",
        [_ramp(0, dtype=np.int64)],
    ),
    "half of a number that is padded to sizes": (
        "(float[n] x) => (int64[2] y) <int64[2] pads = {0, 1}, int64 seven = {7}, int64 two = {2}> {"
        " s = Shape(x) p = Pad(s, pads, seven) y = Div(p, two) }",
        [_ramp(5)],
    ),
    "a scan whose axis is an attribute of the function around it": (
        "(float[2,3] x) => (float[3,2] y) { y = local.turned <axes = [1]> (x) }"
        '<domain: "local", opset_import: ["" : 18]> turned <axes> (a) => (b) {'
        " b = Scan <num_scan_inputs = 1, scan_input_axes: ints = @axes, body = g (float[2] c) => (float[2] d) {"
        " d = Neg(c) }> (a) }",
        [_ramp(2, 3)],
    ),
    **{
        f"a {kind} window of one sample, periodic {periodic}": (
            f"() => (float[n] y) <int64 one = {{1}}> {{ y = {kind}Window <periodic = {periodic}> (one) }}",
            [],
        )
        for kind in ("Hann", "Hamming", "Blackman")
        for periodic in (0, 1)
    },
}
"""Faults that random calls found, each as small as it is."""


@pytest.mark.parametrize("graph, values", FOUND.values(), ids=FOUND)
def test_what_was_found(graph: str, values: list[np.ndarray]) -> None:
    imports = '["" : 18, "ai.onnx.ml" : 3, "com.microsoft" : 1, "local" : 1]'
    model = parser.parse_model(f"<ir_version: 10, opset_import: {imports}> found {graph}")
    feeds = dict(zip([info.name for info in model.graph.input], values, strict=True))
    found = onnx2nn.load(model)(*(torch.from_numpy(np.array(value)) for value in values))
    results = list(found) if isinstance(found, tuple) else [found]
    for ours, theirs in zip(results, answer(model, feeds), strict=True):
        assert not difference(ours, theirs, 1e-4)


def test_a_pool_of_bytes_counts_what_its_last_windows_lack() -> None:
    """Of three columns of 72 with a pad on each side, the last window of three has one, and no pad that it lacks."""
    node = helper.make_node(
        "QLinearAveragePool",
        ["x", "s", "z", "s", "z"],
        ["y"],
        domain="com.microsoft",
        kernel_shape=[1, 3],
        strides=[1, 3],
        pads=[0, 1, 0, 1],
        ceil_mode=1,
        count_include_pad=1,
    )
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.INT8, [1, 1, 1, "n"])]
    weights = [numpy_helper.from_array(np.float32(1), "s"), numpy_helper.from_array(np.int8(0), "z")]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.INT8, [1, 1, 1, "m"])]
    graph = helper.make_graph([node], "pool", inputs, outputs, weights)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    x = np.full((1, 1, 1, 6), 72, np.int8)
    (wanted,) = answer(model, {"x": x})
    assert onnx2nn.load(model)(torch.from_numpy(x)).tolist() == wanted.tolist() == [[[[48, 72, 24]]]]
