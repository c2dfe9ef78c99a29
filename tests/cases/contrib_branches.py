"""Cases of ONNX Runtime's operators for residual streams of several branches."""

from __future__ import annotations

import numpy as np

from tests.cases import f32, of
from tests.cases.contrib_fused import ms

_HALF = of(np.float16, 2, 3, 4)

CASES = [
    ms("GatedAdd", f32(2, 3, 4), f32(2, 3, 4), f32(2, 3, 1)),
    ms("GatedAdd", _HALF, _HALF, of(np.float16, 2, 3, 1), note="float16", tolerance=1e-3),
    ms("ScaledSiLU", f32(2, 3, 4)),
    ms("ScaledSiLU", f32(2, 3, 4), alpha=0.3),
    ms("ScaledSiLU", f32(2, 3, 4), np.array(1.7, np.float32), note="scale"),
    ms("ScaledSiLU", _HALF, np.array(1.7, np.float32), note="float16", tolerance=1e-3),
    *(ms("GatedRMSNorm", f32(2, 3, 8), f32(8), f32(2, 3, 8), activation=name) for name in ("silu", "swish", "sigmoid")),
    ms("GatedRMSNorm", f32(2, 3, 8), f32(4), f32(2, 3, 8), epsilon=0.1, note="heads"),
    ms("BranchwiseRMSNorm", f32(2, 3, 4)),
    ms("BranchwiseRMSNorm", f32(2, 3, 4), f32(4), note="features"),
    ms("BranchwiseRMSNorm", f32(2, 3, 4), f32(3, 4), epsilon=0.1, note="branches"),
    ms("BranchwiseRMSNorm", f32(2, 5, 12), f32(12), num_branches=3, note="flat"),
    ms("BranchwiseRMSNorm", f32(2, 5, 12), f32(4), num_branches=3, note="flat, features"),
    ms("BranchwiseRMSNorm", _HALF, f32(4), tolerance=1e-3, note="float16"),
    ms("HyperConnectionPreMix", f32(2, 5, 3, 4), f32(2, 5, 3)),
    ms("HyperConnectionPreMix", f32(2, 5, 3, 4), f32(2, 5, 3, 1), reduction_scale=0.5),
    ms("HyperConnectionPreMix", f32(2, 5, 3, 4), f32(2, 5, 3, 4), note="features"),
    ms("HyperConnectionPreMix", f32(2, 5, 12), f32(2, 5, 12), num_branches=3, note="flat"),
    ms("HyperConnectionPreMix", f32(2, 5, 12), f32(2, 5, 3), num_branches=3, note="flat, branches"),
    ms("HyperConnectionPostMix", f32(2, 5, 3, 4), f32(2, 5, 4), f32(2, 5, 3)),
    ms("HyperConnectionPostMix", f32(2, 5, 3, 4), f32(2, 5, 4), f32(2, 5, 3, 1), f32(2, 5, 3, 3), note="mixed"),
    ms("HyperConnectionPostMix", f32(2, 5, 12), f32(2, 5, 4), f32(2, 5, 3, 4), f32(2, 5, 3, 3), num_branches=3),
    ms("EngramGate", f32(2, 5, 3, 4), f32(2, 5, 3, 4), f32(2, 5, 4), f32(3, 4), f32(3, 4)),
    ms("EngramGate", f32(2, 5, 3, 4), f32(2, 5, 3, 4), f32(2, 5, 4), f32(3, 4), f32(3, 4), f32(3, 4), epsilon=0.1, outputs=2),
]  # fmt: skip
