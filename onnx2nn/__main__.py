"""`python -m onnx2nn`."""

import sys

from onnx2nn.commands.cli import main

sys.exit(main())
