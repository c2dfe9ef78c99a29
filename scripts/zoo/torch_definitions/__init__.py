"""Architectures that torchvision does not hold."""
