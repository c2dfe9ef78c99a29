"""How each OneFlow op is written in ONNX, one file a family. A file here is found by itself: nothing else names it."""
