"""`python -m onnx2nn`."""

import sys

from onnx2nn.cli import main

sys.exit(main())
