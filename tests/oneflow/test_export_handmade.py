"""Ops that only GPU jobs and older releases hold; the expected numbers are formulas in numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from oneflow_bridge.to_onnx import check
from oneflow_bridge.to_onnx.exporter import to_onnx
from oneflow_bridge.to_onnx.write import write_model
from onnx2nn.errors import UnsupportedModelError
from tests.oneflow.handmade import HandmadeCase as Case

_GENERATOR = np.random.default_rng(11)
OPSETS = (9, 13, 17, onnx.defs.onnx_opset_version())


def normal(*shape: int) -> np.ndarray:
    return _GENERATOR.normal(size=shape).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


M, N, POSITIVE = normal(3, 4), normal(3, 4), np.abs(normal(3, 4)) + np.float32(0.5)
MASK, KEPT = M > 0, N > -0.5
IMAGE, SCALE, SHIFT, MEAN = normal(2, 4, 6, 6), normal(4), normal(4), normal(4)
VARIANCE = np.abs(normal(4)) + np.float32(0.5)
I64 = np.array([[7, -7, 5, -5], [3, -3, 8, -8], [9, 2, -2, 4]])
K64 = np.array([[2, 2, -3, -3], [2, 2, 3, 3], [4, 5, 5, -6]])
LABELS = np.array([1, 3, 0])
ROIS = np.array([[0, 1, 1, 9, 10], [1, 2, 0, 11, 7.5], [1, 4, 4, 5, 5]], dtype=np.float32)
SOME = np.float32([2.5])
ODD = np.array([[np.nan, 1, np.inf, 0]], dtype=np.float32)


def _normalised(x: np.ndarray) -> np.ndarray:
    mean, variance, gamma, beta = (v.reshape(4, 1, 1) for v in (MEAN, VARIANCE, SCALE, SHIFT))
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta


def _lstm_cell(gates: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    i, f, g, o = np.split(gates, 4, 1)
    cy = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return {"hy": sigmoid(o) * np.tanh(cy), "cy": cy}


def _gru_cell(x: np.ndarray, h: np.ndarray, state: np.ndarray) -> dict[str, np.ndarray]:
    (xr, xz, xn), (hr, hz, hn) = np.split(x, 3, 1), np.split(h, 3, 1)
    update = sigmoid(xz + hz)
    return {"hy": (1 - update) * np.tanh(xn + sigmoid(xr + hr) * hn) + update * state}


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, causal: bool) -> np.ndarray:
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf) if causal else scores
    mixed = (softmax(scores) @ v).transpose(0, 2, 1, 3)
    return mixed.reshape(*mixed.shape[:2], -1)


def _windows(x: np.ndarray, pads: tuple[int, int]) -> np.ndarray:
    """3 x 3 windows with stride 2; the border is NaN."""
    padded = np.pad(x, ((0, 0), (0, 0), pads, pads), constant_values=np.nan)
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]


def _roi_align(x: np.ndarray, rois: np.ndarray, aligned: bool, scale: float) -> np.ndarray:
    """2 x 2 bins, each the mean of 2 x 2 bilinear samples."""

    def sample(image: np.ndarray, row: float, column: float) -> np.ndarray:
        height, width = image.shape[1:]
        if not (-1 <= row <= height and -1 <= column <= width):
            return np.zeros(len(image))
        row, column = min(max(row, 0), height - 1), min(max(column, 0), width - 1)
        top, left = int(row), int(column)
        below, right = min(top + 1, height - 1), min(left + 1, width - 1)
        down, along = row - top, column - left
        upper = image[:, top, left] * (1 - along) + image[:, top, right] * along
        lower = image[:, below, left] * (1 - along) + image[:, below, right] * along
        return upper * (1 - down) + lower * down

    places = (np.arange(4) + 0.5) / 4
    result = []
    for number, *corners in rois.tolist():
        left, top, right, bottom = (corner * scale - 0.5 * aligned for corner in corners)
        width, height = (extent if aligned else max(extent, 1) for extent in (right - left, bottom - top))
        grid = [[sample(x[int(number)], top + r * height, left + c * width) for c in places] for r in places]
        result.append(np.array(grid).reshape(2, 2, 2, 2, -1).mean((1, 3)).transpose(2, 0, 1))
    return np.stack(result).astype(np.float32)


GATES, HIDDEN_GATES, BIAS, HIDDEN_BIAS = normal(3, 16), normal(3, 16), normal(16), normal(16)
RESET, HIDDEN_RESET = normal(3, 12), normal(3, 12)
W1, B1, W2, B2 = normal(5, 4), normal(5), normal(2, 5), normal(2)
Q, K, V = normal(2, 5, 8), normal(2, 5, 8), normal(2, 5, 8)
HEADS = {"num_heads": 2, "causal": False}
WHOLE = {f"{x}_hidden_slice_{end}": at for x in ("query", "key", "value") for end, at in (("start", 0), ("end", -1))}
MASKED = softmax(np.where(MASK, M * np.float32(0.5), np.float32(-1e4)))
BIASED = softmax(np.where(MASK, (M + SCALE) * np.float32(0.5), np.float32(-1e4)))
MASKING = {"scale_value": 0.5, "mask_fill_value": -1e4, "dropout_scale_value": 1.25}
POOL = {
    **{"padding": "same", "padding_before": [0, 0], "padding_after": [1, 1], "data_format": "channels_first"},
    **{"pool_size": [3, 3], "strides": [2, 2], "ceil_mode": False},
}
STATISTICS = {"moving_mean": MEAN, "moving_variance": VARIANCE, "gamma": SCALE, "beta": SHIFT}
NORMALIZED = {"axis": 1, "epsilon": 1e-5, "training": False, "momentum": 0.9}
LOGARITHMS = np.log(softmax(M))
ADDED = np.array([[1], [2], [1]])
UPDATED = M.copy()
np.add.at(UPDATED, ADDED[:, 0], N)
SUMS = np.zeros((3, 4), np.float32)
np.add.at(SUMS, LABELS % 3, M)
BATCHED = np.zeros((2, 5), np.float32)
for row, (values, segments) in enumerate(zip(M[:2], [[0, 4, 0, 1], [2, 2, 2, 3]], strict=True)):
    np.add.at(BATCHED[row], segments, values)
SCATTERED = np.zeros((3, 5), np.float32)
np.add.at(SCATTERED, (np.arange(3)[:, None], [[0, 1, 0, 4], [2, 2, 2, 2], [4, 3, 1, 1]]), M)

CASES = [
    # recurrent cells and fused layers of GPU jobs
    Case(
        "fused_lstm_cell",
        {"input_gates": GATES, "hidden_gates": HIDDEN_GATES, "cx": M, "input_bias": BIAS, "hidden_bias": HIDDEN_BIAS},
        _lstm_cell(GATES + HIDDEN_GATES + BIAS + HIDDEN_BIAS, M),
    ),
    Case(
        "fused_lstm_cell",
        {"input_gates": GATES, "hidden_gates": HIDDEN_GATES, "cx": M},
        _lstm_cell(GATES + HIDDEN_GATES, M),
    ),
    Case(
        "fused_gru_cell",
        {"input_gates": RESET, "hidden_gates": HIDDEN_RESET, "hx": M},
        _gru_cell(RESET, HIDDEN_RESET, M),
    ),
    Case(
        "fused_gru_cell",
        {
            **{"input_gates": RESET, "hidden_gates": HIDDEN_RESET, "hx": M},
            **{"input_bias": BIAS[:12], "hidden_bias": HIDDEN_BIAS[:12]},
        },
        _gru_cell(RESET + BIAS[:12], HIDDEN_RESET + HIDDEN_BIAS[:12], M),
    ),
    Case("fused_matmul_bias", {"x": M, "weight": W1, "bias": B1}, {"out": M @ W1.T + B1}),
    Case(
        "fused_matmul_bias",
        {"x": normal(2, 3, 4) * 0 + M, "weight": W1, "bias": B1},
        {"out": np.broadcast_to(M @ W1.T + B1, (2, 3, 5))},
    ),
    Case(
        "cublas_fused_mlp",
        {"x": M, "weights": [W1, W2], "biases": [B1, B2]},
        {"out": np.maximum(np.maximum(M @ W1.T + B1, 0) @ W2.T + B2, 0)},
        {"skip_final_activation": False},
    ),
    Case(
        "fused_matmul_bias_add_relu_dropout",
        {"x": M, "weights": [W1, W2], "biases": [B1, B2]},
        {"out": np.maximum(M @ W1.T + B1, 0) @ W2.T + B2},
        {"skip_final_activation": True, "dropout_rate_list": [0.0, 0.0]},
    ),
    Case(
        "grouped_matmul_bias",
        {"xs": [M, N], "weights": [W1, W1], "biases": [B1, B1]},
        {"ys": [M @ W1.T + B1, N @ W1.T + B1]},
    ),
    *(
        Case(
            "fused_multi_head_attention_inference",
            {"query": Q, "key": K, "value": V},
            {"out": _attention(Q, K, V, 2, causal)},
            {**HEADS, **WHOLE, "causal": causal},
        )
        for causal in (False, True)
    ),
    Case(
        "fused_multi_head_attention_inference",
        {"query": Q, "key": Q, "value": Q},
        {"out": _attention(Q[..., :4], Q[..., 2:6], Q[..., 4:], 2, False)},
        {**HEADS, **WHOLE, "query_hidden_slice_end": 4, "key_hidden_slice_start": 2, "key_hidden_slice_end": 6}
        | {"value_hidden_slice_start": 4},
    ),
    Case(
        "fused_bias_add_mask_scale",
        {"a": M, "b": SCALE, "mask": MASK, "_add_to_output": N},
        {"out": (M + SCALE) * MASK * np.float32(1.25) + N},
        {"axis": 1, "scale": 1.25},
    ),
    Case(
        "fused_scale_mask_softmax_dropout",
        {"x": M, "mask": MASK, "dropout_mask": KEPT},
        {"y": MASKED * KEPT * np.float32(1.25), "softmax_y": MASKED},
        MASKING,
    ),
    Case(
        "fused_bias_add_scale_mask_softmax_dropout",
        {"x": M, "bias": SCALE, "mask": MASK, "dropout_mask": KEPT},
        {"y": BIASED * KEPT * np.float32(1.25), "softmax_y": BIASED},
        MASKING,
    ),
    Case(
        "normalization_add_relu",
        {"x": IMAGE, "addend": IMAGE[::-1], **STATISTICS},
        {"y": np.maximum(_normalised(IMAGE) + IMAGE[::-1], 0)},
        NORMALIZED,
    ),
    Case("normalization_add_relu", {"x": IMAGE, **STATISTICS}, {"y": np.maximum(_normalised(IMAGE), 0)}, NORMALIZED),
    Case(
        "batch_norm_elemt",
        {"input": IMAGE, "weight": SCALE, "bias": SHIFT, "mean": MEAN, "invstd": 1 / np.sqrt(VARIANCE + 1e-5)},
        {"output": _normalised(IMAGE)},
        {"axis": 1, "eps": 1e-5},
    ),
    Case(
        "fused_cast_scale", {"x": I64, "scale_by_tensor": SOME}, {"y": (I64 * 1.25).astype("f") * SOME}, {"scale": 1.25}
    ),
    # arithmetic of older releases
    Case("xlogy", {"x": np.maximum(M, 0), "y": POSITIVE}, {"z": np.maximum(M, 0) * np.log(POSITIVE)}),
    Case("xlogy", {"x": M * 0, "y": POSITIVE * 0}, {"z": M * 0}),
    Case("xdivy", {"x": M * 0, "y": POSITIVE * 0}, {"z": M * 0}),
    Case("xdivy", {"x": M, "y": POSITIVE}, {"z": M / POSITIVE}),
    Case("broadcast_floor_mod", {"x": I64, "y": K64}, {"z": I64 % K64}),
    Case("broadcast_floor_mod", {"x": M, "y": N}, {"z": M % N}),
    Case("not_equal_zero", {"x": np.maximum(M, 0)}, {"y": (M > 0).astype("f")}),
    *(
        Case(
            "scalar_truncdiv",
            {"in": x},
            {"out": np.trunc(x / 2).astype(x.dtype)},
            {"has_int_operand": True, "has_float_operand": False, "int_operand": 2, "float_operand": 0.0},
        )
        for x in (M * 5, I64)
    ),
    Case("scalar_add_by_tensor", {"x": M, "scalar": SOME}, {"y": M + SOME}),
    Case("scalar_sub_by_tensor", {"x": M, "scalar": SOME}, {"y": M - SOME}),
    Case("scalar_mul_by_tensor", {"x": M, "scalar": SOME}, {"y": M * SOME}),
    Case("scalar_div_by_tensor", {"x": M, "scalar": SOME}, {"y": M / SOME}),
    Case("cast_like", {"in": I64, "dtype_like": M}, {"out": I64.astype("f")}),
    Case("tf_prelu", {"x": M, "alpha": SCALE}, {"y": np.where(M > 0, M, M * SCALE)}),
    # shapes, sums, places
    Case("reshape_like", {"in": M, "like": normal(2, 6)}, {"out": M.reshape(2, 6)}),
    Case("ones_like", {"like": I64}, {"out": np.ones_like(I64)}),
    Case("zero_like", {"like": M}, {"out": M * 0}),
    Case("split_like", {"in": M, "like": [M[:, :1], M[:, 1:]]}, {"out": [M[:, :1], M[:, 1:]]}, {"axis": 1}),
    *(Case(op, {"in": M}, {"out": M}) for op in ("to_contiguous", "pinned_identity", "amp_white_identity")),
    Case("amp_black_identity", {"in": M}, {"out": M}),
    Case("identity_buffer", {"in": M}, {"out": M}, {"buffer_size": 2}),
    Case("copy", {"in": M}, {"out": M}, {"device_type": "cpu", "device_id": 0}),
    Case("tuple_identity", {"in": [M, I64]}, {"out": [M, I64]}),
    Case("reduce_sum_like", {"x": M, "like": normal(1, 4)}, {"y": M.sum(0, keepdims=True)}, {"axis": [0]}),
    Case("square_sum", {"x": M}, {"y": (M**2).sum().reshape(1)}),
    Case("multi_square_sum", {"x": [M, N]}, {"y": ((M**2).sum() + (N**2).sum()).reshape(1)}),
    Case(
        "multi_reduce_sum_pow_abs",
        {"x": [M, N]},
        {"y": ((np.abs(M) ** 3).sum() + (np.abs(N) ** 3).sum()).reshape(1)},
        {"p": 3.0},
    ),
    *(Case(f"{p}multi_reduce_max_abs", {"x": [M, N]}, {"y": np.abs([M, N]).max().reshape(1)}) for p in ("", "local_")),
    *(Case(f"{p}multi_reduce_min_abs", {"x": [M, N]}, {"y": np.abs([M, N]).min().reshape(1)}) for p in ("", "local_")),
    Case("count_not_finite", {"x": ODD}, {"y": np.array([2])}),
    Case("sort", {"in": M}, {"out": np.sort(M)}, {"direction": "ASCENDING"}),
    Case("sort", {"in": M}, {"out": -np.sort(-M)}, {"direction": "DESCENDING"}),
    Case("bincount", {"in": LABELS}, {"out": np.bincount(LABELS, minlength=5)}, {"size": 5}),
    Case(
        "bincount",
        {"in": LABELS, "weight": SCALE[:3]},
        {"out": np.bincount(LABELS, SCALE[:3], 5).astype("f")},
        {"size": 5},
    ),
    *(
        Case(
            "one_hot",
            {"indices": LABELS},
            {"out": np.where(LABELS[:, None] == np.arange(5), 3, -2).astype(kind)},
            {"depth": 5, "floating_on_value": 3.0, "floating_off_value": -2.0, "integer_on_value": 3}
            | {"integer_off_value": -2, "dtype": name},
        )
        for kind, name in (("f4", "kFloat"), ("f8", "kDouble"), ("i4", "kInt32"), ("i8", "kInt64"), ("i1", "kInt8"))
    ),
    Case("tensor_scatter_nd_add", {"params": M, "updates": N, "indices": ADDED}, {"out": UPDATED}),
    Case("scatter_nd_like", {"like": M, "indices": ADDED, "updates": N}, {"out": UPDATED - M}),
    Case(
        "dim_scatter_add_like",
        {"like": SCATTERED, "index": np.array([[0, 1, 0, 4], [2, 2, 2, 2], [4, 3, 1, 1]]), "src": M},
        {"output": SCATTERED},
        {"dim": 1},
    ),
    Case("unsorted_segment_sum_like", {"data": M, "segment_ids": LABELS % 3, "like": N}, {"out": SUMS}, {"axis": 0}),
    Case(
        "unsorted_batch_segment_sum",
        {"data": M[:2], "segment_ids": np.array([[0, 4, 0, 1], [2, 2, 2, 3]])},
        {"out": BATCHED},
        {"num_segments": 5},
    ),
    Case("tf_max_pool_2d", {"x": IMAGE}, {"y": np.nanmax(_windows(IMAGE, (0, 1)), (-2, -1))}, POOL),
    Case("tf_avg_pool_2d", {"x": IMAGE}, {"y": np.nanmean(_windows(IMAGE, (0, 1)), (-2, -1))}, POOL),
    *(
        Case(
            "roi_align",
            {"x": IMAGE, "rois": ROIS},
            {"y": _roi_align(IMAGE, ROIS, aligned, 0.5)},
            {"pooled_h": 2, "pooled_w": 2, "spatial_scale": 0.5, "sampling_ratio": 2, "aligned": aligned},
        )
        for aligned in (True, False)
    ),
    Case(
        "nms",
        {"in": np.array([[0, 0, 4, 4], [0, 0, 4, 4.2], [3, 3, 6, 6], [0, 5, 2, 8]], dtype=np.float32)},
        {"out": np.array([1, 0, 1, 1], dtype=np.int8)},
        {"iou_threshold": 0.5, "keep_n": -1},
    ),
    # losses
    Case(
        "sigmoid_cross_entropy",
        {"prediction": M, "label": MASK.astype("f")},
        {"loss": np.log1p(np.exp(M)) - M * MASK},
    ),
    Case(
        "binary_cross_entropy_with_logits_reduce_mean",
        {"input": M, "target": MASK.astype("f")},
        {"out": (np.log1p(np.exp(M)) - M * MASK).mean(dtype="f")},
    ),
    Case(
        "softmax_cross_entropy",
        {"prediction": M, "label": POSITIVE},
        {"prob": softmax(M), "out": -(POSITIVE * LOGARITHMS).sum(-1)},
    ),
    *(
        Case(
            f"sparse_softmax_cross_entropy{suffix}",
            {"prediction": M, "label": LABELS},
            {"prob": softmax(M), "out": -LOGARITHMS[np.arange(3), LABELS]},
            {"depth": 4},
        )
        for suffix in ("", "_ms")
    ),
    *(
        Case(
            f"sparse_cross_entropy{suffix}",
            {"prediction": POSITIVE, "label": LABELS},
            {"out": -np.log(POSITIVE)[np.arange(3), LABELS]},
            {"depth": 4},
        )
        for suffix in ("", "_ms")
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_handmade(case: Case, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    record_property("op", case.op)
    record_property("judge", "formula")
    written = 0
    for opset in OPSETS:
        path = tmp_path / f"{opset}.onnx"
        try:
            lowered = to_onnx(case.job(), opset=opset)
        except UnsupportedModelError as error:
            assert opset < 17 and all("exists from opset" in problem.reason for problem in error.problems), error
            continue
        onnx.checker.check_model(write_model(lowered, path), full_check=True)
        used = {value.name for value in onnx.load(str(path)).graph.input}
        names, actual = check.run_file(path, {k: np.ascontiguousarray(v) for k, v in case.feeds().items() if k in used})
        for name, wanted, got in zip(names, case.expected(), actual, strict=True):
            difference = check.difference(name, wanted, got)
            assert difference.relative <= difference.tolerance, f"opset {opset}: {difference} {got} {wanted}"
        record_property(f"operators {opset}", " ".join(sorted({node.op_type for node in lowered.graph})))
        written += 1
    assert written


EMPTY = np.empty((40, 50), np.float32)
WHOLE_NUMBERS, COINS = np.empty((40, 50), np.int64), np.empty(2000, np.int8)
HALVES = np.full((40, 50), 0.25, np.float32)
RANDOM = [
    # op, inputs, an output of the right shape and type, attributes, the mean, the deviation, the bounds
    ("normal", {}, EMPTY, {"mean": 2.0, "std": 0.5, "dtype": "kFloat", "shape": [40, 50]}, 2.0, 0.5, (-2, 6)),
    ("uniform", {}, EMPTY, {"from": 1.0, "to": 3.0, "dtype": "kFloat", "shape": [40, 50]}, 2.0, 1 / 3**0.5, (1, 3)),
    ("uniform_int", {}, WHOLE_NUMBERS, {"from": -2, "to": 3, "dtype": "kInt64", "shape": [40, 50]}, 0, 2**0.5, (-2, 2)),
    ("exponential", {}, EMPTY, {"lambd": 2.0, "dtype": "kFloat", "out_shape": [40, 50]}, 0.5, 0.5, (0, 20)),
    ("bernoulli", {"in": HALVES}, EMPTY, {"dtype": "kFloat"}, 0.25, 0.1875**0.5, (0, 1)),
    ("random_mask_like", {"like": EMPTY}, EMPTY.astype(bool), {"rate": 0.25}, 0.75, 0.1875**0.5, (0, 1)),
    ("coin_flip", {}, COINS, {"probability": 0.75, "batch_size": 2000}, 0.75, 0.1875**0.5, (0, 1)),
    ("dropout", {"in": HALVES * 0 + 1}, EMPTY, {"rate": 0.25}, 1.0, 1 / 3**0.5, (0, 4 / 3 + 1e-6)),
]


def _write_random(case: Case, folder: Path, record_property: Callable[[str, object], None]) -> None:
    lowered = to_onnx(case.job())
    write_model(lowered, folder / "m.onnx")
    record_property("op", case.op)
    record_property("judge", "distribution")
    record_property("operators 17", " ".join(sorted({node.op_type for node in lowered.graph})))


@pytest.mark.parametrize(("op", "inputs", "output", "attributes", "mean", "deviation", "bounds"), RANDOM)
def test_random(op, inputs, output, attributes, mean, deviation, bounds, tmp_path, record_property) -> None:  # type: ignore[no-untyped-def]
    """2000 draws have the distribution's mean and deviation within five standard errors, and its bounds."""
    case = Case(op, inputs, {"out": output}, attributes)
    _write_random(case, tmp_path, record_property)
    _, (drawn,) = check.run_file(tmp_path / "m.onnx", case.feeds())
    assert drawn.shape == output.shape and drawn.dtype == output.dtype
    values = drawn.astype(np.float64)
    assert bounds[0] <= values.min() and values.max() <= bounds[1] and len(np.unique(values)) > 1
    assert abs(values.mean() - mean) < 5 * deviation / 2000**0.5
    assert abs(values.std() - deviation) < 0.15 * deviation


def test_randperm(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    case = Case("randperm", {}, {"out": np.empty(500, np.int32)}, {"n": 500})
    _write_random(case, tmp_path, record_property)
    _, (drawn,) = check.run_file(tmp_path / "m.onnx", {})
    assert sorted(drawn) == list(range(500)) != list(drawn)
