"""OneFlow to ONNX: an `oneflow.nn` module or graph, or a compiled job, comes in; a checked ONNX file goes out.

The order is `trace` (model → job), `job_reader` (job → graph of OneFlow ops), `raising` (decomposed layers → one op),
`lowering` (OneFlow ops → ONNX operators, by the functions of `emit`), `optimize`, `write`, `check`. `exporter` calls
them; users and the command `oneflow2onnx` call `exporter.export`.
"""
