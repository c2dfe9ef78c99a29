"""Compares an import with ONNX Runtime: `outputs.verify` its outputs, `node_by_node.verify_nodes` every node.

A file and a module come in, a report goes out. The outputs' room and the commands may call this one.
"""
