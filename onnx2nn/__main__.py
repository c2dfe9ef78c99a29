"""`python -m onnx2nn`."""

import sys

from onnx2nn.commands.entry import onnx2nn

sys.exit(onnx2nn())
