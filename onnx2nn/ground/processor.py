"""What a file that was laid out for a processor takes from the processor that reads it."""

from __future__ import annotations

import importlib

_CHANNELS = {"AVX512": 16, "AVX2": 8}
"""The vector instructions that PyTorch finds → the channels in a block of ONNX Runtime's layout NCHWc."""


def channels_of_a_block() -> int | None:
    """Returns the channels in a block of ONNX Runtime's layout NCHWc on this processor, None where it is not known."""
    torch = importlib.import_module("torch")
    return _CHANNELS.get(torch.backends.cpu.get_cpu_capability())
