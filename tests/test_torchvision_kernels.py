"""torchvision's operators in Python, against ONNX Runtime's of the same meaning."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from scripts import torchvision_kernels


def _answer(node: str, feeds: dict[str, np.ndarray], **attributes: object) -> np.ndarray:
    """Runs one node of ai.onnx 16 in ONNX Runtime."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    kind = TensorProto.INT64 if node == "NonMaxSuppression" else TensorProto.FLOAT
    outputs = [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph([helper.make_node(node, list(feeds), ["y"], **attributes)], node, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    return found


def _boxes(count: int) -> torch.Tensor:
    corners = torch.rand(count, 2, generator=torch.Generator().manual_seed(0)) * 20
    return torch.cat((corners, corners + 2 + torch.rand(count, 2, generator=torch.Generator().manual_seed(1)) * 10), 1)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.4])
def test_nms(threshold: float) -> None:
    torchvision_kernels.install()
    from torchvision.ops import nms

    boxes, scores = _boxes(60), torch.rand(60, generator=torch.Generator().manual_seed(2))
    feeds = {"boxes": boxes[None].numpy(), "scores": scores[None, None].numpy(), "most": np.array([60])}
    expected = _answer("NonMaxSuppression", {**feeds, "threshold": np.array([threshold], np.float32)})[:, 2]
    assert nms(boxes, scores, threshold).tolist() == expected.tolist()
    assert 1 < len(expected) < 60


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align(aligned: bool, ratio: int) -> None:
    torchvision_kernels.install()
    from torchvision.ops import roi_align

    image = torch.randn(2, 3, 32, 40, generator=torch.Generator().manual_seed(3))
    boxes, batches = _boxes(7), torch.tensor([0, 1, 1, 0, 0, 1, 0])
    found = roi_align(image, torch.cat((batches[:, None].float(), boxes), 1), (3, 4), 0.5, ratio, aligned)
    feeds = {"image": image.numpy(), "boxes": boxes.numpy(), "batches": batches.numpy()}
    mode = "half_pixel" if aligned else "output_half_pixel"
    sizes = {"output_height": 3, "output_width": 4, "spatial_scale": 0.5, "sampling_ratio": ratio}
    expected = _answer("RoiAlign", feeds, **sizes, coordinate_transformation_mode=mode)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
