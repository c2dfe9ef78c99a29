"""The op table: the type of a row, the registry of all rows, and shape values.

Rows come in from `onnx2nn.ops` and `onnx2nn.register`. The row of an operator in an opset version goes out. All rooms
behind this one may call it.
"""
