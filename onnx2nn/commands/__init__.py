"""The command line: one module a command.

`main` is the command `onnx2nn`, `onnx2pytorch` the command of that name. A command takes its parsed arguments and a
terminal, calls the library as any user does, and returns an exit status. No other room may import this one.
"""
