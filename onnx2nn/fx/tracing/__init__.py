"""Recording: row bodies run on traced values, and become calls and layers of a `torch.fx` graph."""
