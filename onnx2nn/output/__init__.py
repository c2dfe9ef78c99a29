"""Writes modules: saved files, ONNX, NCNN, Python source; and simplifies ONNX files.

An imported module and a path come in; files that were compared with the module go out, and a line that describes them.
The package's face and the commands may call this room.
"""
