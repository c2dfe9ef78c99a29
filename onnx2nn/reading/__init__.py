"""Reads ONNX: a file, bytes or a ModelProto comes in; an `onnx_ir.Model` goes out, or a `ModelFileError`.

`reader.read` is the only entrance, for `onnx2nn.loading` and later rooms. Whatever the file, reading ends within the
limits and opens only files in the model's folder.
"""
