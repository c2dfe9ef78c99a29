"""Boxes."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from oneflow_bridge.to_onnx.lowering.builder import Builder
from oneflow_bridge.to_onnx.lowering.registry import emit


@emit("roi_align")
def roi_align(
    g: Builder,
    x: ir.Value,
    rois: ir.Value,
    *,
    pooled_h: int,
    pooled_w: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> ir.Value:
    """rois (K, 5): image number and corners. Half-pixel alignment needs opset 16."""
    if aligned:
        g.needs("RoiAlign with half-pixel alignment", 16)
    boxes = g.Slice(rois, [1], [5], [1])
    images = g.Cast(g.Squeeze(g.Slice(rois, [0], [1], [1]), [1]), to=ir.DataType.INT64)
    mode = {"coordinate_transformation_mode": "half_pixel" if aligned else "output_half_pixel"}
    return g.RoiAlign(
        x,
        boxes,
        images,
        output_height=pooled_h,
        output_width=pooled_w,
        spatial_scale=spatial_scale,
        sampling_ratio=max(sampling_ratio, 0),
        **(mode if g.opset >= 16 else {}),
    )


@emit("nms")
def nms(g: Builder, in_: ir.Value, *, iou_threshold: float, keep_n: int) -> ir.Value:
    """Boxes (K, 4) in falling order of score → int8 (K,), 1 for those that are kept."""
    g.needs("NonMaxSuppression", 10)
    count = g.static(g.sizes(in_)[0], "the number of boxes")
    limit = min(keep_n, count) if keep_n > 0 else count
    scores = np.arange(count, 0, -1, dtype=np.float32).reshape(1, 1, count)
    chosen = g.NonMaxSuppression(
        g.Unsqueeze(in_, [0]), scores, g.ints([limit]), g.const(np.array([iou_threshold], dtype=np.float32))
    )
    kept = g.OneHot(
        g.Slice(chosen, [2], [3], [1]),
        g.const(count, ir.DataType.INT64),
        g.ints([0, 1]),  # ONNX Runtime has no kernel for int32
        axis=-1,
    )
    return g.Cast(g.reduce("ReduceSum", kept, [0, 1], keepdims=False), to=g.result().dtype)


@emit("fused_get_boundding_boxes_coord")
def boxes_from_centres(g, x1, y1, w1, h1, x2, y2, w2, h2):  # type: ignore[no-untyped-def]
    """Corners of two boxes from centres and extents."""
    written = {}
    for box, x, y, w, h in (("b1", x1, y1, w1, h1), ("b2", x2, y2, w2, h2)):
        for axis, centre, extent in (("x", x, w), ("y", y, h)):
            half = g.Mul(extent, 0.5)
            written[f"{box}_{axis}1"] = g.Sub(centre, half)
            written[f"{box}_{axis}2"] = g.Add(centre, half)
    return written


@emit("fused_get_intersection_area")
def intersection_area(g, b1_x1, b1_x2, b2_x1, b2_x2, b1_y1, b1_y2, b2_y1, b2_y2):  # type: ignore[no-untyped-def]
    """The area that two boxes share."""
    width = g.Sub(g.Min(b1_x2, b2_x2), g.Max(b1_x1, b2_x1))
    height = g.Sub(g.Min(b1_y2, b2_y2), g.Max(b1_y1, b2_y1))
    zero = g.full(0, b1_x1)
    return g.Mul(g.Max(width, zero), g.Max(height, zero))


@emit("fused_get_iou")
def iou(g, w1, h1, w2, h2, inter, *, eps):  # type: ignore[no-untyped-def]
    """Intersection over union."""
    union = g.Add(g.Sub(g.Add(g.Mul(w1, h1), g.Mul(w2, h2)), inter), eps)
    return g.Div(inter, union)


@emit("fused_get_convex_diagonal_squared")
def convex_diagonal(g, b1_x1, b1_x2, b2_x1, b2_x2, b1_y1, b1_y2, b2_y1, b2_y2, *, eps):  # type: ignore[no-untyped-def]
    """The squared diagonal of the smallest box around two."""
    width = g.Sub(g.Max(b1_x2, b2_x2), g.Min(b1_x1, b2_x1))
    height = g.Sub(g.Max(b1_y2, b2_y2), g.Min(b1_y1, b2_y1))
    return g.Add(g.Add(g.Mul(width, width), g.Mul(height, height)), eps)


@emit("fused_get_center_dist")
def centre_distance(g, b1_x1, b1_x2, b2_x1, b2_x2, b1_y1, b1_y2, b2_y1, b2_y2):  # type: ignore[no-untyped-def]
    """The squared distance of two boxes' centres."""
    x = g.Sub(g.Add(b2_x1, b2_x2), g.Add(b1_x1, b1_x2))
    y = g.Sub(g.Add(b2_y1, b2_y2), g.Add(b1_y1, b1_y2))
    return g.Mul(g.Add(g.Mul(x, x), g.Mul(y, y)), 0.25)


@emit("fused_get_ciou_diagonal_angle")
def ciou_angle(g, w1, h1, w2, h2, *, eps):  # type: ignore[no-untyped-def]
    """4 / pi² times the squared difference of the diagonals' angles."""
    angle = g.Sub(g.Atan(g.Div(w2, g.Add(h2, eps))), g.Atan(g.Div(w1, g.Add(h1, eps))))
    return g.Mul(g.Mul(angle, angle), 4 / math.pi**2)


@emit("fused_get_ciou_result")
def ciou(g, v, iou, rho2, c2, *, eps):  # type: ignore[no-untyped-def]
    """iou - (distance² / diagonal² + v alpha), alpha = v / (v - iou + 1 + eps)."""
    alpha = g.Div(v, g.Add(g.Sub(v, iou), 1 + eps))
    return {"y": g.Sub(iou, g.Add(g.Div(rho2, c2), g.Mul(v, alpha))), "alpha": alpha}
