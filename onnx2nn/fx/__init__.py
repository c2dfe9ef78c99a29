"""ONNX to PyTorch: a planned model comes in, a `torch.fx.GraphModule` goes out.

`importer.import_graph` is the entrance, for `loading` and `unfreeze`. Behind it are `attempts` (imports at different
sample sizes), `builder` (nodes to recorded calls), `tracer` (calls to a `torch.fx` graph), `placement` (the paths of
weights) and `graph_module` (the resulting module). Later rooms use its tensors and module classes.
"""
