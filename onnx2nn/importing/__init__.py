"""The part of an import that PyTorch and OneFlow share.

A model comes in. `plan` finds a row or function for each node, `walk.Walk` visits the nodes and calls the framework's
`Builder`, from which the program and the module go out. Also here: the model's inputs, facts about nodes, constants,
the table of layers, and the paths of constants and layers in the module tree. The passes over models, `fx`,
`oneflow_bridge.from_onnx` and all rooms behind them may call it.
"""
