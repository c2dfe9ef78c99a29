"""The origin of a file: the exporter's metadata, and the author's names of modules and weights.

An `onnx_ir.Model` comes in; `restore.restore` renames its weights, unfolds operators that the exporter folded, and
returns an `Author`, from which `naming_reports` tells the missing keys. `loading` and the importers may call this room.
"""
