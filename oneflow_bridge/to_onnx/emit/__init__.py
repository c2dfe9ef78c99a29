"""The ONNX form of each OneFlow op, one file a family: values of a job's graph come in, ONNX nodes go out.

`lowering` imports every file of this folder and calls its functions; nothing else names a file here.
"""
