"""ONNX to PyTorch: a planned model comes in, a `torch.fx.GraphModule` goes out.

`importer.import_graph` is the entrance, for `loading` and `unfreeze`. Behind it are `attempt` (one import of a model)
and `builder` (nodes to recorded calls). The rooms, each of which says what it is for: `values` and `shape_rules` know
what is traced, `tracing` records it, `subgraphs` imports nodes with graphs, `blocks` makes a tree of the flat program,
`modules` is what the user gets, and `exporting` prepares it for torch.onnx.export.
"""
