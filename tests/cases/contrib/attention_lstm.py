"""Cases of ONNX Runtime's LSTM with attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases import Case, f32
from tests.cases.contrib.fused import ms

_ENDS = np.array([5, 3], np.int32)


def _attended(
    *, both: bool = False, layer: bool = False, biased: bool = True, ends: Any = None, memory: Any = None, states: bool = False,
    peepholes: bool = False, **options: Any,
) -> Case:  # fmt: skip
    ways, hidden, depth, attention = 2 if both else 1, 4, 6, 7
    size = 5 if layer else depth
    inputs = [
        f32(5, 2, 3), f32(ways, 4 * hidden, 3 + size), f32(ways, 4 * hidden, hidden),
        f32(ways, 8 * hidden) if biased else None, ends, *[f32(ways, 2, hidden) if states else None] * 2,
        f32(ways, 3 * hidden) if peepholes else None, f32(ways, hidden, attention), f32(ways, depth, attention),
        f32(ways, attention), f32(2, 8, depth), memory, f32(ways, depth + hidden, size) if layer else None,
    ]  # fmt: skip
    direction = "bidirectional" if both else options.pop("direction", "forward")
    options = {"outputs": 3, "constant": (1, 2, 3, 7, 8, 9, 10, 13), **options}
    return ms("AttnLSTM", *inputs, hidden_size=hidden, direction=direction, tolerance=1e-4, **options)


CASES = [
    _attended(note="context"),
    _attended(layer=True, memory=np.array([8, 3], np.int32), note="layer"),
    _attended(both=True, layer=True, ends=_ENDS, memory=np.array([2, 7], np.int32), states=True, note="both ways"),
    _attended(direction="reverse", ends=_ENDS, biased=False, outputs=1, note="reverse"),
    _attended(peepholes=True, clip=0.5, note="peepholes"),
    _attended(activations=["Sigmoid", "Relu", "Softsign"], layer=True, input_forget=1),
]
