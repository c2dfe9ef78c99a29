"""Turns an ONNX file into a PyTorch module: `python scripts/onnx2pytorch.py --onnx_path M.onnx`; see `--help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works from a clone that is not installed

from onnx2nn.commands.entry import onnx2pytorch

if __name__ == "__main__":
    sys.exit(onnx2pytorch())
