"""What an operator is: its row, the table of rows, shape values. `onnx2nn.ops` fills it, every importer reads it."""
