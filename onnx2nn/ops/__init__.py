"""The rows of the op table, one file a family.

A row's body takes a namespace of tensor functions, tensors and attributes, and returns tensors. `registry.load_rows`
imports every file of this folder.
"""
