"""Exports a OneFlow model: `oneflow2onnx.py module:factory --input x:1,3,224,224 -o m.onnx`; see `--help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a clone that is not installed

from oneflow_bridge.cli import oneflow2onnx

if __name__ == "__main__":
    sys.exit(oneflow2onnx())
