"""What ONNX Runtime answers to a drawn graph, and how an answer differs from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    RuntimeException,
)
from onnxruntime.capi.onnxruntime_pybind11_state import (
    NotImplemented as NoKernel,
)

Outputs = list[np.ndarray]


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Returns a session that computes node by node, without messages."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def answer(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Outputs:
    """Returns the outputs."""
    return list(session(model).run(None, feeds))


NO_CALL = (Fail, InvalidArgument, InvalidGraph, NoKernel, RuntimeException, RuntimeError)
"""What ONNX Runtime raises for no call of the operator, and where it has no kernel or array for the type."""


_SHOWN = {torch.bfloat16: np.int16, torch.float8_e4m3fn: np.uint8, torch.float8_e5m2: np.uint8}


def difference(found: Any, wanted: Any, rtol: float) -> str:
    """Returns how two results differ, empty where they are equal within the rounding of their type.

    Args:
        found: what a module gives: a tensor, texts, a list of them for a sequence, None for an empty optional.
        wanted: the same as ONNX Runtime gives it, with arrays in place of the tensors.
        rtol: the difference that is rounding, of the largest element.
    """
    if isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        return next(filter(None, (difference(a, b, rtol) for a, b in zip(found, wanted, strict=True))), "")
    if isinstance(wanted, list) or isinstance(found, list) or wanted is None or found is None:
        return "" if found is None and wanted is None else f"{found}, not {wanted}"
    return _apart(found, np.asarray(wanted), rtol)


def _apart(found: Any, wanted: np.ndarray, rtol: float) -> str:
    if wanted.dtype.kind in "OU":
        same = np.array_equal(np.asarray(found, object), wanted.astype(object))
        return "" if same else f"{found}, not {wanted.tolist()}"
    result = found.detach()
    if result.dtype in _SHOWN:  # ONNX Runtime shows their bits, and NaN has several
        wanted = torch.from_numpy(wanted.view(_SHOWN[result.dtype])).view(result.dtype).float().numpy()
        result = result.float()
    ours = result.numpy()
    if ours.shape != wanted.shape or ours.dtype != wanted.dtype:
        return f"{ours.dtype}{list(ours.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    if ours.dtype.kind != "f":
        return "" if np.array_equal(ours, wanted) else f"{ours.tolist()}, not {wanted.tolist()}"
    a, b = ours.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return f"{ours.tolist()}, not {wanted.tolist()}"
    scale = np.abs(b[finite]).max(initial=1e-3)
    bound = {"float16": 3e-3, "float64": 1e-6 if rtol < 1e-3 else rtol}.get(ours.dtype.name, rtol)
    apart = np.abs(a[finite] - b[finite]).max(initial=0) / scale
    return "" if apart <= bound else f"{apart:.2g} of the largest element apart"
