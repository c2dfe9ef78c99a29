"""Torch functions that create tensors without tensor arguments, and functions that draw random numbers."""

from __future__ import annotations

import torch

FACTORIES = {torch.zeros, torch.ones, torch.full, torch.arange, torch.empty, torch.eye, torch.tensor, torch.linspace}
FACTORIES |= {torch.hann_window, torch.hamming_window, torch.blackman_window, torch.scalar_tensor}
RANDOM = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal}
MAKING = FACTORIES | RANDOM
DRAWS = {torch.bernoulli, torch.multinomial, torch.nn.functional.dropout}
