"""Weights that go from a file to the processes of torch.distributed, to each its part."""
