"""A file, bytes or a ModelProto come in; an `onnx_ir.Model` goes out, within limits, or a `ModelFileError`."""
