"""Rows of ONNX Runtime's own operators (com.microsoft), one file a family; imported when a file has one of them."""
