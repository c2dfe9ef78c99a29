"""torchvision's operators of detectors in Python, for where its compiled ones do not load (see torchvision_schemas).

`torch.onnx` writes a call of such an operator as NonMaxSuppression or RoiAlign; what it computes is needed to trace a
detector, and as the framework's own answer.
"""

from __future__ import annotations

import functools
import importlib

import torch

from scripts import torchvision_schemas

_ROI_ALIGN = (
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor"
)


@functools.lru_cache(maxsize=1)
def install() -> torch.library.Library | None:
    """Gives torchvision the kernels; does nothing where it has its own."""
    torchvision_schemas.predefine()
    from torchvision import extension

    if extension._has_ops():
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")  # lives as long as the cache holds it
    library.define(_ROI_ALIGN)
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CPU")
    library.impl("roi_align", _empty, "Meta")
    for name in ("boxes", "roi_align"):
        module = importlib.import_module(f"torchvision.ops.{name}")
        vars(module).update(_has_ops=_has_ops, _assert_has_ops=_assert_has_ops)
    return library


def _has_ops() -> bool:
    return True


def _assert_has_ops() -> None:
    """Does nothing. torch.jit compiles both, for which lambdas would not do."""


def _nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Indices of the boxes, best first, that no better kept one overlaps by more than `threshold`."""
    from torchvision.ops import box_iou

    order = scores.argsort(descending=True, stable=True)
    overlapping = box_iou(boxes[order], boxes[order]) > threshold
    kept = torch.ones(len(order), dtype=torch.bool)
    for i in range(len(order)):
        if kept[i]:
            kept[i + 1 :] &= ~overlapping[i, i + 1 :]
    return order[kept]


def _roi_align(image: torch.Tensor, rois: torch.Tensor, *options: float) -> torch.Tensor:
    """torchvision's own definition in Python, not compiled."""
    definition = importlib.import_module("torchvision.ops.roi_align")._roi_align
    found: torch.Tensor = definition.__wrapped__(image, rois, *options)
    return found


def _empty(image: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, *_: float) -> torch.Tensor:
    return image.new_empty((rois.shape[0], image.shape[1], height, width))
