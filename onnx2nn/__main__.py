"""`python -m onnx2nn`."""

import sys

from onnx2nn.commands.main import main

sys.exit(main())
